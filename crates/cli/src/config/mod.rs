//! The configuration: YAML to raw structs to validated options. Every fault names its key path.

mod address;
mod raw;
mod reference;
mod references;
mod validate;

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nats_sink::{Credentials, SinkOptions};
use postgres_source::SourceOptions;
use relay::RelayOptions;
use relay_core::Options;
use serde_json::{Value, json};

pub(crate) use raw::RawLogFormat;
pub(crate) use reference::{markdown, schema};
use references::Environment;
use validate::Validator;

/// A validated configuration.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) source: SourceOptions,
    pub(crate) sink: SinkOptions,
    pub(crate) core: Options,
    /// How long consumers remember what they have applied.
    pub(crate) dedupe_retention: Duration,
    pub(crate) listen: Option<SocketAddr>,
    pub(crate) log_format: RawLogFormat,
    pub(crate) log_level: String,
}

impl Config {
    /// Reads a configuration file, with the process's environment for its references.
    pub(crate) fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("read the configuration {}", path.display()))?;
        Self::parse(&text, &|name| std::env::var(name).ok())
            .with_context(|| format!("the configuration {} is not valid", path.display()))
    }

    /// Parses a configuration.
    pub(crate) fn parse(text: &str, environment: Environment<'_>) -> Result<Self> {
        let mut document: Value = serde_saphyr::from_str(text)?;
        let mut problems = Vec::new();
        references::expand(&mut document, environment, &mut problems);
        refuse(problems)?;
        let raw: raw::RawConfig = serde_path_to_error::deserialize(document)
            .map_err(|error| anyhow::anyhow!("{}: {}", error.path(), error.inner()))?;
        let mut validator = Validator::new(environment);
        let config = validator.config(&raw);
        refuse(validator.problems)?;
        Ok(config)
    }

    /// What the shell takes.
    pub(crate) fn relay_options(&self) -> RelayOptions {
        let mut core = self.core.clone();
        core.seed = u64::from(std::process::id());
        RelayOptions { core, source: self.source.clone(), sink: self.sink.clone() }
    }

    /// The subjects that the mapping can publish to, as filters.
    pub(crate) fn subject_filters(&self) -> Vec<String> {
        let mut filters: Vec<_> =
            self.core.outboxes.iter().flat_map(|outbox| outbox.route.filters()).collect();
        filters.sort();
        filters.dedup();
        filters
    }

    /// The configuration in force, without secrets.
    pub(crate) fn redacted(&self) -> Value {
        let (source, sink, core) = (&self.source, &self.sink, &self.core);
        let credentials = match &sink.credentials {
            Credentials::None => "none",
            Credentials::UserPassword { .. } => "user and password ***",
            Credentials::Token(_) => "token ***",
            Credentials::NkeySeed(_) => "nkey seed ***",
            Credentials::File(_) => "credentials file",
        };
        let tables =
            core.outboxes.iter().map(|outbox| format!("{}.{}", outbox.schema, outbox.table));
        json!({
            "relay": core.relay,
            "source": {
                "host": source.host, "port": source.port, "user": source.user,
                "password": source.password.as_ref().map(|_| "***"),
                "database": source.database, "publication": source.publication,
                "slot": source.slot,
            },
            "outbox": tables.collect::<Vec<_>>(),
            "sink": {
                "servers": sink.servers, "stream": sink.stream, "credentials": credentials,
                "subjects": self.subject_filters(),
            },
            "delivery": {
                "hold_back_seconds": core.hold_back.as_secs_f64(),
                "in_flight_events_max": core.in_flight_events_max,
                "in_flight_bytes_max": core.in_flight_bytes_max,
                "ack_timeout_seconds": core.ack_timeout.as_secs_f64(),
                "retry_pause_min_seconds": core.retry_pause_min.as_secs_f64(),
                "retry_pause_max_seconds": core.retry_pause_max.as_secs_f64(),
                "stop_timeout_seconds": core.stop_timeout.as_secs_f64(),
                "dedupe_retention_seconds": self.dedupe_retention.as_secs_f64(),
            },
            "http": self.listen.map(|listen| listen.to_string()),
        })
    }
}

