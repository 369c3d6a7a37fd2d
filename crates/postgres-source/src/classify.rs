use pgwire_replication::PgWireError;
use relay_core::{Failure, FailureClass};

/// What an SQLSTATE, or a class of them, means for the relay.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// An SQLSTATE, or its first two characters for the whole class.
    pub sqlstate: &'static str,
    /// Whether it is waited out; else the relay halts.
    pub waits: bool,
    /// What it is.
    pub meaning: &'static str,
    /// What a person can do.
    pub advice: &'static str,
}

const fn wait(sqlstate: &'static str, meaning: &'static str) -> Row {
    Row { sqlstate, waits: true, meaning, advice: "" }
}

const fn halt(sqlstate: &'static str, meaning: &'static str, advice: &'static str) -> Row {
    Row { sqlstate, waits: false, meaning, advice }
}

/// The SQLSTATEs that the relay knows; the longest match counts. Any other is waited out.
pub const TABLE: &[Row] = &[
    wait("08", "connection trouble"),
    wait("40", "transaction rolled back"),
    wait("53", "the server is out of something: connections, memory, disk"),
    wait("55006", "the slot is held by another session: stand by"),
    wait("55P03", "lock not available"),
    wait("57", "the server is going down, starting, or ended the session"),
    wait("58", "system error"),
    halt(
        "0A000",
        "not supported by this server",
        "see the supported versions in docs/operating.md",
    ),
    halt(
        "22023",
        "the server does not know an option",
        "see the supported versions in docs/operating.md",
    ),
    halt("28", "login refused", "mend source.url, its password, or pg_hba.conf"),
    halt("3D000", "no such database", "mend the database name in source.url"),
    halt("42501", "not permitted", "grant what is missing: outbox-relay init --print"),
    halt("42704", "the slot or the publication does not exist", "create it: outbox-relay init"),
    halt(
        "42601",
        "the server does not understand the command",
        "connect to PostgreSQL directly, not through a pooler",
    ),
    halt(
        "55000",
        "the slot cannot be used",
        "see wal_status in pg_replication_slots; a lost slot is made anew by hand",
    ),
];

/// The failure for an SQLSTATE and the server's words.
#[must_use]
pub(crate) fn server(sqlstate: &str, message: &str) -> Failure {
    let known = TABLE.iter().filter(|row| sqlstate.starts_with(row.sqlstate));
    let row = known.max_by_key(|row| row.sqlstate.len());
    let class = match row {
        _ if sqlstate == "55006" => FailureClass::SlotHeld { pid: holder(message) },
        Some(row) if !row.waits => FailureClass::Halt,
        Some(_) | None => FailureClass::Wait,
    };
    // The preflight has seen the publication, so what is missing here is its past.
    let late_publication = sqlstate == "42704" && message.contains("publication");
    let advice = if late_publication { LATE_PUBLICATION } else { row.map_or("", |row| row.advice) };
    let advice = advice.to_owned();
    Failure { class, code: sqlstate.to_owned(), message: message.to_owned(), advice }
}

const LATE_PUBLICATION: &str = "the slot is older than the publication, and this server can stream \
     nothing from it: drop the slot, run outbox-relay init, and write the rows that the stream lacks \
     anew";

/// The process id in `replication slot "x" is active for PID 123`, whatever the language.
fn holder(message: &str) -> Option<u32> {
    let after = message.rsplit_once("PID ")?.1;
    after.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// The failure of an ordinary query.
pub(crate) fn query(error: &tokio_postgres::Error) -> Failure {
    match error.as_db_error() {
        Some(server_error) => server(server_error.code().code(), server_error.message()),
        None => {
            let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
            Failure::wait("connection_lost", format!("{error}{}", cause.unwrap_or_default()))
        }
    }
}

/// The failure of a replication session. The crate gives server errors as text with the SQLSTATE.
pub(crate) fn replication(error: &PgWireError) -> Failure {
    match error {
        PgWireError::Server(text) => match sqlstate(text) {
            Some(sqlstate) => server(sqlstate, text),
            None => Failure::wait("unknown", text.clone()),
        },
        PgWireError::Auth(text) => Failure::halt("28P01", text.clone())
            .advise("mend source.url, its password, or pg_hba.conf"),
        PgWireError::Tls(text) => Failure::halt("tls", text.clone()).advise("mend source.url"),
        PgWireError::MessageTooLarge { .. } => {
            Failure::halt("message_too_large", error.to_string())
        }
        PgWireError::Protocol(text) => Failure::wait("protocol", text.clone()),
        PgWireError::Io(_) | PgWireError::Task(_) | PgWireError::Internal(_) | _ => {
            Failure::wait("connection_lost", error.to_string())
        }
    }
}

fn sqlstate(text: &str) -> Option<&str> {
    let after = text.split_once("SQLSTATE ")?.1;
    let code = after.get(..5)?;
    code.bytes().all(|byte| byte.is_ascii_alphanumeric()).then_some(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sqlstates_by_longest_match() {
        use FailureClass::{Halt, Wait};
        for (sqlstate, class) in [
            ("57P01", Wait),
            ("57P02", Wait),
            ("57P03", Wait),
            ("53300", Wait),
            ("08006", Wait),
            ("28P01", Halt),
            ("28000", Halt),
            ("3D000", Halt),
            ("42704", Halt),
            ("55000", Halt),
            ("55P03", Wait),
            ("XX000", Wait),
            ("99999", Wait),
        ] {
            assert_eq!(server(sqlstate, "words").class, class, "{sqlstate}");
        }
    }

    #[test]
    fn a_publication_that_came_too_late_has_its_own_advice() {
        let failure = server("42704", "publication \"p\" does not exist");
        assert!(failure.advice.contains("older than the publication"), "{failure}");
        let failure = server("42704", "replication slot \"s\" does not exist");
        assert!(failure.advice.contains("create it"), "{failure}");
    }

    #[test]
    fn the_holder_of_a_slot_is_named() {
        for (message, pid) in [
            ("replication slot \"relay\" is active for PID 4711", Some(4711)),
            ("Replikations-Slot »relay« ist aktiv für PID 12", Some(12)),
            ("active", None),
        ] {
            assert_eq!(server("55006", message).class, FailureClass::SlotHeld { pid });
        }
    }

    #[test]
    fn the_crates_text_holds_the_sqlstate() {
        let failure = replication(&PgWireError::Server("no slot (SQLSTATE 42704)".into()));
        assert_eq!((failure.code.as_str(), failure.class), ("42704", FailureClass::Halt));
        let failure = replication(&PgWireError::Server("no code".into()));
        assert_eq!(failure.class, FailureClass::Wait);
    }
}
