//! The delivery state machine: inputs in, effects out. No async, clock, sockets or randomness.

mod failure;
mod options;

pub use failure::{Dependency, Failure, FailureClass};
pub use options::{
    FieldSource, Fields, HeaderColumn, Options, Outbox, Route, SubjectTemplate, TemplateError,
    TemplateField, TypeRule,
};
