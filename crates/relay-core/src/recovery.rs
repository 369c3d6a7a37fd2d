use std::time::Duration;

use event::{Lsn, Position};

use crate::decision::last_before;
use crate::record::WAYS;
use crate::{
    Core, Effect, Failure, FailureClass, LostRange, Notice, Occupant, Past, SinkOpened, Stored,
    StreamEnd,
};

/// The stream's last event as this database must know it too, where the slot still sends it.
#[derive(Clone, Debug)]
pub(crate) struct ToMeet {
    position: Position,
    event_id: Option<String>,
}

impl Core {
    /// The stream's end was read: with the record it says exactly which rows are in.
    pub(crate) fn sink_opened(
        &mut self,
        now: Duration,
        opened: &SinkOpened,
        effects: &mut Vec<Effect>,
    ) {
        self.stats.sink_sessions += 1;
        self.sink_was_open = true;
        self.message_bytes_max = opened.message_bytes_max;
        self.batches_opened(opened.batch_events_max, effects);
        if !self.source.is_open() {
            // Only who holds the slot may judge the stream's end, and write.
            self.recovered = false;
            return self.sink.opened();
        }
        let past = self.past_of(opened);
        if past.is_none()
            && let Err(failure) = self.check_end(opened.end.as_ref())
        {
            return self.suspect(now, failure, effects);
        }
        self.suspicious = false;
        if self.reading_began && !opened.end.as_ref().is_none_or(|end| self.knows(end)) {
            return self.read_again(now, effects);
        }
        self.sink.opened();
        let end = match &past {
            Some(past) => past.end(),
            None => opened.end.as_ref().map(StreamEnd::stored),
        };
        let in_past =
            |acked: Stored| past.as_ref().is_some_and(|past| acked.sequence <= past.sequence);
        if !self.reading_began && past.is_none() {
            self.to_meet = self.to_meet(opened.end.as_ref());
        }
        let created = self.stream_created.as_deref();
        let found = self.acked.map(|acked| (acked, opened.looks(acked, created, past.is_some())));
        let known = match found {
            Some((acked, Look::Lost)) if !in_past(acked) => {
                return self.tail_lost(now, opened, end, acked, effects);
            }
            Some((acked, Look::There)) if !opened.gapless || opened.left_behind(acked) => {
                Some(acked)
            }
            Some(_) | None => end.filter(|_| opened.gapless),
        };
        self.go_on(now, opened, known, effects);
    }

    /// The past that the stream's end belongs to. Where the stream lost the end of it, what is left
    /// is the past, if it is still ahead of this database.
    fn past_of(&mut self, opened: &SinkOpened) -> Option<Past> {
        let past = self.past.as_mut()?;
        if !past.covers(&opened.stream_created, opened.end_sequence()) {
            return None;
        }
        if opened.last_sequence < past.sequence {
            let end = opened.end.as_ref().map(|end| end.position.commit_lsn);
            if end.is_none_or(|end| end < past.shared_below) {
                self.past = None;
                return None;
            }
            past.sequence = opened.last_sequence;
        }
        Some(past.clone())
    }

    /// A process that was frozen may compare the stream of now with a session of long ago: only what
    /// is still so with a new session is believed.
    fn suspect(&mut self, now: Duration, failure: Failure, effects: &mut Vec<Effect>) {
        effects.push(Effect::CloseSink);
        if std::mem::replace(&mut self.suspicious, true) {
            self.sink.failed(failure.clone());
            return self.halt(now, failure, effects);
        }
        self.sink.closed();
        effects.push(Effect::AbortSource);
        let again = Failure { class: FailureClass::Wait, ..failure };
        self.source_failed(now, again, effects);
    }

    /// The stream holds everything up to `known`, and is written after it.
    fn go_on(
        &mut self,
        now: Duration,
        opened: &SinkOpened,
        known: Option<Stored>,
        effects: &mut Vec<Effect>,
    ) {
        self.acked = known;
        self.stream_created = Some(opened.stream_created.clone());
        self.high_water = known.map(|known| known.position);
        let known_sequence = known.map_or(0, |known| known.sequence);
        self.unseen =
            if opened.removing { opened.last_sequence.saturating_sub(known_sequence) } else { 0 };
        effects.push(Effect::Notice(Notice::SinkOpened { high_water: self.high_water }));
        if let Some(high_water) = self.high_water {
            for _ in 0..self.pipeline.drop_through(high_water) {
                self.stats.published += 1;
                self.ledger.settle(now);
            }
        }
        while self.unseen > 0
            && let Some(event) = self.pipeline.pop()
        {
            self.stats.published += 1;
            self.ledger.settle(now);
            self.seen_to_be_in(event.position);
        }
        self.recovered = true;
    }

