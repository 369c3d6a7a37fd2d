//! Transactions that appear in the stream at once, and what happens where that cannot be.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use event::{Position, headers};
use testkit::stream::{Stored, count, tally};
use testkit::{Relay, World, WorldOptions, wait_until};
use tokio_postgres::Client;

use crate::no_loss::PATIENCE;

const NO_BATCHES: &str = "the stream takes no atomic batches";
const BY_EVENT: &str = "a transaction appears event by event";
/// How often the relay is killed, and then the broker.
const KILLS: usize = 4;
/// So much rests a writer between two transactions.
const PACE: Duration = Duration::from_millis(10);

struct Atomic {
    world: World,
    config: PathBuf,
    /// Whether the server knows atomic batches at all.
    capable: bool,
}

impl Atomic {
    async fn start(table: impl FnOnce(String) -> String) -> Self {
        let options = WorldOptions { bare: true, ..WorldOptions::default() };
        let table = table(options.table.clone());
        let world = World::start(WorldOptions { table, ..options }).await.unwrap();
        let atomic = |text: String| {
            text.replace("stream: OUTBOX", "stream: OUTBOX, atomic_transactions: true")
        };
        let config = world.config(atomic).unwrap();
        let output = world.command(&config, &["init"]).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let client = world.nats.client().await.unwrap();
        let capable = client.is_server_compatible(2, 12, 0);
        Self { world, config, capable }
    }

    async fn relay(&self) -> Relay {
        let relay = self.world.relay_with(&self.config).unwrap();
        relay.ready(PATIENCE).await.unwrap();
        relay
    }

    /// Waits until the stream has some ten transactions of seven more.
    async fn more(&self) {
        let nats = self.world.nats.client().await.unwrap();
        let before = count(&nats, "OUTBOX").await.unwrap();
        wait_until(PATIENCE, "more messages", || async {
            (count(&nats, "OUTBOX").await.ok()? > before + 70).then_some(())
        })
        .await
        .unwrap();
    }
}

