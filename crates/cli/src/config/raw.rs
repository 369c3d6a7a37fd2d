//! The configuration as it is written. Each description here is the reference text of
//! docs/configuration.md.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The configuration of one relay.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawConfig {
    /// The relay's identity.
    pub(crate) relay: RawRelay,
    /// The database that is read.
    pub(crate) source: RawSource,
    /// The outbox tables; at least one.
    pub(crate) outbox: Vec<RawOutbox>,
    /// The stream that is written.
    pub(crate) sink: RawSink,
    /// How events are delivered.
    #[serde(default)]
    pub(crate) delivery: RawDelivery,
    /// The HTTP endpoint for probes and metrics.
    #[serde(default)]
    pub(crate) http: RawHttp,
    /// The log on standard error.
    #[serde(default)]
    pub(crate) log: RawLog,
}

/// The relay's identity.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawRelay {
    /// The relay's name, in every message's Outbox-Source header. Letters, digits, `_` and `-`, at most 64. Never change it while the stream holds this relay's messages: by it the relay finds where it stopped.
    pub(crate) name: String,
}

/// The database that is read.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawSource {
    /// `postgres://user@host:5432/database`, percent-encoded where needed; `postgres://user@localhost/database?host=/run/postgresql` for a Unix socket. Connect to the server itself, not to a pooler.
    pub(crate) url: String,
    /// The password, when it is not in the URL. Better a reference such as `${DB_PASSWORD}`. Without one, `PGPASSWORD` is used.
    pub(crate) password: Option<String>,
    /// A file that holds the password.
    pub(crate) password_file: Option<String>,
    /// The publication's name.
    #[serde(default = "default_name")]
    pub(crate) publication: String,
    /// The slot's name: lower-case letters, digits and `_`, at most 63.
    #[serde(default = "default_name")]
    pub(crate) slot: String,
    /// How long connecting may take.
    #[serde(default = "default_connect_timeout")]
    pub(crate) connect_timeout: String,
    /// How long a relay that is silent, since it is frozen or cut off, keeps the slot from a standby, at least 3s: the relay's session sets `wal_sender_timeout` to it, whatever the server's default.
    #[serde(default = "default_holder_timeout")]
    pub(crate) holder_timeout: String,
}

fn default_holder_timeout() -> String {
    "30s".to_owned()
}

fn default_name() -> String {
    "outbox_relay".to_owned()
}

fn default_connect_timeout() -> String {
    "5s".to_owned()
}

/// An outbox table.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawOutbox {
    /// `schema.table`, or `table` in schema public. A part in double quotes is taken as it is; others are lower case, as in SQL.
    pub(crate) table: String,
    /// What each field of an event is taken from: a column's name, or `{ value: text }` for the same text in every event.
    pub(crate) fields: RawFields,
    /// Further columns, to headers: header name to column name. A NULL leaves the header out.
    #[serde(default)]
    pub(crate) headers: BTreeMap<String, String>,
    /// Where events go.
    #[serde(default)]
    pub(crate) route: RawRoute,
}

/// The fields of an event.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawFields {
    /// Names the event for ever: unique, never NULL.
    pub(crate) event_id: RawField,
    /// The kind of thing the event is about.
    pub(crate) aggregate_type: RawField,
    /// The business key. Events of one key are published in commit order.
    pub(crate) aggregate_id: RawField,
    /// The version of the aggregate that the event made, a whole number.
    pub(crate) aggregate_version: Option<RawField>,
    /// What happened.
    pub(crate) event_type: RawField,
    /// The message's body, byte for byte as PostgreSQL prints it; a bytea column as its raw bytes. NULL gives an empty body with the header `Outbox-Payload: null`.
    pub(crate) payload: RawField,
    /// When it happened.
    pub(crate) occurred_at: Option<RawField>,
}

/// A column's name, or a constant.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a column's name or { value: text }")]
pub(crate) enum RawField {
    /// The column of this name.
    Column(String),
    /// The same text in every event.
    Constant(RawConstant),
}

/// A constant.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawConstant {
    /// The text.
    pub(crate) value: String,
}

/// Where events go.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawRoute {
    /// The subject, with `{aggregate_type}`, `{aggregate_id}` and `{event_type}` in it. Each is escaped, so that data never adds a token.
    pub(crate) subject: String,
    /// Rules by event type: `drop`, or `{ subject: template }`.
    pub(crate) types: BTreeMap<String, RawTypeRule>,
}

impl Default for RawRoute {
    fn default() -> Self {
        Self {
            subject: "events.{aggregate_type}.{aggregate_id}".to_owned(),
            types: BTreeMap::new(),
        }
    }
}

