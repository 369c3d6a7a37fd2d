use std::time::Duration;

use relay_core::{Failure, Finding};
use serde_json::json;

use crate::api::{self, Config};
use crate::options::{SinkOptions, connect};
use crate::stream_end::End;

/// How a new stream is made.
#[derive(Clone, Debug)]
pub struct StreamSettings {
    /// The subjects it takes.
    pub subjects: Vec<String>,
    /// How long message ids are remembered.
    pub duplicate_window: Duration,
}

/// Creates the stream where it is missing; `false` when it is there. Never changes one.
///
/// # Errors
/// The classified failure.
pub async fn create_stream(
    options: &SinkOptions,
    settings: &StreamSettings,
) -> Result<bool, Failure> {
    let connection = connect(options).await?;
    let client = &connection.client;
    match api::info(client, &options.stream).await {
        Ok(_) => return Ok(false),
        Err(failure) if failure.code == "no_stream" => {}
        Err(failure) => return Err(failure),
    }
    let mut config = json!({
        "name": options.stream,
        "subjects": settings.subjects,
        "retention": "limits",
        "storage": "file",
        "discard": "new",
        "max_consumers": -1,
        "max_msgs": -1,
        "max_bytes": -1,
        "max_age": 0,
        "max_msg_size": -1,
        "num_replicas": 1,
        "duplicate_window": u64::try_from(settings.duplicate_window.as_nanos()).unwrap_or(u64::MAX),
    });
    if options.atomic_transactions {
        config["allow_atomic"] = json!(true);
    }
    api::create(client, &options.stream, config).await.map(|()| true)
}

/// Looks at NATS and the stream the way a start would, and further.
pub async fn check(options: &SinkOptions, filters: &[String], relay: &str) -> Vec<Finding> {
    let connection = match connect(options).await {
        Ok(connection) => connection,
        Err(failure) => return vec![unreachable(&failure)],
    };
    let client = &connection.client;
    let version = client.server_info().version;
    let mut findings = vec![Finding::ok("nats_server", format!("nats-server {version} answers"))];
    match api::info(client, &options.stream).await {
        Ok(info) => {
            findings.extend(stream_findings(&options.stream, &info.config, filters));
            findings.extend(batch_finding(options, &version, &info.config));
            match crate::stream_end::read(client, options, relay, info.state).await {
                Ok(end) => findings.extend(end_findings(options, &end)),
                Err(Failure { code, message, advice, .. }) => {
                    findings.push(Finding::error(code, message, advice));
                }
            }
        }
        Err(failure) => findings.push(unreachable(&failure)),
    }
    findings
}

/// Whether transactions can appear in the stream at once, where that is asked for.
fn batch_finding(options: &SinkOptions, version: &str, config: &Config) -> Option<Finding> {
    let stream = &options.stream;
    if !options.atomic_transactions {
        return None;
    }
    let code = "stream_batches";
    Some(match config.batch_max() {
        0 => Finding::warning(
            code,
            format!(
                "stream {stream} on nats-server {version} takes no atomic batches: transactions \
                 appear event by event"
            ),
            format!("nats stream edit {stream} --allow-batch, with nats-server 2.12 or later"),
        ),
        max => Finding::ok(
            code,
            format!("transactions of up to {max} events appear at once in stream {stream}"),
        ),
    })
}

/// Where the relay stands in the stream, and by which rule it publishes.
fn end_findings(options: &SinkOptions, end: &End) -> [Finding; 2] {
    let stream = &options.stream;
    let ours = end.ours.as_ref().map_or_else(
        || "the stream holds nothing of this relay yet, or far back".to_owned(),
        |end| format!("the relay's last message stands at {}", end.position),
    );
    let regime = if options.shared {
        Finding::ok(
            "stream_regime",
            format!("stream {stream} is shared: one event of a subject is under way at a time"),
        )
    } else if end.foreign {
        Finding::warning(
            "stream_regime",
            format!(
                "others write to stream {stream}: each of their messages breaks the relay's chain \
                 and costs a new session"
            ),
            "set sink.shared: true, or give the relay a stream of its own",
        )
    } else {
        Finding::ok("stream_regime", format!("the relay is the only writer of stream {stream}"))
    };
    [Finding::ok("stream_end", ours), regime]
}

fn unreachable(failure: &Failure) -> Finding {
    let fix = if failure.advice.is_empty() {
        "start the server, or mend sink.url".to_owned()
    } else {
        failure.advice.clone()
    };
    Finding::error(failure.code.clone(), failure.message.clone(), fix)
}

