//! Transactions of every shape: what committed arrives whole and in order, what did not never does.

use std::time::Duration;

use bytes::Bytes;
use futures_util::SinkExt as _;
use testkit::stream::tally;
use testkit::{World, WorldOptions, wait_until};
use tokio_postgres::Client;

const PATIENCE: Duration = Duration::from_secs(60);

fn insert(aggregate: &str, version: i64) -> String {
    format!(
        "INSERT INTO outbox (id, aggregate_type, aggregate_id, version, event_type, payload) \
         VALUES (gen_random_uuid(), 'order', '{aggregate}', {version}, 'Changed', '{{}}')"
    )
}

async fn ids(client: &Client) -> Vec<String> {
    let rows = client.query("SELECT id::text FROM outbox", &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

async fn assert_exact(world: &World, count: usize) {
    let stored = world.messages(count, PATIENCE).await.unwrap();
    let client = world.postgres.connect().await.unwrap();
    let tally = tally(&ids(&client).await, &stored);
    assert_eq!((tally.committed, tally.in_stream), (count, count), "{tally:?}");
    assert_eq!((tally.lost, tally.doubled, tally.out_of_order), (0, 0, 0), "{tally:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn interleaved_transactions_are_whole_after_a_restart_between_their_commits() {
    let world = World::start(WorldOptions::default()).await.unwrap();
    let mut relay = world.relay().await.unwrap();
    let early = world.postgres.connect().await.unwrap();
    let late = world.postgres.connect().await.unwrap();
    early.batch_execute("BEGIN").await.unwrap();
    early.batch_execute(&insert("a", 1)).await.unwrap();
    late.batch_execute(&insert("b", 1)).await.unwrap();
    world.messages(1, PATIENCE).await.unwrap();
    relay.program.kill();
    early.batch_execute(&insert("a", 2)).await.unwrap();
    early.batch_execute("COMMIT").await.unwrap();
    let _relay = world.relay().await.unwrap();
    assert_exact(&world, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn copy_savepoints_and_rollbacks() {
    let world = World::start(WorldOptions::default()).await.unwrap();
    let client = world.postgres.connect().await.unwrap();
    let _relay = world.relay().await.unwrap();
    client.batch_execute(&format!("BEGIN; {}; ROLLBACK", insert("never", 1))).await.unwrap();
    let savepoint = format!(
        "BEGIN; {}; SAVEPOINT s; {}; ROLLBACK TO s; {}; COMMIT",
        insert("a", 1),
        insert("a", 99),
        insert("a", 2)
    );
    client.batch_execute(&savepoint).await.unwrap();
    // One COPY gives many rows one log position.
    let create = "CREATE TEMP TABLE source AS SELECT gen_random_uuid() AS id, n AS version \
         FROM generate_series(1, 500) n";
    client.batch_execute(create).await.unwrap();
    let rows = client.query("SELECT id::text, version FROM source ORDER BY version", &[]).await;
    let text: String = rows
        .unwrap()
        .iter()
        .map(|row| {
            let (id, version): (String, i32) = (row.get(0), row.get(1));
            format!("{id}\torder\tcopied\t{version}\tChanged\t{{}}\n")
        })
        .collect();
    let copy =
        "COPY outbox (id, aggregate_type, aggregate_id, version, event_type, payload) FROM STDIN";
    let sink = client.copy_in::<_, Bytes>(copy).await.unwrap();
    let mut sink = std::pin::pin!(sink);
    sink.send(Bytes::from(text)).await.unwrap();
    sink.finish().await.unwrap();
    assert_exact(&world, 502).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_compressible_payload_and_a_thousand_small_commits_survive_a_kill() {
    let world = World::start(WorldOptions::default()).await.unwrap();
    let mut relay = world.relay().await.unwrap();
    let client = world.postgres.connect().await.unwrap();
    let large = "INSERT INTO outbox (id, aggregate_type, aggregate_id, version, event_type, payload) \
         VALUES (gen_random_uuid(), 'order', 'large', 1, 'Changed', \
           jsonb_build_object('text', repeat('x', 1000000)))";
    client.batch_execute(large).await.unwrap();
    for version in 1..=1_000 {
        client.batch_execute(&insert("small", version)).await.unwrap();
        if version == 500 {
            relay.program.kill();
            relay = world.relay().await.unwrap();
        }
    }
    relay.program.kill();
    let _relay = world.relay().await.unwrap();
    assert_exact(&world, 1_001).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_stands_further_back_adds_nothing_to_the_stream() {
    let world = World::start(WorldOptions::default()).await.unwrap();
    let client = world.postgres.connect().await.unwrap();
    let copy = "SELECT pg_copy_logical_replication_slot('relay', 'older')";
    client.query_one(copy, &[]).await.unwrap();
    let mut relay = world.relay().await.unwrap();
    for version in 1..=100 {
        client.batch_execute(&insert("a", version)).await.unwrap();
    }
    let before = world.messages(100, PATIENCE).await.unwrap();
    relay.program.terminate(PATIENCE).await.unwrap();
    let config = world.config(|text| text.replace("slot: relay", "slot: older")).unwrap();
    let relay = world.relay_with(&config).unwrap();
    client.batch_execute(&insert("a", 101)).await.unwrap();
    let after = world.messages(101, PATIENCE).await.unwrap();
    assert_eq!(after[..100], before[..]);
    assert_exact(&world, 101).await;
    let passed_over = wait_until(PATIENCE, "rows passed over", || async {
        let status: serde_json::Value =
            serde_json::from_str(&relay.get("/status").await.ok()?.body).ok()?;
        status["counts"]["already_in_stream"].as_u64().filter(|count| *count > 0)
    });
    assert_eq!(passed_over.await.unwrap(), 100);
}
