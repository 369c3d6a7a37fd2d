//! A session on a stream that others write to as well: each message states which sequence must be
//! the last of its subject. One task owns the connection, since an answer decides what goes next.

use async_nats::header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE;
use async_nats::{Client, HeaderValue, Message, Subscriber};
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use relay_core::{Failure, Outgoing};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::lanes::{Lanes, LastOf, Step};
use super::wire::Wire;
use super::{SinkEvent, position_at};
use crate::ack::{self, Answer};
use crate::api;
use crate::options::Connection;
use crate::stored::StoredHeaders;

/// The sending half.
#[derive(Debug)]
pub(super) struct Publisher {
    messages: mpsc::Sender<Outgoing>,
}

/// The receiving half; the session ends with it.
#[derive(Debug)]
pub(super) struct Acks {
    events: mpsc::Receiver<SinkEvent>,
    task: JoinHandle<()>,
}

/// What a session works with.
pub(super) struct Parts {
    pub(super) connection: Connection,
    pub(super) wire: Wire,
    pub(super) relay: String,
    pub(super) inbox: String,
    /// To `inbox` with one more token, the index of the publish.
    pub(super) answers: Subscriber,
    /// Up to here the stream was written in another history.
    pub(super) past_sequence: u64,
    pub(super) in_flight_max: usize,
}

type Looked = BoxFuture<'static, (u64, Result<LastOf, Failure>)>;

struct Session {
    parts: Parts,
    lanes: Lanes,
    looking: FuturesUnordered<Looked>,
}

pub(super) fn start(parts: Parts) -> (Publisher, Acks) {
    let (messages, queue) = mpsc::channel(parts.in_flight_max.max(1));
    let (report, events) = mpsc::channel(16);
    let session = Session { parts, lanes: Lanes::default(), looking: FuturesUnordered::new() };
    let task = tokio::spawn(session.run(queue, report));
    (Publisher { messages }, Acks { events, task })
}

impl Publisher {
    pub(super) async fn publish(&mut self, message: &Outgoing) -> Result<(), Failure> {
        // Why the session is over, its other half says.
        let over = |_| Failure::wait("connection_lost", "the session is over");
        self.messages.send(message.clone()).await.map_err(over)
    }
}

impl Acks {
    pub(super) async fn next(&mut self) -> SinkEvent {
        let over = || SinkEvent::Failed(Failure::wait("connection_lost", "the session is over"));
        self.events.recv().await.unwrap_or_else(over)
    }
}

impl Drop for Acks {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Session {
    async fn run(mut self, mut queue: mpsc::Receiver<Outgoing>, report: mpsc::Sender<SinkEvent>) {
        loop {
            if let Err(event) = self.send_ready().await {
                // Nobody listens once the session is given up.
                let _ = report.send(event).await;
                return;
            }
            if let Some((count, sequence)) = self.lanes.count()
                && report.send(SinkEvent::Acked { count, sequence }).await.is_err()
            {
                return;
            }
            if let Err(event) = self.wait(&mut queue).await {
                let _ = report.send(event).await;
                return;
            }
        }
    }

    async fn send_ready(&mut self) -> Result<(), SinkEvent> {
        while let Some(step) = self.lanes.next() {
            match step {
                Step::LookUp { index, subject } => self.look_up(index, subject),
                Step::Publish { index, after } => {
                    self.publish(index, after).await.map_err(SinkEvent::Failed)?;
                }
            }
        }
        Ok(())
    }

    /// Waits for one thing to happen.
    async fn wait(&mut self, queue: &mut mpsc::Receiver<Outgoing>) -> Result<(), SinkEvent> {
        let answer = tokio::select! {
            biased;
            answer = self.parts.answers.next() => answer,
            failure = self.parts.connection.failed() => return Err(SinkEvent::Failed(failure)),
            Some((index, found)) = self.looking.next() => {
                self.lanes.looked_up(index, found.map_err(SinkEvent::Failed)?);
                return Ok(());
            }
            message = queue.recv() => {
                let over = || SinkEvent::Failed(Failure::wait("connection_lost", "given up"));
                self.lanes.push(message.ok_or_else(over)?);
                while let Ok(message) = queue.try_recv() {
                    self.lanes.push(message);
                }
                return Ok(());
            }
        };
        let over = || SinkEvent::Failed(Failure::wait("connection_lost", "no subscription"));
        self.take(answer.ok_or_else(over)?).await?;
        while let Some(Some(answer)) = self.parts.answers.next().now_or_never() {
            self.take(answer).await?;
        }
        Ok(())
    }

    fn look_up(&mut self, index: u64, subject: String) {
        let client = self.parts.connection.client.clone();
        let (stream, relay) = (self.parts.wire.stream.clone(), self.parts.relay.clone());
        let past = self.parts.past_sequence;
        let look = async move { (index, last_of(&client, &stream, &relay, &subject, past).await) };
        self.looking.push(look.boxed());
    }

    async fn publish(&mut self, index: u64, after: u64) -> Result<(), Failure> {
        let Some(message) = self.lanes.outgoing(index) else { return Ok(()) };
        let mut headers = self.parts.wire.headers(message)?;
        headers.append(NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, HeaderValue::from(after));
        let reply = format!("{}.{index}", self.parts.inbox);
        self.parts.wire.send(&self.parts.connection.client, message, Some(&reply), headers).await
    }

    async fn take(&mut self, answer: Message) -> Result<(), SinkEvent> {
        let index = answer.subject.rsplit('.').next().and_then(|index| index.parse().ok());
        let Some(index) = index else { return Ok(()) };
        let stream = &self.parts.wire.stream;
        match ack::parse(answer.status, &answer.payload, stream) {
            Answer::Stored { sequence } => {
                self.lanes.stored(index, sequence);
                Ok(())
            }
            Answer::Duplicate { sequence } => {
                let client = &self.parts.connection.client;
                let stored = position_at(client, stream, &self.parts.relay, sequence).await;
                let stored = stored.map_err(SinkEvent::Failed)?;
                Err(SinkEvent::Duplicate { index, stored })
            }
            Answer::Refused(failure) => Err(SinkEvent::Failed(failure)),
            Answer::Staged => {
                let message = "an answer to a batch that was not sent";
                Err(SinkEvent::Failed(Failure::wait("protocol", message)))
            }
        }
    }
}

/// What the stream last holds of a subject. Where its last message is not an event of this relay at
/// its place, the subject is read from its beginning for the relay's last one.
async fn last_of(
    client: &Client,
    stream: &str,
    relay: &str,
    subject: &str,
    past: u64,
) -> Result<LastOf, Failure> {
    let Some((sequence, headers)) = api::last_of_subject(client, stream, subject).await? else {
        return Ok(LastOf::default());
    };
    let ours = |at: u64, headers: &StoredHeaders| {
        let found = headers.ours(relay).ok().flatten().filter(|_| at > past);
        found.map(|(_, position)| position)
    };
    let mut stored_to = ours(sequence, &headers);
    if stored_to.is_none() {
        let mut from = past + 1;
        while let Some((at, headers)) = api::next_of_subject(client, stream, subject, from)
            .await?
            .filter(|(at, _)| *at < sequence)
        {
            stored_to = stored_to.max(ours(at, &headers));
            from = at + 1;
        }
    }
    Ok(LastOf { sequence, stored_to })
}
