use std::time::Duration;

use event::{Lsn, Position, SourceId};

use crate::{Core, Effect, Failure, LostRange};

/// A message of ours in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The event's position.
    pub position: Position,
    /// The message's stream sequence.
    pub sequence: u64,
}

/// What the relay keeps on record in its database, beside the outbox. It is written before the slot
/// is allowed to forget, so that a stream that lost what it had acknowledged, a slot that somebody
/// moved, and a database that is not the one from before are seen at the next start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The history that the positions belong to.
    pub source: SourceId,
    /// When the stream was created; another value is another stream.
    pub stream_created: String,
    /// The last event that the stream acknowledged.
    pub acked: Option<Stored>,
    /// The last event within what may be confirmed: the slot may not send it again.
    pub released: Option<Position>,
    /// The largest LSN that may have been confirmed. A slot beyond it was moved by somebody else.
    pub confirmed: Lsn,
    /// What a person has declared to be past.
    pub past: Option<Past>,
    /// Events that the stream lost are being published again from the outbox tables: those with a
    /// commit LSN below this. Later ones come from the slot.
    pub mending: Option<Lsn>,
}

/// A part of the stream that was written from a history which the database no longer continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Past {
    /// When the stream was created.
    pub stream_created: String,
    /// Messages up to this sequence belong to it.
    pub sequence: u64,
    /// Events with a commit LSN below stand in that part of the stream, and the database shares
    /// them; later ones it does not. Zero: it shares none.
    pub shared_below: Lsn,
}

impl Past {
    /// The last message of the past part, at the last position that both histories share; `None`
    /// when they share nothing.
    #[must_use]
    pub fn end(&self) -> Option<Stored> {
        let last = self.shared_below.get().checked_sub(1)?;
        let position = Position { commit_lsn: Lsn::new(last), ordinal: u64::MAX };
        Some(Stored { position, sequence: self.sequence })
    }

    /// Whether a message stands in the past part.
    pub(crate) fn covers(&self, created: &str, sequence: u64) -> bool {
        self.stream_created == created && sequence <= self.sequence
    }
}

pub(crate) const WAYS: &str = "outbox-relay recover shows the state and the ways on";

/// While acks come, the record follows them so often.
const STORE_EVERY: Duration = Duration::from_secs(2);

/// The record in the database, and what is to be written to it next.
#[derive(Debug, Default)]
pub(crate) struct RecordKeeper {
    /// What the database holds.
    pub(crate) durable: Option<Record>,
    /// Whether the database is the one that the stream was written from, as far as known: else
    /// nothing is written to it, and nothing confirmed.
    pub(crate) accepted: bool,
    storing: Option<Record>,
    stored_at: Duration,
    /// To be mended once the record says so.
    mend: Option<LostRange>,
    /// Due, and not confirmed before the record says so.
    confirming: Option<Lsn>,
    /// Confirmed, or the slot's position when the session took it.
    confirmed: Lsn,
    confirming_events: bool,
}

impl RecordKeeper {
    /// A new session has read the record anew; what was under way is forgotten.
    fn restart(&mut self, durable: Option<Record>, slot_position: Lsn) {
        self.mend = None;
        self.durable = durable;
        self.accepted = true;
        self.storing = None;
        self.confirming = None;
        self.confirmed = slot_position;
    }

    /// What is due and on record. While more becomes due all the time, the record is behind it, and
    /// what the record covers is confirmed all the same.
    fn confirmable(&mut self) -> Option<Lsn> {
        let due = self.confirming?;
        let lsn = due.min(self.durable.as_ref()?.confirmed);
        if lsn == due {
            self.confirming = None;
        }
        let newly = lsn > self.confirmed;
        self.confirmed = self.confirmed.max(lsn);
        newly.then_some(lsn)
    }

    fn covers(&self, lsn: Lsn) -> bool {
        self.durable.as_ref().is_some_and(|durable| durable.confirmed >= lsn)
    }
}

impl Core {
    /// The record as the session that took the slot found it.
    ///
    /// # Errors
    /// It does not fit this database, or somebody else has moved the slot.
    pub(crate) fn take_record(
        &mut self,
        record: Option<Record>,
        is_foreign: bool,
        identity: &SourceId,
    ) -> Result<(), Failure> {
        self.keeper.accepted = false;
        if let Some(record) = &record {
            self.check_slot(record, identity)?;
            if is_foreign || self.identity.is_none() {
                self.acked = record.acked;
                self.stream_created = Some(record.stream_created.clone());
                self.released = record.released;
                self.past = record.past.clone();
                self.mending = record.mending;
            } else {
                self.released = self.released.max(record.released);
            }
        }
        self.keeper.restart(record, self.slot_position);
        Ok(())
    }

    fn check_slot(&self, record: &Record, identity: &SourceId) -> Result<(), Failure> {
        if record.source.system_identifier != identity.system_identifier {
            let message = format!(
                "another database: the relay's record in it was made in the one with the system \
                 identifier {}, but this one has {}",
                record.source.system_identifier, identity.system_identifier
            );
            return Err(Failure::halt("identity", message).advise(WAYS));
        }
        // A standby takes the slot's position over by itself, perhaps further than the record.
        let fork = self.forks.iter().find(|fork| fork.timeline == record.source.timeline);
        let inherited = fork.filter(|_| record.source.timeline != identity.timeline);
        let known = record.confirmed.max(inherited.map_or(Lsn::ZERO, |fork| fork.end));
        if self.slot_position > known {
            let message = format!(
                "the slot was made anew or moved by somebody else: it stands at {}, and this relay \
                 has confirmed no further than {known}; what was committed between may be in \
                 neither slot nor stream",
                self.slot_position
            );
            return Err(Failure::halt("slot_moved", message).advise(WAYS));
        }
        Ok(())
    }

