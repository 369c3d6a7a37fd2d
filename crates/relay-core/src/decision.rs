use event::{Lsn, Position, SourceId};

use crate::{Past, Record, SinkOpened, Stored};

/// What a person who decides how to go on finds: the state on both sides, with no relay at work.
#[derive(Clone, Debug)]
pub struct Scene {
    /// The database's identity now.
    pub source: SourceId,
    /// The slot's position.
    pub slot_position: Lsn,
    /// What is on record.
    pub record: Option<Record>,
    /// The stream.
    pub stream: SinkOpened,
}

impl Scene {
    /// The database is the right one, though the stream is ahead of it or was written from another:
    /// what the stream has beyond `shared_below` stays there and belongs to the past, and events
    /// are published from there on.
    #[must_use]
    pub fn adopt(&self, shared_below: Lsn) -> Record {
        let stream = &self.stream;
        let ahead = stream.end.as_ref().is_some_and(|end| end.position.commit_lsn >= shared_below);
        let new_past = Past {
            stream_created: stream.stream_created.clone(),
            sequence: stream.last_sequence,
            shared_below,
        };
        let past = if ahead { Some(new_past) } else { self.past() };
        let before = self.record.as_ref().and_then(|record| record.acked);
        let clamped = before.map(|acked| Stored {
            position: acked.position.min(last_before(shared_below)),
            sequence: acked.sequence,
        });
        let acked = match &past {
            Some(past) if ahead => past.end(),
            Some(_) | None => clamped,
        };
        let released = last_before(self.slot_position.min(shared_below));
        Record { acked, released: Some(released), past, ..self.as_it_is() }
    }

    /// Everything that was committed before the slot's position is in the stream, or is given up.
    #[must_use]
    pub fn settle_before_slot(&self) -> Record {
        let last = self.stream.last_sequence;
        let position = last_before(self.slot_position);
        let acked = (last > 0).then_some(Stored { position, sequence: last });
        Record { acked, released: Some(position), past: self.past(), ..self.as_it_is() }
    }

    fn as_it_is(&self) -> Record {
        Record {
            source: self.source.clone(),
            stream_created: self.stream.stream_created.clone(),
            acked: None,
            released: None,
            confirmed: self.slot_position,
            past: None,
            mending: None,
        }
    }

    /// The past on record, if it is one of this stream.
    fn past(&self) -> Option<Past> {
        let past = self.record.as_ref().and_then(|record| record.past.clone());
        past.filter(|past| past.stream_created == self.stream.stream_created)
    }
}

/// The last position that a transaction before `lsn` can have.
pub(crate) fn last_before(lsn: Lsn) -> Position {
    Position { commit_lsn: Lsn::new(lsn.get().saturating_sub(1)), ordinal: u64::MAX }
}
