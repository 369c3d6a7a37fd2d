use event::Lsn;

use crate::SplitReason;

/// A transaction that the stream refuses so often, for reasons that may pass, leaves event by event.
const REFUSALS_MAX: u32 = 3;

/// Which transactions leave as one.
#[derive(Debug)]
pub(crate) struct Batching {
    /// How many events this session takes as one.
    session_max: usize,
    /// How many it has not refused yet as too many.
    learned_max: usize,
    /// This transaction leaves event by event.
    split: Option<Lsn>,
    /// How often in a row the transaction at the front was refused.
    refusals: u32,
}

/// What may leave next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Nothing yet: the end of the transaction has not been read, or other publishes are in flight.
    Nothing,
    /// One event.
    One,
    /// So many events, as one.
    Batch(usize),
    /// One event of a transaction that from now on leaves event by event.
    Split(SplitReason),
}

/// The events of the next transaction to leave, as the pipeline holds them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    /// Whose they are.
    pub(crate) commit_lsn: Lsn,
    /// How many are here.
    pub(crate) events: usize,
    /// Whether more may come.
    pub(crate) is_open: bool,
    /// Whether the pipeline would take more.
    pub(crate) has_room: bool,
    /// Whether other publishes are in flight.
    pub(crate) behind_others: bool,
}

impl Batching {
    pub(crate) const fn new() -> Self {
        Self { session_max: 0, learned_max: usize::MAX, split: None, refusals: 0 }
    }

    pub(crate) const fn session_opened(&mut self, events_max: usize) {
        self.session_max = events_max;
    }

    /// Whether any transaction leaves as one. A batch of one event is no batch.
    pub(crate) fn is_on(&self) -> bool {
        self.max() >= 2
    }

    fn max(&self) -> usize {
        self.session_max.min(self.learned_max)
    }

    pub(crate) fn unit(&mut self, waiting: Waiting) -> Unit {
        let Waiting { commit_lsn, events, is_open, has_room, behind_others } = waiting;
        if !self.is_on() || self.split == Some(commit_lsn) {
            return Unit::One;
        }
        if events > self.max() {
            return self.split(commit_lsn, SplitReason::TooManyEvents);
        }
        match (is_open, behind_others) {
            (true, false) if !has_room => self.split(commit_lsn, SplitReason::NoRoom),
            (true, _) => Unit::Nothing,
            (false, _) if events == 1 => Unit::One,
            // A batch cannot state which message must stand before it, only which sequence. So no
            // message whose place another writer might take may be under way.
            (false, true) => Unit::Nothing,
            (false, false) => Unit::Batch(events),
        }
    }

    const fn split(&mut self, commit_lsn: Lsn, reason: SplitReason) -> Unit {
        self.split = Some(commit_lsn);
        Unit::Split(reason)
    }

    pub(crate) const fn progressed(&mut self) {
        self.refusals = 0;
    }

    /// The batch at the front was refused for what is in it.
    pub(crate) fn refused(
        &mut self,
        commit_lsn: Lsn,
        events: usize,
        why: Refusal,
    ) -> Option<SplitReason> {
        let reason = match why {
            Refusal::Duplicate => SplitReason::DuplicateId,
            Refusal::TooMany => {
                self.learned_max = self.learned_max.min(events.saturating_sub(1));
                SplitReason::TooManyEvents
            }
            Refusal::Passing => {
                self.refusals += 1;
                if self.refusals < REFUSALS_MAX {
                    return None;
                }
                SplitReason::Refused
            }
        };
        self.refusals = 0;
        self.split = Some(commit_lsn);
        Some(reason)
    }

    /// The stream takes no batches, whatever was said.
    pub(crate) const fn give_up(&mut self) {
        self.learned_max = 0;
    }

    pub(crate) fn is_split(&self, commit_lsn: Lsn) -> bool {
        !self.is_on() || self.split == Some(commit_lsn)
    }
}

/// Why a batch was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The stream has one of its message ids already.
    Duplicate,
    /// It has too many events.
    TooMany,
    /// Something that may pass.
    Passing,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(events: usize) -> Waiting {
        let commit_lsn = Lsn::new(7);
        Waiting { commit_lsn, events, is_open: false, has_room: true, behind_others: false }
    }

    fn batching(events_max: usize) -> Batching {
        let mut batching = Batching::new();
        batching.session_opened(events_max);
        batching
    }

    #[test]
    fn whole_transactions_leave_as_one_when_nothing_is_in_flight() {
        let mut on = batching(10);
        assert_eq!(on.unit(waiting(3)), Unit::Batch(3));
        assert_eq!(on.unit(waiting(10)), Unit::Batch(10));
        assert_eq!(on.unit(Waiting { behind_others: true, ..waiting(3) }), Unit::Nothing);
        assert_eq!(on.unit(Waiting { is_open: true, ..waiting(3) }), Unit::Nothing);
        assert_eq!(on.unit(Waiting { behind_others: true, ..waiting(1) }), Unit::One);
        assert_eq!(on.unit(Waiting { is_open: true, ..waiting(1) }), Unit::Nothing);
        for off in [0, 1] {
            assert_eq!(batching(off).unit(Waiting { is_open: true, ..waiting(3) }), Unit::One);
        }
    }

    #[test]
    fn what_is_too_large_is_split_once_and_stays_so() {
        for (large, reason) in [
            (Waiting { is_open: true, ..waiting(11) }, SplitReason::TooManyEvents),
            (Waiting { is_open: true, has_room: false, ..waiting(3) }, SplitReason::NoRoom),
        ] {
            let mut on = batching(10);
            assert_eq!(on.unit(large), Unit::Split(reason));
            assert_eq!(on.unit(waiting(3)), Unit::One);
            let next = Waiting { commit_lsn: Lsn::new(8), ..waiting(3) };
            assert_eq!(on.unit(next), Unit::Batch(3));
        }
        // Room taken by others comes back with their acks.
        let crowded = Waiting { is_open: true, has_room: false, behind_others: true, ..waiting(3) };
        assert_eq!(batching(10).unit(crowded), Unit::Nothing);
    }

    #[test]
    fn refusals_split_at_once_or_after_some_tries() {
        let at = Lsn::new(7);
        let mut on = batching(10);
        assert_eq!(on.refused(at, 3, Refusal::Passing), None);
        assert_eq!(on.refused(at, 3, Refusal::Passing), None);
        assert_eq!(on.unit(waiting(3)), Unit::Batch(3));
        assert_eq!(on.refused(at, 3, Refusal::Passing), Some(SplitReason::Refused));
        assert_eq!(on.unit(waiting(3)), Unit::One);

        let mut on = batching(10);
        assert_eq!(on.refused(at, 3, Refusal::Duplicate), Some(SplitReason::DuplicateId));
        assert_eq!(on.unit(waiting(3)), Unit::One);

        let mut on = batching(10);
        assert_eq!(on.refused(at, 6, Refusal::TooMany), Some(SplitReason::TooManyEvents));
        let next = |events| Waiting { commit_lsn: Lsn::new(8), ..waiting(events) };
        assert_eq!(on.unit(next(5)), Unit::Batch(5));
        assert_eq!(on.unit(next(6)), Unit::Split(SplitReason::TooManyEvents));
        on.give_up();
        assert_eq!(on.unit(next(2)), Unit::One);
    }
}
