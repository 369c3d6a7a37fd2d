use std::time::Duration;

use event::Lsn;
use relay_core::Failure;
use tokio::sync::oneshot;
use tokio_postgres::{Client, Row};

use crate::{SourceOptions, classify};

/// What the server says of the slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotState {
    /// What has been confirmed.
    pub confirmed_flush_lsn: Lsn,
    /// Where the log that the slot needs begins.
    pub restart_lsn: Lsn,
    /// Where the server writes now.
    pub current_lsn: Lsn,
    /// `reserved`, `extended`, `unreserved` or `lost`.
    pub wal_status: Option<String>,
    /// Bytes that can be written before the slot is lost; `None` without a limit.
    pub safe_wal_size: Option<i64>,
    /// The backend that holds the slot.
    pub active_pid: Option<i32>,
}

/// Looks at the slot on a session of its own, so that a silent server is noticed even when the
/// replication session has nothing to send.
#[derive(Debug)]
pub struct SlotWatch {
    options: SourceOptions,
    client: Option<Client>,
    ended: Option<oneshot::Receiver<()>>,
}

const QUERY: &str = "SELECT confirmed_flush_lsn::text, restart_lsn::text, \
     CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END::text, \
     wal_status, safe_wal_size, active_pid FROM pg_replication_slots WHERE slot_name = $1";

/// How long the server may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

impl SlotWatch {
    /// A watch that is not connected yet.
    #[must_use]
    pub const fn new(options: SourceOptions) -> Self {
        Self { options, client: None, ended: None }
    }

    /// Looks once. After a failure the next look connects anew.
    ///
    /// # Errors
    /// The classified failure.
    pub async fn look(&mut self) -> Result<SlotState, Failure> {
        let looked = self.try_look().await;
        if looked.is_err() {
            self.client = None;
            self.ended = None;
        }
        looked
    }

    /// Waits until the watch's session ends, whoever ends it; for ever while there is none.
    /// Cancel-safe.
    pub async fn ended(&mut self) {
        match &mut self.ended {
            Some(ended) => {
                // The sender goes with the connection.
                let _ = ended.await;
                self.ended = None;
                self.client = None;
            }
            None => std::future::pending().await,
        }
    }

    async fn try_look(&mut self) -> Result<SlotState, Failure> {
        if self.client.as_ref().is_none_or(Client::is_closed) {
            let (client, ended) = self.options.connect_watched().await?;
            self.client = Some(client);
            self.ended = Some(ended);
        }
        let Some(client) = &self.client else {
            return Err(Failure::wait("connection_lost", "no session"));
        };
        let slot = &self.options.slot;
        match tokio::time::timeout(ANSWER_WITHIN, client.query_opt(QUERY, &[slot])).await {
            Ok(Ok(Some(row))) => Ok(state(&row)),
            Ok(Ok(None)) => {
                let message = format!("slot {} does not exist", self.options.slot);
                Err(Failure::halt("42704", message).advise("create it: outbox-relay init"))
            }
            Ok(Err(error)) => Err(classify::query(&error)),
            Err(_) => {
                let message = format!("no answer within {ANSWER_WITHIN:?}");
                Err(Failure::wait("query_timeout", message))
            }
        }
    }
}

fn state(row: &Row) -> SlotState {
    let lsn = |index: usize| {
        row.get::<_, Option<&str>>(index).and_then(|text| text.parse().ok()).unwrap_or(Lsn::ZERO)
    };
    SlotState {
        confirmed_flush_lsn: lsn(0),
        restart_lsn: lsn(1),
        current_lsn: lsn(2),
        wal_status: row.get(3),
        safe_wal_size: row.get(4),
        active_pid: row.get(5),
    }
}