/// What happens to events of one type.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected `drop` or { subject: template }")]
pub(crate) enum RawTypeRule {
    /// `drop`: not published.
    Word(RawDrop),
    /// Published to another subject.
    Subject(RawSubject),
}

/// Not published.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RawDrop {
    /// Counted and passed over.
    Drop,
}

/// Another subject.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawSubject {
    /// The template.
    pub(crate) subject: String,
}

/// The stream that is written.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawSink {
    /// `nats://host:4222`, or several with commas between. User and password may stand in it, percent-encoded.
    pub(crate) url: String,
    /// The stream's name.
    pub(crate) stream: String,
    /// Whether others write to the stream too. Then one event of a subject and of an aggregate is under way at a time, and what a stream that lost its tail has lost cannot be told.
    #[serde(default)]
    pub(crate) shared: bool,
    /// Whether a transaction of 2 to 1,000 events appears in the stream at once: all of them or none. Takes a stream with `allow_atomic` (nats-server 2.12 or later; `init` makes it so); on another one, and for larger transactions, the relay says so and publishes event by event. Transactions then wait for each other's acks, so it is slower. Not together with `sink.shared`.
    #[serde(default)]
    pub(crate) atomic_transactions: bool,
    /// The user.
    pub(crate) user: Option<String>,
    /// The user's password.
    pub(crate) password: Option<String>,
    /// A file that holds the password.
    pub(crate) password_file: Option<String>,
    /// A token.
    pub(crate) token: Option<String>,
    /// A file that holds the token.
    pub(crate) token_file: Option<String>,
    /// A file that holds the seed of an nkey.
    pub(crate) nkey_seed_file: Option<String>,
    /// A credentials file: a JWT and its seed.
    pub(crate) credentials_file: Option<String>,
    /// How long connecting may take.
    #[serde(default = "default_connect_timeout")]
    pub(crate) connect_timeout: String,
}

/// How events are delivered.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawDelivery {
    /// How long the slot's confirmed position stays behind the acks. An ack does not mean that the broker has synced its file; what it loses within this time is published again from the log. Its cost is so much more log kept by PostgreSQL.
    pub(crate) hold_back: String,
    /// What happens at a row that cannot become an event. `stop`: the relay ends before it and says why; nothing is skipped.
    pub(crate) on_bad_row: RawOnBadRow,
    /// The most events in memory that JetStream has not acknowledged, 1 to 60000.
    pub(crate) in_flight_events_max: usize,
    /// The most bytes of such events. One larger event passes alone.
    pub(crate) in_flight_bytes_max: String,
    /// How long the oldest publish waits for its ack before the session is given up and the stream's end is read anew.
    pub(crate) ack_timeout: String,
    /// The first pause after a failure, at least 1s; it doubles up to retry_pause_max.
    pub(crate) retry_pause_min: String,
    /// The longest pause between two tries.
    pub(crate) retry_pause_max: String,
    /// How long a stop waits for acks in flight.
    pub(crate) stop_timeout: String,
    /// How long consumers remember which events they have applied. `outbox-relay replay` refuses older events, which they could apply twice.
    pub(crate) dedupe_retention: String,
}

impl Default for RawDelivery {
    fn default() -> Self {
        Self {
            hold_back: "2m".to_owned(),
            on_bad_row: RawOnBadRow::Stop,
            in_flight_events_max: 1_024,
            in_flight_bytes_max: "64MiB".to_owned(),
            ack_timeout: "5s".to_owned(),
            retry_pause_min: "1s".to_owned(),
            retry_pause_max: "10s".to_owned(),
            stop_timeout: "10s".to_owned(),
            dedupe_retention: "7d".to_owned(),
        }
    }
}

/// What happens at a row that cannot become an event.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RawOnBadRow {
    /// The relay ends before it.
    Stop,
}

/// The HTTP endpoint for probes and metrics.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawHttp {
    /// The address it listens on, or `none`. It has no login: keep it on loopback or behind a firewall.
    pub(crate) listen: String,
}

impl Default for RawHttp {
    fn default() -> Self {
        Self { listen: "127.0.0.1:9464".to_owned() }
    }
}

/// The log on standard error.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawLog {
    /// `text` or `json`.
    pub(crate) format: RawLogFormat,
    /// `error`, `warn`, `info`, `debug`, `trace`, or a filter as in `info,relay=debug`.
    pub(crate) level: String,
}

impl Default for RawLog {
    fn default() -> Self {
        Self { format: RawLogFormat::Text, level: "info".to_owned() }
    }
}

/// How a log line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RawLogFormat {
    /// For people.
    Text,
    /// For machines, one object a line.
    Json,
}
