use async_nats::{ConnectError, ConnectErrorKind};
use relay_core::{
    CODE_AUTH, CODE_BATCH_DUPLICATE, CODE_BATCH_INCOMPLETE, CODE_BATCH_TOO_LARGE,
    CODE_BATCH_UNSUPPORTED, CODE_OVERTAKEN, Failure, FailureClass,
};

/// What a JetStream error code means for the relay.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// JetStream's error code.
    pub number: u64,
    /// The relay's code for it.
    pub code: &'static str,
    /// Whether it is waited out; else the relay halts.
    pub waits: bool,
    /// What a person can do.
    pub advice: &'static str,
}

const fn wait(number: u64, code: &'static str, advice: &'static str) -> Row {
    Row { number, code, waits: true, advice }
}

const fn halt(number: u64, code: &'static str, advice: &'static str) -> Row {
    Row { number, code, waits: false, advice }
}

/// The JetStream errors that the relay knows; numbers as in nats-server's `errors.json`. Any other
/// number is waited out, under its number.
pub const TABLE: &[Row] = &[
    wait(10_002, "resources", "give the JetStream account more storage or memory"),
    wait(10_008, "cluster_not_ready", ""),
    wait(10_009, "no_peers", ""),
    wait(10_023, "resources", "give the JetStream server more storage or memory"),
    wait(10_035, "jetstream_not_enabled", "enable JetStream for this account"),
    wait(10_039, "jetstream_not_enabled", "enable JetStream for this account"),
    wait(10_047, "resources", "give the JetStream server more storage"),
    halt(10_054, "message_too_large", "raise max_msg_size of the stream"),
    wait(10_059, "no_stream", "create it: outbox-relay init"),
    halt(
        10_060,
        "wrong_stream",
        "the subject belongs to another stream: mend sink.stream or route.subject",
    ),
    wait(10_070, CODE_OVERTAKEN, ""),
    wait(10_071, CODE_OVERTAKEN, ""),
    wait(10_074, "no_leader", ""),
    wait(10_076, "jetstream_not_enabled", "enable JetStream on this server"),
    wait(10_077, "stream_full", "make room: purge, or raise the limits of the stream"),
    wait(10_118, "stream_offline", ""),
    halt(10_109, "stream_sealed", "a sealed stream takes no messages: name another in sink.stream"),
    wait(10_167, "ingest_limit", ""),
    wait(10_174, CODE_BATCH_UNSUPPORTED, "allow them: nats stream edit STREAM --allow-batch"),
    wait(10_175, CODE_BATCH_UNSUPPORTED, ""),
    wait(10_176, CODE_BATCH_INCOMPLETE, ""),
    wait(10_177, CODE_BATCH_UNSUPPORTED, ""),
    wait(10_179, CODE_BATCH_UNSUPPORTED, ""),
    wait(10_199, CODE_BATCH_TOO_LARGE, "raise jetstream.limits.batch.max_msgs of the server"),
    wait(10_201, CODE_BATCH_DUPLICATE, ""),
];

/// The failure for an error that JetStream answered with.
#[must_use]
pub fn api_failure(number: u64, description: &str) -> Failure {
    match TABLE.iter().find(|row| row.number == number) {
        Some(row) => Failure {
            class: if row.waits { FailureClass::Wait } else { FailureClass::Halt },
            code: row.code.to_owned(),
            message: format!("JetStream: {description}"),
            advice: row.advice.to_owned(),
        },
        None => Failure::wait(number.to_string(), format!("JetStream: {description}")),
    }
}

/// The failure for a connection that could not be made.
pub(crate) fn connect(error: &ConnectError, servers: &[String]) -> Failure {
    let servers = servers.join(", ");
    match error.kind() {
        ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
            Failure::wait(CODE_AUTH, format!("{servers} refused the login: {error}"))
                .advise("mend the credentials under sink")
        }
        ConnectErrorKind::ServerParse => {
            Failure::halt("server_address", format!("{servers}: {error}")).advise("mend sink.url")
        }
        ConnectErrorKind::Dns
        | ConnectErrorKind::Tls
        | ConnectErrorKind::Io
        | ConnectErrorKind::TimedOut
        | ConnectErrorKind::MaxReconnects => {
            Failure::wait("connection_refused", format!("connect to {servers}: {error}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_and_unknown_numbers() {
        for (number, code, class) in [
            (10_059, "no_stream", FailureClass::Wait),
            (10_071, "overtaken", FailureClass::Wait),
            (10_070, "overtaken", FailureClass::Wait),
            (10_077, "stream_full", FailureClass::Wait),
            (10_054, "message_too_large", FailureClass::Halt),
            (10_109, "stream_sealed", FailureClass::Halt),
            (99_999, "99999", FailureClass::Wait),
        ] {
            let failure = api_failure(number, "words");
            assert_eq!((failure.code.as_str(), failure.class), (code, class));
            assert!(failure.message.contains("words"));
        }
    }

    #[test]
    fn numbers_are_listed_once() {
        let mut numbers: Vec<_> = TABLE.iter().map(|row| row.number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), TABLE.len());
    }
}
