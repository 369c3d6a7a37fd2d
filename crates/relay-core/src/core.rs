use std::time::Duration;

use event::{Lsn, Position, SourceId};

use crate::backoff::Backoff;
use crate::ledger::Ledger;
use crate::mapper::Mapper;
use crate::pipeline::Pipeline;
use crate::record::RecordKeeper;
use crate::recovery::ToMeet;
use crate::transaction::Transaction;
use crate::{
    Effect, Exit, Failure, Fork, Input, Link, Notice, Options, Past, SinkQuery, Stats, Status,
    Stored,
};

/// The delivery state machine of one relay.
///
/// Hand in what happened with [`Core::step`], carry out the effects in their order, and call again
/// with [`Input::Deadline`] when [`Core::poll_timeout`] says so. Ask [`Core::wants_source`] before
/// each message of the source.
#[derive(Debug)]
pub struct Core {
    pub(crate) options: Options,
    pub(crate) source: Connection,
    pub(crate) sink: Connection,
    pub(crate) sink_was_open: bool,
    /// Whether the stream's end was read since this replication session took the slot.
    pub(crate) recovered: bool,
    pub(crate) identity: Option<SourceId>,
    pub(crate) slot_position: Lsn,
    pub(crate) wal_end: Lsn,
    pub(crate) forks: Vec<Fork>,
    /// Whether this replication session has been read from.
    pub(crate) reading_began: bool,
    pub(crate) to_meet: Option<ToMeet>,
    /// Rows up to here stand in the stream.
    pub(crate) high_water: Option<Position>,
    /// So many events behind [`Core::high_water`] stood in the stream and have left it.
    pub(crate) unseen: u64,
    /// The last message of ours that the stream is known to have taken.
    pub(crate) acked: Option<Stored>,
    /// When the stream that `acked` stands in was created.
    pub(crate) stream_created: Option<String>,
    /// The last event that the slot may have been allowed to forget, by the record.
    pub(crate) released: Option<Position>,
    pub(crate) past: Option<Past>,
    /// Below this LSN lost events are published again from the outbox tables.
    pub(crate) mending: Option<Lsn>,
    /// The stream's end did not fit this database, and is looked at once more.
    pub(crate) suspicious: bool,
    pub(crate) keeper: RecordKeeper,
    pub(crate) message_bytes_max: usize,
    pub(crate) mapper: Mapper,
    pub(crate) transaction: Option<Transaction>,
    pub(crate) ledger: Ledger,
    pub(crate) pipeline: Pipeline,
    /// It was said that transactions do not appear at once, although they are to.
    pub(crate) told_no_batches: bool,
    pub(crate) reply_storm: ReplyStorm,
    pub(crate) stats: Stats,
    ending: Option<Ending>,
}

/// One dependency's session and when it is next tried.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) link: Link,
    /// A session is being opened, whatever the link still says of the last one.
    pub(crate) attempting: bool,
    pub(crate) retry_at: Option<Duration>,
    pub(crate) tried_at: Duration,
    pub(crate) backoff: Backoff,
}

/// Keepalives that ask for a reply at once: a server that is going down sends them without pause.
#[derive(Debug, Default)]
pub(crate) struct ReplyStorm {
    pub(crate) since: Duration,
    pub(crate) asked: u32,
}

#[derive(Debug)]
struct Ending {
    exit: Exit,
    deadline: Duration,
    done: bool,
}

impl Connection {
    const fn new(options: &Options, seed: u64) -> Self {
        Self {
            link: Link::Closed,
            attempting: false,
            retry_at: None,
            tried_at: Duration::ZERO,
            backoff: Backoff::new(options.retry_pause_min, options.retry_pause_max, seed),
        }
    }

    pub(crate) fn opening(&mut self, now: Duration) {
        self.attempting = true;
        self.retry_at = None;
        self.tried_at = now;
        if !matches!(self.link, Link::Failed(_)) {
            self.link = Link::Opening;
        }
    }

    pub(crate) fn opened(&mut self) {
        self.link = Link::Open;
        self.attempting = false;
        self.backoff.reset();
    }

    pub(crate) fn failed(&mut self, failure: Failure) {
        self.link = Link::Failed(failure);
        self.attempting = false;
    }

    pub(crate) fn closed(&mut self) {
        self.link = Link::Closed;
        self.attempting = false;
    }

    pub(crate) fn mending(&mut self) {
        self.link = Link::Mending;
        self.attempting = true;
    }

    pub(crate) fn is_open(&self) -> bool {
        self.link == Link::Open
    }
}

