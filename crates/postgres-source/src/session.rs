use std::future::pending;
use std::time::Duration;

use event::Lsn;
use futures_util::FutureExt as _;
use pgwire_replication::{
    FeedbackObserver, PgWireError, ReplicationClient, ReplicationConfig, ReplicationEvent,
};
use relay_core::{Failure, Level, Outbox, SourceStarted};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::options::PINNED_SETTINGS;
use crate::{SourceOptions, catalog, classify, preflight};

/// What a session reports, in stream order.
#[derive(Clone, Debug)]
pub enum SourceEvent {
    /// A message of the replication stream.
    Message(pgoutput::Message),
    /// The server's keepalive: everything before `wal_end` has been sent.
    Keepalive {
        /// How far the server has read its log.
        wal_end: Lsn,
        /// How many keepalives in a row, of which this is the last, asked for a reply.
        replies_requested: u32,
    },
    /// The session is over; nothing follows.
    Failed(Failure),
}

/// A replication session that holds the slot.
#[derive(Debug)]
pub struct Session {
    events: mpsc::Receiver<Vec<SourceEvent>>,
    confirmed: watch::Sender<Lsn>,
    received: Lsn,
    close: Option<mpsc::Sender<Instant>>,
    pump: JoinHandle<()>,
}

/// A batch is closed at so many events or bytes, and so many batches wait.
const BATCH_EVENTS_MAX: usize = 512;
const BATCH_BYTES_MAX: usize = 1 << 20;
const BATCHES_MAX: usize = 2;
/// How many events the crate keeps for the pump. It counts events only, so that large rows make
/// this the largest of the relay's buffers.
const BUFFER_EVENTS: usize = 128;

impl Session {
    /// Looks at the database as [`preflight`] does, takes the slot and starts to stream.
    ///
    /// # Errors
    /// The classified failure; the first error of the preflight halts.
    pub async fn open(
        options: &SourceOptions,
        outboxes: &[Outbox],
    ) -> Result<(Self, SourceStarted), Failure> {
        let client = options.connect().await?;
        let look = catalog::read(&client, options, outboxes);
        let catalog = match timeout(options.connect_timeout * 3, look).await {
            Ok(catalog) => catalog?,
            Err(_) => return Err(Failure::wait("query_timeout", "the catalogs do not answer")),
        };
        let findings = preflight::findings(&catalog, options, outboxes);
        if let Some(finding) = findings.into_iter().find(|f| f.level == Level::Error) {
            return Err(Failure::halt(finding.code, finding.message).advise(finding.fix));
        }
        drop(client);
        let confirmed_flush_lsn = catalog.slot.map_or(Lsn::ZERO, |slot| slot.confirmed_flush_lsn);
        match timeout(options.connect_timeout * 2, start(options)).await {
            Ok(Ok((client, identity))) => {
                let system_identifier = identity.system_id.parse().map_err(|_| {
                    let text = format!("system identifier {} is no number", identity.system_id);
                    Failure::halt("protocol", text)
                })?;
                let timeline = identity.timeline;
                let started = SourceStarted { system_identifier, timeline, confirmed_flush_lsn };
                Ok((Self::pump(client), started))
            }
            Ok(Err(error)) => Err(classify::replication(&error)),
            Err(_) => {
                Err(Failure::wait("connection_timeout", "the replication session does not start"))
            }
        }
    }

    fn pump(client: ReplicationClient) -> Self {
        let (batches, events) = mpsc::channel(BATCHES_MAX);
        let (confirmed, confirmations) = watch::channel(Lsn::ZERO);
        let (close, closing) = mpsc::channel(1);
        let pump = tokio::spawn(pump(client, batches, confirmations, closing));
        Self { events, confirmed, received: Lsn::ZERO, close: Some(close), pump }
    }

