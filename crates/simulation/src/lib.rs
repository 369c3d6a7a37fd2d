//! Drives the delivery core through faults. One seed gives one run, the same seed the same run.
//!
//! [`database`] models what PostgreSQL's slot promises, [`broker`] what JetStream does with a
//! publish; a run joins them to one or two real cores, injects [`Fault`]s, then stops them and waits
//! for quiet; [`checks`] say whether the promises held. Where a relay rightly halts, an operator
//! decides as the documentation advises.

pub mod broker;
mod bug;
pub mod checks;
pub mod database;
mod fault;
mod inject;
mod operator;
mod relay;
mod run;
mod world;

pub use bug::Bug;
pub use fault::{Fault, Planned};
pub use run::{Broken, plan, run, run_traced, run_with, shrink};
pub use world::Report;
