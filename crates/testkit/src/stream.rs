//! Reading a stream back.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result};
use async_nats::Client;
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use bytes::Bytes;
use event::headers;
use futures_util::StreamExt as _;

/// A message in the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its sequence.
    pub sequence: u64,
    /// Its subject.
    pub subject: String,
    /// Its headers, the first value of each.
    pub headers: BTreeMap<String, String>,
    /// Its body.
    pub body: Bytes,
}

impl Stored {
    /// A header's value, empty without one.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    /// The event's id.
    #[must_use]
    pub fn event_id(&self) -> &str {
        self.header(headers::EVENT_ID)
    }

    /// The aggregate's id, decoded.
    #[must_use]
    pub fn aggregate_id(&self) -> String {
        headers::decode_value(self.header(headers::AGGREGATE_ID)).unwrap_or_default()
    }

    /// The aggregate's version, 0 without one.
    #[must_use]
    pub fn version(&self) -> i64 {
        self.header(headers::AGGREGATE_VERSION).parse().unwrap_or(0)
    }
}

/// How many messages a stream holds.
///
/// # Errors
/// The broker does not answer, or has no such stream.
pub async fn count(client: &Client, name: &str) -> Result<usize> {
    let context = async_nats::jetstream::new(client.clone());
    let stream = context.get_stream(name).await.context("find the stream")?;
    Ok(usize::try_from(stream.cached_info().state.messages)?)
}

/// How many messages a stream holds whose subjects a filter covers.
///
/// # Errors
/// The broker does not answer, or has no such stream.
pub async fn count_of(client: &Client, name: &str, filter: &str) -> Result<usize> {
    let context = async_nats::jetstream::new(client.clone());
    let stream = context.get_stream(name).await.context("find the stream")?;
    let mut subjects = stream.info_with_subjects(filter).await.context("count the subjects")?;
    let mut count = 0;
    while let Some(subject) = subjects.next().await {
        count += subject?.1;
    }
    Ok(count)
}

/// Reads all messages of a stream, in order.
///
/// # Errors
/// The broker does not answer in time, or has no such stream.
pub async fn read(client: &Client, name: &str) -> Result<Vec<Stored>> {
    let context = async_nats::jetstream::new(client.clone());
    let mut stream = context.get_stream(name).await.context("find the stream")?;
    let state = stream.info().await?.state.clone();
    let config = pull::Config {
        deliver_policy: DeliverPolicy::All,
        ack_policy: AckPolicy::None,
        inactive_threshold: Duration::from_secs(60),
        ..pull::Config::default()
    };
    let consumer = stream.create_consumer(config).await.context("make a consumer")?;
    let mut stored = Vec::new();
    while stored
        .last()
        .map_or(state.messages > 0, |last: &Stored| last.sequence < state.last_sequence)
    {
        let batch = consumer.fetch().max_messages(1_000);
        let mut batch = batch.messages().await.context("fetch")?;
        let before = stored.len();
        while let Some(message) = batch.next().await {
            let message = message.map_err(|error| anyhow::anyhow!("fetch: {error}"))?;
            let sequence =
                message.info().map_err(|error| anyhow::anyhow!("{error}"))?.stream_sequence;
            let headers = message.headers.as_ref().map(|map| {
                let first =
                    |(name, values): (&async_nats::HeaderName, &Vec<async_nats::HeaderValue>)| {
                        Some((name.to_string(), values.first()?.to_string()))
                    };
                map.iter().filter_map(first).collect()
            });
            stored.push(Stored {
                sequence,
                subject: message.subject.to_string(),
                headers: headers.unwrap_or_default(),
                body: message.payload.clone(),
            });
        }
        anyhow::ensure!(stored.len() > before, "the stream gives no more messages");
    }
    Ok(stored)
}

/// What a stream shows against what was committed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Events committed.
    pub committed: usize,
    /// Messages in the stream.
    pub in_stream: usize,
    /// Committed, but not in the stream.
    pub lost: usize,
    /// Messages whose event stands in the stream already.
    pub doubled: usize,
    /// Messages whose aggregate stands in the stream with the same or a later version already.
    pub out_of_order: usize,
}

/// Compares a stream with the ids that were committed.
#[must_use]
pub fn tally(committed: &[String], stored: &[Stored]) -> Tally {
    let mut seen = std::collections::BTreeSet::new();
    let mut versions = BTreeMap::new();
    let mut tally =
        Tally { committed: committed.len(), in_stream: stored.len(), ..Tally::default() };
    for message in stored {
        if !seen.insert(message.event_id()) {
            tally.doubled += 1;
        }
        let last = versions.entry(message.aggregate_id()).or_insert(i64::MIN);
        if message.version() <= *last {
            tally.out_of_order += 1;
        }
        *last = message.version().max(*last);
    }
    tally.lost = committed.iter().filter(|id| !seen.contains(id.as_str())).count();
    tally
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(id: &str, aggregate: &str, version: i64) -> Stored {
        let headers = [
            (headers::EVENT_ID, id.to_owned()),
            (headers::AGGREGATE_ID, aggregate.to_owned()),
            (headers::AGGREGATE_VERSION, version.to_string()),
        ];
        Stored {
            sequence: 0,
            subject: String::new(),
            headers: headers.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            body: Bytes::new(),
        }
    }

    #[test]
    fn a_tally_sees_each_kind_of_fault() {
        let committed = ["1", "2", "3", "4"].map(str::to_owned);
        let stream =
            [stored("1", "a", 1), stored("3", "a", 3), stored("2", "a", 2), stored("3", "a", 3)];
        let expected = Tally { committed: 4, in_stream: 4, lost: 1, doubled: 1, out_of_order: 2 };
        assert_eq!(tally(&committed, &stream), expected);
    }
}
