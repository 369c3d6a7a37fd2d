//! Publishing events once more, out of their place: what the stream has lost, and what somebody
//! asks for. Replays are marked, so that a consumer can tell, and have message ids of their own, so
//! that no duplicate window swallows them.

mod asked;
mod events;
mod missing;
mod republisher;

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use event::headers;
use relay_core::Outgoing;
use tokio::time::Instant;

pub use asked::{Replay, ReplaySummary, Selection, replay};
pub(crate) use missing::mend;
pub use missing::republish;

/// A set of message ids, each kept as a hash of 128 bits: two ids in 10^12 collide with a
/// probability of about 10^-14.
#[derive(Debug, Default)]
pub(crate) struct Ids {
    hashers: [RandomState; 2],
    hashes: std::collections::HashSet<[u64; 2]>,
}

impl Ids {
    fn hash(&self, id: &str) -> [u64; 2] {
        [self.hashers[0].hash_one(id), self.hashers[1].hash_one(id)]
    }

    pub(crate) fn insert(&mut self, id: &str) {
        self.hashes.insert(self.hash(id));
    }

    pub(crate) fn remove(&mut self, id: &str) -> bool {
        self.hashes.remove(&self.hash(id))
    }

    pub(crate) fn len(&self) -> usize {
        self.hashes.len()
    }
}

/// The message id by which an event is the same in table, log and stream.
pub(crate) fn id_of(message: &Outgoing) -> &str {
    message.headers.get(headers::MESSAGE_ID).unwrap_or_default()
}

/// Says now and then how far long work has come.
pub(crate) struct Progress {
    what: &'static str,
    said_at: Instant,
}

const SAY_EVERY: Duration = Duration::from_secs(5);

impl Progress {
    pub(crate) fn new(what: &'static str) -> Self {
        Self { what, said_at: Instant::now() }
    }

    pub(crate) fn at(&mut self, done: u64, of: u64) {
        if self.said_at.elapsed() >= SAY_EVERY {
            self.said_at = Instant::now();
            tracing::info!(done, of, "{}", self.what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_told_apart() {
        let mut ids = Ids::default();
        ids.insert("a:1");
        ids.insert("a:2");
        ids.insert("a:1");
        assert_eq!(
            (ids.len(), ids.remove("a:1"), ids.remove("a:1"), ids.len()),
            (2, true, false, 1)
        );
    }
}
