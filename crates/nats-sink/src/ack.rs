use async_nats::StatusCode;
use relay_core::Failure;
use serde::Deserialize;

use crate::classify::api_failure;

/// The answer to a publish.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Stored {
        sequence: u64,
    },
    Duplicate {
        sequence: u64,
    },
    Refused(Failure),
    /// The server has taken a message of a batch aside.
    Staged,
}

#[derive(Deserialize)]
struct Wire {
    #[serde(default)]
    error: Option<WireError>,
    #[serde(default)]
    seq: u64,
    #[serde(default)]
    duplicate: bool,
}

#[derive(Deserialize)]
struct WireError {
    #[serde(default)]
    code: u64,
    #[serde(default)]
    err_code: u64,
    #[serde(default)]
    description: String,
}

/// Reads an answer. A status without a body is the server's own: 503 says that nobody listens on
/// the subject, so that no stream has it.
pub(crate) fn parse(status: Option<StatusCode>, body: &[u8], stream: &str) -> Answer {
    if status == Some(StatusCode::NO_RESPONDERS) {
        let message = format!("no stream takes the subject; is stream {stream} gone?");
        let advice = "create the stream, or add the subject to it: outbox-relay init";
        return Answer::Refused(Failure::wait("no_stream", message).advise(advice));
    }
    if body.is_empty() && status.is_none() {
        return Answer::Staged;
    }
    match serde_json::from_slice::<Wire>(body) {
        Ok(Wire { error: Some(error), .. }) => {
            let number = if error.err_code == 0 { error.code } else { error.err_code };
            Answer::Refused(api_failure(number, &error.description))
        }
        Ok(Wire { seq: 0, .. }) | Err(_) => {
            Answer::Refused(Failure::wait("protocol", "an answer that is no ack"))
        }
        Ok(Wire { seq, duplicate: true, .. }) => Answer::Duplicate { sequence: seq },
        Ok(Wire { seq, .. }) => Answer::Stored { sequence: seq },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(answer: Answer) -> String {
        match answer {
            Answer::Refused(failure) => failure.code,
            Answer::Stored { .. } | Answer::Duplicate { .. } | Answer::Staged => {
                panic!("{answer:?}")
            }
        }
    }

    #[test]
    fn answers_as_the_server_writes_them() {
        let parse = |body: &str| parse(None, body.as_bytes(), "S");
        assert_eq!(parse(r#"{"stream":"S","seq":5}"#), Answer::Stored { sequence: 5 });
        assert_eq!(
            parse(r#"{"stream":"S", "seq":5,"duplicate": true}"#),
            Answer::Duplicate { sequence: 5 }
        );
        let wrong = r#"{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 5"},"stream":"S","seq":0}"#;
        assert_eq!(code(parse(wrong)), "overtaken");
        let full = r#"{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"},"stream":"S","seq":0}"#;
        assert_eq!(code(parse(full)), "stream_full");
        let batch = r#"{"stream":"S","seq":7,"batch":"b","count":3}"#;
        assert_eq!(parse(batch), Answer::Stored { sequence: 7 });
        assert_eq!(parse(""), Answer::Staged);
        for garbage in ["{", "{}", "[]", r#"{"seq":"5"}"#] {
            assert_eq!(code(parse(garbage)), "protocol", "{garbage}");
        }
    }

    #[test]
    fn nobody_on_the_subject() {
        assert_eq!(code(parse(Some(StatusCode::NO_RESPONDERS), b"", "S")), "no_stream");
    }
}
