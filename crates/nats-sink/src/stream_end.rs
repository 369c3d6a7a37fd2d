use async_nats::Client;
use futures_util::future::try_join_all;
use relay_core::{Failure, StreamEnd};

use crate::SinkOptions;
use crate::api;
use crate::stored::StoredHeaders;

/// How far back the relay looks for its own last message among those of other writers.
const LOOK_BACK_MESSAGES: u64 = 10_000;
const CHUNK: u64 = 64;

/// The stream's end as a session needs it.
pub(crate) struct End {
    /// The last message of this relay.
    pub(crate) ours: Option<StreamEnd>,
    /// The message id of the stream's last message, whoever wrote it.
    pub(crate) last_message_id: Option<String>,
    /// Whether messages of others stand behind the relay's last one, or anywhere near where there is
    /// none.
    pub(crate) foreign: bool,
}

/// Reads the stream back from its end to the last message that this relay wrote.
pub(crate) async fn read(
    client: &Client,
    options: &SinkOptions,
    relay: &str,
    state: api::State,
) -> Result<End, Failure> {
    let stream = options.stream.as_str();
    let (mut last_message_id, mut foreign) = (None, false);
    let mut upper = state.last_seq;
    let bound = state.last_seq.saturating_sub(LOOK_BACK_MESSAGES);
    let mut chunk = 1;
    while upper >= state.first_seq.max(1) && upper > bound {
        let lower = upper.saturating_sub(chunk - 1).max(state.first_seq).max(1);
        let reads = (lower..=upper).rev().map(|sequence| async move {
            Ok::<_, Failure>((sequence, api::headers_at(client, stream, sequence).await?))
        });
        for (sequence, headers) in try_join_all(reads).await? {
            let Some(headers) = headers else { continue };
            if sequence == state.last_seq {
                last_message_id.clone_from(&headers.message_id);
            }
            if let Some(ours) = ours(&headers, relay, stream, sequence)? {
                return Ok(End { ours: Some(ours), last_message_id, foreign });
            }
            foreign |= !headers.is_replay(relay);
        }
        upper = lower - 1;
        chunk = CHUNK;
    }
    if upper >= state.first_seq.max(1) && !options.shared {
        let message = format!(
            "stream {stream}: none of the last {LOOK_BACK_MESSAGES} messages is of relay {relay}, \
             so where it stopped cannot be told"
        );
        let advice = "set sink.shared, or give the relay a stream of its own";
        return Err(Failure::halt("stream_shared", message).advise(advice));
    }
    Ok(End { ours: None, last_message_id, foreign })
}

fn ours(
    headers: &StoredHeaders,
    relay: &str,
    stream: &str,
    sequence: u64,
) -> Result<Option<StreamEnd>, Failure> {
    let found = headers.ours(relay).map_err(|error| {
        let message = format!(
            "stream {stream}: message {sequence} claims to be of relay {relay}, but {error}"
        );
        let advice = "find who writes to the stream under this relay's name";
        Failure::halt("stream_end", message).advise(advice)
    })?;
    let event_id = headers.event_id.clone();
    Ok(found.map(|(source, position)| StreamEnd { position, source, sequence, event_id }))
}
