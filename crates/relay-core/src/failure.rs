use std::fmt;

/// Which of the two servers failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dependency {
    /// PostgreSQL.
    Source,
    /// NATS.
    Sink,
}

impl fmt::Display for Dependency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Source => "PostgreSQL",
            Self::Sink => "NATS",
        })
    }
}

/// What a failure asks for. Sources and sinks only classify; the core acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureClass {
    /// It may heal by itself: wait with growing pauses and try again, for as long as it takes.
    Wait,
    /// Another session holds the slot: stand by until it is free.
    SlotHeld {
        /// The backend that holds it, where the server says.
        pid: Option<u32>,
    },
    /// Waiting cannot heal it: stop before anything is lost, and say what to do.
    Halt,
}

/// One failure of a dependency, classified, with its own words and the way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What it asks for.
    pub class: FailureClass,
    /// A short stable code: an SQLSTATE, a JetStream error code, or a word such as
    /// `connection_lost`. Fit for a metric label.
    pub code: String,
    /// What happened, without secrets and payloads.
    pub message: String,
    /// What a person can do about it; empty when there is nothing to do but wait.
    pub advice: String,
}

impl Failure {
    /// A failure that may heal by itself.
    pub fn wait(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            class: FailureClass::Wait,
            code: code.into(),
            message: message.into(),
            advice: String::new(),
        }
    }

    /// A failure that needs a person.
    pub fn halt(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { class: FailureClass::Halt, ..Self::wait(code, message) }
    }

    /// The same failure with the way out.
    #[must_use]
    pub fn advise(self, advice: impl Into<String>) -> Self {
        Self { advice: advice.into(), ..self }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.code)?;
        if !self.advice.is_empty() {
            write!(f, "; {}", self.advice)?;
        }
        Ok(())
    }
}
