//! A committed row reaches the stream, once and in order, whatever happens to the relay.

use std::time::Duration;

use testkit::stream::tally;
use testkit::{World, WorldOptions, wait_until};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Versions `from..=to` of 20 aggregates, one row a transaction; gives the event ids.
pub(crate) async fn write(world: &World, from: i64, to: i64) -> Vec<String> {
    let client = world.postgres.connect().await.unwrap();
    let insert = "INSERT INTO outbox (id, aggregate_type, aggregate_id, version, event_type, payload) \
         VALUES (gen_random_uuid(), 'order', $1, $2, 'Changed', '{}') RETURNING id::text";
    let insert = client.prepare(insert).await.unwrap();
    let mut ids = Vec::new();
    for version in from..=to {
        for aggregate in 0..20 {
            let row = client.query_one(&insert, &[&aggregate.to_string(), &version]).await;
            ids.push(row.unwrap().get(0));
        }
    }
    ids
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_written_before_during_and_after_a_restart_arrive_once() {
    let world = World::start(WorldOptions::default()).await.unwrap();
    let mut ids = write(&world, 1, 10).await;
    let mut relay = world.relay().await.unwrap();
    ids.extend(write(&world, 11, 20).await);
    world.messages(400, PATIENCE).await.unwrap();
    relay.program.kill();
    ids.extend(write(&world, 21, 30).await);
    let mut relay = world.relay().await.unwrap();
    let stored = world.messages(600, PATIENCE).await.unwrap();
    let tally = tally(&ids, &stored);
    assert_eq!((tally.committed, tally.in_stream), (600, 600));
    assert_eq!((tally.lost, tally.doubled, tally.out_of_order), (0, 0, 0));

    let end = world.wal_end().await.unwrap();
    let status = relay.program.terminate(PATIENCE).await.unwrap();
    assert_eq!(status.code(), Some(0), "{}", relay.program.tail());
    assert!(relay.program.log().contains("stopped"));
    assert!(world.confirmed().await.unwrap() <= end);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_with_a_thousand_rows_in_flight_loses_and_doubles_nothing() {
    let world = World::start(WorldOptions::default()).await.unwrap();
    let mut relay = world.relay().await.unwrap();
    world.nats.pause().unwrap();
    let before = world.confirmed().await.unwrap();
    let ids = write(&world, 1, 50).await;
    // The rows are in the relay's hands once its queue has grown.
    wait_until(PATIENCE, "rows in flight", || async {
        let status: serde_json::Value =
            serde_json::from_str(&relay.get("/status").await.ok()?.body).ok()?;
        (status["in_flight"]["events"].as_u64()? >= 1_000).then_some(())
    })
    .await
    .unwrap();
    let first_row_end = before;
    for _ in 0..50 {
        let confirmed = world.confirmed().await.unwrap();
        assert!(confirmed <= world.wal_end().await.unwrap());
        assert_eq!(confirmed, first_row_end, "nothing was acknowledged, so nothing is confirmed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    relay.program.kill();
    world.nats.resume().unwrap();
    let _relay = world.relay().await.unwrap();
    let stored = world.messages(1_000, PATIENCE).await.unwrap();
    let tally = tally(&ids, &stored);
    assert_eq!((tally.in_stream, tally.lost, tally.doubled, tally.out_of_order), (1_000, 0, 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn confirmations_go_on_while_events_come_without_pause() {
    let world = World::start(WorldOptions::default()).await.unwrap();
    let _relay = world.relay().await.unwrap();
    let writer = world.postgres.connect().await.unwrap();
    let insert = "INSERT INTO outbox (id, aggregate_type, aggregate_id, version, event_type, payload) \
         VALUES (gen_random_uuid(), 'order', 'busy', 1, 'Changed', '{}')";
    let writing = tokio::spawn(async move {
        loop {
            writer.execute(insert, &[]).await.unwrap();
        }
    });
    for _ in 0..3 {
        let end = world.wal_end().await.unwrap();
        wait_until(PATIENCE, "the slot moves on", || async {
            (world.confirmed().await.ok()? >= end).then_some(())
        })
        .await
        .unwrap();
    }
    assert!(!writing.is_finished());
    writing.abort();
}
