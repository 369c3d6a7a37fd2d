use std::time::Duration;

use async_nats::header::{HeaderMap, HeaderName, HeaderValue, NATS_EXPECTED_STREAM};
use async_nats::{Client, Subject};
use relay_core::{Failure, Outgoing};

use crate::SinkOptions;

/// How messages are put on the wire.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) stream: String,
    /// What the server and the stream take, all headers included, in bytes.
    max: usize,
    send_timeout: Duration,
}

/// Bytes that a session's own headers add to a message, but for the stream's name and the message id
/// that they hold.
const SESSION_HEADERS_BYTES: usize = 192;

impl Wire {
    pub(super) fn new(options: &SinkOptions, client: &Client, max_msg_size: i64) -> Self {
        let stream_max = usize::try_from(max_msg_size).ok().filter(|max| *max > 0);
        Self {
            stream: options.stream.clone(),
            max: client.max_payload().min(stream_max.unwrap_or(usize::MAX)),
            send_timeout: options.request_timeout,
        }
    }

    /// The largest message that passes: headers and body, without the session's own headers.
    pub(super) fn message_bytes_max(&self) -> usize {
        self.max.saturating_sub(SESSION_HEADERS_BYTES + self.stream.len())
    }

    /// How many bytes more than a message has would pass.
    pub(super) fn room(&self, message: &Outgoing) -> Result<usize, Failure> {
        let bytes = message.wire_bytes() + SESSION_HEADERS_BYTES + self.stream.len();
        self.max.checked_sub(bytes).ok_or_else(|| {
            let max = self.max;
            let message = format!("a message of {bytes} bytes is over the limit of {max}");
            Failure::halt("message_too_large", message)
                .advise("raise max_payload of the server and max_msg_size of the stream")
        })
    }

    /// The message's own headers, and the stream's name.
    pub(super) fn headers(&self, message: &Outgoing) -> Result<HeaderMap, Failure> {
        self.room(message)?;
        let mut headers = HeaderMap::new();
        for (name, value) in message.headers.iter() {
            headers.append(header_name(name)?, header_value(value)?);
        }
        headers.append(NATS_EXPECTED_STREAM, header_value(&self.stream)?);
        Ok(headers)
    }

    pub(super) async fn send(
        &self,
        client: &Client,
        message: &Outgoing,
        reply: Option<&str>,
        headers: HeaderMap,
    ) -> Result<(), Failure> {
        let subject = message.subject.as_str().to_owned();
        let body = message.body.clone();
        let sent = async {
            match reply.map(Subject::from) {
                Some(reply) => {
                    client.publish_with_reply_and_headers(subject, reply, headers, body).await
                }
                None => client.publish_with_headers(subject, headers, body).await,
            }
        };
        match tokio::time::timeout(self.send_timeout, sent).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(Failure::wait("connection_lost", format!("publish: {error}"))),
            Err(_) => Err(Failure::wait("send_timeout", "the connection takes no more messages")),
        }
    }
}

fn header_name(name: &str) -> Result<HeaderName, Failure> {
    name.parse().map_err(|_| Failure::halt("header", format!("{name:?} cannot name a header")))
}

pub(super) fn header_value(value: &str) -> Result<HeaderValue, Failure> {
    value.parse().map_err(|_| Failure::halt("header", "a header value with a line break"))
}
