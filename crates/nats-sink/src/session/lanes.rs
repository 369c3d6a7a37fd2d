use std::collections::{HashMap, VecDeque};

use event::{Position, headers};
use relay_core::Outgoing;

/// Which publishes may go out on a stream that others write to as well.
///
/// A lane is a subject or an aggregate; a message takes both of its lanes, and goes out once it is
/// the first in each. So one message of a subject or aggregate is under way at a time, while
/// different ones do not wait for each other. What the stream last held of a subject is looked up
/// once, and says which messages an earlier session has stored already.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    /// The messages that are not counted yet; the first has the index `counted`.
    messages: VecDeque<Message>,
    counted: u64,
    /// The highest sequence of the counted ones.
    sequence: u64,
    lanes: HashMap<Lane, VecDeque<u64>>,
    ready: VecDeque<u64>,
    subjects: HashMap<String, LastOf>,
}

#[derive(Debug)]
struct Message {
    outgoing: Outgoing,
    stored: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Lane {
    Subject(String),
    Aggregate(String, String),
}

/// What a stream last held of a subject.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LastOf {
    /// The sequence of the last message, whoever wrote it; 0 when there is none.
    pub(super) sequence: u64,
    /// The position of the relay's own last event.
    pub(super) stored_to: Option<Position>,
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Find out what the stream last holds of this message's subject.
    LookUp { index: u64, subject: String },
    /// Publish, if this sequence is still the subject's last.
    Publish { index: u64, after: u64 },
}

/// So many subjects are remembered; one that was forgotten is looked up again.
const SUBJECTS_MAX: usize = 100_000;

impl Lanes {
    /// The next message, in the order of positions.
    pub(super) fn push(&mut self, outgoing: Outgoing) {
        let index = self.counted + self.messages.len() as u64;
        let mut first = true;
        for lane in lanes_of(&outgoing) {
            let lane = self.lanes.entry(lane).or_default();
            first &= lane.is_empty();
            lane.push_back(index);
        }
        if first {
            self.ready.push_back(index);
        }
        self.messages.push_back(Message { outgoing, stored: None });
    }

    /// What can be done now; `None` until more is known.
    pub(super) fn next(&mut self) -> Option<Step> {
        while let Some(index) = self.ready.pop_front() {
            let Some(outgoing) = self.outgoing(index) else { continue };
            let subject = outgoing.subject.as_str();
            let Some(last) = self.subjects.get(subject).copied() else {
                return Some(Step::LookUp { index, subject: subject.to_owned() });
            };
            let position = position(outgoing);
            if position.is_some() && position <= last.stored_to {
                self.settle(index, last.sequence);
                continue;
            }
            return Some(Step::Publish { index, after: last.sequence });
        }
        None
    }

    /// The message with an index, until it is counted.
    pub(super) fn outgoing(&self, index: u64) -> Option<&Outgoing> {
        let offset = usize::try_from(index.checked_sub(self.counted)?).ok()?;
        self.messages.get(offset).map(|message| &message.outgoing)
    }

    /// What was asked for with [`Step::LookUp`].
    pub(super) fn looked_up(&mut self, index: u64, last: LastOf) {
        if self.subjects.len() >= SUBJECTS_MAX {
            // A subject under way is known by its own answer.
            self.subjects.clear();
        }
        if let Some(outgoing) = self.outgoing(index) {
            let subject = outgoing.subject.as_str().to_owned();
            self.subjects.insert(subject, last);
            self.ready.push_front(index);
        }
    }

    /// The server has stored a message.
    pub(super) fn stored(&mut self, index: u64, sequence: u64) {
        let Some(outgoing) = self.outgoing(index) else { return };
        let subject = outgoing.subject.as_str().to_owned();
        let stored_to = position(outgoing);
        let last = self.subjects.entry(subject).or_default();
        last.sequence = sequence;
        last.stored_to = last.stored_to.max(stored_to);
        self.settle(index, sequence);
    }

    fn settle(&mut self, index: u64, sequence: u64) {
        let Some(offset) = index.checked_sub(self.counted) else { return };
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let Some(message) = self.messages.get_mut(offset).filter(|m| m.stored.is_none()) else {
            return;
        };
        message.stored = Some(sequence);
        let lanes = lanes_of(&message.outgoing);
        let mut next = Vec::new();
        for lane in lanes {
            if let Some(queue) = self.lanes.get_mut(&lane) {
                queue.pop_front();
                match queue.front() {
                    Some(first) => next.push(*first),
                    None => drop(self.lanes.remove(&lane)),
                }
            }
        }
        next.sort_unstable();
        next.dedup();
        for index in next {
            if self.is_first(index) {
                self.ready.push_back(index);
            }
        }
    }

    fn is_first(&self, index: u64) -> bool {
        let Some(outgoing) = self.outgoing(index) else { return false };
        lanes_of(outgoing)
            .iter()
            .all(|lane| self.lanes.get(lane).and_then(VecDeque::front) == Some(&index))
    }

