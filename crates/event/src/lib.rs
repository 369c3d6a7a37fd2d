//! The contract between the relay and its consumers: what an event is, where it stands, which
//! headers carry it, and how its subject is written.
//!
//! Nothing here does I/O, reads a clock or panics on data: every constructor parses.

mod event;
pub mod headers;
mod lsn;
mod position;
mod subject;

pub use event::{Event, Payload};
pub use headers::{Headers, InvalidHeader, ParseSourceError, Replay, SourceId};
pub use lsn::{Lsn, ParseLsnError};
pub use position::{ParsePositionError, Position};
pub use subject::{SUBJECT_BYTES_MAX, Subject, SubjectError, escape_token, unescape_token};
