use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use futures_util::SinkExt as _;
use tokio::time::sleep;
use tokio_postgres::{Client, NoTls};

const COLUMNS: &str = "id, aggregate_type, aggregate_id, version, event_type, payload";
const AGGREGATES: usize = 25;

/// A service that writes to the outbox, whatever happens to its database.
pub(super) struct Writer {
    url: String,
    name: usize,
    rng: fastrand::Rng,
    versions: HashMap<usize, i64>,
}

impl Writer {
    pub(super) fn new(url: String, name: usize, seed: u64) -> Self {
        Self { url, name, rng: fastrand::Rng::with_seed(seed), versions: HashMap::new() }
    }

    /// Writes until it is told to stop.
    pub(super) async fn run(mut self, stop: Arc<AtomicBool>) {
        while !stop.load(Ordering::SeqCst) {
            // A lost session leaves open whether its last transaction was committed: what the table
            // holds is what counts.
            if let Ok(client) = self.connect().await {
                while !stop.load(Ordering::SeqCst) && self.write(&client).await.is_ok() {
                    sleep(Duration::from_millis(self.rng.u64(0..60))).await;
                }
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    async fn connect(&mut self) -> Result<Client> {
        let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await?;
        tokio::spawn(connection);
        // A transaction of the lost session would still hold this lock.
        let lock = "SELECT pg_advisory_lock($1)";
        client.execute(lock, &[&i64::try_from(self.name)?]).await?;
        let sql = "SELECT aggregate_id, max(version) FROM outbox \
             WHERE aggregate_id LIKE $1 GROUP BY aggregate_id";
        let rows = client.query(sql, &[&format!("{}-%", self.name)]).await?;
        self.versions.clear();
        for row in rows {
            let id: String = row.get(0);
            let aggregate = id.rsplit('-').next().and_then(|n| n.parse().ok());
            self.versions.insert(aggregate.context("a foreign aggregate")?, row.get(1));
        }
        Ok(client)
    }

    async fn write(&mut self, client: &Client) -> Result<()> {
        match self.rng.u32(0..100) {
            0..60 => Ok(client.batch_execute(&self.insert(1, 20)).await?),
            60..78 => {
                let rows = self.rng.usize(2..20);
                let inserts: Vec<_> = (0..rows).map(|_| self.insert(1, 20)).collect();
                Ok(client.batch_execute(&format!("BEGIN; {}; COMMIT", inserts.join("; "))).await?)
            }
            78..83 => {
                let rows = self.rng.usize(50..200);
                Ok(client.batch_execute(&self.insert(rows, 20)).await?)
            }
            83..88 => self.copy(client).await,
            88..93 => {
                let (kept, versions) = (self.insert(1, 20), self.versions.clone());
                let undone = self.insert(3, 20);
                self.versions = versions;
                let last = self.insert(1, 20);
                let sql =
                    format!("BEGIN; {kept}; SAVEPOINT s; {undone}; ROLLBACK TO s; {last}; COMMIT");
                Ok(client.batch_execute(&sql).await?)
            }
            93..98 => {
                let versions = self.versions.clone();
                let sql = format!("BEGIN; {}; ROLLBACK", self.insert(2, 20));
                self.versions = versions;
                Ok(client.batch_execute(&sql).await?)
            }
            _ => Ok(client.batch_execute(&self.insert(1, 100_000)).await?),
        }
    }

    /// The next versions of one aggregate, in one statement.
    fn insert(&mut self, rows: usize, payload_bytes: usize) -> String {
        let aggregate = self.rng.usize(..AGGREGATES);
        let from = self.next_version(aggregate, rows);
        let to = from + i64::try_from(rows).unwrap_or(1) - 1;
        let name = self.name;
        format!(
            "INSERT INTO outbox ({COLUMNS}) SELECT gen_random_uuid(), 'thing', \
             '{name}-{aggregate}', version, 'Changed', \
             jsonb_build_object('text', repeat('x', {payload_bytes})) \
             FROM generate_series({from}, {to}) version"
        )
    }

    async fn copy(&mut self, client: &Client) -> Result<()> {
        let rows = self.rng.usize(20..60);
        let mut text = String::new();
        for _ in 0..rows {
            let aggregate = self.rng.usize(..AGGREGATES);
            let version = self.next_version(aggregate, 1);
            let id = uuid(&mut self.rng);
            text += &format!("{id}\tthing\t{}-{aggregate}\t{version}\tCopied\t{{}}\n", self.name);
        }
        let sql = format!("COPY outbox ({COLUMNS}) FROM STDIN");
        let sink = client.copy_in::<_, Bytes>(&sql).await?;
        let mut sink = std::pin::pin!(sink);
        sink.send(Bytes::from(text)).await?;
        sink.finish().await?;
        Ok(())
    }

    fn next_version(&mut self, aggregate: usize, rows: usize) -> i64 {
        let last = self.versions.entry(aggregate).or_default();
        let next = *last + 1;
        *last += i64::try_from(rows).unwrap_or(1);
        next
    }
}

fn uuid(rng: &mut fastrand::Rng) -> String {
    let hex = format!("{:032x}", rng.u128(..));
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}
