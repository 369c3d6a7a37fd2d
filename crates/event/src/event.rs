use bytes::Bytes;

/// The body of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// The column held SQL NULL. The message has an empty body and says so in a header.
    Null,
    /// Text as PostgreSQL prints it, byte for byte.
    Text(Bytes),
    /// A JSON document as PostgreSQL prints it, byte for byte.
    Json(Bytes),
    /// Raw bytes of a `bytea` column.
    Binary(Bytes),
}

impl Payload {
    /// The bytes of the message body.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        match self {
            Self::Null => Bytes::new(),
            Self::Text(bytes) | Self::Json(bytes) | Self::Binary(bytes) => bytes.clone(),
        }
    }

    /// The media type the message declares; `None` for [`Payload::Null`].
    #[must_use]
    pub const fn content_type(&self) -> Option<&'static str> {
        match self {
            Self::Null => None,
            Self::Text(_) => Some("text/plain; charset=utf-8"),
            Self::Json(_) => Some("application/json"),
            Self::Binary(_) => Some("application/octet-stream"),
        }
    }
}

/// One event, as the mapping made it from an outbox row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Names the event for ever; two events never share it.
    pub event_id: String,
    /// The kind of thing the event is about, for example `registration`.
    pub aggregate_type: String,
    /// The thing the event is about; order holds within it.
    pub aggregate_id: String,
    /// The aggregate's version that this event made, where the table has one.
    pub aggregate_version: Option<i64>,
    /// What happened, for example `RegistrationConfirmed`.
    pub event_type: String,
    /// When it happened, in PostgreSQL's text form, where the table says.
    pub occurred_at: Option<String>,
    /// The body.
    pub payload: Payload,
    /// Further columns, as header name and value.
    pub extra_headers: Vec<(String, String)>,
}
