//! A session of the stream's only writer: each message states which sequence and which message id
//! must be the stream's last, so that the server refuses everything behind one that it did not store.
//! A batch can state the sequence only, so it is sent when nothing else is in flight.

use std::sync::Arc;

use async_nats::header::{
    NATS_BATCH_COMMIT, NATS_BATCH_COMMIT_FINAL, NATS_BATCH_ID, NATS_BATCH_SEQUENCE,
    NATS_EXPECTED_LAST_MESSAGE_ID, NATS_EXPECTED_LAST_SEQUENCE,
};
use async_nats::{Client, HeaderValue, Message, Subscriber};
use event::headers;
use futures_util::{FutureExt as _, StreamExt as _};
use relay_core::{Failure, Outgoing};

use super::wire::{Wire, header_value};
use super::{SinkEvent, position_at};
use crate::SinkOptions;
use crate::ack::{self, Answer};
use crate::options::Connection;

/// The sending half.
#[derive(Debug)]
pub(super) struct Publisher {
    client: Client,
    wire: Wire,
    reply: String,
    next_sequence: u64,
    last_message_id: Option<String>,
}

/// The receiving half.
#[derive(Debug)]
pub(super) struct Acks {
    stream: String,
    relay: String,
    answers: Subscriber,
    connection: Connection,
    base: u64,
    count: u64,
}

impl Publisher {
    pub(super) const fn new(
        client: Client,
        wire: Wire,
        reply: String,
        last_sequence: u64,
        last_message_id: Option<String>,
    ) -> Self {
        Self { client, wire, reply, next_sequence: last_sequence, last_message_id }
    }

    pub(super) async fn publish(&mut self, message: &Outgoing) -> Result<(), Failure> {
        let mut headers = self.wire.headers(message)?;
        headers.append(NATS_EXPECTED_LAST_SEQUENCE, HeaderValue::from(self.next_sequence));
        // Where the id of the message before does not fit, the sequence alone must do.
        let room = self.wire.room(message)?;
        if let Some(id) = self.last_message_id.take().filter(|id| id.len() <= room) {
            headers.append(NATS_EXPECTED_LAST_MESSAGE_ID, header_value(&id)?);
        }
        self.next_sequence += 1;
        self.last_message_id = message.headers.get(headers::MESSAGE_ID).map(str::to_owned);
        self.wire.send(&self.client, message, Some(&self.reply), headers).await
    }

    /// The first message of a batch states what it must follow, the last one asks to store it; both
    /// are answered, the first with nothing if all is well (ADR-50).
    pub(super) async fn publish_batch(
        &mut self,
        messages: &[Arc<Outgoing>],
    ) -> Result<(), Failure> {
        let session = self.reply.rsplit('.').next().unwrap_or_default();
        let id = header_value(&format!("{session}-{}", self.next_sequence))?;
        for (place, message) in (1..).zip(messages) {
            let (is_first, is_last) = (place == 1, place == messages.len());
            let mut headers = self.wire.headers(message)?;
            headers.append(NATS_BATCH_ID, id.clone());
            headers.append(NATS_BATCH_SEQUENCE, HeaderValue::from(place));
            if is_first {
                let expected = HeaderValue::from(self.next_sequence);
                headers.append(NATS_EXPECTED_LAST_SEQUENCE, expected);
            }
            if is_last {
                headers.append(NATS_BATCH_COMMIT, NATS_BATCH_COMMIT_FINAL);
            }
            let reply = (is_first || is_last).then_some(self.reply.as_str());
            self.wire.send(&self.client, message, reply, headers).await?;
        }
        self.next_sequence += messages.len() as u64;
        let last = messages.last().and_then(|last| last.headers.get(headers::MESSAGE_ID));
        self.last_message_id = last.map(str::to_owned);
        Ok(())
    }
}

impl Acks {
    pub(super) fn new(
        connection: Connection,
        options: &SinkOptions,
        relay: String,
        answers: Subscriber,
        last_sequence: u64,
    ) -> Self {
        let stream = options.stream.clone();
        Self { stream, relay, answers, connection, base: last_sequence, count: 0 }
    }

    pub(super) async fn next(&mut self) -> SinkEvent {
        let first = tokio::select! {
            biased;
            answer = self.answers.next() => answer,
            failure = self.connection.failed() => return SinkEvent::Failed(failure),
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
            Answer::Staged => Ok(()),
        }
    }

    async fn duplicate(&self, sequence: u64) -> SinkEvent {
        let client = &self.connection.client;
        match position_at(client, &self.stream, &self.relay, sequence).await {
            Ok(stored) => SinkEvent::Duplicate { index: self.count, stored },
            Err(failure) => SinkEvent::Failed(failure),
        }
    }
}

enum Trouble {
    Duplicate(u64),
    Failed(Failure),
}
