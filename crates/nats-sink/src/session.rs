//! A publishing session: one connection, one chain.

use std::time::Duration;

use async_nats::header::{
    HeaderMap, HeaderName, HeaderValue, NATS_EXPECTED_LAST_MESSAGE_ID, NATS_EXPECTED_LAST_SEQUENCE,
    NATS_EXPECTED_STREAM,
};
use async_nats::{Client, Message, Subscriber};
use event::{Position, headers};
use futures_util::{FutureExt as _, StreamExt as _};
use relay_core::{Failure, Occupant, Outgoing, SinkOpened};

use crate::ack::{self, Answer};
use crate::options::{Connection, ConnectionEvent, SinkOptions, connect};
use crate::{api, stream_end};

/// What a session reports.
#[derive(Debug, PartialEq, Eq)]
pub enum SinkEvent {
    /// The first `count` publishes are stored.
    Acked {
        /// Cumulative within the session.
        count: u64,
        /// The stream sequence of the last of them.
        sequence: u64,
    },
    /// The server took a publish for a repetition and did not store it.
    Duplicate {
        /// The publish after the last acknowledged one.
        index: u64,
        /// The position of the message that has the id; `None` when the stream no longer has it.
        stored: Option<Position>,
    },
    /// The session is over.
    Failed(Failure),
}

/// The sending half.
#[derive(Debug)]
pub struct Publisher {
    client: Client,
    stream: String,
    reply: String,
    next_sequence: u64,
    last_message_id: Option<String>,
    /// What the server and the stream take, all headers included, in bytes.
    wire_max: usize,
    send_timeout: Duration,
}

/// The receiving half.
#[derive(Debug)]
pub struct Acks {
    stream: String,
    relay: String,
    answers: Subscriber,
    connection: Connection,
    base: u64,
    count: u64,
}

/// Opens a session and reads the stream's end in it.
///
/// # Errors
/// The classified failure; see [`crate::TABLE`].
pub async fn open(
    options: &SinkOptions,
    relay: &str,
    verify: Option<u64>,
) -> Result<(Publisher, Acks, SinkOpened), Failure> {
    let connection = connect(options).await?;
    let client = connection.client.clone();
    let info = api::info(&client, &options.stream).await?;
    let base = info.state.last_seq;
    let end = stream_end::read(&client, &options.stream, relay, info.state).await?;
    let verified = match verify {
        None => Occupant::None,
        Some(sequence) => api::headers_at(&client, &options.stream, sequence)
            .await?
            .map_or(Occupant::None, |headers| headers.occupant(relay)),
    };
    let reply = client.new_inbox();
    let answers = client
        .subscribe(reply.clone())
        .await
        .map_err(|error| Failure::wait("connection_lost", format!("subscribe: {error}")))?;
    let stream_max = usize::try_from(info.config.max_msg_size).ok().filter(|max| *max > 0);
    let wire_max = client.max_payload().min(stream_max.unwrap_or(usize::MAX));
    let publisher = Publisher {
        client,
        stream: options.stream.clone(),
        reply,
        next_sequence: base,
        last_message_id: end.last_message_id,
        wire_max,
        send_timeout: options.request_timeout,
    };
    let (stream, relay) = (options.stream.clone(), relay.to_owned());
    let acks = Acks { stream, relay, answers, connection, base, count: 0 };
    let opened = SinkOpened {
        end: end.ours,
        gapless: true,
        last_sequence: base,
        stream_created: info.created,
        verified,
        removing: info.config.removes() && !end.foreign,
        message_bytes_max: wire_max.saturating_sub(CHAIN_HEADERS_BYTES + options.stream.len()),
    };
    Ok((publisher, acks, opened))
}

/// Bytes that the chain's own headers add to a message, but for the stream's name and the message
/// id that they hold.
const CHAIN_HEADERS_BYTES: usize = 128;

