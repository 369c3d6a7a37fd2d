use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use event::{Replay, headers};
use nats_sink::{Acks, Publisher, Scan, SinkEvent, SinkOptions};
use relay_core::{Failure, FailureClass, Outgoing, SinkQuery};
use tokio::time::{Instant, sleep, timeout};

use super::id_of;

/// Publishes messages once more, in their order, beside whoever else writes to the stream.
#[derive(Debug)]
pub(crate) struct Republisher {
    sink: SinkOptions,
    relay: String,
    replay: Replay,
    session: Option<Open>,
    /// No message of this replay that is still to be published stands up to here.
    begins_after: u64,
    last: Option<u64>,
}

#[derive(Debug)]
struct Open {
    publisher: Publisher,
    acks: Acks,
    acknowledged: u64,
}

/// So many messages go out at a time: each burst makes a relay at work read the stream's end anew.
pub(crate) const BURST: usize = 128;
/// How long a burst may go without progress.
const GIVE_UP_AFTER: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(200);
const ACK_WITHIN: Duration = Duration::from_secs(10);

impl Republisher {
    /// The messages that are still to be published stand behind `begins_after` once they are stored.
    pub(crate) const fn new(
        sink: SinkOptions,
        relay: String,
        replay: Replay,
        begins_after: u64,
    ) -> Self {
        Self { sink, relay, replay, session: None, begins_after, last: None }
    }

    /// The sequence of the last message stored.
    pub(crate) const fn last(&self) -> Option<u64> {
        self.last
    }

    /// Publishes a burst; all of it is stored when this returns.
    ///
    /// # Errors
    /// The last failure, when nothing went on for a minute, or at once when waiting cannot heal it.
    pub(crate) async fn burst(&mut self, messages: Vec<Outgoing>) -> Result<(), Failure> {
        let mut left = VecDeque::from(self.mark(messages)?);
        let mut progress_at = Instant::now();
        while !left.is_empty() {
            let before = left.len();
            if let Err(failure) = self.attempt(&mut left).await {
                self.session = None;
                if failure.class == FailureClass::Halt {
                    return Err(failure);
                }
                sleep(PAUSE).await;
                if let Ok(found) = self.find_stored().await {
                    left.retain(|message| !found.contains(id_of(message)));
                }
                if left.len() == before && progress_at.elapsed() > GIVE_UP_AFTER {
                    return Err(failure);
                }
            }
            if left.len() < before {
                progress_at = Instant::now();
            }
        }
        Ok(())
    }

    fn mark(&self, messages: Vec<Outgoing>) -> Result<Vec<Outgoing>, Failure> {
        let mark = |message: Outgoing| {
            let headers = message.headers.replayed(&self.replay);
            let headers = headers.map_err(|error| Failure::halt("header", error.to_string()))?;
            Ok(Outgoing { headers, ..message })
        };
        messages.into_iter().map(mark).collect()
    }

    /// Publishes what is left, and takes out what is acknowledged.
    async fn attempt(&mut self, left: &mut VecDeque<Outgoing>) -> Result<(), Failure> {
        let mut session = match self.session.take() {
            Some(session) => session,
            None => {
                let query = SinkQuery::default();
                let (publisher, acks, _) = nats_sink::open(&self.sink, &self.relay, query).await?;
                Open { publisher, acks, acknowledged: 0 }
            }
        };
        for message in &*left {
            session.publisher.publish(message).await?;
        }
        while !left.is_empty() {
            match timeout(ACK_WITHIN, session.acks.next()).await {
                Ok(SinkEvent::Acked { count, sequence }) => {
                    for _ in session.acknowledged..count {
                        left.pop_front();
                    }
                    session.acknowledged = count;
                    self.last = self.last.max(Some(sequence));
                }
                Ok(SinkEvent::Duplicate { .. }) => {
                    return Err(Failure::wait("duplicate", "taken for a repetition"));
                }
                Ok(SinkEvent::Failed(failure)) => return Err(failure),
                Err(_) => return Err(Failure::wait("ack_timeout", "no ack in time")),
            }
        }
        self.session = Some(session);
        Ok(())
    }

    /// The message ids of this replay that the stream holds.
    async fn find_stored(&mut self) -> Result<HashSet<String>, Failure> {
        let name = headers::encode_value(&self.replay.name);
        let mut scan = Scan::open(&self.sink, &self.relay, self.begins_after + 1).await?;
        let mut stored = HashSet::new();
        while let Some(found) = scan.next().await? {
            for message in found {
                if message.replay.as_deref() == Some(name.as_str()) {
                    self.last = self.last.max(Some(message.sequence));
                    stored.extend(message.message_id);
                }
            }
        }
        Ok(stored)
    }
}
