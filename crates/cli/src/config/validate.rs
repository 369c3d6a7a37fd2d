use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use event::headers;
use nats_sink::{Credentials, SinkOptions};
use postgres_source::SourceOptions;
use relay_core::{
    FieldSource, Fields, HeaderColumn, Options, Outbox, Route, SubjectTemplate, TypeRule,
};

use super::raw::{
    RawConfig, RawDelivery, RawField, RawOutbox, RawRoute, RawSink, RawSource, RawTypeRule,
};
use super::references::Environment;
use super::{Config, address};

/// Collects every fault of a configuration, each with its key path.
pub(super) struct Validator<'a> {
    environment: Environment<'a>,
    pub(super) problems: Vec<String>,
}

/// A publish waits in the client's queue until its ack; this many fit.
const IN_FLIGHT_EVENTS_MAX: usize = 60_000;
/// How often at most the slot's position moves.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

impl<'a> Validator<'a> {
    pub(super) const fn new(environment: Environment<'a>) -> Self {
        Self { environment, problems: Vec::new() }
    }

    /// The validated configuration; to be used only when no problem was found.
    pub(super) fn config(&mut self, raw: &RawConfig) -> Config {
        let name = raw.relay.name.clone();
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if name.is_empty() || name.len() > 64 || !name.chars().all(plain) {
            self.problem(
                "relay.name",
                &format!("`{name}`: use letters, digits, _ and -, at most 64"),
            );
        }
        let outboxes = self.outboxes(&raw.outbox);
        let core = self.delivery(&raw.delivery, &raw.sink, name, outboxes);
        let listen = match raw.http.listen.as_str() {
            "none" => None,
            text => self.parsed("http.listen", text, "an address as in 127.0.0.1:9464, or none"),
        };
        let in_flight_events_max = core.in_flight_events_max;
        Config {
            dedupe_retention: self
                .duration("delivery.dedupe_retention", &raw.delivery.dedupe_retention),
            source: self.source(&raw.source, &core.relay),
            sink: self.sink(&raw.sink, &core.relay, in_flight_events_max),
            core,
            listen,
            log_format: raw.log.format,
            log_level: raw.log.level.clone(),
        }
    }

    fn problem(&mut self, path: &str, words: &str) {
        self.problems.push(format!("{path}: {words}"));
    }

    fn parsed(&mut self, path: &str, text: &str, expected: &str) -> Option<SocketAddr> {
        let parsed = text.parse().ok();
        if parsed.is_none() {
            self.problem(path, &format!("`{text}`: expected {expected}"));
        }
        parsed
    }

    fn duration(&mut self, path: &str, text: &str) -> Duration {
        humantime::parse_duration(text).unwrap_or_else(|_| {
            self.problem(path, &format!("`{text}`: expected a duration as in 500ms, 5s or 2m"));
            Duration::ZERO
        })
    }

    fn positive(&mut self, path: &str, text: &str) -> Duration {
        let before = self.problems.len();
        let duration = self.duration(path, text);
        if duration.is_zero() && self.problems.len() == before {
            self.problem(path, &format!("`{text}`: must be more than 0"));
        }
        duration
    }

    /// At least three times the interval at which the relay reports to the server.
    fn holder_timeout(&mut self, text: &str) -> Duration {
        let timeout = self.duration("source.holder_timeout", text);
        if timeout < Duration::from_secs(3) {
            self.problem("source.holder_timeout", &format!("`{text}`: at least 3s"));
        }
        timeout
    }