    /// An event behind the last known message has its sequence in the stream, though the message
    /// has left.
    pub(crate) fn seen_to_be_in(&mut self, position: Position) {
        self.unseen -= 1;
        let before = self.acked.map_or(0, |acked| acked.sequence);
        self.acked = Some(Stored { position, sequence: before + 1 });
        self.high_water = Some(position);
    }

    fn check_end(&self, end: Option<&StreamEnd>) -> Result<(), Failure> {
        let (Some(end), Some(identity)) = (end, &self.identity) else { return Ok(()) };
        let (at, theirs) = (end.position, &end.source);
        let halt = |code, message| Err(Failure::halt(code, message).advise(WAYS));
        if theirs.system_identifier != identity.system_identifier {
            let message = format!(
                "another database: the stream's end at {at} was written by relay {} from the \
                 database with the system identifier {}, but this one has {}",
                identity.relay, theirs.system_identifier, identity.system_identifier
            );
            return halt("identity", message);
        }
        if theirs.timeline != identity.timeline {
            let fork = self.forks.iter().find(|fork| fork.timeline == theirs.timeline);
            if fork.is_none_or(|fork| at.commit_lsn >= fork.end) {
                let left = fork.map_or_else(
                    || "knows nothing of that timeline".to_owned(),
                    |fork| format!("left that timeline at {}", fork.end),
                );
                let message = format!(
                    "the stream is ahead of the database: its end at {at} was written on timeline \
                     {}, and this server, on timeline {}, {left}",
                    theirs.timeline, identity.timeline
                );
                return halt("timeline", message);
            }
        } else if at.commit_lsn >= self.wal_end && !self.reading_began {
            let message = format!(
                "the stream is ahead of the database: its end stands at {at}, and the server's log \
                 ends at {}; was the database restored from an older copy?",
                self.wal_end
            );
            return halt("restored", message);
        }
        Ok(())
    }

    /// The stream's last event, if the slot sends it once more.
    fn to_meet(&self, end: Option<&StreamEnd>) -> Option<ToMeet> {
        let end = end.filter(|end| end.position.commit_lsn >= self.slot_position)?;
        Some(ToMeet { position: end.position, event_id: end.event_id.clone() })
    }

    /// The row at a position is read; `event_id` as its header would spell it, where it has one.
    pub(crate) fn meet(
        &mut self,
        now: Duration,
        position: Position,
        event_id: Option<&str>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(to_meet) = self.to_meet.take_if(|to_meet| to_meet.position <= position) else {
            return;
        };
        let same = match (&to_meet.event_id, event_id) {
            (Some(theirs), Some(ours)) => theirs == ours,
            (None, _) | (_, None) => true,
        };
        if to_meet.position != position || !same {
            self.other_history(now, &to_meet, effects);
        }
    }

    /// The source has sent all that was committed before `lsn`.
    pub(crate) fn passed(&mut self, now: Duration, lsn: Lsn, effects: &mut Vec<Effect>) {
        if let Some(to_meet) = self.to_meet.take_if(|to_meet| to_meet.position.commit_lsn < lsn) {
            self.other_history(now, &to_meet, effects);
        }
    }

    fn other_history(&mut self, now: Duration, to_meet: &ToMeet, effects: &mut Vec<Effect>) {
        let event = to_meet.event_id.as_deref().unwrap_or("without an id");
        let message = format!(
            "the stream's last event at {} ({event}) is not what this database has there: it was \
             restored from a copy and has gone another way since, or its row is not published any \
             more",
            to_meet.position
        );
        self.keeper.accepted = false;
        self.halt(now, Failure::halt("history", message).advise(WAYS), effects);
    }

    /// Whether a message is one that this session has seen acknowledged, or has still to see.
    fn knows(&self, end: &StreamEnd) -> bool {
        let past = self.past.as_ref().is_some_and(|past| end.sequence <= past.sequence);
        let acked = self.acked.is_some_and(|acked| end.position <= acked.position);
        past || acked || self.pipeline.holds(end.position, end.event_id.as_deref())
    }

    /// Begins anew with both sessions, and so with what the server and the stream say now.
    fn read_again(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        effects.push(Effect::CloseSink);
        self.sink.closed();
        self.restart_reading();
        effects.push(Effect::AbortSource);
        self.source.closed();
        self.open_source(now, effects);
    }

