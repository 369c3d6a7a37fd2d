use std::sync::Arc;
use std::time::{Duration, Instant};

use postgres_source::{SlotState, SlotWatch, SourceOptions};
use relay_core::Failure;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use crate::{Observed, SlotFigures, SlotSample};

const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The server ends ordinary sessions first when it goes down.
const ADMIN_SHUTDOWN: &str = "57P01";

/// Looks at the slot for as long as the relay runs. `stopping` hears when the server ends the
/// watch's session, as it does at the beginning of a fast shutdown.
pub(crate) async fn watch(
    options: SourceOptions,
    observed: Arc<Observed>,
    stopping: mpsc::Sender<()>,
) {
    let mut watch = SlotWatch::new(options);
    let mut ticks = interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let ended = tokio::select! {
            _ = ticks.tick() => false,
            () = watch.ended() => true,
        };
        let outcome = watch.look().await;
        if ended && is_shutdown(outcome.as_ref()) {
            // A full channel holds the news already.
            let _ = stopping.try_send(());
        }
        let outcome = outcome.map(figures);
        observed.slot(SlotSample { taken: Instant::now(), outcome });
    }
}

fn is_shutdown(outcome: Result<&SlotState, &Failure>) -> bool {
    outcome.is_err_and(|failure| failure.code == ADMIN_SHUTDOWN || failure.code == "57P03")
}

fn figures(state: SlotState) -> SlotFigures {
    SlotFigures {
        confirmed_flush_lsn: state.confirmed_flush_lsn.to_string(),
        lag_bytes: state.current_lsn.bytes_since(state.confirmed_flush_lsn) as f64,
        retained_bytes: state.current_lsn.bytes_since(state.restart_lsn) as f64,
        safe_bytes: state.safe_wal_size.map(|bytes| bytes as f64),
        wal_status: state.wal_status,
        active_pid: state.active_pid,
    }
}
