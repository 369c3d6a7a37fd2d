//! Sessions that end and servers that are restarted: what heals is waited for, what does not ends
//! the relay; and what is not known is not shown as if it were.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use testkit::{Program, Relay, StopMode, World, WorldOptions, wait_until};

use crate::support::{PATIENCE, assert_exact, count_reaches, status, write};

/// How soon everything must be well again.
const RECOVERS_WITHIN: Duration = Duration::from_secs(30);

/// The relay publishes, and its look at the slot is fresh.
async fn recovers(world: &World, relay: &mut Relay, ids: &mut Vec<String>) {
    let version = i64::try_from(ids.len() / 4).unwrap() + 1;
    ids.extend(write(world, version, version).await);
    let stored = world.messages(ids.len(), RECOVERS_WITHIN).await.unwrap();
    assert_exact(ids, &stored);
    relay.ready(RECOVERS_WITHIN).await.unwrap();
    wait_until(RECOVERS_WITHIN, "the slot is seen again", || async {
        (!status(relay).await["slot"].is_null()).then_some(())
    })
    .await
    .unwrap();
    assert!(relay.program.is_running().unwrap(), "{}", relay.program.tail());
}

#[tokio::test(flavor = "multi_thread")]
async fn c21_ended_sessions_and_restarts_are_waited_out() {
    let mut world = World::start(WorldOptions::default()).await.unwrap();
    let mut relay = world.relay().await.unwrap();
    let mut ids = Vec::new();
    recovers(&world, &mut relay, &mut ids).await;
    for _ in 0..3 {
        let client = world.postgres.connect().await.unwrap();
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
             WHERE pid <> pg_backend_pid() AND backend_type IN ('walsender', 'client backend')";
        assert!(!client.query(end, &[]).await.unwrap().is_empty());
        recovers(&world, &mut relay, &mut ids).await;
    }
    world.postgres.stop(StopMode::Immediate, PATIENCE).await.unwrap();
    world.postgres.start_again().await.unwrap();
    recovers(&world, &mut relay, &mut ids).await;
    let counts = status(&relay).await["counts"].clone();
    assert!(counts["source_sessions"].as_u64().unwrap() >= 5, "{counts}");
}

