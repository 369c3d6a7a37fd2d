use std::time::{Duration, Instant, SystemTime};

use event::Lsn;
use relay_core::{Failure, FailureClass, Link, Stats, Status};
use serde::Serialize;
use serde_json::{Value, json};

/// Seconds from the Unix epoch to PostgreSQL's, 2000-01-01 00:00 UTC.
const POSTGRES_EPOCH: Duration = Duration::from_secs(946_684_800);
/// The run loop shows a sign of life at least once a second; without one for so long it hangs.
const SIGN_OF_LIFE_WITHIN: Duration = Duration::from_secs(10);
/// After so long a restart is the only way on.
const ALIVE_WITHIN: Duration = Duration::from_secs(60);
/// A sample of the slot older than this says nothing about now.
const SLOT_FRESH_WITHIN: Duration = Duration::from_secs(15);

/// What the relay knows of itself, taken by the run loop and the slot watch.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The core's state.
    pub status: Status,
    /// The core's counts.
    pub stats: Stats,
    /// When the run loop took it.
    pub taken: Instant,
    /// The last look at the slot.
    pub slot: Option<SlotSample>,
}

/// One look at the slot, or why there was none.
#[derive(Clone, Debug)]
pub struct SlotSample {
    /// When.
    pub taken: Instant,
    /// What was seen.
    pub outcome: Result<SlotFigures, Failure>,
}

/// The slot in figures.
#[derive(Clone, Debug, Serialize)]
pub struct SlotFigures {
    /// The slot's confirmed position.
    pub confirmed_flush_lsn: String,
    /// Log behind the confirmed position, in bytes.
    pub lag_bytes: f64,
    /// Log that the slot makes the server keep, in bytes.
    pub retained_bytes: f64,
    /// Log that can be written before the slot is lost, in bytes; `None` without a limit.
    pub safe_bytes: Option<f64>,
    /// `reserved`, `extended`, `unreserved` or `lost`.
    pub wal_status: Option<String>,
    /// The backend that holds the slot.
    pub active_pid: Option<i32>,
}

impl Snapshot {
    /// Why the relay is not ready; empty when it is.
    #[must_use]
    pub fn reasons(&self) -> Vec<String> {
        let mut reasons = self.status.reasons();
        let silent = self.taken.elapsed();
        if silent > SIGN_OF_LIFE_WITHIN {
            reasons.push(format!("the run loop has given no sign of life for {silent:.0?}"));
        }
        if let Some(SlotSample { outcome: Err(failure), .. }) = &self.slot {
            reasons.push(format!("the slot's state cannot be read: {failure}"));
        } else if self.slot.as_ref().is_some_and(|slot| slot.taken.elapsed() > SLOT_FRESH_WITHIN) {
            reasons.push("the slot's state has not been read for 15 s".to_owned());
        }
        reasons
    }

    /// Whether the run loop has shown a sign of life within the last minute. It never waits longer:
    /// a dependency that is down is waited for in the loop, not by the loop.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.taken.elapsed() <= ALIVE_WITHIN
    }

    /// The slot's figures, while they are fresh.
    #[must_use]
    pub fn fresh_slot(&self) -> Option<&SlotFigures> {
        let sample = self.slot.as_ref().filter(|s| s.taken.elapsed() <= SLOT_FRESH_WITHIN)?;
        sample.outcome.as_ref().ok()
    }

    /// Seconds since the commit of the oldest event read and not acknowledged. NaN while a
    /// connection is down and none is in memory: events may wait that nobody has read.
    #[must_use]
    pub fn oldest_age_seconds(&self) -> f64 {
        match self.status.oldest_unacked {
            Some(committed_at) => age_seconds(committed_at),
            None if self.status.source == Link::Open && self.status.sink == Link::Open => 0.0,
            None => f64::NAN,
        }
    }
}

/// Seconds since a PostgreSQL time in microseconds since 2000-01-01 00:00 UTC; never negative.
pub(crate) fn age_seconds(committed_at: i64) -> f64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now = now.saturating_sub(POSTGRES_EPOCH).as_secs_f64();
    (now - committed_at as f64 / 1e6).max(0.0)
}

impl Snapshot {
    /// Whether another session holds the slot and this relay stands by.
    #[must_use]
    pub fn is_standby(&self) -> bool {
        matches!(
            &self.status.source,
            Link::Failed(Failure { class: FailureClass::SlotHeld { .. }, .. })
        )
    }