fn refuse(problems: Vec<String>) -> Result<()> {
    match problems.as_slice() {
        [] => Ok(()),
        [problem] => bail!("{problem}"),
        problems => {
            let mut words = format!("{} faults", problems.len());
            for problem in problems {
                let _ = write!(words, "\n  {problem}");
            }
            bail!(words)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = include_str!("../../../../outbox-relay.yaml");

    fn parse(text: &str) -> Result<Config> {
        Config::parse(text, &|name| (name == "PGPASSWORD").then(|| "from-env".to_owned()))
    }

    fn minimal(from: &str, to: &str) -> String {
        let text = "relay: {name: shop}\n\
            source: {url: 'postgres://relay@db/shop'}\n\
            outbox:\n\
            - table: outbox\n\
            \x20 fields: {event_id: event_id, aggregate_type: {value: registration}, \
            aggregate_id: aggregate_id, event_type: event_type, payload: payload}\n\
            sink: {url: 'nats://broker', stream: EVENTS}\n";
        assert!(text.contains(from), "{from}");
        text.replacen(from, to, 1)
    }

    #[test]
    fn the_sample_is_valid_and_complete() {
        let config = parse(SAMPLE).unwrap();
        assert_eq!(config.core.relay, "shop");
        assert_eq!((config.source.host.as_str(), config.source.port), ("127.0.0.1", 5432));
        assert_eq!(config.source.password.as_deref(), Some("from-env"));
        assert_eq!(config.sink.servers, ["nats://127.0.0.1:4222"]);
        assert_eq!(config.subject_filters(), ["events.*.*"]);
        let fields: Vec<_> = config.core.outboxes[0].fields.named().map(|(name, _)| name).collect();
        assert_eq!(fields.len(), 7);
    }

    #[test]
    fn defaults_are_those_of_the_reference() {
        let config = parse(&minimal("shop", "shop")).unwrap();
        assert_eq!(config.core.hold_back.as_secs(), 120);
        assert_eq!(config.core.in_flight_bytes_max, 64 << 20);
        assert_eq!(config.source.slot, "outbox_relay");
        assert_eq!(config.listen.unwrap().to_string(), "127.0.0.1:9464");
    }

    #[test]
    fn every_fault_names_its_place() {
        for (from, to, words) in [
            ("name: shop", "name: 'a b'", "relay.name: `a b`: use letters"),
            ("name: shop", "nam: shop", "relay.nam: unknown field `nam`, expected `name`"),
            (
                "payload: payload",
                "payloadd: payload",
                "outbox[0].fields.payloadd: unknown field `payloadd`",
            ),
            (", payload: payload", "", "outbox[0].fields: missing field `payload`"),
            (
                "payload: payload",
                "payload: 7",
                "outbox[0].fields.payload: expected a column's name or { value: text }",
            ),
            (
                "event_id: event_id",
                "event_id: {value: x}",
                "outbox[0].fields.event_id: must be a column",
            ),
            ("postgres://", "${NO_URL}", "source.url: the environment variable NO_URL is not set"),
            ("/shop'", "/shop', slot: Relay", "source.slot: `Relay`: use lower-case"),
            ("table: outbox", "table: a.b.c", "outbox[0].table: `a.b.c`: expected schema.table"),
            (
                "table: outbox",
                "table: outbox\n  route: {subject: 'e.{payload}'}",
                "outbox[0].route.subject: `{payload}` is not a field",
            ),
            (
                "table: outbox",
                "table: outbox\n  route: {types: {A: keep}}",
                "outbox[0].route.types.A: expected `drop`",
            ),
            (
                "table: outbox",
                "table: outbox\n  headers: {Nats-X: c}",
                "outbox[0].headers.Nats-X: this name is the relay's",
            ),
            (
                "sink:",
                "delivery: {hold_back: soon}\nsink:",
                "delivery.hold_back: `soon`: expected a duration",
            ),
            (
                "sink:",
                "delivery: {on_bad_row: skip}\nsink:",
                "delivery.on_bad_row: unknown variant `skip`, expected `stop`",
            ),
            (
                "sink:",
                "delivery: {retry_pause_min: 10ms}\nsink:",
                "delivery.retry_pause_min: `10ms`: at least 1s",
            ),
            ("stream: EVENTS", "stream: A.B", "sink.stream: `A.B`: a stream's name has no blank"),
            (
                "stream: EVENTS",
                "stream: EVENTS, user: u, token: t",
                "sink: more than one of user, token",
            ),
            (
                "stream: EVENTS",
                "stream: EVENTS, shared: true, atomic_transactions: true",
                "sink.atomic_transactions: not together with sink.shared",
            ),
            ("sink:", "http: {listen: here}\nsink:", "http.listen: `here`: expected an address"),
        ] {
            let error = format!("{:#}", parse(&minimal(from, to)).unwrap_err());
            assert!(error.contains(words), "expected {words}\nfound {error}");
        }
        assert!(parse("relay: {name: a}\nrelay: {name: b}").is_err());
    }

    #[test]
    fn all_faults_are_told_at_once() {
        let text = minimal("name: shop", "name: ''").replace("EVENTS", "A.B");
        let error = format!("{:#}", parse(&text).unwrap_err());
        assert!(error.starts_with("2 faults\n  relay.name"), "{error}");
        assert!(error.contains("\n  sink.stream"), "{error}");
    }

    #[test]
    fn secrets_are_never_shown() {
        let text = minimal("relay@db", "relay:marked-secret@db")
            .replace("nats://broker", "nats://u:marked-secret@broker");
        let config = parse(&text).unwrap();
        assert_eq!(config.source.password.as_deref(), Some("marked-secret"));
        let shown = format!("{config:?}{}", config.redacted());
        assert!(!shown.contains("marked-secret"), "{shown}");
        assert!(shown.contains("***"));
    }
}
