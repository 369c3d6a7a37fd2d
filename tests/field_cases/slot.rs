//! What happens to the slot, and to the session that holds it.

use std::time::{Duration, Instant};

use testkit::{StopMode, World, WorldOptions, wait_until};

use crate::support::{
    PATIENCE, active_pid, assert_exact, confirmed_reaches, count_reaches, insert, status, write,
};

#[tokio::test(flavor = "multi_thread")]
async fn c01_the_slot_never_passes_rows_in_flight() {
    let world = World::start(WorldOptions::default()).await.unwrap();
    let client = world.postgres.connect().await.unwrap();
    client.batch_execute("CREATE TABLE unpublished (n bigint)").await.unwrap();
    let mut relay = world.relay().await.unwrap();
    world.nats.pause().unwrap();
    let before = world.wal_end().await.unwrap();
    let mut ids = Vec::new();
    for version in 1..=10 {
        ids.push(insert(&client, "a", version).await);
    }
    let until = Instant::now() + Duration::from_secs(30);
    let mut samples = 0;
    while Instant::now() < until {
        let write = "INSERT INTO unpublished SELECT generate_series(1, 100)";
        client.batch_execute(write).await.unwrap();
        assert!(world.confirmed().await.unwrap() <= before, "sample {samples}");
        samples += 1;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    assert!(samples >= 30, "{samples}");
    relay.program.kill();
    world.nats.resume().unwrap();
    let _relay = world.relay().await.unwrap();
    assert_exact(&ids, &world.messages(10, PATIENCE).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn c12_an_own_dead_session_that_holds_the_slot_is_waited_out() {
    let options =
        WorldOptions { postgres: vec![("wal_sender_timeout", "20s")], ..WorldOptions::default() };
    let world = World::start(options).await.unwrap();
    let client = world.postgres.connect().await.unwrap();
    let frozen = world.relay().await.unwrap();
    let holder = active_pid(&client).await.unwrap();
    frozen.program.pause().unwrap();
    let began = Instant::now();

    let mut relay = world.relay_with(&world.config(|text| text).unwrap()).unwrap();
    let reason = relay.not_ready(PATIENCE, &format!("PID {holder}")).await.unwrap();
    assert!(reason.contains("\"standby\":true"), "{reason}");
    let ids = write(&world, 1, 5).await;
    wait_until(PATIENCE, "the server gives the slot up", || async {
        (active_pid(&client).await != Some(holder)).then_some(())
    })
    .await
    .unwrap();
    let released = Instant::now();
    relay.ready(Duration::from_secs(5)).await.unwrap();
    assert!(released.elapsed() < Duration::from_secs(5));
    assert!(relay.program.is_running().unwrap());
    let tries = relay.program.log().matches("standing by").count();
    assert!(tries as u64 <= began.elapsed().as_secs() + 1, "{tries} tries");
    assert_exact(&ids, &world.messages(20, PATIENCE).await.unwrap());
    frozen.program.resume().unwrap();
}

async fn fast_stop(hold_back: &str) {
    let options =
        WorldOptions { delivery: format!("{{hold_back: {hold_back}}}"), ..WorldOptions::default() };
    let mut world = World::start(options).await.unwrap();
    let relay = world.relay().await.unwrap();
    let client = world.postgres.connect().await.unwrap();
    let id = insert(&client, "a", 1).await;
    world.messages(1, PATIENCE).await.unwrap();
    let write = "CREATE TABLE unpublished AS SELECT generate_series(1, 1000) AS n";
    client.batch_execute(write).await.unwrap();
    drop(client);

    let took = world.postgres.stop(StopMode::Fast, Duration::from_secs(15)).await.unwrap();
    assert!(took < Duration::from_secs(5), "{took:?}");
    relay.not_ready(PATIENCE, "PostgreSQL").await.unwrap();
    world.postgres.start_again().await.unwrap();
    relay.ready(PATIENCE).await.unwrap();
    let client = world.postgres.connect().await.unwrap();
    let second = insert(&client, "a", 2).await;
    assert_exact(&[id, second], &world.messages(2, PATIENCE).await.unwrap());
    for line in relay.program.log().lines().filter(|line| line.contains("waiting for a dependency"))
    {
        let pause = line.split_once("retry_in_seconds=").unwrap().1;
        let pause: f64 = pause.split(' ').next().unwrap().parse().unwrap();
        assert!(pause >= 1.0, "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c14_a_fast_shutdown_of_the_database_is_not_held_up() {
    fast_stop("0s").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c14_a_fast_shutdown_is_not_held_up_while_confirmations_are_held_back() {
    fast_stop("2m").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c20_a_paused_broker_does_not_cost_the_replication_session() {
    let options =
        WorldOptions { postgres: vec![("wal_sender_timeout", "5s")], ..WorldOptions::default() };
    let world = World::start(options).await.unwrap();
    let client = world.postgres.connect().await.unwrap();
    let relay = world.relay().await.unwrap();
    let session = active_pid(&client).await.unwrap();

    world.nats.pause().unwrap();
    let rows = "INSERT INTO outbox (id, aggregate_type, aggregate_id, version, event_type, payload) \
         SELECT gen_random_uuid(), 'order', (n % 100)::text, 1 + n / 100, 'Changed', '{}' \
         FROM generate_series(0, 19999) n RETURNING id::text";
    let ids: Vec<String> =
        client.query(rows, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    let paused = Instant::now();
    relay.not_ready(Duration::from_secs(15), "NATS").await.unwrap();
    while paused.elapsed() < Duration::from_secs(60) {
        assert_eq!(active_pid(&client).await, Some(session));
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    world.nats.resume().unwrap();
    assert_exact(&ids, &world.messages(20_000, PATIENCE).await.unwrap());
    assert_eq!(active_pid(&client).await, Some(session));
    assert_eq!(status(&relay).await["counts"]["source_sessions"], 1);

    // A quiet server: the relay's own liveness checks must not end anything.
    relay.ready(PATIENCE).await.unwrap();
    let sink_sessions = status(&relay).await["counts"]["sink_sessions"].clone();
    let quiet = Instant::now();
    while quiet.elapsed() < Duration::from_secs(300) {
        assert_eq!(active_pid(&client).await, Some(session));
        assert_eq!(relay.get("/readyz").await.unwrap().status, 200);
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    let counts = status(&relay).await["counts"].clone();
    assert_eq!((&counts["source_sessions"], &counts["sink_sessions"]), (&1.into(), &sink_sessions));
}

#[tokio::test(flavor = "multi_thread")]
async fn c20_a_silent_database_is_noticed() {
    let world = World::start(WorldOptions::default()).await.unwrap();
    let relay = world.relay().await.unwrap();
    world.postgres.pause().unwrap();
    let paused = Instant::now();
    relay.not_ready(Duration::from_secs(30), "no answer within").await.unwrap();
    tokio::time::sleep(Duration::from_secs(60).saturating_sub(paused.elapsed())).await;
    world.postgres.resume().unwrap();
    relay.ready(PATIENCE).await.unwrap();
    let ids = write(&world, 1, 1).await;
    assert_exact(&ids, &world.messages(4, PATIENCE).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_outbox_pins_no_log_of_a_busy_database() {
    let world = World::start(WorldOptions::default()).await.unwrap();
    let relay = world.relay().await.unwrap();
    let client = world.postgres.connect().await.unwrap();
    let write =
        "CREATE TABLE busy AS SELECT repeat('x', 1000) AS text FROM generate_series(1, 20000)";
    client.batch_execute(write).await.unwrap();
    // Log without events is confirmed in steps of 64 KiB.
    let end = world.wal_end().await.unwrap();
    confirmed_reaches(&world, event::Lsn::new(end.get() - 64 * 1024)).await;
    insert(&client, "a", 1).await;
    count_reaches(&relay, "/counts/published", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t8_the_log_crosses_four_gibibytes() {
    let mut world =
        World::start(WorldOptions { bare: true, ..WorldOptions::default() }).await.unwrap();
    world.postgres.stop(StopMode::Fast, PATIENCE).await.unwrap();
    // The last segment of 16 MiB before 1/0.
    world.postgres.reset_log("0000000100000000000000FF").unwrap();
    world.postgres.start_again().await.unwrap();
    let output = world.command(&world.config(|text| text).unwrap(), &["init"]).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut relay = world.relay().await.unwrap();
    let mut ids = write(&world, 1, 2).await;
    world.messages(8, PATIENCE).await.unwrap();
    assert!(world.wal_end().await.unwrap() < event::Lsn::new(1 << 32));
    let client = world.postgres.connect().await.unwrap();
    // One transaction lies across it, and the relay is killed in it.
    client.batch_execute("BEGIN").await.unwrap();
    ids.push(insert(&client, "across", 1).await);
    let filler = "CREATE TABLE filler AS SELECT repeat(md5(n::text), 60) AS text \
         FROM generate_series(1, 12000) n";
    client.batch_execute(filler).await.unwrap();
    ids.push(insert(&client, "across", 2).await);
    relay.program.kill();
    client.batch_execute("COMMIT").await.unwrap();
    assert!(world.wal_end().await.unwrap() > event::Lsn::new(1 << 32));
    let mut relay = world.relay().await.unwrap();
    ids.extend(write(&world, 3, 4).await);
    assert_exact(&ids, &world.messages(18, PATIENCE).await.unwrap());
    confirmed_reaches(&world, event::Lsn::new(1 << 32)).await;
    relay.program.kill();
    let _relay = world.relay().await.unwrap();
    ids.extend(write(&world, 5, 5).await);
    assert_exact(&ids, &world.messages(22, PATIENCE).await.unwrap());
}
