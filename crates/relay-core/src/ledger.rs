use std::collections::VecDeque;
use std::time::Duration;

use event::{Lsn, Position};

/// Decides which LSN may be confirmed.
///
/// Transactions stand in commit order. One is settled when its Commit has been read and each of its
/// events is settled; the confirmed LSN is the end LSN of the last transaction of the settled
/// prefix, once it has been settled for the hold-back time. Only LSNs that the server sent are ever
/// confirmed.
#[derive(Debug)]
pub(crate) struct Ledger {
    hold_back: Duration,
    open: VecDeque<Transaction>,
    held: VecDeque<Mark>,
    /// Free to be confirmed, but not worth it yet.
    ready: Lsn,
    confirmed: Lsn,
    confirmed_event: Option<Position>,
}

#[derive(Debug)]
struct Transaction {
    end_lsn: Option<Lsn>,
    unsettled: u64,
    last_event: Option<Position>,
}

/// A settled LSN and when it may be confirmed.
#[derive(Debug)]
struct Mark {
    opened: Duration,
    due: Duration,
    lsn: Lsn,
    last_event: Option<Position>,
}

/// Marks settled within this share of the hold-back time are confirmed together, at the time of the
/// youngest, so that their number is bounded whatever the rate.
const MARKS_PER_HOLD_BACK: u32 = 64;

/// Log without events is confirmed in steps of at least so much: each confirmation is put on record
/// in the database first, and the record itself makes log.
const IDLE_STEP_BYTES: u64 = 64 * 1024;

impl Ledger {
    pub(crate) const fn new(hold_back: Duration) -> Self {
        Self {
            hold_back,
            open: VecDeque::new(),
            held: VecDeque::new(),
            ready: Lsn::ZERO,
            confirmed: Lsn::ZERO,
            confirmed_event: None,
        }
    }

    /// A new replication session: the server sends everything after its confirmed LSN again.
    pub(crate) fn restart(&mut self) {
        self.open.clear();
        self.held.clear();
        self.ready = Lsn::ZERO;
    }

    pub(crate) fn begin(&mut self) {
        self.open.push_back(Transaction { end_lsn: None, unsettled: 0, last_event: None });
    }

    /// An event of the transaction being read; `settled` when it needs no publish.
    pub(crate) fn event(&mut self, position: Position, settled: bool) {
        if let Some(transaction) = self.open.back_mut() {
            transaction.last_event = Some(position);
            transaction.unsettled += u64::from(!settled);
        }
    }

    pub(crate) fn commit(&mut self, now: Duration, end_lsn: Lsn) {
        if let Some(transaction) = self.open.back_mut() {
            transaction.end_lsn = Some(end_lsn);
        }
        self.collect(now);
    }

    /// The oldest unsettled event is settled. Events settle in their order.
    pub(crate) fn settle(&mut self, now: Duration) {
        if let Some(transaction) = self.open.iter_mut().find(|t| t.unsettled > 0) {
            transaction.unsettled -= 1;
        }
        self.collect(now);
    }

    /// The server has read its log up to `wal_end` and sent all of it that concerns us. It may be
    /// confirmed like the end of a transaction, but only when none is open.
    pub(crate) fn keepalive(&mut self, now: Duration, wal_end: Lsn) {
        if self.open.is_empty() {
            self.mark(now, wal_end, None);
        }
    }

    fn collect(&mut self, now: Duration) {
        while let Some(Transaction { end_lsn: Some(end_lsn), unsettled: 0, .. }) = self.open.front()
        {
            let end_lsn = *end_lsn;
            let last_event = self.open.pop_front().and_then(|t| t.last_event);
            self.mark(now, end_lsn, last_event);
        }
    }

    fn mark(&mut self, now: Duration, lsn: Lsn, last_event: Option<Position>) {
        let hold = if last_event.is_none() && self.held.is_empty() {
            Duration::ZERO
        } else {
            self.hold_back
        };
        let share = self.hold_back / MARKS_PER_HOLD_BACK;
        match self.held.back_mut() {
            Some(mark) if hold > Duration::ZERO && now < mark.opened + share => {
                mark.due = now + hold;
                mark.lsn = mark.lsn.max(lsn);
                mark.last_event = last_event.or(mark.last_event);
            }
            _ => self.held.push_back(Mark { opened: now, due: now + hold, lsn, last_event }),
        }
    }

    /// The LSN to confirm now, if it has grown.
    pub(crate) fn due(&mut self, now: Duration) -> Option<Lsn> {
        let mut events = false;
        while self.held.front().is_some_and(|mark| mark.due <= now) {
            if let Some(mark) = self.held.pop_front() {
                self.ready = self.ready.max(mark.lsn);
                events |= mark.last_event.is_some();
                self.confirmed_event = self.confirmed_event.max(mark.last_event);
            }
        }
        let worth = events || self.ready.bytes_since(self.confirmed) >= IDLE_STEP_BYTES;
        if !worth || self.ready <= self.confirmed {
            return None;
        }
        self.confirmed = self.ready;
        Some(self.confirmed)
    }

