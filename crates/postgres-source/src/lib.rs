//! The PostgreSQL side: slot, publication, replication stream, preflight, error classes.
//!
//! A [`Session`] holds the slot and streams from it. It starts only after [`preflight`] has found
//! the publication, the tables and the mapped columns, since a server may walk a slot over rows
//! that a missing publication hides.

mod catalog;
mod classify;
mod log_copy;
mod options;
pub mod preflight;
mod recorder;
mod session;
pub mod setup;
mod slot_watch;
mod table_rows;

pub use classify::TABLE;
pub use log_copy::{LogCopy, log_begins};
pub use options::SourceOptions;
pub use recorder::{Act, Recorder};
pub use session::{Session, SourceEvent, identity};
pub use slot_watch::{SlotState, SlotWatch};
pub use table_rows::{RowFilter, TableRows, oldest};
