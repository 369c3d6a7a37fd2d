use std::time::Duration;

use event::Position;

use crate::{Dependency, Failure};

/// Something that a person should be able to read in the log. Carries no payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A dependency failed and is tried again after the pause.
    Retrying {
        /// Which one.
        dependency: Dependency,
        /// Why.
        failure: Failure,
        /// How long until the next try.
        pause: Duration,
    },
    /// The replication session is up.
    SourceStarted,
    /// The sink session is up; publishing goes on after this position.
    SinkOpened {
        /// The high-water mark; `None` when the stream holds nothing of this relay.
        high_water: Option<Position>,
    },
    /// The stream lacks what it had acknowledged: what the slot still holds is read again.
    TailLost {
        /// Where the stream ends now.
        stream_end: Option<Position>,
        /// What had been acknowledged.
        acked: Position,
    },
    /// The slot cannot send these lost events again: they are looked for in the outbox tables.
    Mending {
        /// The last event before them.
        from: Option<Position>,
        /// The last of them.
        to: Position,
    },
    /// The lost events are in the stream again.
    Mended {
        /// The stream sequence of the last of them; `None` when none was missing.
        sequence: Option<u64>,
    },
    /// The server going down waits for this session, which may not confirm yet: let go.
    LetGo,
    /// A row with a message id that the stream already has, from another row: not stored.
    DuplicateId {
        /// The row.
        position: Position,
        /// The message that has the id.
        stored: Position,
    },
    /// The duplicate window remembers an id whose message is gone: published without an id.
    DuplicateVanished {
        /// The row.
        position: Position,
    },
    /// A transaction leaves event by event, although transactions are to appear at once.
    Split {
        /// Its first event that is still to be published.
        position: Position,
        /// Why.
        reason: SplitReason,
    },
    /// Transactions are to appear at once, and the stream takes no batches: all leave event by event.
    NoBatches,
    /// Rows of a table that the configuration does not name arrive on this publication.
    ForeignTable {
        /// Schema and table.
        table: String,
    },
    /// Stopping: publishes in flight are awaited.
    Draining {
        /// How many.
        in_flight: usize,
    },
}

/// Why a transaction cannot appear in the stream at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitReason {
    /// It has more events than the stream takes as one.
    TooManyEvents,
    /// It does not fit into what may be in flight.
    NoRoom,
    /// The stream has the message id of one of its events already.
    DuplicateId,
    /// The stream refused it again and again.
    Refused,
}
