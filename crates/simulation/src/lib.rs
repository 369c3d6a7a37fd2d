//! Drives the delivery core through faults. One seed gives one run, the same seed the same run.
//!
//! [`database`] models what PostgreSQL's slot promises, [`broker`] what JetStream does with a
//! publish; [`run`](fn@run) joins them to the real core, injects [`Fault`]s, then stops them and
//! waits for quiet; [`checks`] say whether the promises held.

pub mod broker;
mod bug;
pub mod checks;
pub mod database;
mod fault;
mod run;

pub use bug::Bug;
pub use fault::Fault;
pub use run::{Report, run, run_with};
