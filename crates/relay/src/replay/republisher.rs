use std::time::Duration;

use event::{Replay, headers};
use nats_sink::{Acks, Publisher, Scan, SinkEvent, SinkOptions};
use relay_core::{Failure, FailureClass, Outgoing};
use tokio::time::{Instant, sleep, timeout};

/// Publishes messages once more, in their order, beside whoever else writes to the stream.
#[derive(Debug)]
pub(crate) struct Republisher {
    sink: SinkOptions,
    relay: String,
    replay: Replay,
    session: Option<Open>,
    /// Messages of this replay up to here are counted.
    counted_to: u64,
    last: Option<u64>,
}

#[derive(Debug)]
struct Open {
    publisher: Publisher,
    acks: Acks,
    published: u64,
}

/// So many messages go out at a time: each burst makes a relay at work read the stream's end anew.
pub(crate) const BURST: usize = 128;
/// How long a burst may go without progress.
const GIVE_UP_AFTER: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(200);
const ACK_WITHIN: Duration = Duration::from_secs(10);

impl Republisher {
    /// `counted_to` is a sequence behind which no message of this replay is known; those that are
    /// found there count as published by it.
    pub(crate) const fn new(
        sink: SinkOptions,
        relay: String,
        replay: Replay,
        counted_to: u64,
    ) -> Self {
        Self { sink, relay, replay, session: None, counted_to, last: None }
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
        let messages = self.mark(messages)?;
        let mut done = 0;
        let mut progress_at = Instant::now();
        while done < messages.len() {
            let before = done;
            let outcome = self.attempt(&messages[before..], &mut done).await;
            if let Err(failure) = outcome {
                self.session = None;
                if failure.class == FailureClass::Halt {
                    return Err(failure);
                }
                sleep(PAUSE).await;
                if let Ok(found) = self.find_stored().await {
                    done = (done + found).min(messages.len());
                }
                if done == before && progress_at.elapsed() > GIVE_UP_AFTER {
                    return Err(failure);
                }
            }
            if done > before {
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

    async fn attempt(&mut self, messages: &[Outgoing], done: &mut usize) -> Result<(), Failure> {
        let mut session = match self.session.take() {
            Some(session) => session,
            None => {
                let (publisher, acks, _) = nats_sink::open(&self.sink, &self.relay, None).await?;
                Open { publisher, acks, published: 0 }
            }
        };
        let before = session.published;
        for message in messages {
            session.publisher.publish(message).await?;
            session.published += 1;
        }
        let base = *done;
        loop {
            match timeout(ACK_WITHIN, session.acks.next()).await {
                Ok(SinkEvent::Acked { count, sequence }) => {
                    let stored = usize::try_from(count.saturating_sub(before)).unwrap_or(0);
                    *done = base + stored.min(messages.len());
                    self.counted_to = self.counted_to.max(sequence);
                    self.last = Some(sequence);
                    if count >= session.published {
                        self.session = Some(session);
                        return Ok(());
                    }
                }
                Ok(SinkEvent::Duplicate { .. }) => {
                    return Err(Failure::wait("duplicate", "taken for a repetition"));
                }
                Ok(SinkEvent::Failed(failure)) => return Err(failure),
                Err(_) => return Err(Failure::wait("ack_timeout", "no ack in time")),
            }
        }
    }

    /// Counts what was stored without an ack.
    async fn find_stored(&mut self) -> Result<usize, Failure> {
        let name = headers::encode_value(&self.replay.name);
        let mut scan = Scan::open(&self.sink, &self.relay, self.counted_to + 1).await?;
        let mut count = 0;
        while let Some(found) = scan.next().await? {
            for message in found {
                self.counted_to = message.sequence;
                if message.replay.as_deref() == Some(name.as_str()) {
                    self.last = Some(message.sequence);
                    count += 1;
                }
            }
        }
        Ok(count)
    }
}