    /// Writes the record where it must be written, and confirms what the record covers.
    pub(crate) fn confirm(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        if !self.source.is_open() || !self.keeper.accepted {
            return;
        }
        let may_confirm = self.may_confirm();
        if may_confirm && let Some(lsn) = self.ledger.due(now) {
            self.keeper.confirming = Some(lsn);
            self.keeper.confirming_events = self.ledger.confirmed_event() > self.released;
        }
        let may_confirm = self.sink.is_open() || !self.keeper.confirming_events;
        if may_confirm && let Some(lsn) = self.keeper.confirmable() {
            effects.push(Effect::Confirm(lsn));
        }
        let follows = self.record_lags() && now >= self.keeper.stored_at + STORE_EVERY;
        let confirms = self.confirm_waits() && now >= self.confirm_store_at();
        if (!self.may_publish() || confirms || follows || self.is_ending())
            && self.keeper.storing.is_none()
        {
            self.store(now, effects);
        }
    }

    /// Whether the record is such that events may be published under it: it exists, so that a slot
    /// that is made anew later is told from this one, and it says from where on the stream's
    /// messages count.
    pub(crate) fn may_publish(&self) -> bool {
        let same = |durable: &Record| durable.past == self.past && durable.mending == self.mending;
        self.keeper.durable.as_ref().is_some_and(same)
    }

    /// Publishes lost events again, once the record says from where on the slot's events count.
    pub(crate) fn mend(&mut self, range: LostRange, effects: &mut Vec<Effect>) {
        self.mending = Some(range.slot_position);
        if self.may_publish() {
            effects.push(Effect::Mend(range));
        } else {
            self.keeper.mend = Some(range);
        }
    }

    /// While the stream's end cannot be looked at, what it acknowledged is not let go of: an outage
    /// longer than the hold-back time may end with a stream that has lost its tail. Nor before the
    /// stream's last event was met in this database: until then it may be another one's.
    pub(crate) fn may_confirm(&self) -> bool {
        self.source.is_open()
            && self.to_meet.is_none()
            && (self.sink.is_open() || !self.ledger.holds_events())
    }

    /// When the record is next to be written because it lags, or for a position to be confirmed.
    pub(crate) fn record_due(&self) -> Option<Duration> {
        if !self.source.is_open() || self.keeper.storing.is_some() {
            return None;
        }
        let follows = self.record_lags().then_some(self.keeper.stored_at + STORE_EVERY);
        let confirms = self.confirm_waits().then(|| self.confirm_store_at());
        follows.into_iter().chain(confirms).min()
    }

    /// Whether a position waits for the record to cover it.
    fn confirm_waits(&self) -> bool {
        let known = self.recovered && self.keeper.accepted;
        known && self.keeper.confirming.is_some_and(|lsn| !self.keeper.covers(lsn))
    }

    fn confirm_store_at(&self) -> Duration {
        self.keeper.stored_at + self.options.confirm_interval
    }

    pub(crate) fn record_lags(&self) -> bool {
        let durable = self.keeper.durable.as_ref().map(|durable| durable.acked);
        let known = self.recovered
            && self.keeper.accepted
            && self.to_meet.is_none()
            && self.stream_created.is_some();
        known && durable != Some(self.acked)
    }

    fn store(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        if !self.recovered && self.keeper.mend.is_none() {
            return;
        }
        let Some(record) = self.record() else { return };
        if self.keeper.durable.as_ref() == Some(&record) {
            return;
        }
        self.keeper.stored_at = now;
        self.keeper.storing = Some(record.clone());
        effects.push(Effect::Store(record));
    }

    /// What the record should say now.
    fn record(&self) -> Option<Record> {
        let durable = self.keeper.durable.as_ref();
        let before = durable.map_or(Lsn::ZERO, |durable| durable.confirmed);
        let confirmed = before.max(self.keeper.confirming.unwrap_or(Lsn::ZERO));
        Some(Record {
            source: self.identity.clone()?,
            stream_created: self.stream_created.clone().unwrap_or_default(),
            acked: if self.to_meet.is_none() {
                self.acked
            } else {
                durable.and_then(|durable| durable.acked)
            },
            released: self.released(),
            confirmed: confirmed.max(self.slot_position),
            past: self.past.clone(),
            mending: self.mending,
        })
    }

    /// The last event that the slot may have been allowed to forget.
    pub(crate) fn released(&self) -> Option<Position> {
        self.released.max(self.ledger.confirmed_event())
    }

    /// The database holds the record that [`Effect::Store`] gave.
    pub(crate) fn stored(&mut self, effects: &mut Vec<Effect>) {
        if let Some(record) = self.keeper.storing.take() {
            self.keeper.durable = Some(record);
        }
        if self.may_publish()
            && let Some(range) = self.keeper.mend.take()
        {
            effects.push(Effect::Mend(range));
        }
    }
}