    /// The next batch; never empty. Cancel-safe. After a failure it waits for ever.
    pub async fn next(&mut self) -> Vec<SourceEvent> {
        let Some(batch) = self.events.recv().await else { return pending().await };
        for event in &batch {
            match event {
                SourceEvent::Keepalive { wal_end: lsn, .. }
                | SourceEvent::Message(pgoutput::Message::Commit { end_lsn: lsn, .. }) => {
                    self.received = self.received.max(*lsn);
                }
                SourceEvent::Message(_) | SourceEvent::Failed(_) => {}
            }
        }
        batch
    }

    /// Tells the server that everything up to here is safe. Never goes back, and never beyond what
    /// the server has sent: it would believe it.
    pub fn confirm(&self, lsn: Lsn) {
        let lsn = lsn.min(self.received);
        self.confirmed.send_if_modified(|confirmed| {
            let grows = lsn > *confirmed;
            *confirmed = lsn.max(*confirmed);
            grows
        });
    }

    /// Ends in good order: the last confirmation reaches the server, then the stream is closed. What
    /// does not end in time is cut off.
    pub async fn close(mut self, within: Duration) {
        let deadline = Instant::now() + within;
        if let Some(close) = self.close.take() {
            // A pump that has ended has nothing left to close.
            let _ = close.send(deadline).await;
        }
        // The pump may wait for room in the channel.
        let drain = async { while self.events.recv().await.is_some() {} };
        let _ = timeout_at(deadline, drain).await;
        let _ = timeout_at(deadline, &mut self.pump).await;
        self.pump.abort();
    }

    /// Lets go at once.
    pub fn abort(self) {
        self.pump.abort();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.close.is_some() {
            self.pump.abort();
        }
    }
}

async fn start(
    options: &SourceOptions,
) -> Result<(ReplicationClient, pgwire_replication::IdentifySystem), PgWireError> {
    // The crate writes the slot's name as it is, and the server splits the publication's like a
    // list of identifiers: both are quoted here.
    let slot = format!("\"{}\"", options.slot);
    let publication = format!("\"{}\"", options.publication.replace('"', "\"\""));
    let password = options.password.clone().unwrap_or_default();
    let config = ReplicationConfig::new(
        &options.host,
        &options.user,
        password,
        &options.database,
        slot,
        publication,
    )
    .with_port(options.port)
    .with_application_name(&options.application_name)
    .with_options(PINNED_SETTINGS)
    .with_status_interval(options.status_interval)
    .with_wakeup_interval(options.status_interval)
    .with_buffer_size(BUFFER_EVENTS)
    .with_feedback_observer(FeedbackObserver::new(|_| {}));
    let mut client = ReplicationClient::connect_gated(config).await?;
    let identity = client.identify_system().await?;
    client.start().await?;
    client.wait_started().await?;
    Ok((client, identity))
}

/// Owns the crate's client: carries events out in batches and confirmations in.
async fn pump(
    client: ReplicationClient,
    batches: mpsc::Sender<Vec<SourceEvent>>,
    mut confirmations: watch::Receiver<Lsn>,
    mut closing: mpsc::Receiver<Instant>,
) {
    let mut client = Aborting(client);
    loop {
        let batch = tokio::select! {
            biased;
            deadline = closing.recv() => {
                let confirmed = *confirmations.borrow();
                return client.close(deadline, confirmed).await;
            }
            Ok(()) = confirmations.changed() => {
                let lsn = *confirmations.borrow_and_update();
                client.confirm(lsn);
                continue;
            }
            first = client.0.recv() => batch(&mut client.0, first),
        };
        let failed = matches!(batch.last(), Some(SourceEvent::Failed(_)));
        let mut sending = Box::pin(batches.send(batch));
        loop {
            tokio::select! {
                biased;
                deadline = closing.recv() => {
                    let confirmed = *confirmations.borrow();
                    return client.close(deadline, confirmed).await;
                }
                sent = &mut sending => match sent {
                    Ok(()) if !failed => break,
                    Ok(()) | Err(_) => return,
                },
                Ok(()) = confirmations.changed() => {
                    let lsn = *confirmations.borrow_and_update();
                    client.confirm(lsn);
                }
            }
        }
    }
}

