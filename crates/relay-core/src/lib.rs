//! The delivery state machine: inputs in, effects out. No async, clock, sockets or randomness.
//!
//! One file a concern: [`Core`] dispatches; `source_side` and `sink_side` hold what happens to the
//! two sessions; `transaction` turns rows into messages by `mapping`; `pipeline` keeps what is not
//! acknowledged; `ledger` decides what may be confirmed; `backoff` when to try again.

mod backoff;
mod core;
mod failure;
mod finding;
mod input;
mod ledger;
mod mapping;
mod notice;
mod options;
mod pipeline;
mod sink_side;
mod source_side;
mod status;
#[cfg(test)]
mod testing;
mod transaction;

pub use crate::core::Core;
pub use failure::{Dependency, Failure, FailureClass};
pub use finding::{Finding, Level};
pub use input::{Effect, Exit, Input, Occupant, Outgoing, SinkOpened, SourceStarted, StreamEnd};
pub use notice::Notice;
pub use options::{
    FieldSource, Fields, HeaderColumn, Options, Outbox, Route, SubjectTemplate, TemplateError,
    TemplateField, TypeRule,
};
pub use sink_side::{CODE_AUTH, CODE_OVERTAKEN};
pub use status::{Link, Stats, Status};
