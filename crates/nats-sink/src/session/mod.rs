//! A publishing session: one connection, and a rule for what must stand before each message. Where the
//! relay is the stream's only writer that is the whole stream ([`chain`]), else each subject
//! ([`shared`]).

mod chain;
mod lanes;
mod shared;
mod wire;

use std::sync::Arc;

use async_nats::Client;
use event::Position;
use relay_core::{Failure, Occupant, Outgoing, SinkOpened, SinkQuery};

use crate::options::{SinkOptions, connect};
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
pub struct Publisher(Sending);

#[derive(Debug)]
enum Sending {
    Chain(Box<chain::Publisher>),
    Shared(shared::Publisher),
}

/// The receiving half.
#[derive(Debug)]
pub struct Acks(Receiving);

#[derive(Debug)]
enum Receiving {
    Chain(Box<chain::Acks>),
    Shared(shared::Acks),
}

/// Opens a session and reads the stream's end in it.
///
/// # Errors
/// The classified failure; see [`crate::TABLE`].
pub async fn open(
    options: &SinkOptions,
    relay: &str,
    query: SinkQuery,
) -> Result<(Publisher, Acks, SinkOpened), Failure> {
    let connection = connect(options).await?;
    let client = connection.client.clone();
    let info = api::info(&client, &options.stream).await?;
    let last_sequence = info.state.last_seq;
    let end = stream_end::read(&client, options, relay, info.state).await?;
    let verified = match query.verify {
        None => Occupant::None,
        Some(sequence) => api::headers_at(&client, &options.stream, sequence)
            .await?
            .map_or(Occupant::None, |headers| headers.occupant(relay)),
    };
    let inbox = client.new_inbox();
    let subject = if options.shared { format!("{inbox}.*") } else { inbox.clone() };
    let answers = client
        .subscribe(subject)
        .await
        .map_err(|error| Failure::wait("connection_lost", format!("subscribe: {error}")))?;
    let wire = wire::Wire::new(options, &client, info.config.max_msg_size);
    let opened = SinkOpened {
        end: end.ours,
        gapless: !options.shared,
        last_sequence,
        stream_created: info.created,
        verified,
        removing: info.config.removes() && !end.foreign && !options.shared,
        message_bytes_max: wire.message_bytes_max(),
        batch_events_max: if options.shared { 0 } else { info.config.batch_max() },
    };
    let relay = relay.to_owned();
    if options.shared {
        let parts = shared::Parts {
            connection,
            wire,
            relay,
            inbox,
            answers,
            past_sequence: query.past_sequence,
            in_flight_max: options.in_flight_events_max,
        };
        let (publisher, acks) = shared::start(parts);
        return Ok((Publisher(Sending::Shared(publisher)), Acks(Receiving::Shared(acks)), opened));
    }
    let publisher = chain::Publisher::new(client, wire, inbox, last_sequence, end.last_message_id);
    let acks = chain::Acks::new(connection, options, relay, answers, last_sequence);
    let publisher = Publisher(Sending::Chain(Box::new(publisher)));
    Ok((publisher, Acks(Receiving::Chain(Box::new(acks))), opened))
}

impl Publisher {
    /// Sends a message as the next one.
    ///
    /// # Errors
    /// The session is over.
    pub async fn publish(&mut self, message: &Outgoing) -> Result<(), Failure> {
        match &mut self.0 {
            Sending::Chain(publisher) => publisher.publish(message).await,
            Sending::Shared(publisher) => publisher.publish(message).await,
        }
    }

    /// Sends messages as the next ones, all of which are stored or none. Nothing else is in flight,
    /// and there are no more than [`SinkOpened::batch_events_max`] of them.
    ///
    /// # Errors
    /// The session is over.
    pub async fn publish_batch(&mut self, messages: &[Arc<Outgoing>]) -> Result<(), Failure> {
        match &mut self.0 {
            Sending::Chain(publisher) => publisher.publish_batch(messages).await,
            Sending::Shared(_) => {
                let message = "a batch for a stream that others write to";
                Err(Failure::halt("protocol", message))
            }
        }
    }
}

impl Acks {
    /// What happens next. Cancel-safe.
    pub async fn next(&mut self) -> SinkEvent {
        match &mut self.0 {
            Receiving::Chain(acks) => acks.next().await,
            Receiving::Shared(acks) => acks.next().await,
        }
    }
}

/// The position of the relay's event at a sequence; `None` when there is no such event.
async fn position_at(
    client: &Client,
    stream: &str,
    relay: &str,
    sequence: u64,
) -> Result<Option<Position>, Failure> {
    let headers = api::headers_at(client, stream, sequence).await?;
    let ours = headers.and_then(|headers| headers.ours(relay).ok().flatten());
    Ok(ours.map(|(_, position)| position))
}