    fn delivery(
        &mut self,
        raw: &RawDelivery,
        raw_sink: &RawSink,
        relay: String,
        outboxes: Vec<Outbox>,
    ) -> Options {
        if !(1..=IN_FLIGHT_EVENTS_MAX).contains(&raw.in_flight_events_max) {
            let found = raw.in_flight_events_max;
            let words = format!("{found}: use 1 to {IN_FLIGHT_EVENTS_MAX}");
            self.problem("delivery.in_flight_events_max", &words);
        }
        let bytes: Option<bytesize::ByteSize> = raw.in_flight_bytes_max.parse().ok();
        let bytes = bytes.and_then(|bytes| usize::try_from(bytes.as_u64()).ok());
        let bytes = bytes.filter(|bytes| *bytes > 0).unwrap_or_else(|| {
            let words = format!("`{}`: expected a size as in 64MiB", raw.in_flight_bytes_max);
            self.problem("delivery.in_flight_bytes_max", &words);
            0
        });
        let retry_pause_min = self.duration("delivery.retry_pause_min", &raw.retry_pause_min);
        if retry_pause_min < Duration::from_secs(1) {
            let words =
                format!("`{}`: at least 1s, or an outage sees a storm", raw.retry_pause_min);
            self.problem("delivery.retry_pause_min", &words);
        }
        let retry_pause_max = self.duration("delivery.retry_pause_max", &raw.retry_pause_max);
        if retry_pause_max < retry_pause_min {
            self.problem("delivery.retry_pause_max", "must not be less than retry_pause_min");
        }
        Options {
            relay,
            outboxes,
            atomic_transactions: raw_sink.atomic_transactions,
            hold_back: self.duration("delivery.hold_back", &raw.hold_back),
            confirm_interval: STATUS_INTERVAL,
            in_flight_events_max: raw.in_flight_events_max,
            in_flight_bytes_max: bytes,
            ack_timeout: self.positive("delivery.ack_timeout", &raw.ack_timeout),
            retry_pause_min,
            retry_pause_max,
            stop_timeout: self.duration("delivery.stop_timeout", &raw.stop_timeout),
            seed: 0,
        }
    }

    fn source(&mut self, raw: &RawSource, relay: &str) -> SourceOptions {
        let address = address::postgres(&raw.url).unwrap_or_else(|words| {
            self.problem("source.url", &words);
            address::PostgresAddress {
                user: String::new(),
                password: None,
                host: String::new(),
                port: 0,
                database: String::new(),
            }
        });
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if raw.slot.is_empty() || raw.slot.len() > 63 || !raw.slot.chars().all(plain) {
            let words = format!("`{}`: use lower-case letters, digits and _, at most 63", raw.slot);
            self.problem("source.slot", &words);
        }
        if raw.publication.is_empty() || raw.publication.len() > 63 {
            self.problem("source.publication", "must have 1 to 63 bytes");
        }
        let given =
            self.secret("source.password", raw.password.as_ref(), raw.password_file.as_ref());
        let environment = self.environment;
        SourceOptions {
            password: given.or(address.password).or_else(|| environment("PGPASSWORD")),
            host: address.host,
            port: address.port,
            user: address.user,
            database: address.database,
            slot: raw.slot.clone(),
            publication: raw.publication.clone(),
            application_name: format!("outbox-relay {relay}"),
            connect_timeout: self.positive("source.connect_timeout", &raw.connect_timeout),
            status_interval: STATUS_INTERVAL,
            holder_timeout: self.holder_timeout(&raw.holder_timeout),
        }
    }

    fn sink(&mut self, raw: &RawSink, relay: &str, in_flight_events_max: usize) -> SinkOptions {
        let address = address::nats(&raw.url).unwrap_or_else(|words| {
            self.problem("sink.url", &words);
            address::NatsAddress { servers: Vec::new(), user: None, password: None }
        });
        if raw.stream.is_empty()
            || raw.stream.contains(|c: char| c.is_whitespace() || ".*>/\\".contains(c))
        {
            let words =
                format!("`{}`: a stream's name has no blank, dot, slash, * or >", raw.stream);
            self.problem("sink.stream", &words);
        }
        if raw.shared && raw.atomic_transactions {
            let words = "not together with sink.shared: there each subject is written by itself";
            self.problem("sink.atomic_transactions", words);
        }
        SinkOptions {
            servers: address.servers,
            credentials: self.credentials(raw, address.user, address.password),
            stream: raw.stream.clone(),
            client_name: format!("outbox-relay {relay}"),
            connect_timeout: self.positive("sink.connect_timeout", &raw.connect_timeout),
            request_timeout: Duration::from_secs(5),
            in_flight_events_max,
            shared: raw.shared,
            atomic_transactions: raw.atomic_transactions,
        }
    }

