use event::{Lsn, Position};

use crate::Failure;

/// Where one dependency's session stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    /// Never tried, or closed on purpose.
    Closed,
    /// Being opened.
    Opening,
    /// Up.
    Open,
    /// Publishing lost events again, from the outbox tables.
    Mending,
    /// Failed; tried again after a pause.
    Failed(Failure),
}

/// The relay as a whole, for probes and people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The replication session.
    pub source: Link,
    /// The sink session.
    pub sink: Link,
    /// Whether the relay is draining.
    pub stopping: bool,
    /// The stream's end when it was last read, or the last ack since.
    pub stream_end: Option<Position>,
    /// The last LSN confirmed to the source in this process.
    pub confirmed: Lsn,
    /// Events read and not acknowledged.
    pub in_flight_events: usize,
    /// Their bytes.
    pub in_flight_bytes: usize,
    /// Transactions read and not wholly settled.
    pub open_transactions: usize,
    /// When the transaction of the oldest unacknowledged event committed, in microseconds since
    /// 2000-01-01 00:00 UTC; `None` when none is in memory.
    pub oldest_unacked: Option<i64>,
}

impl Status {
    /// Why the relay is not ready; empty when it is.
    #[must_use]
    pub fn reasons(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        if self.stopping {
            reasons.push("stopping".to_owned());
        }
        for (name, link) in [("PostgreSQL", &self.source), ("NATS", &self.sink)] {
            match link {
                Link::Open => {}
                Link::Closed => reasons.push(format!("{name}: not connected")),
                Link::Opening => reasons.push(format!("{name}: connecting")),
                Link::Mending => reasons.push(format!("{name}: publishing lost events again")),
                Link::Failed(failure) => reasons.push(format!("{name}: {failure}")),
            }
        }
        reasons
    }
}

/// Plain counts since the process started. The shell exports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Outbox rows read from the slot, repetitions included.
    pub rows: u64,
    /// Events acknowledged by JetStream.
    pub published: u64,
    /// Rows passed over because the stream already held them.
    pub already_in_stream: u64,
    /// Rows of event types that a rule drops.
    pub dropped_by_rule: u64,
    /// Rows refused by the server as repeating the message id of another row.
    pub duplicate_ids: u64,
    /// Transactions that were published event by event although they were to appear at once, while
    /// the stream took batches.
    pub split_transactions: u64,
    /// Rows of tables that the configuration does not name.
    pub foreign_rows: u64,
    /// Updates seen; never published.
    pub updates: u64,
    /// Deletes seen; never published.
    pub deletes: u64,
    /// Truncates seen; never published.
    pub truncates: u64,
    /// Logical messages seen; never published.
    pub messages: u64,
    /// Type and origin records seen.
    pub other_records: u64,
    /// Transactions read to their commit.
    pub transactions: u64,
    /// Replication sessions opened.
    pub source_sessions: u64,
    /// Replication sessions lost or refused.
    pub source_failures: u64,
    /// How often the stream was found to lack what it had acknowledged.
    pub tails_lost: u64,
    /// Sink sessions opened.
    pub sink_sessions: u64,
    /// Sink sessions lost or refused.
    pub sink_failures: u64,
}
