use std::time::Duration;

use event::{Position, headers};

use crate::core::Stored;
use crate::{
    Core, Dependency, Effect, Failure, FailureClass, Notice, Occupant, Outgoing, SinkOpened,
    StreamEnd,
};

/// The code of a failure to log in. A wrong password at the first try is a wrong configuration; one
/// that comes later may be a rotation under way.
pub const CODE_AUTH: &str = "auth";

/// The code of a publish that found the stream further than its sender thought.
pub const CODE_OVERTAKEN: &str = "overtaken";

impl Core {
    /// The stream's end was read: it says exactly which rows are in.
    pub(crate) fn sink_opened(
        &mut self,
        now: Duration,
        opened: &SinkOpened,
        effects: &mut Vec<Effect>,
    ) {
        self.stats.sink_sessions += 1;
        self.sink_was_open = true;
        if let Err(failure) = self.check_end(opened.end.as_ref()) {
            effects.push(Effect::CloseSink);
            self.sink.failed(failure.clone());
            return self.halt(now, failure, effects);
        }
        self.sink.opened();
        let end = opened.end.as_ref();
        let stored = end.map(|end| Stored { position: end.position, sequence: end.sequence });
        let mut high_water = stored.map(|stored| stored.position);
        effects.push(Effect::Notice(Notice::SinkOpened { high_water }));
        self.message_bytes_max = opened.message_bytes_max;
        let same_stream = self.stream_created.as_ref() == Some(&opened.stream_created);
        self.stream_created = Some(opened.stream_created.clone());
        if let Some(acked) = self.acked
            && high_water < Some(acked.position)
        {
            // A message can also have left by age, limit or purge: then its sequence stays empty.
            let left = same_stream
                && opened.last_sequence >= acked.sequence
                && opened.verified == Occupant::None;
            if !left {
                return self.tail_lost(now, high_water, acked.position, effects);
            }
            high_water = Some(acked.position);
        } else {
            self.acked = stored;
        }
        self.high_water = high_water;
        if let Some(high_water) = high_water {
            for _ in 0..self.pipeline.drop_through(high_water) {
                self.stats.published += 1;
                self.ledger.settle(now);
            }
        }
        self.recovered = self.source.is_open() || self.recovered;
    }

    fn check_end(&self, end: Option<&StreamEnd>) -> Result<(), Failure> {
        let (Some(end), Some(identity)) = (end, &self.identity) else { return Ok(()) };
        let advice = "give this relay another relay.name or another stream, or point source.url at \
                      the database that the stream was written from";
        if end.source.system_identifier != identity.system_identifier {
            let message = format!(
                "the stream's end at {} was written by relay {} from the database with the system \
                 identifier {}, but this one has {}",
                end.position,
                identity.relay,
                end.source.system_identifier,
                identity.system_identifier
            );
            return Err(Failure::halt("identity", message).advise(advice));
        }
        let beyond = end.position.commit_lsn > self.slot_position;
        if end.source.timeline != identity.timeline && beyond {
            let message = format!(
                "the stream's end at {} was written on timeline {}, the server is on {} and the \
                 slot at {}: rows between may differ",
                end.position, end.source.timeline, identity.timeline, self.slot_position
            );
            return Err(Failure::halt("timeline", message).advise(advice));
        }
        Ok(())
    }

    /// The stream ends before what it acknowledged. What the slot still holds back is read again;
    /// what it does not is named.
    fn tail_lost(
        &mut self,
        now: Duration,
        stream_end: Option<Position>,
        acked: Position,
        effects: &mut Vec<Effect>,
    ) {
        effects.push(Effect::Notice(Notice::TailLost { stream_end, acked }));
        effects.push(Effect::CloseSink);
        self.sink.closed();
        if let Some(gone) = self.ledger.confirmed_event().filter(|gone| Some(*gone) > stream_end) {
            let from = stream_end.map_or_else(|| "its start".to_owned(), |end| end.to_string());
            let message = format!(
                "the stream ends at {from}, but events up to {acked} had been acknowledged, and \
                 the slot no longer holds those up to {gone}"
            );
            let advice = "restore the stream, or start the relay again to go on without them";
            return self.halt(now, Failure::halt("tail_lost", message).advise(advice), effects);
        }
        self.acked = None;
        self.high_water = None;
        self.restart_reading();
        if self.source.is_open() {
            effects.push(Effect::AbortSource);
            self.source.closed();
            self.open_source(now, effects);
        }
    }

    pub(crate) fn acknowledged(
        &mut self,
        now: Duration,
        count: u64,
        sequence: u64,
        effects: &mut Vec<Effect>,
    ) {
        if !self.sink.is_open() {
            return;
        }
        let Some(events) = self.pipeline.acknowledge(now, count) else {
            effects.push(Effect::CloseSink);
            let failure = Failure::wait("protocol", "more acks than publishes");
            return self.sink_failed(now, failure, effects);
        };
        for event in events {
            self.stats.published += 1;
            self.acked = Some(Stored { position: event.position, sequence });
            self.ledger.settle(now);
            effects.push(Effect::Published { committed_at: event.committed_at });
        }
    }

    /// The server did not store the publish because it knows the message id. Only an answer to a
    /// publish that stands alone is believed; see [`crate::pipeline::Pipeline`].
    pub(crate) fn duplicate(
        &mut self,
        now: Duration,
        index: u64,
        stored: Option<Position>,
        effects: &mut Vec<Effect>,
    ) {
        if !self.sink.is_open() {
            return;
        }
        let alone = self.pipeline.front_is(index) && self.pipeline.is_probing();
        if let Some(front) = self.pipeline.front().filter(|_| alone).cloned() {
            let position = front.position;
            match stored {
                Some(stored) if stored != position => {
                    self.pipeline.pop();
                    self.stats.duplicate_ids += 1;
                    self.ledger.settle(now);
                    effects.push(Effect::Notice(Notice::DuplicateId { position, stored }));
                }
                Some(_) => {}
                None => {
                    let Outgoing { subject, headers, body } = (*front.outgoing).clone();
                    let headers = headers.without(headers::MESSAGE_ID);
                    self.pipeline.replace_front(Outgoing { subject, headers, body });
                    effects.push(Effect::Notice(Notice::DuplicateVanished { position }));
                }
            }
        }
        effects.push(Effect::CloseSink);
        let failure = Failure::wait("duplicate", "the server took a publish for a repetition");
        self.sink_failed(now, failure, effects);
    }

    pub(crate) fn sink_failed(
        &mut self,
        now: Duration,
        failure: Failure,
        effects: &mut Vec<Effect>,
    ) {
        self.stats.sink_failures += 1;
        self.pipeline.session_lost();
        self.sink.failed(failure.clone());
        let wrong_from_the_start = failure.code == CODE_AUTH && !self.sink_was_open;
        if failure.class == FailureClass::Halt || wrong_from_the_start {
            return self.halt(now, failure, effects);
        }
        if self.is_ending() {
            return;
        }
        let pause = match failure.code.as_str() {
            CODE_OVERTAKEN | "duplicate" => {
                let due = self.sink.tried_at + self.options.retry_pause_min;
                due.saturating_sub(now)
            }
            _ => self.sink.backoff.next(),
        };
        self.sink.retry_at = Some(now + pause);
        let dependency = Dependency::Sink;
        effects.push(Effect::Notice(Notice::Retrying { dependency, failure, pause }));
    }
}