impl Core {
    /// A core that has not begun.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            mapper: Mapper::new(&options.outboxes),
            source: Connection::new(&options, options.seed),
            sink: Connection::new(&options, options.seed ^ u64::MAX),
            sink_was_open: false,
            recovered: false,
            identity: None,
            slot_position: Lsn::ZERO,
            wal_end: Lsn::ZERO,
            forks: Vec::new(),
            reading_began: false,
            to_meet: None,
            high_water: None,
            unseen: 0,
            acked: None,
            stream_created: None,
            released: None,
            past: None,
            mending: None,
            suspicious: false,
            keeper: RecordKeeper::default(),
            message_bytes_max: usize::MAX,
            transaction: None,
            ledger: Ledger::new(options.hold_back),
            pipeline: Pipeline::new(options.in_flight_events_max, options.in_flight_bytes_max),
            told_no_batches: false,
            reply_storm: ReplyStorm::default(),
            stats: Stats::default(),
            ending: None,
            options,
        }
    }

    /// Takes one input at the time `now`, which never goes back, and appends what is to be done.
    pub fn step(&mut self, now: Duration, input: Input, effects: &mut Vec<Effect>) {
        match input {
            Input::Start => self.open_source(now, effects),
            Input::SourceStarted(started) => self.source_started(now, started, effects),
            Input::Source(message) => self.source_message(now, message, effects),
            Input::Keepalive { wal_end, replies_requested } => {
                self.keepalive(now, wal_end, replies_requested, effects);
            }
            Input::SourceStopping => self.source_stopping(now, effects),
            Input::SourceFailed(failure) => self.source_failed(now, failure, effects),
            Input::SinkOpened(opened) => self.sink_opened(now, &opened, effects),
            Input::Acked { count, sequence } => self.acknowledged(now, count, sequence, effects),
            Input::Duplicate { index, stored } => self.duplicate(now, index, stored, effects),
            Input::SinkFailed(failure) => self.sink_failed(now, failure, effects),
            Input::RecordStored => self.stored(effects),
            Input::Mended { range, sequence } => self.mended(now, &range, sequence, effects),
            Input::Deadline => self.deadline(now, effects),
            Input::Stop => self.end(now, Exit::Stopped, effects),
        }
        self.publish(now, effects);
        self.confirm(now, effects);
        self.finish(now, effects);
    }

    /// Whether the next message of the source may be handed in. While not, the shell leaves the
    /// source unread, and the pressure reaches the server through TCP.
    #[must_use]
    pub fn wants_source(&self) -> bool {
        self.source.is_open() && self.recovered && self.ending.is_none() && self.pipeline.has_room()
    }

    /// When to call [`Core::step`] with [`Input::Deadline`], and why.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<(Duration, &'static str)> {
        if self.ending.as_ref().is_some_and(|ending| ending.done) {
            return None;
        }
        let ack_due = self.pipeline.waiting_since().filter(|_| self.sink.is_open());
        let confirm_due = self.ledger.next_due().filter(|_| self.may_confirm());
        [
            (self.source.retry_at, "try PostgreSQL again"),
            (self.sink.retry_at, "try NATS again"),
            (ack_due.map(|since| since + self.options.ack_timeout), "the oldest ack is overdue"),
            (self.record_due(), "the record is behind the acks"),
            (confirm_due, "the hold-back time of a settled transaction is over"),
            (self.ending.as_ref().map(|ending| ending.deadline), "the stop has waited enough"),
        ]
        .into_iter()
        .filter_map(|(at, reason)| at.map(|at| (at, reason)))
        .min()
    }

    /// The state of everything, for probes and people.
    #[must_use]
    pub fn status(&self) -> Status {
        Status {
            source: self.source.link.clone(),
            sink: self.sink.link.clone(),
            stopping: self.ending.is_some(),
            stream_end: self.acked.map(|acked| acked.position),
            confirmed: self.ledger.confirmed(),
            in_flight_events: self.pipeline.len(),
            in_flight_bytes: self.pipeline.bytes(),
            open_transactions: self.ledger.open_transactions(),
            oldest_unacked: self.pipeline.front().map(|event| event.committed_at),
        }
    }

    /// Counts since the start.
    #[must_use]
    pub const fn stats(&self) -> &Stats {
        &self.stats
    }

    pub(crate) fn open_source(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        self.source.opening(now);
        effects.push(Effect::OpenSource);
    }

    pub(crate) fn open_sink(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        self.sink.opening(now);
        effects.push(Effect::OpenSink(SinkQuery {
            verify: self.acked.map(|acked| acked.sequence),
            past_sequence: self.past.as_ref().map_or(0, |past| past.sequence),
        }));
    }

    pub(crate) fn halt(&mut self, now: Duration, failure: Failure, effects: &mut Vec<Effect>) {
        self.end(now, Exit::Halted(failure), effects);
    }

    pub(crate) const fn is_ending(&self) -> bool {
        self.ending.is_some()
    }

    /// Begins to end: no more is read, and what is in flight gets its chance to be acknowledged.
    fn end(&mut self, now: Duration, exit: Exit, effects: &mut Vec<Effect>) {
        if self.ending.is_none() {
            if let Some(transaction) = &self.transaction {
                self.pipeline.drop_open(transaction.commit_lsn);
            }
            let in_flight = self.pipeline.len();
            if in_flight > 0 {
                effects.push(Effect::Notice(Notice::Draining { in_flight }));
            }
            let deadline = now + self.options.stop_timeout;
            self.ending = Some(Ending { exit, deadline, done: false });
        }
    }

    fn finish(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        let acked = self.pipeline.len() == 0 || !self.sink.is_open();
        let drained = !self.source.is_open() || (acked && !self.record_lags());
        if let Some(ending) = &mut self.ending
            && !ending.done
            && (drained || now >= ending.deadline)
        {
            ending.done = true;
            effects.push(Effect::Exit(ending.exit.clone()));
        }
    }

    fn publish(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        if self.sink.is_open() && self.recovered && self.may_publish() {
            let open = self.transaction.as_ref().map(|transaction| transaction.commit_lsn);
            self.stats.split_transactions += self.pipeline.send(now, open, effects);
        }
    }

    fn deadline(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        let overdue = self.pipeline.waiting_since();
        if self.sink.is_open()
            && overdue.is_some_and(|since| now >= since + self.options.ack_timeout)
        {
            let waited = self.options.ack_timeout;
            effects.push(Effect::CloseSink);
            let message = format!("no ack within {waited:?}");
            self.sink_failed(now, Failure::wait("ack_timeout", message), effects);
        }
        if self.is_ending() {
            return;
        }
        if self.source.retry_at.is_some_and(|at| now >= at) {
            self.open_source(now, effects);
        }
        if self.sink.retry_at.is_some_and(|at| now >= at) {
            self.open_sink(now, effects);
        }
    }
}
