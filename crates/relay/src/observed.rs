use std::sync::Mutex;
use std::time::Instant;

use relay_core::{Link, Stats, Status};

use crate::{SlotSample, Snapshot};

/// Where the run loop and the slot watch leave what they see, and probes pick it up.
#[derive(Debug)]
pub struct Observed {
    snapshot: Mutex<Snapshot>,
}

impl Default for Observed {
    fn default() -> Self {
        let status = Status {
            source: Link::Closed,
            sink: Link::Closed,
            stopping: false,
            stream_end: None,
            confirmed: event::Lsn::ZERO,
            in_flight_events: 0,
            in_flight_bytes: 0,
            open_transactions: 0,
            oldest_unacked: None,
        };
        let stats = Stats::default();
        Self { snapshot: Mutex::new(Snapshot { status, stats, taken: Instant::now(), slot: None }) }
    }
}

impl Observed {
    /// What is known now.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.lock().clone()
    }

    pub(crate) fn relay(&self, status: Status, stats: Stats) {
        let mut snapshot = self.lock();
        snapshot.status = status;
        snapshot.stats = stats;
        snapshot.taken = Instant::now();
    }

    pub(crate) fn slot(&self, sample: SlotSample) {
        self.lock().slot = Some(sample);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Snapshot> {
        self.snapshot.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