    /// Everything, for `/status`.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let (status, stats) = (&self.status, &self.stats);
        let reasons = self.reasons();
        json!({
            "ready": reasons.is_empty(),
            "standby": self.is_standby(),
            "reasons": reasons,
            "postgresql": link_json(&status.source),
            "nats": link_json(&status.sink),
            "stream_end": status.stream_end.map(|position| position.to_string()),
            "confirmed_lsn": (status.confirmed != Lsn::ZERO).then(|| status.confirmed.to_string()),
            "in_flight": {
                "events": status.in_flight_events,
                "bytes": status.in_flight_bytes,
                "open_transactions": status.open_transactions,
                "oldest_age_seconds": status.oldest_unacked.map(age_seconds),
            },
            "slot": self.fresh_slot(),
            "counts": {
                "rows": stats.rows,
                "published": stats.published,
                "already_in_stream": stats.already_in_stream,
                "duplicate_ids": stats.duplicate_ids,
                "split_transactions": stats.split_transactions,
                "dropped_by_rule": stats.dropped_by_rule,
                "foreign_rows": stats.foreign_rows,
                "updates": stats.updates,
                "deletes": stats.deletes,
                "truncates": stats.truncates,
                "messages": stats.messages,
                "transactions": stats.transactions,
                "source_sessions": stats.source_sessions,
                "source_failures": stats.source_failures,
                "sink_sessions": stats.sink_sessions,
                "sink_failures": stats.sink_failures,
            },
        })
    }
}

fn link_json(link: &Link) -> Value {
    match link {
        Link::Closed => json!({ "state": "closed" }),
        Link::Opening => json!({ "state": "opening" }),
        Link::Open => json!({ "state": "open" }),
        Link::Mending => json!({ "state": "mending" }),
        Link::Failed(failure) => json!({
            "state": "failed",
            "code": failure.code,
            "message": failure.message,
            "advice": failure.advice,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(source: Link, sink: Link) -> Snapshot {
        let status = Status {
            source,
            sink,
            stopping: false,
            stream_end: None,
            confirmed: Lsn::ZERO,
            in_flight_events: 0,
            in_flight_bytes: 0,
            open_transactions: 0,
            oldest_unacked: None,
        };
        Snapshot { status, stats: Stats::default(), taken: Instant::now(), slot: None }
    }

    fn ago(age: Duration) -> Instant {
        Instant::now().checked_sub(age).unwrap()
    }

    #[test]
    fn the_age_is_zero_only_when_it_is_known_to_be() {
        let down = || Link::Failed(Failure::wait("connection_lost", "words"));
        assert!(snapshot(Link::Open, Link::Open).oldest_age_seconds().abs() < f64::EPSILON);
        assert!(snapshot(down(), Link::Open).oldest_age_seconds().is_nan());
        assert!(snapshot(Link::Open, down()).oldest_age_seconds().is_nan());
        let mut waiting = snapshot(Link::Open, down());
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let minute_ago = now - POSTGRES_EPOCH - Duration::from_secs(60);
        waiting.status.oldest_unacked = Some(i64::try_from(minute_ago.as_micros()).unwrap());
        let age = waiting.oldest_age_seconds();
        assert!((60.0..65.0).contains(&age), "{age}");
    }

    #[test]
    fn a_loop_that_hangs_is_not_ready_and_then_not_alive() {
        let mut hanging = snapshot(Link::Open, Link::Open);
        assert_eq!((hanging.reasons(), hanging.is_alive()), (Vec::new(), true));
        hanging.taken = ago(Duration::from_secs(11));
        assert!(hanging.reasons()[0].contains("no sign of life") && hanging.is_alive());
        hanging.taken = ago(Duration::from_secs(61));
        assert!(!hanging.is_alive());
    }

    #[test]
    fn a_slot_that_cannot_be_read_is_a_reason_and_has_no_figures() {
        let mut blind = snapshot(Link::Open, Link::Open);
        let outcome = Err(Failure::wait("query_timeout", "no answer within 5s"));
        blind.slot = Some(SlotSample { taken: Instant::now(), outcome });
        assert!(blind.reasons()[0].contains("no answer within 5s"));
        assert!(blind.fresh_slot().is_none());
        let figures = SlotFigures {
            confirmed_flush_lsn: "0/1".into(),
            lag_bytes: 0.0,
            retained_bytes: 0.0,
            safe_bytes: None,
            wal_status: None,
            active_pid: None,
        };
        blind.slot = Some(SlotSample { taken: ago(Duration::from_secs(16)), outcome: Ok(figures) });
        assert!(blind.reasons()[0].contains("not been read for 15 s"));
        assert!(blind.fresh_slot().is_none());
    }
}
