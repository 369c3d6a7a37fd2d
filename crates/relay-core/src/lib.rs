//! The delivery state machine: inputs in, effects out. No async, clock, sockets or randomness.
//!
//! One file a concern: [`Core`] dispatches; `source_side` and `sink_side` hold what happens to the
//! two sessions; `transaction` turns rows into messages by `mapping`; `pipeline` keeps what is not
//! acknowledged; `ledger` decides what may be confirmed, `record` puts it on record first;
//! `recovery` compares the stream's end with the record; `backoff` says when to try again.

mod backoff;
mod batching;
mod core;
mod decision;
mod failure;
mod finding;
mod input;
mod ledger;
mod mapper;
mod mapping;
mod notice;
mod options;
mod pipeline;
mod reader;
mod record;
mod recovery;
mod sink_side;
mod source_side;
mod status;
#[cfg(test)]
mod testing;
mod transaction;

pub use crate::core::Core;
pub use decision::Scene;
pub use failure::{Dependency, Failure, FailureClass};
pub use finding::{Finding, Level};
pub use input::{
    Effect, Exit, Fork, Input, LostRange, Occupant, Outgoing, SinkOpened, SinkQuery, SourceStarted,
    StreamEnd,
};
pub use notice::{Notice, SplitReason};
pub use options::{
    FieldSource, Fields, HeaderColumn, Options, Outbox, Route, SubjectTemplate, TemplateError,
    TemplateField, TypeRule,
};
pub use reader::{LogReader, ReadEvent, TableReader};
pub use record::{Past, Record, Stored};
pub use sink_side::{
    CODE_AUTH, CODE_BATCH_DUPLICATE, CODE_BATCH_INCOMPLETE, CODE_BATCH_TOO_LARGE,
    CODE_BATCH_UNSUPPORTED, CODE_OVERTAKEN,
};
pub use status::{Link, Stats, Status};
