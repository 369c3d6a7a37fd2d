use std::sync::Arc;
use std::time::{Duration, Instant};

use postgres_source::{SlotState, SlotWatch, SourceOptions};
use relay_core::Failure;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use crate::{Observed, SlotFigures, SlotSample};

const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The server ends ordinary sessions first when it goes down, and takes no new ones.
const GOING_DOWN: [&str; 2] = ["57P01", "57P03"];

/// Looks at the slot for as long as the relay runs. `stopping` hears that the server goes down, which
/// shows at the beginning of a fast shutdown, while replication sessions still go on.
pub(crate) async fn watch(
    options: SourceOptions,
    observed: Arc<Observed>,
    stopping: mpsc::Sender<()>,
) {
    let mut watch = SlotWatch::new(options);
    let mut ticks = interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = watch.ended() => {}
        }
        let outcome = watch.look().await;
        if is_shutdown(outcome.as_ref()) {
            // A full channel holds the news already.
            let _ = stopping.try_send(());
        }
        let outcome = outcome.map(figures);
        observed.slot(SlotSample { taken: Instant::now(), outcome });
    }
}

fn is_shutdown(outcome: Result<&SlotState, &Failure>) -> bool {
    outcome.is_err_and(|failure| GOING_DOWN.contains(&failure.code.as_str()))
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