/// What the stream's configuration means for the relay.
fn stream_findings(stream: &str, config: &Config, filters: &[String]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let edit = |what: &str| format!("nats stream edit {stream} {what}");
    if config.no_ack {
        findings.push(Finding::error(
            "stream_no_ack",
            format!("stream {stream} gives no acks, so nothing can ever count as published"),
            edit("--ack"),
        ));
    }
    if config.sealed || config.mirror.is_some() {
        findings.push(Finding::error(
            "stream_read_only",
            format!("stream {stream} is sealed or a mirror and takes no messages"),
            "name another stream in sink.stream",
        ));
    }
    for filter in filters {
        if !config.subjects.iter().any(|subject| covers(subject, filter)) {
            let subjects = config.subjects.join(", ");
            findings.push(Finding::error(
                "stream_subjects",
                format!("stream {stream} takes {subjects}; the mapping publishes to {filter}"),
                edit(&format!("--subjects '{}'", [&subjects, filter.as_str()].join(","))),
            ));
        }
    }
    if config.storage == "memory" {
        findings.push(Finding::warning(
            "stream_storage",
            format!("stream {stream} is kept in memory: a restart of the server loses it"),
            "create the stream with file storage",
        ));
    }
    if config.retention != "limits" {
        findings.push(Finding::warning(
            "stream_retention",
            format!(
                "stream {stream} has {} retention: its last message may be gone when the relay \
                 starts, and it then publishes the held-back tail again",
                config.retention
            ),
            "create the stream with limits retention",
        ));
    }
    let limited = config.max_msgs > 0 || config.max_bytes > 0 || config.max_msgs_per_subject > 0;
    if limited && config.discard == "old" {
        findings.push(Finding::warning(
            "stream_discard",
            format!("stream {stream} drops its oldest messages at its limits, read or not"),
            edit("--discard new"),
        ));
    }
    if config.max_age > 0 {
        findings.push(Finding::warning(
            "stream_max_age",
            format!("stream {stream} drops messages by age, read or not"),
            edit("--max-age 0"),
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::ok("stream", format!("stream {stream} fits")));
    }
    findings
}

/// Whether a stream's subject covers everything that a filter with `*` can name.
fn covers(subject: &str, filter: &str) -> bool {
    let (mut subject, mut filter) = (subject.split('.'), filter.split('.'));
    loop {
        match (subject.next(), filter.next()) {
            (Some(">"), Some(_)) | (None, None) => return true,
            (Some("*"), Some(_)) => {}
            (Some(token), Some(other)) if token == other => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use relay_core::Level;

    #[test]
    fn subjects_cover_filters() {
        for (subject, filter, expected) in [
            ("events.>", "events.*.*", true),
            (">", "events.*.*", true),
            ("events.*.*", "events.*.*", true),
            ("events.*", "events.*.*", false),
            ("events.a.*", "events.*.*", false),
            ("events.*.*", "events.a.b", true),
            ("events.>", "events", false),
            ("other.>", "events.*.*", false),
        ] {
            assert_eq!(covers(subject, filter), expected, "{subject} {filter}");
        }
    }

    #[test]
    fn findings_of_a_stream() {
        let config = |json: serde_json::Value| serde_json::from_value::<Config>(json).unwrap();
        let filters = ["events.*.*".to_owned()];
        let codes = |config: &Config| {
            stream_findings("S", config, &filters)
                .into_iter()
                .map(|finding| (finding.level, finding.code))
                .collect::<Vec<_>>()
        };
        let good = json!({ "subjects": ["events.>"], "retention": "limits", "storage": "file", "discard": "new" });
        assert_eq!(codes(&config(good)), [(Level::Ok, "stream".to_owned())]);
        let bad = json!({
            "subjects": ["other"], "retention": "interest", "storage": "memory",
            "discard": "old", "max_msgs": 5, "max_age": 1, "no_ack": true, "sealed": true,
        });
        let expected = [
            (Level::Error, "stream_no_ack"),
            (Level::Error, "stream_read_only"),
            (Level::Error, "stream_subjects"),
            (Level::Warning, "stream_storage"),
            (Level::Warning, "stream_retention"),
            (Level::Warning, "stream_discard"),
            (Level::Warning, "stream_max_age"),
        ];
        assert_eq!(codes(&config(bad)), expected.map(|(level, code)| (level, code.to_owned())));
    }
}
