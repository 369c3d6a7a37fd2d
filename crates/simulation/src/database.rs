//! What PostgreSQL promises of a logical slot: committed transactions, whole, in commit order, from
//! the confirmed position on, again after every reconnect.

use bytes::Bytes;
use event::Lsn;
use fastrand::Rng;
use pgoutput::{Column, Message, Relation, Tuple, Value};

/// A row that a transaction inserted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Unique.
    pub event_id: String,
    /// One of a few, so that order matters.
    pub aggregate_id: String,
    /// Counts up within the aggregate.
    pub version: u64,
}

/// A committed transaction.
#[derive(Clone, Debug)]
pub struct Transaction {
    /// The LSN of its commit record.
    pub commit_lsn: Lsn,
    /// The LSN after its commit record.
    pub end_lsn: Lsn,
    /// What it inserted into the outbox.
    pub rows: Vec<Row>,
}

/// The database with its slot.
#[derive(Debug, Default)]
pub struct Database {
    /// All that was committed, in commit order.
    pub transactions: Vec<Transaction>,
    /// The slot's position.
    pub confirmed: Lsn,
    /// The position before the last confirmation.
    pub confirmed_before: Lsn,
    wal_end: u64,
    versions: Vec<u64>,
}

const RELATION_ID: u32 = 16_384;
const AGGREGATES: usize = 5;

impl Database {
    /// Commits a transaction of some rows, or of none: one of another table.
    pub fn commit(&mut self, rng: &mut Rng) {
        self.versions.resize(AGGREGATES, 0);
        self.wal_end += 1 + rng.u64(..500);
        let rows = if rng.u8(..5) == 0 { 0 } else { 1 + rng.usize(..4) };
        let rows = (0..rows).map(|_| {
            let aggregate = rng.usize(..AGGREGATES);
            self.versions[aggregate] += 1;
            let version = self.versions[aggregate];
            Row {
                event_id: format!("{aggregate}-{version}"),
                aggregate_id: aggregate.to_string(),
                version,
            }
        });
        let rows = rows.collect();
        let commit_lsn = Lsn::new(self.wal_end);
        self.wal_end += 48;
        let end_lsn = Lsn::new(self.wal_end);
        self.transactions.push(Transaction { commit_lsn, end_lsn, rows });
    }

    /// Takes a confirmation, as the server does: it never goes back.
    pub fn confirm(&mut self, lsn: Lsn) {
        if lsn > self.confirmed {
            self.confirmed_before = self.confirmed;
            self.confirmed = lsn;
        }
    }

    /// The end of the log.
    #[must_use]
    pub const fn wal_end(&self) -> Lsn {
        Lsn::new(self.wal_end)
    }

    /// All rows, in commit order.
    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.transactions.iter().flat_map(|transaction| &transaction.rows)
    }
}

/// A replication session: where in the database's history the server is with sending.
#[derive(Debug)]
pub struct Walsender {
    next_transaction: usize,
    next_message: usize,
    relation_sent: bool,
}

impl Walsender {
    /// Begins at the slot's position.
    #[must_use]
    pub fn start(database: &Database) -> Self {
        let behind = |transaction: &Transaction| transaction.end_lsn <= database.confirmed;
        let next_transaction = database.transactions.partition_point(behind);
        Self { next_transaction, next_message: 0, relation_sent: false }
    }

    /// Whether everything committed has been sent.
    #[must_use]
    pub fn caught_up(&self, database: &Database) -> bool {
        self.next_transaction == database.transactions.len()
    }

    /// The next message, as bytes on the wire.
    pub fn send(&mut self, database: &Database) -> Option<Bytes> {
        let transaction = database.transactions.get(self.next_transaction)?;
        let message = if self.next_message == 0 {
            self.next_message = 1;
            Message::Begin { final_lsn: transaction.commit_lsn, commit_time: 0, xid: 1 }
        } else if let Some(row) = transaction.rows.get(self.next_message - 1) {
            if !self.relation_sent {
                self.relation_sent = true;
                return Some(pgoutput::encode(&Message::Relation(relation())));
            }
            self.next_message += 1;
            Message::Insert { relation_id: RELATION_ID, new: tuple(row) }
        } else {
            self.next_message = 0;
            self.next_transaction += 1;
            Message::Commit {
                flags: 0,
                commit_lsn: transaction.commit_lsn,
                end_lsn: transaction.end_lsn,
                commit_time: 0,
            }
        };
        Some(pgoutput::encode(&message))
    }
}

fn relation() -> Relation {
    let column = |name: &str, type_oid| Column {
        flags: 0,
        name: name.to_owned(),
        type_oid,
        type_modifier: -1,
    };
    Relation {
        id: RELATION_ID,
        namespace: "public".into(),
        name: "outbox".into(),
        replica_identity: b'd',
        columns: vec![
            column("event_id", 25),
            column("aggregate_id", 25),
            column("aggregate_version", 20),
        ],
    }
}

fn tuple(row: &Row) -> Tuple {
    let text = |text: &str| Value::Text(Bytes::from(text.as_bytes().to_vec()));
    Tuple {
        values: vec![text(&row.event_id), text(&row.aggregate_id), text(&row.version.to_string())],
    }
}
