use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use event::{Lsn, Position, headers};

use crate::batching::{Batching, Refusal, Unit, Waiting};
use crate::{Effect, Notice, Outgoing, SplitReason};

/// The events that JetStream has not acknowledged, in position order, and how far the sink session
/// has got with them.
///
/// Events leave at the front only. A new sink session starts over from the front, behind the
/// stream's end; so whatever a lost session had stored, nothing is skipped and nothing overtakes.
#[derive(Debug)]
pub(crate) struct Pipeline {
    queue: VecDeque<InFlight>,
    bytes: usize,
    events_max: usize,
    bytes_max: usize,
    /// How many at the front were published in this session.
    sent: usize,
    /// How many this session has acknowledged.
    acked: u64,
    /// After a failure one event goes alone, so that its answer cannot be mistaken for another's.
    probing: bool,
    /// When the session last made progress while something was out.
    progress_at: Duration,
    batching: Batching,
}

#[derive(Clone, Debug)]
pub(crate) struct InFlight {
    pub(crate) position: Position,
    pub(crate) committed_at: i64,
    pub(crate) outgoing: Arc<Outgoing>,
}

impl Pipeline {
    pub(crate) const fn new(events_max: usize, bytes_max: usize) -> Self {
        Self {
            queue: VecDeque::new(),
            bytes: 0,
            events_max,
            bytes_max,
            sent: 0,
            acked: 0,
            probing: false,
            progress_at: Duration::ZERO,
            batching: Batching::new(),
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.queue.len() < self.events_max && self.bytes < self.bytes_max
    }

    pub(crate) fn push(&mut self, event: InFlight) {
        debug_assert!(self.queue.back().is_none_or(|last| last.position < event.position));
        self.bytes += event.outgoing.wire_bytes();
        self.queue.push_back(event);
    }

    /// Publishes what may go now in this session. The end of the transaction `open` has not been
    /// read. Gives how many transactions it split.
    pub(crate) fn send(
        &mut self,
        now: Duration,
        open: Option<Lsn>,
        effects: &mut Vec<Effect>,
    ) -> u64 {
        let mut split = 0;
        while let Some((position, unit)) = self.next_unit(open) {
            if self.sent == 0 {
                self.progress_at = now;
            }
            let events = match unit {
                Unit::Nothing => break,
                Unit::One => 1,
                Unit::Split(reason) => {
                    split += 1;
                    effects.push(Effect::Notice(Notice::Split { position, reason }));
                    1
                }
                Unit::Batch(events) => events,
            };
            let mut messages =
                self.queue.range(self.sent..).take(events).map(|event| Arc::clone(&event.outgoing));
            let effect = match (events, messages.next()) {
                (1, Some(message)) => Effect::Publish(message),
                (_, first) => Effect::PublishBatch(first.into_iter().chain(messages).collect()),
            };
            effects.push(effect);
            self.sent += events;
        }
        split
    }

    /// What may go next, and where it begins.
    fn next_unit(&mut self, open: Option<Lsn>) -> Option<(Position, Unit)> {
        if self.probing && self.sent > 0 {
            return None;
        }
        let position = self.queue.get(self.sent)?.position;
        if !self.batching.is_on() {
            return Some((position, Unit::One));
        }
        let commit_lsn = position.commit_lsn;
        let end = self.queue.partition_point(|event| event.position.commit_lsn <= commit_lsn);
        let waiting = Waiting {
            commit_lsn,
            events: end - self.sent,
            is_open: open == Some(commit_lsn),
            has_room: self.has_room(),
            behind_others: self.sent > 0,
        };
        Some((position, self.batching.unit(waiting)))
    }

    pub(crate) const fn session_opened(&mut self, batch_events_max: usize) {
        self.batching.session_opened(batch_events_max);
    }

    pub(crate) const fn give_up_batches(&mut self) {
        self.batching.give_up();
    }

    /// The batch that went alone was refused for what is in it. Says from where on its transaction
    /// leaves event by event, if it does.
    pub(crate) fn batch_refused(&mut self, why: Refusal) -> Option<(Position, SplitReason)> {
        let position = self.front()?.position;
        let commit_lsn = position.commit_lsn;
        let events = self.queue.partition_point(|event| event.position.commit_lsn <= commit_lsn);
        let reason = self.batching.refused(commit_lsn, events, why)?;
        Some((position, reason))
    }

    /// Leaves out what of a transaction whose end will not be read is not published yet, if it was
    /// to leave as one.
    pub(crate) fn drop_open(&mut self, open: Lsn) {
        if self.batching.is_split(open) {
            return;
        }
        let whole = self.queue.partition_point(|event| event.position.commit_lsn < open);
        for event in self.queue.drain(whole.max(self.sent)..) {
            self.bytes -= event.outgoing.wire_bytes();
        }
    }

    /// Takes out the events that the session's cumulative count newly covers. `None` when the sink
    /// acknowledges more than was sent.
    pub(crate) fn acknowledge(&mut self, now: Duration, count: u64) -> Option<Vec<InFlight>> {
        let newly = usize::try_from(count.saturating_sub(self.acked)).ok()?;
        if newly > self.sent {
            return None;
        }
        self.acked = self.acked.max(count);
        if newly > 0 {
            self.probing = false;
            self.progress_at = now;
            self.batching.progressed();
        }
        Some((0..newly).filter_map(|_| self.pop()).collect())
    }

    /// The event that the session's publish `index` carried, if it is the one at the front.
    pub(crate) fn front_is(&self, index: u64) -> bool {
        self.sent > 0 && index == self.acked
    }

    pub(crate) const fn is_probing(&self) -> bool {
        self.probing
    }

    pub(crate) fn front(&self) -> Option<&InFlight> {
        self.queue.front()
    }

    /// Puts another message in the place of the one at the front.
    pub(crate) fn replace_front(&mut self, outgoing: Outgoing) {
        if let Some(front) = self.queue.front_mut() {
            self.bytes -= front.outgoing.wire_bytes();
            self.bytes += outgoing.wire_bytes();
            front.outgoing = Arc::new(outgoing);
        }
    }

    pub(crate) fn pop(&mut self) -> Option<InFlight> {
        let event = self.queue.pop_front()?;
        self.bytes -= event.outgoing.wire_bytes();
        self.sent = self.sent.saturating_sub(1);
        Some(event)
    }

    /// Whether the event with this position and, where one is given, this id is in here.
    pub(crate) fn holds(&self, position: Position, event_id: Option<&str>) -> bool {
        let index = self.queue.partition_point(|event| event.position < position);
        self.queue.get(index).is_some_and(|event| {
            let id = event.outgoing.headers.get(headers::EVENT_ID);
            event.position == position && (event_id.is_none() || event_id == id)
        })
    }

    /// Takes out the events that stand in the stream already.
    pub(crate) fn drop_through(&mut self, high_water: Position) -> usize {
        let before = self.queue.len();
        while self.queue.front().is_some_and(|event| event.position <= high_water) {
            self.pop();
        }
        before - self.queue.len()
    }

    pub(crate) const fn session_lost(&mut self) {
        self.sent = 0;
        self.acked = 0;
        self.probing = true;
    }

    pub(crate) fn clear(&mut self) {
        self.queue.clear();
        self.bytes = 0;
        self.session_lost();
    }

    /// Since when the oldest publish waits for its ack.
    pub(crate) fn waiting_since(&self) -> Option<Duration> {
        (self.sent > 0).then_some(self.progress_at)
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use event::{Headers, Lsn, Subject};

    const SECOND: Duration = Duration::from_secs(1);

    fn event(n: u64) -> InFlight {
        let outgoing = Outgoing {
            subject: Subject::new(format!("s.{n}")).unwrap(),
            headers: Headers::default(),
            body: Bytes::from_static(&[0; 88]),
        };
        let position = Position { commit_lsn: Lsn::new(n), ordinal: 0 };
        InFlight { position, committed_at: 0, outgoing: Arc::new(outgoing) }
    }

    fn sent(pipeline: &mut Pipeline) -> Vec<String> {
        let mut effects = Vec::new();
        pipeline.send(SECOND, None, &mut effects);
        let subjects = effects.into_iter().map(|effect| {
            let Effect::Publish(outgoing) = effect else { panic!("{effect:?}") };
            outgoing.subject.to_string()
        });
        subjects.collect()
    }

    #[test]
    fn a_lost_session_starts_over_behind_the_high_water_mark_and_probes_first() {
        let mut pipeline = Pipeline::new(10, 10_000);
        (1..=4).for_each(|n| pipeline.push(event(n)));
        assert_eq!(sent(&mut pipeline), ["s.1", "s.2", "s.3", "s.4"]);
        assert_eq!(pipeline.acknowledge(SECOND, 1).unwrap().len(), 1);
        pipeline.session_lost();
        assert_eq!(pipeline.drop_through(event(2).position), 1);
        assert_eq!(sent(&mut pipeline), ["s.3"]);
        assert_eq!(pipeline.acknowledge(SECOND, 1).unwrap()[0].position, event(3).position);
        assert_eq!(sent(&mut pipeline), ["s.4"]);
    }

    #[test]
    fn acks_are_cumulative_and_never_beyond_what_was_sent() {
        let mut pipeline = Pipeline::new(10, 10_000);
        pipeline.push(event(1));
        assert_eq!(sent(&mut pipeline), ["s.1"]);
        (2..=3).for_each(|n| pipeline.push(event(n)));
        assert!(pipeline.acknowledge(SECOND, 2).is_none());
        assert_eq!(pipeline.acknowledge(SECOND, 1).unwrap().len(), 1);
        assert!(pipeline.acknowledge(SECOND, 1).unwrap().is_empty());
        assert_eq!(pipeline.waiting_since(), None);
    }

    #[test]
    fn the_budget_bounds_events_and_bytes() {
        let mut by_count = Pipeline::new(2, 10_000);
        let mut by_bytes = Pipeline::new(10, 150);
        for n in 1..=2 {
            assert!(by_count.has_room() && by_bytes.has_room());
            by_count.push(event(n));
            by_bytes.push(event(n));
        }
        assert!(!by_count.has_room() && !by_bytes.has_room());
        assert_eq!(by_bytes.bytes(), 2 * (88 + 12));
        by_bytes.drop_through(event(1).position);
        assert!(by_bytes.has_room());
    }
}