    fn credentials(
        &mut self,
        raw: &RawSink,
        url_user: Option<String>,
        url_password: Option<String>,
    ) -> Credentials {
        let user = raw.user.clone().or(url_user);
        let password = self
            .secret("sink.password", raw.password.as_ref(), raw.password_file.as_ref())
            .or(url_password);
        let token = self.secret("sink.token", raw.token.as_ref(), raw.token_file.as_ref());
        let seed = self.secret("sink.nkey_seed", None, raw.nkey_seed_file.as_ref());
        let mut found = Vec::new();
        match (user, password) {
            (Some(user), password) => found
                .push(Credentials::UserPassword { user, password: password.unwrap_or_default() }),
            (None, Some(_)) => self.problem("sink.password", "there is no sink.user for it"),
            (None, None) => {}
        }
        found.extend(token.map(Credentials::Token));
        found.extend(seed.map(|seed| Credentials::NkeySeed(seed.trim().to_owned())));
        found.extend(
            raw.credentials_file.as_ref().map(|path| Credentials::File(PathBuf::from(path))),
        );
        if found.len() > 1 {
            self.problem(
                "sink",
                "more than one of user, token, nkey_seed_file and credentials_file",
            );
        }
        found.pop().unwrap_or(Credentials::None)
    }

    /// A secret from its key or from a file; never repeated in a problem.
    fn secret(
        &mut self,
        path: &str,
        value: Option<&String>,
        file: Option<&String>,
    ) -> Option<String> {
        match (value, file) {
            (Some(_), Some(_)) => {
                self.problem(path, &format!("give it or {path}_file, not both"));
                None
            }
            (Some(value), None) => Some(value.clone()),
            (None, Some(file)) => match fs::read_to_string(file) {
                Ok(text) => Some(text.strip_suffix('\n').unwrap_or(&text).to_owned()),
                Err(error) => {
                    self.problem(&format!("{path}_file"), &format!("read {file}: {error}"));
                    None
                }
            },
            (None, None) => None,
        }
    }

    fn outboxes(&mut self, raw: &[RawOutbox]) -> Vec<Outbox> {
        if raw.is_empty() {
            self.problem("outbox", "name at least one table");
        }
        let mut outboxes: Vec<Outbox> = Vec::new();
        for (index, raw) in raw.iter().enumerate() {
            let outbox = self.outbox(&format!("outbox[{index}]"), raw);
            let same =
                |other: &Outbox| (&other.schema, &other.table) == (&outbox.schema, &outbox.table);
            if outboxes.iter().any(same) {
                self.problem(&format!("outbox[{index}].table"), "this table is named twice");
            }
            outboxes.push(outbox);
        }
        outboxes
    }

    fn outbox(&mut self, path: &str, raw: &RawOutbox) -> Outbox {
        let (schema, table) = table_name(&raw.table).unwrap_or_else(|words| {
            self.problem(&format!("{path}.table"), &words);
            (String::new(), String::new())
        });
        let mut field =
            |name: &str, field: &RawField| self.field(&format!("{path}.fields.{name}"), field);
        let fields = &raw.fields;
        let fields = Fields {
            event_id: field("event_id", &fields.event_id),
            aggregate_type: field("aggregate_type", &fields.aggregate_type),
            aggregate_id: field("aggregate_id", &fields.aggregate_id),
            aggregate_version: fields
                .aggregate_version
                .as_ref()
                .map(|f| field("aggregate_version", f)),
            event_type: field("event_type", &fields.event_type),
            payload: field("payload", &fields.payload),
            occurred_at: fields.occurred_at.as_ref().map(|f| field("occurred_at", f)),
        };
        for (name, constant) in
            [("event_id", &fields.event_id), ("aggregate_id", &fields.aggregate_id)]
        {
            if let FieldSource::Constant(_) = constant {
                self.problem(
                    &format!("{path}.fields.{name}"),
                    "must be a column: it differs from event to event",
                );
            }
        }
        Outbox {
            fields,
            headers: self.headers(path, raw),
            route: self.route(&format!("{path}.route"), &raw.route),
            message_id_prefix: format!("{schema}.{table}"),
            schema,
            table,
        }
    }