    /// How many messages of the session are stored with all before them, and the highest of their
    /// sequences, when that has grown.
    pub(super) fn count(&mut self) -> Option<(u64, u64)> {
        let before = self.counted;
        while let Some(Message { stored: Some(sequence), .. }) = self.messages.front() {
            self.sequence = self.sequence.max(*sequence);
            self.messages.pop_front();
            self.counted += 1;
        }
        (self.counted > before).then_some((self.counted, self.sequence))
    }
}

fn lanes_of(outgoing: &Outgoing) -> [Lane; 2] {
    let header = |name| outgoing.headers.get(name).unwrap_or_default().to_owned();
    [
        Lane::Subject(outgoing.subject.as_str().to_owned()),
        Lane::Aggregate(header(headers::AGGREGATE_TYPE), header(headers::AGGREGATE_ID)),
    ]
}

/// A message that is published once more has none.
fn position(outgoing: &Outgoing) -> Option<Position> {
    outgoing.headers.get(headers::POSITION)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use event::{Event, Headers, Lsn, Payload, SourceId, Subject};

    fn at(n: u64) -> Position {
        Position { commit_lsn: Lsn::new(n), ordinal: 0 }
    }

    fn message(n: u64, subject: &str, aggregate: &str) -> Outgoing {
        let event = Event {
            event_id: n.to_string(),
            aggregate_type: "t".into(),
            aggregate_id: aggregate.into(),
            aggregate_version: None,
            event_type: "T".into(),
            occurred_at: None,
            payload: Payload::Binary(Bytes::new()),
            extra_headers: Vec::new(),
        };
        let source = SourceId { relay: "shop".into(), system_identifier: 7, timeline: 1 };
        Outgoing {
            subject: Subject::new(subject.to_owned()).unwrap(),
            headers: Headers::of(&event, "id", at(n), &source, 0).unwrap(),
            body: Bytes::new(),
        }
    }

    fn publish(index: u64, after: u64) -> Option<Step> {
        Some(Step::Publish { index, after })
    }

    fn look_up(index: u64, subject: &str) -> Option<Step> {
        Some(Step::LookUp { index, subject: subject.into() })
    }

    #[test]
    fn one_of_a_subject_is_under_way_and_others_do_not_wait() {
        let mut lanes = Lanes::default();
        lanes.push(message(1, "s.a", "a"));
        lanes.push(message(2, "s.a", "a"));
        lanes.push(message(3, "s.b", "b"));
        assert_eq!(lanes.next(), look_up(0, "s.a"));
        assert_eq!(lanes.next(), look_up(2, "s.b"));
        assert_eq!(lanes.next(), None);
        lanes.looked_up(0, LastOf { sequence: 40, stored_to: None });
        assert_eq!(lanes.next(), publish(0, 40));
        lanes.looked_up(2, LastOf::default());
        assert_eq!(lanes.next(), publish(2, 0));
        lanes.stored(2, 51);
        assert_eq!((lanes.next(), lanes.count()), (None, None), "the first is still out");
        lanes.stored(0, 52);
        assert_eq!(lanes.next(), publish(1, 52));
        assert_eq!(lanes.count(), Some((1, 52)));
        lanes.stored(1, 53);
        assert_eq!(lanes.count(), Some((3, 53)));
        assert_eq!((lanes.next(), lanes.count()), (None, None));
        assert!(lanes.lanes.is_empty());
    }

    #[test]
    fn an_aggregate_keeps_its_order_over_several_subjects() {
        let mut lanes = Lanes::default();
        lanes.push(message(1, "created", "a"));
        lanes.push(message(2, "paid", "a"));
        lanes.push(message(3, "paid", "b"));
        assert_eq!(lanes.next(), look_up(0, "created"));
        assert_eq!(lanes.next(), None, "the third waits for the second's subject");
        lanes.looked_up(0, LastOf::default());
        assert_eq!(lanes.next(), publish(0, 0));
        lanes.stored(0, 1);
        assert_eq!(lanes.next(), look_up(1, "paid"));
        lanes.looked_up(1, LastOf::default());
        assert_eq!((lanes.next(), lanes.next()), (publish(1, 0), None));
        lanes.stored(1, 2);
        assert_eq!(lanes.next(), publish(2, 2));
    }

    #[test]
    fn what_an_earlier_session_stored_is_counted_and_not_published() {
        let mut lanes = Lanes::default();
        for n in 1..=3 {
            lanes.push(message(n, "s.a", "a"));
        }
        assert_eq!(lanes.next(), look_up(0, "s.a"));
        lanes.looked_up(0, LastOf { sequence: 9, stored_to: Some(at(2)) });
        assert_eq!(lanes.next(), publish(2, 9));
        assert_eq!(lanes.count(), Some((2, 9)));
    }

    #[test]
    fn a_message_without_a_position_is_never_taken_for_stored() {
        let mut lanes = Lanes::default();
        let replay = event::Replay {
            name: "r".into(),
            by: "b".into(),
            reason: "w".into(),
            keeps_position: false,
        };
        let plain = message(1, "s.a", "a");
        let headers = plain.headers.clone().replayed(&replay).unwrap();
        lanes.push(Outgoing { headers, ..plain });
        assert_eq!(lanes.next(), look_up(0, "s.a"));
        lanes.looked_up(0, LastOf { sequence: 9, stored_to: Some(at(7)) });
        assert_eq!(lanes.next(), publish(0, 9));
    }
}
