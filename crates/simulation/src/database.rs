//! What PostgreSQL promises of a logical slot: committed transactions, whole, in commit order, from
//! the confirmed position on, again after every reconnect. With what can happen to a server: it
//! forgets a confirmation in a crash, fails over to a copy that lacks the end of the log, is
//! restored from an older copy, or has its slot made anew.

use bytes::Bytes;
use event::{Lsn, SourceId};
use fastrand::Rng;
use pgoutput::{Column, Message, Relation, Tuple, Value};
use relay_core::{Fork, Record};

/// A row that a transaction inserted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Unique, also over copies of the database.
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

/// The relay's record as it stood from some LSN on.
#[derive(Clone, Debug)]
struct RecordVersion {
    at: Lsn,
    owner: u64,
    generation: u64,
    record: Option<Record>,
}

/// The database with its slot.
#[derive(Debug)]
pub struct Database {
    /// All that was committed, in commit order.
    pub transactions: Vec<Transaction>,
    /// Rows that were committed once and are not any more: lost with the end of the log.
    pub undone: Vec<Row>,
    /// The slot's position.
    pub confirmed: Lsn,
    /// The position before the last confirmation.
    pub confirmed_before: Lsn,
    /// The timeline.
    pub timeline: u32,
    /// Where earlier timelines ended.
    pub forks: Vec<Fork>,
    records: Vec<RecordVersion>,
    incarnation: u32,
    wal_end: u64,
    versions: Vec<u64>,
}

const RELATION_ID: u32 = 16_384;
const AGGREGATES: usize = 5;
const SYSTEM_IDENTIFIER: u64 = 7;

impl Default for Database {
    fn default() -> Self {
        Self {
            transactions: Vec::new(),
            undone: Vec::new(),
            confirmed: Lsn::new(1),
            confirmed_before: Lsn::new(1),
            timeline: 1,
            forks: Vec::new(),
            records: Vec::new(),
            incarnation: 0,
            wal_end: 1,
            versions: vec![0; AGGREGATES],
        }
    }
}

impl Database {
    /// Commits a transaction of some rows, or of none: one of another table.
    pub fn commit(&mut self, rng: &mut Rng) {
        // Now and then much else is written, so that an idle slot has something to confirm.
        self.wal_end += if rng.u8(..10) == 0 { 100_000 } else { 1 + rng.u64(..500) };
        let rows = if rng.u8(..5) == 0 { 0 } else { 1 + rng.usize(..4) };
        let incarnation = self.incarnation;
        let rows = (0..rows).map(|_| {
            let aggregate = rng.usize(..AGGREGATES);
            self.versions[aggregate] += 1;
            let version = self.versions[aggregate];
            Row {
                event_id: format!("{aggregate}-{version}-{incarnation}"),
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

    /// A crash forgets the newest confirmation.
    pub fn forget_confirmation(&mut self) {
        self.confirmed = self.confirmed_before;
    }

    /// The end of the log.
    #[must_use]
    pub const fn wal_end(&self) -> Lsn {
        Lsn::new(self.wal_end)
    }

    /// What the relay's positions here belong to.
    #[must_use]
    pub fn identity(&self) -> SourceId {
        SourceId {
            relay: "sim".into(),
            system_identifier: SYSTEM_IDENTIFIER,
            timeline: self.timeline,
        }
    }

    /// All rows, in commit order.
    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.transactions.iter().flat_map(|transaction| &transaction.rows)
    }

    /// The rows that were committed before an LSN.
    pub fn rows_before(&self, lsn: Lsn) -> impl Iterator<Item = &Row> {
        let before = self.transactions.iter().filter(move |t| t.commit_lsn < lsn);
        before.flat_map(|transaction| &transaction.rows)
    }

    /// The end of the last transaction with rows.
    #[must_use]
    pub fn last_row_end(&self) -> Lsn {
        let with_rows = self.transactions.iter().rev().find(|t| !t.rows.is_empty());
        with_rows.map_or(Lsn::ZERO, |transaction| transaction.end_lsn)
    }

    /// A relay process that holds the slot reads the record and makes it its own; gives the record,
    /// whether another process had it, and the generation.
    pub fn claim(&mut self, owner: u64) -> (Option<Record>, bool, u64) {
        let last = self.records.last();
        let record = last.and_then(|last| last.record.clone());
        let foreign = last.is_none_or(|last| last.owner != owner);
        let generation = last.map_or(0, |last| last.generation) + 1;
        self.write(owner, generation, record.clone());
        (record, foreign, generation)
    }

    /// Stores a record, unless somebody else has claimed it since.
    pub fn store(&mut self, generation: u64, record: Record) -> bool {
        match self.records.last() {
            Some(last) if last.generation == generation => {
                self.write(last.owner, generation, Some(record));
                true
            }
            Some(_) | None => false,
        }
    }

    /// Whether a relay has put anything on record.
    #[must_use]
    pub fn has_record(&self) -> bool {
        self.records.last().is_some_and(|last| last.record.is_some())
    }

    /// The record.
    #[must_use]
    pub fn record(&self) -> Option<Record> {
        self.records.last().and_then(|last| last.record.clone())
    }

    /// A person writes the record.
    pub fn declare(&mut self, record: Record) {
        let generation = self.records.last().map_or(0, |last| last.generation) + 1;
        self.write(u64::MAX, generation, Some(record));
    }

    fn write(&mut self, owner: u64, generation: u64, record: Option<Record>) {
        self.wal_end += 200;
        let at = Lsn::new(self.wal_end);
        self.records.push(RecordVersion { at, owner, generation, record });
    }

    /// Goes on from a copy that lacks the last transactions: on a new timeline as after a failover,
    /// or on the same one as after a restore. Gives the LSN up to which both share their log.
    pub fn lose_end(&mut self, transactions: usize, new_timeline: bool) -> Lsn {
        let keep = self.transactions.len().saturating_sub(transactions);
        let lost = self.transactions.split_off(keep);
        let fork = match lost.first() {
            Some(first) => Lsn::new(first.commit_lsn.get() - 1),
            None => self.wal_end(),
        };
        let lost = lost.into_iter().flat_map(|transaction| transaction.rows);
        for row in lost {
            if let Some(version) =
                row.aggregate_id.parse::<usize>().ok().and_then(|n| self.versions.get_mut(n))
            {
                *version -= 1;
            }
            self.undone.push(row);
        }
        self.records.retain(|version| version.at <= fork);
        // A synchronized slot may be further than the record that came with the log.
        let last = self.records.last().and_then(|last| last.record.as_ref());
        let recorded = last.map_or(Lsn::new(1), |record| record.confirmed);
        let confirmed = if new_timeline { fork } else { recorded.min(fork) };
        self.confirmed = self.confirmed.min(confirmed);
        self.confirmed_before = self.confirmed_before.min(self.confirmed);
        self.wal_end = fork.get();
        self.incarnation += 1;
        if new_timeline {
            self.forks.push(Fork { timeline: self.timeline, end: fork });
            self.timeline += 1;
        }
        fork
    }

    /// Somebody drops the slot and makes it anew.
    pub fn recreate_slot(&mut self) {
        self.wal_end += 100;
        self.confirmed = self.wal_end();
        self.confirmed_before = self.confirmed;
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
        let behind = |transaction: &Transaction| transaction.commit_lsn < database.confirmed;
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