    fn field(&mut self, path: &str, raw: &RawField) -> FieldSource {
        let (text, source) = match raw {
            RawField::Column(name) => (name, FieldSource::Column(name.clone())),
            RawField::Constant(constant) => {
                (&constant.value, FieldSource::Constant(constant.value.clone()))
            }
        };
        if text.is_empty() {
            self.problem(path, "must not be empty");
        }
        source
    }

    fn headers(&mut self, path: &str, raw: &RawOutbox) -> Vec<HeaderColumn> {
        let mut columns = Vec::new();
        for (header, column) in &raw.headers {
            let lower = header.to_ascii_lowercase();
            let reserved = ["outbox-", "nats-"].iter().any(|prefix| lower.starts_with(prefix));
            let path = format!("{path}.headers.{header}");
            if !headers::is_name(header) {
                self.problem(&path, "a header's name has letters, digits, -, _ and . only");
            } else if reserved || lower == "content-type" {
                self.problem(&path, "this name is the relay's or the server's own: choose another");
            }
            columns.push(HeaderColumn { header: header.clone(), column: column.clone() });
        }
        columns
    }

    fn route(&mut self, path: &str, raw: &RawRoute) -> Route {
        let subject = self.template(&format!("{path}.subject"), &raw.subject);
        let types = raw.types.iter().filter_map(|(name, rule)| {
            let rule = match rule {
                RawTypeRule::Word(_) => TypeRule::Drop,
                RawTypeRule::Subject(other) => {
                    let path = format!("{path}.types.{name}.subject");
                    TypeRule::Subject(self.template(&path, &other.subject)?)
                }
            };
            Some((name.clone(), rule))
        });
        let types = types.collect();
        Route { subject: subject.unwrap_or_default(), types }
    }

    fn template(&mut self, path: &str, text: &str) -> Option<SubjectTemplate> {
        match SubjectTemplate::parse(text) {
            Ok(template) => Some(template),
            Err(error) => {
                self.problem(path, &error.to_string());
                None
            }
        }
    }
}

/// Schema and table of a name as SQL reads it.
fn table_name(text: &str) -> Result<(String, String), String> {
    let words =
        || format!("`{text}`: expected schema.table, with double quotes where SQL needs them");
    let mut parts = Vec::new();
    let mut rest = text;
    loop {
        let (part, after) = match rest.strip_prefix('"') {
            Some(quoted) => {
                let (part, after) = quoted.split_once('"').ok_or_else(words)?;
                (part.to_owned(), after)
            }
            None => {
                let end = rest.find('.').unwrap_or(rest.len());
                let (part, after) = rest.split_at(end);
                if part.contains(|c: char| c.is_whitespace() || c == '"') {
                    return Err(words());
                }
                (part.to_lowercase(), after)
            }
        };
        if part.is_empty() {
            return Err(words());
        }
        parts.push(part);
        match after.strip_prefix('.') {
            Some(after) => rest = after,
            None if after.is_empty() => break,
            None => return Err(words()),
        }
    }
    match <[String; 2]>::try_from(parts) {
        Ok([schema, table]) => Ok((schema, table)),
        Err(parts) if parts.len() == 1 => Ok(("public".to_owned(), parts.concat())),
        Err(_) => Err(words()),
    }
}

#[cfg(test)]
mod tests {
    use super::table_name;

    #[test]
    fn table_names_as_sql_reads_them() {
        for (text, schema, table) in [
            ("outbox", "public", "outbox"),
            ("Shop.OutBox", "shop", "outbox"),
            ("\"My.Schema\".\"T a\"", "My.Schema", "T a"),
            ("shop.\"Outbox\"", "shop", "Outbox"),
        ] {
            assert_eq!(table_name(text), Ok((schema.to_owned(), table.to_owned())));
        }
        for text in ["", ".", "a.", ".a", "a.b.c", "\"a", "a b", "\"a\"b"] {
            assert!(table_name(text).is_err(), "{text}");
        }
    }
}
