//! What JetStream does with publishes that state the sequence they must follow.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use event::{Position, SourceId, headers};
use relay_core::{Occupant, Outgoing, SinkOpened, StreamEnd};

use crate::database::Row;

/// What a message is.
#[derive(Clone, Debug)]
pub enum Content {
    /// An event at its place.
    Event(Arc<Outgoing>),
    /// An event published once more from the table.
    Replayed(Row),
    /// A message of somebody else.
    Foreign,
}

/// A message in the stream.
#[derive(Clone, Debug)]
pub struct Stored {
    /// Its sequence.
    pub sequence: u64,
    /// What it is.
    pub content: Content,
}

impl Stored {
    fn header(&self, name: &str) -> Option<&str> {
        match &self.content {
            Content::Event(outgoing) => outgoing.headers.get(name),
            Content::Replayed(_) | Content::Foreign => None,
        }
    }

    /// The event's id.
    #[must_use]
    pub fn event_id(&self) -> Option<&str> {
        match &self.content {
            Content::Replayed(row) => Some(&row.event_id),
            Content::Event(_) | Content::Foreign => self.header(headers::EVENT_ID),
        }
    }

    /// The event's aggregate.
    #[must_use]
    pub fn aggregate_id(&self) -> Option<&str> {
        match &self.content {
            Content::Replayed(row) => Some(&row.aggregate_id),
            Content::Event(_) | Content::Foreign => self.header(headers::AGGREGATE_ID),
        }
    }

    /// The event's version.
    #[must_use]
    pub fn version(&self) -> Option<u64> {
        match &self.content {
            Content::Replayed(row) => Some(row.version),
            Content::Event(_) | Content::Foreign => {
                self.header(headers::AGGREGATE_VERSION)?.parse().ok()
            }
        }
    }

    /// The event's position.
    #[must_use]
    pub fn position(&self) -> Option<Position> {
        self.header(headers::POSITION)?.parse().ok()
    }

    fn source(&self) -> Option<SourceId> {
        self.header(headers::SOURCE)?.parse().ok()
    }

    fn occupant(&self) -> Occupant {
        match &self.content {
            Content::Event(_) => self.position().map_or(Occupant::Foreign, Occupant::Ours),
            Content::Replayed(_) => Occupant::Replayed,
            Content::Foreign => Occupant::Foreign,
        }
    }
}

/// The answer to a publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Stored at this sequence.
    Stored(u64),
    /// The message id is known; not stored.
    Duplicate(u64),
    /// The stream's end is not where the publish said.
    Refused,
    /// The stream takes no more.
    Full,
    /// A message id of a batch is known, or stands in it twice; nothing of it is stored.
    DuplicateInBatch,
    /// A part of a batch did not arrive.
    Incomplete,
}

/// The stream and its duplicate window.
#[derive(Debug)]
pub struct Broker {
    /// The messages, in order, the consumed ones included.
    pub messages: Vec<Stored>,
    /// Until when the stream takes nothing.
    pub full_until: Duration,
    /// Whether messages leave the stream when they are consumed.
    pub removing: bool,
    /// How many messages it takes as one.
    pub batch_max: usize,
    consumed: BTreeSet<u64>,
    created: u64,
    last_sequence: u64,
    window: Duration,
    ids: BTreeMap<String, (Duration, u64)>,
}

impl Broker {
    /// An empty stream.
    #[must_use]
    pub const fn new(window: Duration, removing: bool, batch_max: usize) -> Self {
        Self {
            messages: Vec::new(),
            full_until: Duration::ZERO,
            removing,
            batch_max,
            consumed: BTreeSet::new(),
            created: 0,
            last_sequence: 0,
            window,
            ids: BTreeMap::new(),
        }
    }

    /// Takes a publish, all of it or nothing. The duplicate window is looked at first.
    pub fn publish(&mut self, now: Duration, publish: Publish) -> Answer {
        let Publish { expected_sequence, expected_id, messages, .. } = publish;
        let ids: Vec<_> = messages.iter().filter_map(|message| message_id(message)).collect();
        let known =
            ids.iter().find_map(|id| self.ids.get(id).filter(|(at, _)| now < *at + self.window));
        if let Some((_, sequence)) = known
            && messages.len() == 1
        {
            return Answer::Duplicate(*sequence);
        }
        let distinct: BTreeSet<_> = ids.iter().collect();
        if known.is_some() || distinct.len() < ids.len() {
            return Answer::DuplicateInBatch;
        }
        let last_id = self.messages.last().and_then(|last| match &last.content {
            Content::Event(outgoing) => message_id(outgoing),
            Content::Replayed(_) | Content::Foreign => None,
        });
        if expected_sequence != self.last_sequence
            || expected_id.is_some_and(|id| Some(id) != last_id)
        {
            return Answer::Refused;
        }
        if now < self.full_until {
            return Answer::Full;
        }
        for message in messages {
            let id = message_id(&message);
            self.append(Content::Event(message));
            if let Some(id) = id {
                self.ids.insert(id, (now, self.last_sequence));
            }
        }
        Answer::Stored(self.last_sequence)
    }

