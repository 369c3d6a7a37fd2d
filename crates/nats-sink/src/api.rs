use async_nats::{Client, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use relay_core::Failure;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::classify::api_failure;
use crate::stored::StoredHeaders;

/// JetStream's code for a sequence that holds no message.
const NO_MESSAGE: u64 = 10_037;

/// The most messages of a batch, unless the server is configured to take fewer (or more): ADR-50.
const BATCH_MAX: usize = 1_000;

/// Stream info, as far as the relay reads it.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Info {
    #[serde(default)]
    pub(crate) created: String,
    pub(crate) config: Config,
    pub(crate) state: State,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Config {
    #[serde(default)]
    pub(crate) subjects: Vec<String>,
    #[serde(default)]
    pub(crate) retention: String,
    #[serde(default)]
    pub(crate) storage: String,
    #[serde(default)]
    pub(crate) discard: String,
    #[serde(default)]
    pub(crate) max_age: i64,
    #[serde(default)]
    pub(crate) max_msgs: i64,
    #[serde(default)]
    pub(crate) max_bytes: i64,
    #[serde(default)]
    pub(crate) max_msgs_per_subject: i64,
    #[serde(default)]
    pub(crate) max_msg_size: i64,
    #[serde(default)]
    pub(crate) no_ack: bool,
    #[serde(default)]
    pub(crate) sealed: bool,
    /// Since nats-server 2.12: a batch of messages is stored whole or not at all.
    #[serde(default)]
    pub(crate) allow_atomic: bool,
    #[serde(default)]
    pub(crate) mirror: Option<Value>,
}

impl Config {
    /// How many messages the stream takes as one batch; the server's own limit may be lower.
    pub(crate) const fn batch_max(&self) -> usize {
        if self.allow_atomic { BATCH_MAX } else { 0 }
    }

    /// Whether messages leave the stream by themselves.
    pub(crate) fn removes(&self) -> bool {
        let limited = self.max_msgs > 0 || self.max_bytes > 0 || self.max_msgs_per_subject > 0;
        self.retention != "limits" || self.max_age > 0 || (limited && self.discard == "old")
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct State {
    pub(crate) first_seq: u64,
    pub(crate) last_seq: u64,
}

#[derive(Deserialize)]
struct ErrorReply {
    error: Option<ApiError>,
}

#[derive(Deserialize)]
struct ApiError {
    #[serde(default)]
    code: u64,
    #[serde(default)]
    err_code: u64,
    #[serde(default)]
    description: String,
}

/// Asks the JetStream API. The inner error is JetStream's own, by number.
async fn ask<T: DeserializeOwned>(
    client: &Client,
    subject: String,
    body: Value,
) -> Result<Result<T, (u64, String)>, Failure> {
    let request = client.request(subject.clone(), body.to_string().into());
    let reply = request.await.map_err(|error| {
        let text = error.to_string();
        if error.kind() == async_nats::RequestErrorKind::NoResponders {
            let message = "JetStream does not answer: it is not enabled, or has no leader yet";
            Failure::wait("jetstream_unavailable", message)
                .advise("enable JetStream on the server and for this account")
        } else {
            Failure::wait("request", format!("{subject}: {text}"))
        }
    })?;
    if reply.status == Some(StatusCode::NO_RESPONDERS) {
        return Err(Failure::wait("jetstream_unavailable", "JetStream does not answer"));
    }
    let broken =
        |error| Failure::wait("protocol", format!("{subject}: an unreadable answer: {error}"));
    let errors: ErrorReply = serde_json::from_slice(&reply.payload).map_err(broken)?;
    if let Some(error) = errors.error {
        let number = if error.err_code == 0 { error.code } else { error.err_code };
        return Ok(Err((number, error.description)));
    }
    serde_json::from_slice(&reply.payload).map(Ok).map_err(broken)
}

/// The stream's configuration and state.
pub(crate) async fn info(client: &Client, stream: &str) -> Result<Info, Failure> {
    ask(client, format!("$JS.API.STREAM.INFO.{stream}"), json!({})).await?.map_err(
        |(number, description)| {
            let mut failure = api_failure(number, &description);
            failure.message = match failure.code.as_str() {
                "no_stream" => format!("there is no stream {stream}"),
                _ => format!("stream {stream}: {description}"),
            };
            failure
        },
    )
}

/// Creates a stream.
pub(crate) async fn create(client: &Client, stream: &str, config: Value) -> Result<(), Failure> {
    let reply: Result<Value, _> =
        ask(client, format!("$JS.API.STREAM.CREATE.{stream}"), config).await?;
    reply.map(drop).map_err(|(number, description)| {
        Failure::halt(number.to_string(), format!("create stream {stream}: {description}"))
    })
}

/// The headers of the message at a sequence; `None` when there is none.
pub(crate) async fn headers_at(
    client: &Client,
    stream: &str,
    sequence: u64,
) -> Result<Option<StoredHeaders>, Failure> {
    let found = message(client, stream, json!({ "seq": sequence })).await?;
    Ok(found.map(|(_, headers)| headers))
}

/// The sequence and headers of a subject's last message.
pub(crate) async fn last_of_subject(
    client: &Client,
    stream: &str,
    subject: &str,
) -> Result<Option<(u64, StoredHeaders)>, Failure> {
    message(client, stream, json!({ "last_by_subj": subject })).await
}

/// The sequence and headers of a subject's first message at a sequence or behind it.
pub(crate) async fn next_of_subject(
    client: &Client,
    stream: &str,
    subject: &str,
    from: u64,
) -> Result<Option<(u64, StoredHeaders)>, Failure> {
    message(client, stream, json!({ "seq": from, "next_by_subj": subject })).await
}

async fn message(
    client: &Client,
    stream: &str,
    which: Value,
) -> Result<Option<(u64, StoredHeaders)>, Failure> {
    #[derive(Deserialize)]
    struct Reply {
        message: Message,
    }
    #[derive(Deserialize)]
    struct Message {
        #[serde(default)]
        seq: u64,
        #[serde(default)]
        hdrs: String,
    }
    let subject = format!("$JS.API.STREAM.MSG.GET.{stream}");
    match ask::<Reply>(client, subject, which).await? {
        Ok(Reply { message }) => {
            let raw = BASE64.decode(message.hdrs).unwrap_or_default();
            Ok(Some((message.seq, StoredHeaders::parse(&raw))))
        }
        Err((NO_MESSAGE, _)) => Ok(None),
        Err((number, description)) => Err(api_failure(number, &description)),
    }
}
