use std::time::Duration;

use event::{Lsn, SourceId};

use crate::{Core, Dependency, Effect, Failure, FailureClass, Link, Notice, SourceStarted};

/// So many keepalives that ask for a reply within a second are a server going down: an idle server
/// sends one in half a `wal_sender_timeout`.
const REPLIES_OF_A_STORM: u32 = 10;
const STORM_WITHIN: Duration = Duration::from_secs(1);

impl Core {
    /// The slot is ours. Whoever held it before may have published up to this moment, so the
    /// stream's end is read anew before the first row is looked at.
    pub(crate) fn source_started(
        &mut self,
        now: Duration,
        started: SourceStarted,
        effects: &mut Vec<Effect>,
    ) {
        let identity = SourceId {
            relay: self.options.relay.clone(),
            system_identifier: started.system_identifier,
            timeline: started.timeline,
        };
        if let Some(before) = &self.identity
            && before.system_identifier != identity.system_identifier
        {
            let message = format!(
                "the server now has the system identifier {}, it had {}: another database",
                identity.system_identifier, before.system_identifier
            );
            let failure = Failure::halt("identity", message)
                .advise("point source.url at the database that the stream was written from");
            return self.halt(now, failure, effects);
        }
        self.slot_position = started.confirmed_flush_lsn;
        self.wal_end = started.wal_end;
        self.forks = started.forks;
        self.source.opened();
        self.stats.source_sessions += 1;
        self.restart_reading();
        if let Err(failure) = self.take_record(started.record, started.record_is_foreign, &identity)
        {
            return self.halt(now, failure, effects);
        }
        self.identity = Some(identity);
        effects.push(Effect::Notice(Notice::SourceStarted));
        if self.sink.is_open() || self.sink.attempting {
            effects.push(Effect::CloseSink);
            self.sink.closed();
        }
        if self.sink.link == Link::Closed && !self.is_ending() {
            self.open_sink(now, effects);
        }
    }

    /// The source will send everything after its confirmed LSN again.
    pub(crate) fn restart_reading(&mut self) {
        self.recovered = false;
        self.reading_began = false;
        self.to_meet = None;
        self.unseen = 0;
        self.transaction = None;
        self.mapper.clear();
        self.ledger.restart();
        self.pipeline.clear();
    }

    pub(crate) fn keepalive(
        &mut self,
        now: Duration,
        wal_end: Lsn,
        replies_requested: u32,
        effects: &mut Vec<Effect>,
    ) {
        if !self.source.is_open() {
            return;
        }
        if self.recovered && !self.is_ending() {
            self.reading_began = true;
            self.passed(now, wal_end, effects);
        }
        if self.recovered && !self.is_ending() {
            self.ledger.keepalive(now, wal_end);
        }
        if now >= self.reply_storm.since + STORM_WITHIN {
            self.reply_storm.since = now;
            self.reply_storm.asked = 0;
        }
        self.reply_storm.asked = self.reply_storm.asked.saturating_add(replies_requested);
        if self.reply_storm.asked >= REPLIES_OF_A_STORM {
            self.source_stopping(now, effects);
        }
    }

    /// A server in fast shutdown waits until its replication sessions have confirmed all that was
    /// sent, which may be much, and may not be confirmed yet: the session is let go, unconfirmed.
    pub(crate) fn source_stopping(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        if self.source.is_open() && !self.is_ending() {
            effects.push(Effect::Notice(Notice::LetGo));
            effects.push(Effect::AbortSource);
            let failure = Failure::wait("server_stopping", "the database server is stopping");
            self.source_failed(now, failure, effects);
        }
    }

    pub(crate) fn source_failed(
        &mut self,
        now: Duration,
        failure: Failure,
        effects: &mut Vec<Effect>,
    ) {
        self.stats.source_failures += 1;
        self.reply_storm.asked = 0;
        self.source.failed(failure.clone());
        if self.is_ending() {
            return;
        }
        let pause = match failure.class {
            FailureClass::Halt => return self.halt(now, failure, effects),
            FailureClass::SlotHeld { .. } => self.source.backoff.least(),
            FailureClass::Wait => self.source.backoff.next(),
        };
        self.source.retry_at = Some(now + pause);
        let dependency = Dependency::Source;
        effects.push(Effect::Notice(Notice::Retrying { dependency, failure, pause }));
    }
}
