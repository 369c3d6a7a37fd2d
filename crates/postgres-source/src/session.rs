use std::future::pending;
use std::time::Duration;

use event::{Lsn, SourceId};
use futures_util::FutureExt as _;
use pgwire_replication::{
    FeedbackObserver, IdentifySystem, PgWireError, ReplicationClient, ReplicationConfig,
    ReplicationEvent,
};
use relay_core::{Failure, Fork, Level, Outbox, SourceStarted};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::options::PINNED_SETTINGS;
use crate::recorder::Claimed;
use crate::{Recorder, SourceOptions, catalog, classify, preflight};

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
    /// Looks at the database as [`preflight`] does, takes the slot, starts to stream, and makes the
    /// record this process's own.
    ///
    /// # Errors
    /// The classified failure; the first error of the preflight halts.
    pub async fn open(
        options: &SourceOptions,
        outboxes: &[Outbox],
        recorder: &mut Recorder,
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
        let (client, history) = match timeout(options.connect_timeout * 2, start(options)).await {
            Ok(Ok(started)) => started,
            Ok(Err(error)) => return Err(classify::replication(&error)),
            Err(_) => {
                let message = "the replication session does not start";
                return Err(Failure::wait("connection_timeout", message));
            }
        };
        let mut session = Self::pump(client);
        match recorder.claim().await {
            Ok(claimed) => Ok((session, history.started(claimed)?)),
            Err(failure) => {
                session.close = None;
                session.abort();
                Err(failure)
            }
        }
    }

    fn pump(client: Aborting) -> Self {
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

/// Who the server is, without taking the slot.
///
/// # Errors
/// The classified failure.
pub async fn identity(options: &SourceOptions, relay: &str) -> Result<SourceId, Failure> {
    let asked = async {
        let client = ReplicationClient::connect_gated(replication(options)).await?;
        Aborting(client).0.identify_system().await
    };
    let identity = match timeout(options.connect_timeout, asked).await {
        Ok(identity) => identity.map_err(|error| classify::replication(&error))?,
        Err(_) => {
            return Err(Failure::wait("connection_timeout", "the server does not say who it is"));
        }
    };
    Ok(SourceId {
        relay: relay.to_owned(),
        system_identifier: system_identifier(&identity)?,
        timeline: identity.timeline,
    })
}

fn system_identifier(identity: &IdentifySystem) -> Result<u64, Failure> {
    identity.system_id.parse().map_err(|_| {
        let text = format!("system identifier {} is no number", identity.system_id);
        Failure::halt("protocol", text)
    })
}

/// What the server says of itself before it streams.
struct History {
    identity: IdentifySystem,
    forks: Vec<Fork>,
}

impl History {
    fn started(self, claimed: Claimed) -> Result<SourceStarted, Failure> {
        let identity = self.identity;
        Ok(SourceStarted {
            system_identifier: system_identifier(&identity)?,
            timeline: identity.timeline,
            confirmed_flush_lsn: claimed.slot_position,
            wal_end: claimed.wal_end,
            forks: self.forks,
            record: claimed.record,
            record_is_foreign: claimed.is_foreign,
        })
    }
}

/// The lines of a timeline history file: a timeline, where it was left, and why.
fn forks(history: &str) -> Vec<Fork> {
    let lines = history.lines().filter(|line| !line.trim_start().starts_with('#'));
    let fork = |line: &str| {
        let mut fields = line.split_whitespace();
        let timeline = fields.next()?.parse().ok()?;
        Some(Fork { timeline, end: fields.next()?.parse().ok()? })
    };
    lines.filter_map(fork).collect()
}

fn replication(options: &SourceOptions) -> ReplicationConfig {
    // The crate writes the slot's name as it is, and the server splits the publication's like a
    // list of identifiers: both are quoted here.
    let slot = format!("\"{}\"", options.slot);
    let publication = format!("\"{}\"", options.publication.replace('"', "\"\""));
    let password = options.password.clone().unwrap_or_default();
    let holder_timeout = options.holder_timeout.as_millis();
    ReplicationConfig::new(
        &options.host,
        &options.user,
        password,
        &options.database,
        slot,
        publication,
    )
    .with_port(options.port)
    .with_application_name(&options.application_name)
    .with_options(format!("{PINNED_SETTINGS} -c wal_sender_timeout={holder_timeout}"))
    .with_status_interval(options.status_interval)
    .with_wakeup_interval(options.status_interval)
    .with_buffer_size(BUFFER_EVENTS)
    .with_feedback_observer(FeedbackObserver::new(|_| {}))
}

async fn start(options: &SourceOptions) -> Result<(Aborting, History), PgWireError> {
    let mut aborting = Aborting(ReplicationClient::connect_gated(replication(options)).await?);
    let client = &mut aborting.0;
    let identity = client.identify_system().await?;
    // Timeline 1 has no history.
    let forks = if identity.timeline > 1 {
        let history = client.timeline_history(identity.timeline).await?;
        forks(&String::from_utf8_lossy(&history.content))
    } else {
        Vec::new()
    };
    client.start().await?;
    client.wait_started().await?;
    Ok((aborting, History { identity, forks }))
}

/// Owns the crate's client: carries events out in batches and confirmations in.
async fn pump(
    mut client: Aborting,
    batches: mpsc::Sender<Vec<SourceEvent>>,
    mut confirmations: watch::Receiver<Lsn>,
    mut closing: mpsc::Receiver<Instant>,
) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_file_names_where_each_timeline_was_left() {
        let text = "1\t0/3000158\tno recovery target specified\n\n# note\n2\t1/A0\tbefore x\n";
        let at = |timeline, lsn| Fork { timeline, end: Lsn::new(lsn) };
        assert_eq!(forks(text), [at(1, 0x300_0158), at(2, 0x1_0000_00A0)]);
    }
}