    /// When [`Ledger::due`] next has something.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        self.held.front().map(|mark| mark.due)
    }

    /// Whether settled events wait to be confirmed.
    pub(crate) fn holds_events(&self) -> bool {
        self.held.iter().any(|mark| mark.last_event.is_some())
    }

    /// The last LSN handed out for confirmation.
    pub(crate) const fn confirmed(&self) -> Lsn {
        self.confirmed
    }

    /// The last event within the confirmed transactions: the source will not send it again.
    pub(crate) const fn confirmed_event(&self) -> Option<Position> {
        self.confirmed_event
    }

    /// Transactions read and not yet wholly settled.
    pub(crate) fn open_transactions(&self) -> usize {
        self.open.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(commit_lsn: u64) -> Position {
        Position { commit_lsn: Lsn::new(commit_lsn), ordinal: 0 }
    }

    fn transaction(ledger: &mut Ledger, commit_lsn: u64, events: usize) {
        ledger.begin();
        for _ in 0..events {
            ledger.event(at(commit_lsn), false);
        }
        ledger.commit(Duration::ZERO, Lsn::new(commit_lsn + 1));
    }

    #[test]
    fn only_a_settled_prefix_is_confirmed() {
        let mut ledger = Ledger::new(Duration::ZERO);
        transaction(&mut ledger, 10, 2);
        transaction(&mut ledger, 20, 1);
        assert_eq!(ledger.due(SECOND), None);
        ledger.settle(SECOND);
        assert_eq!(ledger.due(SECOND), None, "one event of the first is still out");
        ledger.settle(SECOND);
        assert_eq!(ledger.due(SECOND), Some(Lsn::new(11)));
        ledger.settle(SECOND);
        assert_eq!(ledger.due(SECOND), Some(Lsn::new(21)));
        assert_eq!(ledger.confirmed_event(), Some(at(20)));
    }

    #[test]
    fn a_transaction_without_its_commit_is_never_confirmed() {
        let mut ledger = Ledger::new(Duration::ZERO);
        ledger.begin();
        ledger.event(at(10), false);
        ledger.settle(SECOND);
        ledger.keepalive(SECOND, Lsn::new(99));
        assert_eq!(ledger.due(SECOND), None);
        ledger.commit(SECOND, Lsn::new(11));
        assert_eq!(ledger.due(SECOND), Some(Lsn::new(11)));
    }

    #[test]
    fn keepalives_count_only_when_nothing_is_open() {
        let mut ledger = Ledger::new(Duration::ZERO);
        let step = IDLE_STEP_BYTES;
        ledger.keepalive(SECOND, Lsn::new(step));
        assert_eq!(ledger.due(SECOND), Some(Lsn::new(step)));
        transaction(&mut ledger, step + 10, 1);
        ledger.keepalive(SECOND, Lsn::new(3 * step));
        assert_eq!(ledger.due(SECOND), None);
        ledger.settle(SECOND);
        assert_eq!(ledger.due(SECOND), Some(Lsn::new(step + 11)));
    }

    #[test]
    fn log_without_events_is_confirmed_in_steps() {
        let mut ledger = Ledger::new(Duration::ZERO);
        transaction(&mut ledger, IDLE_STEP_BYTES, 0);
        assert_eq!(ledger.due(SECOND), Some(Lsn::new(IDLE_STEP_BYTES + 1)));
        ledger.keepalive(SECOND, Lsn::new(2 * IDLE_STEP_BYTES));
        assert_eq!(ledger.due(SECOND), None, "a byte short of a step");
        ledger.keepalive(SECOND, Lsn::new(2 * IDLE_STEP_BYTES + 1));
        assert_eq!(ledger.due(SECOND), Some(Lsn::new(2 * IDLE_STEP_BYTES + 1)));
    }

    #[test]
    fn settled_transactions_are_held_back() {
        let mut ledger = Ledger::new(64 * SECOND);
        transaction(&mut ledger, 10, 1);
        ledger.settle(SECOND);
        let step = IDLE_STEP_BYTES;
        ledger.keepalive(10 * SECOND, Lsn::new(2 * step));
        assert_eq!(ledger.due(64 * SECOND), None);
        assert_eq!(ledger.next_due(), Some(65 * SECOND));
        assert_eq!(ledger.due(65 * SECOND), Some(Lsn::new(11)));
        assert_eq!(ledger.due(74 * SECOND), Some(Lsn::new(2 * step)));
        ledger.keepalive(75 * SECOND, Lsn::new(3 * step));
        assert_eq!(ledger.due(75 * SECOND), Some(Lsn::new(3 * step)), "nothing is held any more");
    }

    #[test]
    fn marks_are_bounded_and_never_early() {
        let mut ledger = Ledger::new(64 * SECOND);
        for n in 0..100_000_u64 {
            let now = Duration::from_millis(n);
            ledger.begin();
            ledger.event(at(n * 10), true);
            ledger.commit(now, Lsn::new(n * 10 + 1));
            if let Some(lsn) = ledger.due(now) {
                let settled_at = Duration::from_millis((lsn.get() - 1) / 10);
                assert!(settled_at + 64 * SECOND <= now, "{lsn} at {now:?}");
            }
        }
        assert!(ledger.held.len() <= 66, "{}", ledger.held.len());
    }

    #[test]
    fn a_new_session_forgets_what_was_not_confirmed() {
        let mut ledger = Ledger::new(Duration::ZERO);
        transaction(&mut ledger, 10, 1);
        ledger.settle(SECOND);
        assert_eq!(ledger.due(SECOND), Some(Lsn::new(11)));
        transaction(&mut ledger, 20, 1);
        ledger.restart();
        assert_eq!((ledger.due(SECOND), ledger.confirmed()), (None, Lsn::new(11)));
        assert_eq!(ledger.open_transactions(), 0);
    }
}