/// A session of the kind that `max_wal_senders` counts.
fn take_a_sender(world: &World, log: &Path) -> Program {
    let target =
        format!("host=127.0.0.1 port={} user=postgres replication=database", world.postgres.port());
    let mut command = Command::new(world.postgres.bin().join("psql"));
    command.args(["-d", &format!("{target} dbname=postgres"), "-c", "SELECT pg_sleep(600)"]);
    Program::start("psql", &mut command, log).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn c21_a_server_without_free_sessions_is_waited_out() {
    let options =
        WorldOptions { postgres: vec![("max_wal_senders", "2")], ..WorldOptions::default() };
    let world = World::start(options).await.unwrap();
    let mut relay = world.relay().await.unwrap();
    let mut ids = Vec::new();
    recovers(&world, &mut relay, &mut ids).await;
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("psql.log");
    let first = take_a_sender(&world, &log);
    relay.program.pause().unwrap();
    let client = world.postgres.connect().await.unwrap();
    let end = "SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots";
    client.query_one(end, &[]).await.unwrap();
    let second = take_a_sender(&world, &log);
    wait_until(PATIENCE, "both sessions are taken", || async {
        let sql = "SELECT count(*) FROM pg_stat_activity \
             WHERE backend_type = 'walsender' AND query LIKE '%pg_sleep%'";
        (client.query_one(sql, &[]).await.ok()?.get::<_, i64>(0) == 2).then_some(())
    })
    .await
    .unwrap();
    relay.program.resume().unwrap();
    relay.not_ready(RECOVERS_WITHIN, "53300").await.unwrap();
    let tries = || relay.program.log().matches("53300").count();
    let (began, before) = (Instant::now(), tries());
    tokio::time::sleep(Duration::from_secs(20)).await;
    let tried = tries() - before;
    assert!(tried as u64 <= began.elapsed().as_secs() + 1, "{tried} tries");
    // The server notices only then that a client is gone.
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%pg_sleep%' \
         AND backend_type = 'walsender'";
    client.query(end, &[]).await.unwrap();
    drop((first, second));
    recovers(&world, &mut relay, &mut ids).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c21_a_wrong_login_ends_the_relay_with_words() {
    let world = World::start(WorldOptions::default()).await.unwrap();
    world.postgres.require_password("locked").await.unwrap();
    let client = world.postgres.connect().await.unwrap();
    let role = "CREATE ROLE locked LOGIN SUPERUSER REPLICATION PASSWORD 'right'";
    client.batch_execute(role).await.unwrap();
    let own = world.postgres.url("postgres");
    let wrong = world.postgres.url("locked:hunter2");
    for (url, code, advice) in [
        (wrong, "28P01", "mend source.url, its password"),
        (world.postgres.url_of("postgres", "nowhere"), "3D000", "mend the database name"),
    ] {
        let config = world.config(|text| text.replace(&own, &url)).unwrap();
        let mut relay = world.relay_with(&config).unwrap();
        let ended = relay.program.wait_exit(RECOVERS_WITHIN).await.unwrap();
        let log = relay.program.log();
        assert_eq!(ended.code(), Some(3), "{log}");
        assert!(log.contains(code) && log.contains(advice), "{log}");
        assert!(!log.contains("hunter2"), "the password is in the log: {log}");
    }
}

/// A metric's value; `None` when it is absent.
async fn metric(relay: &Relay, name: &str) -> Option<f64> {
    let body = relay.get("/metrics").await.unwrap().body;
    let line = body.lines().find(|line| line.split([' ', '{']).next() == Some(name))?;
    line.rsplit(' ').next()?.parse().ok()
}

async fn metric_becomes(relay: &Relay, name: &str, is: impl Fn(Option<f64>) -> bool) {
    wait_until(RECOVERS_WITHIN, name, || async { is(metric(relay, name).await).then_some(()) })
        .await
        .unwrap();
}

const LAG: &str = "outbox_relay_slot_lag_bytes";
const SLOT_UP: &str = "outbox_relay_slot_up";
const OLDEST: &str = "outbox_relay_oldest_unacknowledged_age_seconds";

/// The slot is known to be unknown.
async fn goes_blind(relay: &Relay) {
    metric_becomes(relay, SLOT_UP, |value| value == Some(0.0)).await;
    assert!(metric(relay, LAG).await.is_none_or(f64::is_nan));
}

#[tokio::test(flavor = "multi_thread")]
async fn c40_what_is_not_known_is_never_shown_as_well() {
    let mut world = World::start(WorldOptions::default()).await.unwrap();
    let relay = world.relay().await.unwrap();
    write(&world, 1, 5).await;
    count_reaches(&relay, "/counts/published", 20).await;
    metric_becomes(&relay, LAG, |value| value.is_some_and(|value| value >= 0.0)).await;
    assert!(metric(&relay, "outbox_relay_slot_retained_bytes").await.is_some());
    assert!(!status(&relay).await["slot"]["wal_status"].is_null());

    // With the database gone nobody knows what waits.
    world.postgres.stop(StopMode::Immediate, PATIENCE).await.unwrap();
    goes_blind(&relay).await;
    metric_becomes(&relay, OLDEST, |value| value.is_none_or(f64::is_nan)).await;
    world.postgres.start_again().await.unwrap();
    relay.ready(PATIENCE).await.unwrap();
    metric_becomes(&relay, SLOT_UP, |value| value == Some(1.0)).await;

    // With the broker gone the oldest event grows older.
    world.nats.kill();
    write(&world, 6, 30).await;
    metric_becomes(&relay, OLDEST, |value| value.is_some_and(|value| value > 0.0)).await;
    let (began, before) = (Instant::now(), metric(&relay, OLDEST).await.unwrap());
    tokio::time::sleep(Duration::from_secs(20)).await;
    let grown = metric(&relay, OLDEST).await.unwrap() - before;
    let passed = began.elapsed().as_secs_f64();
    assert!((grown - passed).abs() <= passed / 12.0, "grown by {grown} s in {passed} s");
    assert_eq!(metric(&relay, "outbox_relay_ready").await, Some(0.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn c40_a_slot_that_is_gone_or_hidden_is_not_a_slot_without_lag() {
    let world = World::start(WorldOptions::default()).await.unwrap();
    let config = world.config(|text| text).unwrap();
    let output = world.command(&config, &["init", "--role", "watcher"]).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (own, theirs) = (world.postgres.url("postgres"), world.postgres.url("watcher"));
    let config = world.config(|text| text.replace(&own, &theirs)).unwrap();
    let mut relay = world.relay_with(&config).unwrap();
    relay.ready(PATIENCE).await.unwrap();
    metric_becomes(&relay, SLOT_UP, |value| value == Some(1.0)).await;
    let client = world.postgres.connect().await.unwrap();
    client.batch_execute("REVOKE SELECT ON pg_replication_slots FROM PUBLIC").await.unwrap();
    goes_blind(&relay).await;
    client.batch_execute("GRANT SELECT ON pg_replication_slots TO PUBLIC").await.unwrap();
    metric_becomes(&relay, SLOT_UP, |value| value == Some(1.0)).await;

    let drop = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots; \
         SELECT pg_drop_replication_slot('relay')";
    wait_until(PATIENCE, "the slot is dropped", || async { client.batch_execute(drop).await.ok() })
        .await
        .unwrap();
    let ended = relay.program.wait_exit(RECOVERS_WITHIN).await.unwrap();
    assert_eq!(ended.code(), Some(3), "{}", relay.program.tail());
    assert!(relay.program.log().contains("slot relay does not exist"), "{}", relay.program.tail());
}
