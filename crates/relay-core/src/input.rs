use std::sync::Arc;

use bytes::Bytes;
use event::{Headers, Lsn, Position, SourceId, Subject};

use crate::{Failure, Notice, Record, Stored};

/// What happened outside. Inputs of a session that an [`Effect`] closed must not be handed in any
/// more; the shell drops them with the session.
#[derive(Clone, Debug)]
pub enum Input {
    /// The process is up: begin.
    Start,
    /// The server accepted START_REPLICATION: this session holds the slot.
    SourceStarted(SourceStarted),
    /// One message of the replication stream, in stream order.
    Source(pgoutput::Message),
    /// The server's keepalive, in stream order: everything before `wal_end` has been sent.
    Keepalive {
        /// How far the server has read its log for this slot.
        wal_end: Lsn,
        /// How many keepalives since the last input asked for a reply at once.
        replies_requested: u32,
    },
    /// The database server is going down and waits for its replication sessions.
    SourceStopping,
    /// The replication session ended, or could not be opened.
    SourceFailed(Failure),
    /// A sink session is open and the end of the stream was read in it.
    SinkOpened(SinkOpened),
    /// The first `count` publishes of the sink session are stored.
    Acked {
        /// Cumulative within the session.
        count: u64,
        /// The stream sequence of the last of them.
        sequence: u64,
    },
    /// The server took a publish for a repetition and did not store it.
    Duplicate {
        /// The publish, counted from 0 within the session.
        index: u64,
        /// Where the first one with this message id stands; `None` when the stream no longer has it.
        stored: Option<Position>,
    },
    /// The sink session ended, or could not be opened.
    SinkFailed(Failure),
    /// The database holds the record that [`Effect::Store`] gave.
    RecordStored,
    /// The lost events that [`Effect::Mend`] named are in the stream again.
    Mended {
        /// What was mended.
        range: LostRange,
        /// The stream sequence of the last of them; `None` when none was missing.
        sequence: Option<u64>,
    },
    /// A deadline of [`crate::Core::poll_timeout`] has come.
    Deadline,
    /// Stop in good order.
    Stop,
}

/// The source as the replication session found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceStarted {
    /// IDENTIFY_SYSTEM's system identifier.
    pub system_identifier: u64,
    /// IDENTIFY_SYSTEM's timeline.
    pub timeline: u32,
    /// The slot's position when the session took it.
    pub confirmed_flush_lsn: Lsn,
    /// IDENTIFY_SYSTEM's flush position: the end of the log.
    pub wal_end: Lsn,
    /// Where the server's history left each earlier timeline, from TIMELINE_HISTORY.
    pub forks: Vec<Fork>,
    /// What the relay has on record in this database.
    pub record: Option<Record>,
    /// Whether another process wrote the record since this one last did.
    pub record_is_foreign: bool,
}

/// The end of a timeline in the history of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fork {
    /// The timeline that ended.
    pub timeline: u32,
    /// What it held below this LSN, the later ones hold too.
    pub end: Lsn,
}

/// The sink as a new session found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SinkOpened {
    /// The last message of this relay that the stream holds.
    pub end: Option<StreamEnd>,
    /// Whether every event before `end` was stored before it, so that it says what is in. Where
    /// subjects are written independently of each other it does not, and the session itself passes
    /// over what it finds stored.
    pub gapless: bool,
    /// The stream's last sequence, whoever wrote it; it survives the removal of messages.
    pub last_sequence: u64,
    /// When the stream was created: another value is another stream.
    pub stream_created: String,
    /// What stands at the sequence that [`Effect::OpenSink`] asked about.
    pub verified: Occupant,
    /// Whether messages leave this stream by themselves, by acknowledgement, age or limit, and no
    /// message of another writer was seen near its end: then an empty sequence behind the last
    /// known message was one of ours.
    pub removing: bool,
    /// The largest message the server and the stream take: headers and body, in bytes.
    pub message_bytes_max: usize,
    /// How many events the stream takes as one, all or none; 0 when it cannot, or nobody asked.
    pub batch_events_max: usize,
}

/// What a new sink session is to know and to find out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SinkQuery {
    /// Also look what stands at this sequence.
    pub verify: Option<u64>,
    /// Positions of messages up to this sequence are those of another history.
    pub past_sequence: u64,
}

/// What stands at a sequence of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occupant {
    /// Nothing, or nobody asked: the message was removed, or never came.
    None,
    /// A message of this relay.
    Ours(Position),
    /// An event of this relay that was published once more, out of its place.
    Replayed,
    /// A message of somebody else.
    Foreign,
}

/// The last message that the relay wrote to the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamEnd {
    /// Its position: the high-water mark.
    pub position: Position,
    /// The history the position belongs to.
    pub source: SourceId,
    /// Its stream sequence.
    pub sequence: u64,
    /// Its event id, as its header spells it.
    pub event_id: Option<String>,
}

impl StreamEnd {
    pub(crate) const fn stored(&self) -> Stored {
        Stored { position: self.position, sequence: self.sequence }
    }
}

/// Events that the stream lost and that the slot cannot send again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostRange {
    /// The last message before them; `None` when the stream holds nothing of this relay.
    pub after: Option<Stored>,
    /// The last event that was acknowledged.
    pub acked: Stored,
    /// The slot sends again what was committed from here on.
    pub slot_position: Lsn,
}

/// A message ready to be published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Where it goes.
    pub subject: Subject,
    /// Its headers.
    pub headers: Headers,
    /// Its body.
    pub body: Bytes,
}

impl Outgoing {
    /// Headers and body on the wire, in bytes.
    #[must_use]
    pub fn wire_bytes(&self) -> usize {
        self.headers.wire_bytes() + self.body.len()
    }
}

/// What the shell is to do, in order.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Open a replication session.
    OpenSource,
    /// Let go of the replication session at once, confirming nothing more.
    AbortSource,
    /// Open a sink session and read the end of the stream.
    OpenSink(SinkQuery),
    /// Drop the sink session with all it has not sent.
    CloseSink,
    /// Publish, in this order, in the open sink session.
    Publish(Arc<Outgoing>),
    /// Publish these as one: all of them are stored, or none. Nothing else is in flight. One ack
    /// covers them, and counts each.
    PublishBatch(Vec<Arc<Outgoing>>),
    /// An event's ack arrived. The commit time is in microseconds since 2000-01-01 00:00 UTC.
    Published {
        /// When its transaction committed.
        committed_at: i64,
    },
    /// Everything up to here is settled: tell the source.
    Confirm(Lsn),
    /// Put the record into the database, and say [`Input::RecordStored`] once it is safe there.
    Store(Record),
    /// Publish the events that the stream lost and the slot cannot send again from the rows of the
    /// outbox tables, if every one of them is there, and say [`Input::Mended`].
    Mend(LostRange),
    /// Something a person should be able to read.
    Notice(Notice),
    /// End the process: close the source in good order, so that the last confirm arrives.
    Exit(Exit),
}

/// Why the relay ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It was asked to.
    Stopped,
    /// Going on would lose, double or reorder events, or cannot succeed.
    Halted(Failure),
}
