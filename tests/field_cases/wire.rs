//! Single messages that get lost, and acks that take their time.

use std::time::{Duration, Instant};

use testkit::{Proxies, World, WorldOptions};

use crate::support::{PATIENCE, assert_exact, count_reaches, insert, status, write};

async fn proxied() -> World {
    World::start(WorldOptions { proxied: true, ..WorldOptions::default() }).await.unwrap()
}

fn proxies(world: &World) -> &Proxies {
    world.proxies.as_ref().unwrap()
}

/// 200 rows of four aggregates, with something lost on the way.
async fn with_a_loss(lose: impl Fn(&Proxies)) {
    let world = proxied().await;
    // A backlog, so that many publishes are under way at once.
    let ids = write(&world, 1, 50).await;
    lose(proxies(&world));
    let relay = world.relay().await.unwrap();
    assert_exact(&ids, &world.messages(200, PATIENCE).await.unwrap());
    assert_eq!(proxies(&world).nats.swallowed(), 1);
    count_reaches(&relay, "/counts/published", 200).await;
    // The refusal of the next publish tells of a lost one, not the time that an ack may take.
    let log = relay.program.log();
    assert!(!log.contains("ack_timeout"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn c05_a_lost_publish_is_not_overtaken() {
    with_a_loss(|proxies| proxies.nats.swallow_publish(37)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c05_a_lost_ack_is_covered_by_the_next() {
    with_a_loss(|proxies| proxies.nats.swallow_ack(37)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t3_a_publish_that_times_out_keeps_its_place() {
    let world = proxied().await;
    let relay = world.relay().await.unwrap();
    let mut ids = write(&world, 1, 2).await;
    count_reaches(&relay, "/counts/published", 8).await;
    // Nothing follows that the server could refuse: only the missing ack can tell.
    proxies(&world).nats.swallow_publish(0);
    let client = world.postgres.connect().await.unwrap();
    ids.push(insert(&client, "a", 3).await);
    relay.program.wait_for_log(PATIENCE, "ack_timeout").await.unwrap();
    ids.push(insert(&client, "a", 4).await);
    assert_exact(&ids, &world.messages(10, PATIENCE).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn c53_many_tiny_transactions_do_not_wait_for_each_other() {
    const ROWS: usize = 20_000;
    const ACK_DELAY: Duration = Duration::from_millis(5);
    let world = proxied().await;
    let client = world.postgres.connect().await.unwrap();
    let commits = format!(
        "DO $$ BEGIN FOR n IN 1..{ROWS} LOOP \
         INSERT INTO outbox (id, aggregate_type, aggregate_id, version, event_type, payload) \
         VALUES (gen_random_uuid(), 'order', (n % 100)::text, n, 'Changed', '{{}}'); \
         COMMIT; END LOOP; END $$"
    );
    client.batch_execute(&commits).await.unwrap();
    proxies(&world).nats.delay_acks(ACK_DELAY);
    let began = Instant::now();
    let relay = world.relay().await.unwrap();
    count_reaches(&relay, "/counts/published", ROWS as u64).await;
    let took = began.elapsed();
    let one_by_one = ACK_DELAY * u32::try_from(ROWS).unwrap();
    assert!(took < one_by_one / 2, "{took:?}, and one by one {one_by_one:?}");
    let rows = client.query("SELECT id::text FROM outbox", &[]).await.unwrap();
    let ids: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert_exact(&ids, &world.messages(ROWS, PATIENCE).await.unwrap());
    // Each confirmation is put on record first.
    let recorded = testkit::wait_until(PATIENCE, "the record's writes are counted", || async {
        let sql = "SELECT n_tup_upd + n_tup_ins FROM pg_stat_user_tables WHERE relname = 'record'";
        let count: i64 = client.query_one(sql, &[]).await.ok()?.get(0);
        (count > 0).then_some(count)
    });
    let recorded = recorded.await.unwrap();
    let sessions = status(&relay).await["counts"]["sink_sessions"].as_u64().unwrap();
    assert_eq!(sessions, 1, "no ack was late enough to give the session up");
    let most = i64::try_from(ROWS / 100).unwrap() + i64::try_from(took.as_secs()).unwrap();
    assert!(recorded <= most, "{recorded} confirmations of {ROWS} commits in {took:?}");
}