/// Takes what is ready, up to a batch, with runs of keepalives made one.
fn batch(
    client: &mut ReplicationClient,
    first: Result<Option<ReplicationEvent>, PgWireError>,
) -> Vec<SourceEvent> {
    let mut batch = Vec::new();
    let mut bytes = 0;
    let mut next = Some(first);
    while let Some(result) = next {
        if let Ok(Some(ReplicationEvent::XLogData { data, .. })) = &result {
            bytes += data.len();
        }
        let event = match result {
            Ok(Some(event)) => translate(event),
            Ok(None) => SourceEvent::Failed(Failure::wait("connection_lost", "the stream ended")),
            Err(error) => SourceEvent::Failed(classify::replication(&error)),
        };
        let last = matches!(event, SourceEvent::Failed(_));
        push(&mut batch, event);
        if last || batch.len() >= BATCH_EVENTS_MAX || bytes >= BATCH_BYTES_MAX {
            break;
        }
        next = client.recv().now_or_never();
    }
    batch
}

fn push(batch: &mut Vec<SourceEvent>, event: SourceEvent) {
    if let (
        Some(SourceEvent::Keepalive { wal_end, replies_requested }),
        SourceEvent::Keepalive { wal_end: later, replies_requested: more },
    ) = (batch.last_mut(), &event)
    {
        *wal_end = *later;
        *replies_requested = replies_requested.saturating_add(*more);
    } else {
        batch.push(event);
    }
}

/// The crate parses three kinds of message itself and hands out the others as bytes.
fn translate(event: ReplicationEvent) -> SourceEvent {
    let lsn = |lsn: pgwire_replication::Lsn| Lsn::new(lsn.as_u64());
    match event {
        ReplicationEvent::XLogData { data, .. } => match pgoutput::decode(data) {
            Ok(message) => SourceEvent::Message(message),
            Err(error) => SourceEvent::Failed(Failure::halt("protocol", error.to_string())),
        },
        ReplicationEvent::Begin { final_lsn, xid, commit_time_micros } => {
            SourceEvent::Message(pgoutput::Message::Begin {
                final_lsn: lsn(final_lsn),
                commit_time: commit_time_micros,
                xid,
            })
        }
        ReplicationEvent::Commit { lsn: commit_lsn, end_lsn, commit_time_micros } => {
            SourceEvent::Message(pgoutput::Message::Commit {
                flags: 0,
                commit_lsn: lsn(commit_lsn),
                end_lsn: lsn(end_lsn),
                commit_time: commit_time_micros,
            })
        }
        ReplicationEvent::Message { transactional, lsn: at, prefix, content } => {
            let lsn = lsn(at);
            SourceEvent::Message(pgoutput::Message::Message { transactional, lsn, prefix, content })
        }
        ReplicationEvent::KeepAlive { wal_end, reply_requested, .. } => SourceEvent::Keepalive {
            wal_end: lsn(wal_end),
            replies_requested: u32::from(reply_requested),
        },
        ReplicationEvent::StoppedAt { .. } => {
            SourceEvent::Failed(Failure::wait("connection_lost", "the stream stopped"))
        }
    }
}

/// Cuts the connection when dropped: the crate's own drop would go on reading in the background,
/// and with a message half arrived it would hold the slot for long.
struct Aborting(ReplicationClient);

impl Aborting {
    fn confirm(&self, lsn: Lsn) {
        self.0.update_applied_lsn(pgwire_replication::Lsn::from_u64(lsn.get()));
    }

    async fn close(mut self, deadline: Option<Instant>, confirmed: Lsn) {
        let Some(deadline) = deadline else { return };
        self.confirm(confirmed);
        // The crate sends a confirmation with the next status, and would drop it on a stop.
        while self.0.feedback_pending_since().is_some()
            && self.0.is_running()
            && Instant::now() < deadline
        {
            sleep(Duration::from_millis(10)).await;
        }
        let _ = timeout_at(deadline, self.0.shutdown()).await;
    }
}

impl Drop for Aborting {
    fn drop(&mut self) {
        self.0.abort();
    }
}
