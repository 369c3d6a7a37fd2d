use async_nats::Client;
use futures_util::future::try_join_all;
use relay_core::{Failure, Occupant};

use crate::api;
use crate::options::{Connection, SinkOptions, connect};

/// How many messages are asked for at a time.
const CHUNK: u64 = 256;

/// What a stream holds, looked at message by message through the JetStream API: a consumer's client
/// library would have to parse the headers of whatever foreigners have written.
#[derive(Debug)]
pub struct Scan {
    connection: Connection,
    stream: String,
    relay: String,
    next: u64,
    last: u64,
    created: String,
}

/// One message of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its sequence.
    pub sequence: u64,
    /// Who wrote it.
    pub occupant: Occupant,
    /// Its message id, as its header spells it.
    pub message_id: Option<String>,
    /// The replay that it belongs to, as its header spells it.
    pub replay: Option<String>,
}

impl Scan {
    /// Begins at a sequence, up to what the stream holds now.
    ///
    /// # Errors
    /// The classified failure.
    pub async fn open(options: &SinkOptions, relay: &str, from: u64) -> Result<Self, Failure> {
        let connection = connect(options).await?;
        let info = api::info(&connection.client, &options.stream).await?;
        Ok(Self {
            connection,
            stream: options.stream.clone(),
            relay: relay.to_owned(),
            next: from.max(info.state.first_seq).max(1),
            last: info.state.last_seq,
            created: info.created,
        })
    }

    /// The last sequence that is looked at.
    #[must_use]
    pub const fn last(&self) -> u64 {
        self.last
    }

    /// When the stream was created.
    #[must_use]
    pub fn created(&self) -> &str {
        &self.created
    }

    /// The next messages, in order; `None` at the end. May be empty before it.
    ///
    /// # Errors
    /// The classified failure.
    pub async fn next(&mut self) -> Result<Option<Vec<Found>>, Failure> {
        if self.next > self.last {
            return Ok(None);
        }
        let upper = self.last.min(self.next + CHUNK - 1);
        let client = &self.connection.client;
        let reads = (self.next..=upper).map(|sequence| self.look(client, sequence));
        let found = try_join_all(reads).await?;
        self.next = upper + 1;
        Ok(Some(found.into_iter().flatten().collect()))
    }

    async fn look(&self, client: &Client, sequence: u64) -> Result<Option<Found>, Failure> {
        let headers = api::headers_at(client, &self.stream, sequence).await?;
        Ok(headers.map(|headers| Found {
            sequence,
            occupant: headers.occupant(&self.relay),
            message_id: headers.message_id,
            replay: headers.replay,
        }))
    }
}
