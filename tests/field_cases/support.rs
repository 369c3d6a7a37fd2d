use std::time::Duration;

use serde_json::Value;
use testkit::stream::{Stored, tally};
use testkit::{Relay, World, wait_until};
use tokio_postgres::Client;

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

const INSERT: &str = "INSERT INTO outbox (id, aggregate_type, aggregate_id, version, event_type, payload) \
     VALUES (gen_random_uuid(), 'order', $1, $2, 'Changed', '{}') RETURNING id::text";

/// One row in a transaction of its own; gives its event id.
pub(crate) async fn insert(client: &Client, aggregate: &str, version: i64) -> String {
    client.query_one(INSERT, &[&aggregate, &version]).await.unwrap().get(0)
}

/// Versions `from..=to` of four aggregates, one row a transaction; gives the event ids.
pub(crate) async fn write(world: &World, from: i64, to: i64) -> Vec<String> {
    let client = world.postgres.connect().await.unwrap();
    let mut ids = Vec::new();
    for version in from..=to {
        for aggregate in ["a", "b", "c", "d"] {
            ids.push(insert(&client, aggregate, version).await);
        }
    }
    ids
}

/// All that was committed is in the stream, once, in order.
pub(crate) fn assert_exact(committed: &[String], stored: &[Stored]) {
    let tally = tally(committed, stored);
    assert_eq!((tally.lost, tally.doubled, tally.out_of_order), (0, 0, 0), "{tally:?}");
    assert_eq!(tally.in_stream, tally.committed, "{tally:?}");
}

pub(crate) async fn status(relay: &Relay) -> Value {
    serde_json::from_str(&relay.get("/status").await.unwrap().body).unwrap()
}

/// Waits until a count of the relay's status has come so far.
pub(crate) async fn count_reaches(relay: &Relay, pointer: &str, at_least: u64) {
    let what = format!("{pointer} is at least {at_least}");
    wait_until(PATIENCE, &what, || async {
        let status: Value = serde_json::from_str(&relay.get("/status").await.ok()?.body).ok()?;
        (status.pointer(pointer)?.as_u64()? >= at_least).then_some(())
    })
    .await
    .unwrap();
}

pub(crate) async fn active_pid(client: &Client) -> Option<i32> {
    let sql = "SELECT active_pid FROM pg_replication_slots";
    client.query_one(sql, &[]).await.unwrap().get(0)
}

/// Waits until the slot stands at or behind a position that it must reach.
pub(crate) async fn confirmed_reaches(world: &World, lsn: event::Lsn) {
    wait_until(PATIENCE, "the slot moves on", || async {
        (world.confirmed().await.ok()? >= lsn).then_some(())
    })
    .await
    .unwrap();
}