    /// Stores a message without conditions.
    pub fn append(&mut self, content: Content) {
        self.last_sequence += 1;
        self.messages.push(Stored { sequence: self.last_sequence, content });
    }

    /// The stream's last sequence.
    #[must_use]
    pub const fn last_sequence(&self) -> u64 {
        self.last_sequence
    }

    /// When the stream was created.
    #[must_use]
    pub fn created(&self) -> String {
        self.created.to_string()
    }

    /// Whether an event stands in the stream.
    #[must_use]
    pub fn has(&self, event_id: &str) -> bool {
        self.messages.iter().rev().any(|message| message.event_id() == Some(event_id))
    }

    /// Whether events were published once more.
    #[must_use]
    pub fn has_replays(&self) -> bool {
        self.messages.iter().any(|message| matches!(message.content, Content::Replayed(_)))
    }

    /// A consumer takes one of the messages out.
    pub fn consume(&mut self, pick: usize) {
        if self.removing
            && let Some(message) = self.messages.iter().rev().nth(pick)
        {
            self.consumed.insert(message.sequence);
        }
    }

    /// The newest messages are gone, with their ids: a power cut before the sync.
    pub fn lose_tail(&mut self, count: usize) {
        let keep = self.messages.len().saturating_sub(count);
        self.messages.truncate(keep);
        self.last_sequence = self.messages.last().map_or(0, |message| message.sequence);
        let last = self.last_sequence;
        self.ids.retain(|_, (_, sequence)| *sequence <= last);
    }

    /// The stream is deleted and made anew.
    pub fn recreate(&mut self) {
        self.messages.clear();
        self.ids.clear();
        self.last_sequence = 0;
        self.created += 1;
    }

    /// The position of the message at a sequence.
    #[must_use]
    pub fn position_at(&self, sequence: u64) -> Option<Position> {
        self.there().find(|message| message.sequence == sequence)?.position()
    }

    fn there(&self) -> impl DoubleEndedIterator<Item = &Stored> {
        self.messages.iter().filter(|message| !self.consumed.contains(&message.sequence))
    }

    /// What a new session reads, with a look at one sequence.
    #[must_use]
    pub fn open(&self, verify: Option<u64>) -> SinkOpened {
        let end = self.there().rev().find_map(|message| {
            Some(StreamEnd {
                position: message.position()?,
                source: message.source()?,
                sequence: message.sequence,
                event_id: message.event_id().map(str::to_owned),
            })
        });
        let occupant = |sequence| {
            let found = self.there().find(|message| message.sequence == sequence);
            found.map_or(Occupant::None, Stored::occupant)
        };
        SinkOpened {
            end,
            gapless: true,
            last_sequence: self.last_sequence,
            stream_created: self.created(),
            verified: verify.map_or(Occupant::None, occupant),
            removing: self.removing,
            message_bytes_max: 1 << 20,
            batch_events_max: self.batch_max,
        }
    }
}

/// A publish under way: one message, or a batch of them. A batch of which a part is lost is a lost
/// batch.
#[derive(Clone, Debug)]
pub struct Publish {
    /// The last message of it, counted in the session from 0.
    pub index: u64,
    /// The sequence that must be the stream's last.
    pub expected_sequence: u64,
    /// The message id that the stream's last message must have; the first publish of a session
    /// names none, and a batch cannot.
    pub expected_id: Option<String>,
    /// The messages.
    pub messages: Vec<Arc<Outgoing>>,
}

fn message_id(outgoing: &Outgoing) -> Option<String> {
    outgoing.headers.get(headers::MESSAGE_ID).map(str::to_owned)
}

/// A connection to the broker: publishes under way there, answers under way back.
#[derive(Debug)]
pub struct Wire {
    base: u64,
    published: u64,
    acked: u64,
    last_id: Option<String>,
    /// Publishes on their way.
    pub there: VecDeque<Publish>,
    /// Answers on their way, with the index of the publish.
    pub back: VecDeque<(u64, Answer)>,
}

impl Wire {
    /// A session whose first publish must follow `base`.
    #[must_use]
    pub fn new(base: u64) -> Self {
        let (there, back) = (VecDeque::new(), VecDeque::new());
        Self { base, published: 0, acked: 0, last_id: None, there, back }
    }

    /// The relay publishes one message, or a batch.
    pub fn publish(&mut self, messages: Vec<Arc<Outgoing>>) {
        let last_id = messages.last().and_then(|last| message_id(last));
        let expected_id = std::mem::replace(&mut self.last_id, last_id);
        let expected_sequence = self.base + self.published;
        self.published += messages.len() as u64;
        self.there.push_back(Publish {
            index: self.published - 1,
            expected_sequence,
            expected_id: expected_id.filter(|_| messages.len() == 1),
            messages,
        });
    }

    /// The cumulative count that an ack of publish `index` stands for.
    pub fn count(&mut self, index: u64) -> u64 {
        self.acked = self.acked.max(index + 1);
        self.acked
    }
}
