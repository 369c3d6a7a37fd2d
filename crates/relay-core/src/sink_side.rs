use std::time::Duration;

use event::{Position, headers};

use crate::batching::Refusal;
use crate::{Core, Dependency, Effect, Failure, FailureClass, Notice, Outgoing, Stored};

/// The code of a failure to log in. A wrong password at the first try is a wrong configuration; one
/// that comes later may be a rotation under way.
pub const CODE_AUTH: &str = "auth";

/// The code of a publish that found the stream further than its sender thought.
pub const CODE_OVERTAKEN: &str = "overtaken";

/// The code of a batch with a message id that the stream knows already, or twice the same one.
pub const CODE_BATCH_DUPLICATE: &str = "batch_duplicate";

/// The code of a batch of more events than the server takes.
pub const CODE_BATCH_TOO_LARGE: &str = "batch_too_large";

/// The code of a batch that did not arrive whole, or at a bad moment.
pub const CODE_BATCH_INCOMPLETE: &str = "batch_incomplete";

/// The code of a stream that takes no batches, although it said so.
pub const CODE_BATCH_UNSUPPORTED: &str = "batch_unsupported";

impl Core {
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
        self.batch_failed(&failure, effects);
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
            CODE_OVERTAKEN
            | CODE_BATCH_DUPLICATE
            | CODE_BATCH_TOO_LARGE
            | CODE_BATCH_UNSUPPORTED
            | "duplicate" => {
                let due = self.sink.tried_at + self.options.retry_pause_min;
                due.saturating_sub(now)
            }
            _ => self.sink.backoff.next(),
        };
        self.sink.retry_at = Some(now + pause);
        let dependency = Dependency::Sink;
        effects.push(Effect::Notice(Notice::Retrying { dependency, failure, pause }));
    }

    /// What a new session says of batches.
    pub(crate) fn batches_opened(&mut self, events_max: usize, effects: &mut Vec<Effect>) {
        let wanted = self.options.atomic_transactions;
        self.pipeline.session_opened(if wanted { events_max } else { 0 });
        let missing = wanted && events_max == 0;
        if missing && !self.told_no_batches {
            effects.push(Effect::Notice(Notice::NoBatches));
        }
        self.told_no_batches = missing;
    }

    /// A batch that is refused for what is in it would be refused for ever.
    fn batch_failed(&mut self, failure: &Failure, effects: &mut Vec<Effect>) {
        let why = match failure.code.as_str() {
            CODE_BATCH_DUPLICATE => Refusal::Duplicate,
            CODE_BATCH_TOO_LARGE => Refusal::TooMany,
            CODE_BATCH_INCOMPLETE => Refusal::Passing,
            CODE_BATCH_UNSUPPORTED => {
                self.pipeline.give_up_batches();
                return effects.push(Effect::Notice(Notice::NoBatches));
            }
            _ => return,
        };
        if let Some((position, reason)) = self.pipeline.batch_refused(why) {
            self.stats.split_transactions += 1;
            effects.push(Effect::Notice(Notice::Split { position, reason }));
        }
    }
}
