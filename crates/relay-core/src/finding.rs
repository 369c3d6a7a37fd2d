/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// As it should be.
    Ok,
    /// It runs, but not as well as it could, or not for long.
    Warning,
    /// The relay cannot run, or would lose events.
    Error,
}

impl Level {
    /// The level in lower case, as commands print it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// One thing that a check looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How much it matters.
    pub level: Level,
    /// A short stable name of what was looked at, for scripts.
    pub code: String,
    /// What was found.
    pub message: String,
    /// The SQL or command that mends it; empty when nothing is to be mended.
    pub fix: String,
}

impl Finding {
    /// As it should be.
    pub fn ok(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { level: Level::Ok, code: code.into(), message: message.into(), fix: String::new() }
    }

    /// Worth mending.
    pub fn warning(
        code: impl Into<String>,
        message: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { level: Level::Warning, fix: fix.into(), ..Self::ok(code, message) }
    }

    /// Must be mended.
    pub fn error(
        code: impl Into<String>,
        message: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { level: Level::Error, fix: fix.into(), ..Self::ok(code, message) }
    }
}