/// One transaction of so many events of one aggregate.
async fn commit(client: &Client, aggregate: &str, versions: std::ops::Range<i64>) -> Vec<String> {
    let sql = "INSERT INTO outbox (id, aggregate_type, aggregate_id, version, event_type, payload) \
               SELECT gen_random_uuid(), 'order', $1, v, 'Changed', '{}' \
               FROM generate_series($2::bigint, $3::bigint) v RETURNING id::text";
    let last = versions.end - 1;
    let rows = client.query(sql, &[&aggregate, &versions.start, &last]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

fn assert_exact(ids: &[String], stored: &[Stored]) {
    let tally = tally(ids, stored);
    assert_eq!((tally.committed, tally.in_stream), (ids.len(), ids.len()), "{tally:?}");
    assert_eq!((tally.lost, tally.doubled, tally.out_of_order), (0, 0, 0), "{tally:?}");
}

/// Of each transaction how many events it has, and the batches that brought them.
fn batches(stored: &[Stored]) -> BTreeMap<u64, (usize, Vec<String>)> {
    let mut transactions = BTreeMap::<u64, (usize, Vec<String>)>::new();
    for message in stored {
        let position: Position = message.header(headers::POSITION).parse().unwrap();
        let (events, batches) = transactions.entry(position.commit_lsn.get()).or_default();
        *events += 1;
        let batch = message.header("Nats-Batch-Id").to_owned();
        if !batches.contains(&batch) {
            batches.push(batch);
        }
    }
    transactions
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_is_in_the_stream_whole_or_not_at_all() {
    let atomic = Atomic::start(|table| table).await;
    let check = atomic.world.command(&atomic.config, &["check", "--json"]).unwrap();
    let check = String::from_utf8_lossy(&check.stdout).into_owned();
    assert!(check.contains("stream_batches"), "{check}");
    let relay = atomic.relay().await;
    let writer = atomic.world.postgres.connect().await.unwrap();
    let mut ids = Vec::new();
    for transaction in 0..100 {
        ids.extend(commit(&writer, "tens", transaction * 10..transaction * 10 + 10).await);
    }
    ids.extend(commit(&writer, "one", 1..2).await);
    ids.extend(commit(&writer, "thousand", 0..1_000).await);
    ids.extend(commit(&writer, "many", 0..1_001).await);
    ids.extend(commit(&writer, "two", 0..2).await);
    let stored = atomic.world.messages(ids.len(), PATIENCE).await.unwrap();
    assert_exact(&ids, &stored);

    let log = relay.program.log();
    assert_eq!(log.contains(NO_BATCHES), !atomic.capable, "{log}");
    assert_eq!(log.matches(BY_EVENT).count(), usize::from(atomic.capable), "{log}");
    let status = relay.get("/status").await.unwrap().body;
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["counts"]["split_transactions"], u64::from(atomic.capable), "{status}");
    for (events, batches) in batches(&stored).into_values() {
        let whole = atomic.capable && (2..=1_000).contains(&events);
        assert_eq!(batches.len(), 1, "{events} events");
        assert_eq!(batches[0].is_empty(), !whole, "{events} events in {batches:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_in_the_middle_tear_no_transaction() {
    let mut atomic = Atomic::start(|table| table).await;
    let writer = atomic.world.postgres.connect().await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let writing = tokio::spawn(async move {
        let mut ids = Vec::new();
        for transaction in 0.. {
            if stopped.load(Ordering::SeqCst) {
                break;
            }
            let aggregate = (transaction % 3).to_string();
            let version = transaction / 3 * 7;
            ids.extend(commit(&writer, &aggregate, version..version + 7).await);
            tokio::time::sleep(PACE).await;
        }
        ids
    });
    let mut relay = atomic.relay().await;
    for _ in 0..KILLS {
        atomic.more().await;
        relay.program.kill();
        relay = atomic.relay().await;
    }
    atomic.more().await;
    if atomic.capable {
        let mut transactions = batches(&atomic.world.stream().await.unwrap());
        transactions.pop_last();
        assert_eq!(torn(transactions), 0);
    }
    for _ in 0..KILLS {
        atomic.more().await;
        atomic.world.nats.kill();
        atomic.world.nats.start_again().await.unwrap();
        relay.ready(PATIENCE).await.unwrap();
    }
    stop.store(true, Ordering::SeqCst);
    let ids = writing.await.unwrap();
    let stored = atomic.world.messages(ids.len(), PATIENCE).await.unwrap();
    assert_exact(&ids, &stored);
    if atomic.capable {
        let transactions = batches(&stored);
        assert_eq!(transactions.len() * 7, ids.len());
        // A broker stores event after event, and may die between two.
        let torn = torn(transactions);
        assert!(torn <= KILLS, "{torn} transactions are torn");
    }
}

/// How many transactions of seven did not come as one.
fn torn(transactions: BTreeMap<u64, (usize, Vec<String>)>) -> usize {
    let torn = transactions.into_values().filter(|(events, batches)| {
        assert_eq!(*events, 7, "{batches:?}");
        batches.len() > 1 || batches[0].is_empty()
    });
    torn.count()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_id_that_comes_twice_is_named_and_holds_nothing_up() {
    let atomic = Atomic::start(|table| table.replace("PRIMARY KEY", "NOT NULL")).await;
    let relay = atomic.relay().await;
    let writer = atomic.world.postgres.connect().await.unwrap();
    let mut ids = commit(&writer, "a", 1..3).await;
    let twice = ids[0].clone();
    let sql = format!(
        "INSERT INTO outbox (id, aggregate_type, aggregate_id, version, event_type, payload) \
         VALUES (gen_random_uuid(), 'order', 'b', 1, 'Changed', '{{}}'), \
                ('{twice}', 'order', 'b', 2, 'Changed', '{{}}'), \
                (gen_random_uuid(), 'order', 'b', 3, 'Changed', '{{}}') RETURNING id::text"
    );
    let rows = writer.query(&sql, &[]).await.unwrap();
    ids.extend(rows.iter().map(|row| row.get::<_, String>(0)).filter(|id| *id != twice));
    ids.extend(commit(&writer, "c", 1..3).await);
    let stored = atomic.world.messages(6, PATIENCE).await.unwrap();
    assert_exact(&ids, &stored);
    relay.program.wait_for_log(PATIENCE, "two rows have one event id").await.unwrap();
    if atomic.capable {
        assert!(relay.program.log().contains(BY_EVENT), "{}", relay.program.tail());
        let mut sizes: Vec<_> = batches(&stored).into_values().collect();
        let last = sizes.pop().unwrap();
        assert!(last.0 == 2 && !last.1[0].is_empty(), "batches go on: {last:?}");
    }
}
