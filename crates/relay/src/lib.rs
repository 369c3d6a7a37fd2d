//! The shell that joins the core with the sockets. It decides nothing: it hands inputs in, carries
//! effects out, and leaves what it sees for probes and metrics.

mod log;
pub mod metrics;
mod observed;
pub mod replay;
mod run;
mod slot_watch;
mod snapshot;

pub use observed::Observed;
pub use run::{RelayOptions, run};
pub use snapshot::{SlotFigures, SlotSample, Snapshot};