impl Publisher {
    /// Sends a message as the next of the chain.
    ///
    /// # Errors
    /// The session is over.
    pub async fn publish(&mut self, message: &Outgoing) -> Result<(), Failure> {
        let bytes = message.wire_bytes() + CHAIN_HEADERS_BYTES + self.stream.len();
        if bytes > self.wire_max {
            let max = self.wire_max;
            let message = format!("a message of {bytes} bytes is over the limit of {max}");
            return Err(Failure::halt("message_too_large", message)
                .advise("raise max_payload of the server and max_msg_size of the stream"));
        }
        // Where the id of the message before does not fit, the sequence alone must do.
        let room = self.wire_max - bytes;
        let chain_id = self.last_message_id.take().filter(|id| id.len() <= room);
        let mut headers = HeaderMap::new();
        for (name, value) in message.headers.iter() {
            headers.append(header_name(name)?, header_value(value)?);
        }
        headers.append(NATS_EXPECTED_STREAM, header_value(&self.stream)?);
        headers.append(NATS_EXPECTED_LAST_SEQUENCE, HeaderValue::from(self.next_sequence));
        if let Some(id) = &chain_id {
            headers.append(NATS_EXPECTED_LAST_MESSAGE_ID, header_value(id)?);
        }
        self.next_sequence += 1;
        self.last_message_id = message.headers.get(headers::MESSAGE_ID).map(str::to_owned);
        let subject = message.subject.as_str().to_owned();
        let sent = self.client.publish_with_reply_and_headers(
            subject,
            self.reply.clone(),
            headers,
            message.body.clone(),
        );
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

fn header_value(value: &str) -> Result<HeaderValue, Failure> {
    value.parse().map_err(|_| Failure::halt("header", "a header value with a line break"))
}

impl Acks {
    /// What happens next. Cancel-safe.
    pub async fn next(&mut self) -> SinkEvent {
        let first = tokio::select! {
            biased;
            answer = self.answers.next() => answer,
            event = self.connection.events.recv() => return SinkEvent::Failed(match event {
                Some(ConnectionEvent::SlowConsumer) => {
                    Failure::wait("slow_consumer", "acks came faster than they were read")
                }
                Some(ConnectionEvent::Disconnected) | None => {
                    Failure::wait("connection_lost", "the connection to NATS is lost")
                }
            }),
        };
        let Some(first) = first else {
            return SinkEvent::Failed(Failure::wait("connection_lost", "the subscription ended"));
        };
        let mut outcome = self.take(&first);
        // What has arrived is taken together, up to the first trouble. Trouble behind stored
        // messages is left to the core's next call: the session's failure covers it all the same.
        while outcome.is_ok()
            && let Some(Some(answer)) = self.answers.next().now_or_never()
        {
            outcome = self.take(&answer);
        }
        match outcome {
            Ok(()) => SinkEvent::Acked { count: self.count, sequence: self.base + self.count },
            Err(Trouble::Failed(failure)) => SinkEvent::Failed(failure),
            Err(Trouble::Duplicate(sequence)) => self.duplicate(sequence).await,
        }
    }

    fn take(&mut self, answer: &Message) -> Result<(), Trouble> {
        match ack::parse(answer.status, &answer.payload, &self.stream) {
            Answer::Stored { sequence } if sequence > self.base => {
                self.count = self.count.max(sequence - self.base);
                Ok(())
            }
            Answer::Stored { sequence } => {
                let message =
                    format!("stored at {sequence}, but the session began after {}", self.base);
                Err(Trouble::Failed(Failure::wait("protocol", message)))
            }
            Answer::Duplicate { sequence } => Err(Trouble::Duplicate(sequence)),
            Answer::Refused(failure) => Err(Trouble::Failed(failure)),
        }
    }

    async fn duplicate(&self, sequence: u64) -> SinkEvent {
        match api::headers_at(&self.connection.client, &self.stream, sequence).await {
            Ok(headers) => {
                let stored = headers.and_then(|headers| headers.ours(&self.relay).ok().flatten());
                let stored = stored.map(|(_, position)| position);
                SinkEvent::Duplicate { index: self.count, stored }
            }
            Err(failure) => SinkEvent::Failed(failure),
        }
    }
}

enum Trouble {
    Duplicate(u64),
    Failed(Failure),
}