    /// The stream lacks what it acknowledged. What the slot still holds back is read again; what it
    /// does not is looked for in the outbox tables.
    fn tail_lost(
        &mut self,
        now: Duration,
        opened: &SinkOpened,
        end: Option<Stored>,
        acked: Stored,
        effects: &mut Vec<Effect>,
    ) {
        let stream_end = end.map(|end| end.position);
        if self.reading_began {
            // The slot's position of now decides what can be read again, and the rows have to be
            // read again anyway.
            return self.read_again(now, effects);
        }
        self.recovered = false;
        effects.push(Effect::Notice(Notice::TailLost { stream_end, acked: acked.position }));
        self.stats.tails_lost += 1;
        let in_stream = end.filter(|_| opened.gapless);
        if let Some(gone) = self.gone(in_stream) {
            if !opened.gapless {
                return self.cannot_tell(now, opened, acked, effects);
            }
            effects.push(Effect::CloseSink);
            self.sink.mending();
            let slot_position = self.slot_begins();
            let (from, to) = (stream_end, gone);
            effects.push(Effect::Notice(Notice::Mending { from, to }));
            return self.mend(LostRange { after: end, acked, slot_position }, effects);
        }
        self.go_on(now, opened, in_stream, effects);
    }

    /// Where subjects are written independently of each other, the stream's end does not say which
    /// events before it are in.
    fn cannot_tell(
        &mut self,
        now: Duration,
        opened: &SinkOpened,
        acked: Stored,
        effects: &mut Vec<Effect>,
    ) {
        let message = format!(
            "the stream ends at sequence {}, but events up to {} had been acknowledged, the last at \
             sequence {}; others write to this stream, so which of them it lost cannot be told",
            opened.last_sequence, acked.position, acked.sequence
        );
        let advice = "see outbox-relay recover for publishing what the tables have and the stream \
                      lacks, or going on without";
        effects.push(Effect::CloseSink);
        let failure = Failure::halt("tail_lost", message).advise(advice);
        self.sink.failed(failure.clone());
        self.halt(now, failure, effects);
    }

    /// From where on the slot's events count: it may have fallen back since the mending began.
    fn slot_begins(&self) -> Lsn {
        self.mending.unwrap_or(self.slot_position)
    }

    /// The last event that may lie between the stream's end and where the slot begins.
    fn gone(&self, end: Option<Stored>) -> Option<Position> {
        let released = self.released()?.min(last_before(self.slot_begins()));
        Some(released).filter(|released| end.is_none_or(|end| end.position < *released))
    }

    /// The lost events that the slot could not send again are in the stream once more, behind its
    /// end. What was acknowledged after them is still to come from the slot.
    pub(crate) fn mended(
        &mut self,
        now: Duration,
        range: &LostRange,
        sequence: Option<u64>,
        effects: &mut Vec<Effect>,
    ) {
        if self.is_ending() {
            return;
        }
        let position = last_before(range.slot_position);
        self.acked = match sequence {
            Some(sequence) => Some(Stored { position, sequence }),
            None => range.after,
        };
        self.mending = None;
        self.stream_created = None;
        effects.push(Effect::Notice(Notice::Mended { sequence }));
        self.open_sink(now, effects);
    }
}

impl SinkOpened {
    fn end_sequence(&self) -> u64 {
        self.end.as_ref().map_or(self.last_sequence, |end| end.sequence)
    }

    /// Whether the last known message stands further than any that is still there.
    fn left_behind(&self, acked: Stored) -> bool {
        self.end.as_ref().is_none_or(|end| end.sequence < acked.sequence)
    }

    /// Whether the stream holds, or held until it left by itself, everything up to `acked`. An end
    /// `in_past` says nothing, since its position is of another history.
    fn looks(&self, acked: Stored, created: Option<&str>, in_past: bool) -> Look {
        let same_stream = created.is_none_or(|created| created == self.stream_created);
        // A pair that stands for all before an LSN is that of no event.
        let boundary = acked.position.ordinal == u64::MAX;
        let there = match self.verified {
            Occupant::None => self.last_sequence >= acked.sequence,
            Occupant::Ours(at) if self.gapless && !boundary => at == acked.position,
            Occupant::Ours(at) => at <= acked.position,
            Occupant::Replayed => boundary,
            // Where others write, such a pair may have been taken at one of theirs. Elsewhere theirs
            // has taken the place of what was lost.
            Occupant::Foreign => boundary && !self.gapless,
        };
        let end = self.end.as_ref().filter(|_| self.gapless && !in_past);
        if same_stream && there {
            Look::There
        } else if end.is_some_and(|end| end.position >= acked.position) {
            Look::Beyond
        } else {
            Look::Lost
        }
    }
}

/// What a stream says of the last message that it is known to have taken.
enum Look {
    /// It is there, or has left by itself.
    There,
    /// Not there, but the stream goes on beyond it: a copy with other sequences.
    Beyond,
    /// It is lost.
    Lost,
}
