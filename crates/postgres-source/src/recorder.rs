use std::time::Duration;

use event::{Lsn, SourceId};
use relay_core::{Failure, Past, Record, Stored};
use tokio_postgres::{Client, Row};

use crate::{SourceOptions, classify};

/// Reads and writes the relay's record in its database, on a session of its own.
#[derive(Debug)]
pub struct Recorder {
    options: SourceOptions,
    relay: String,
    client: Option<Client>,
    generation: Option<i64>,
}

/// What a claim finds.
#[derive(Clone, Debug)]
pub(crate) struct Claimed {
    pub(crate) record: Option<Record>,
    /// Whether another process has claimed it since this one last did.
    pub(crate) is_foreign: bool,
    /// The slot's position, now that it cannot move any more.
    pub(crate) slot_position: Lsn,
    /// The end of what the server has flushed or replayed.
    pub(crate) wal_end: Lsn,
}

/// The code of a write that another relay's claim has forestalled.
pub(crate) const TAKEN_OVER: &str = "record_taken_over";

const COLUMNS: &str = "generation, system_identifier::text, timeline, stream_created, \
     acked_position, acked_sequence, released_position, confirmed_lsn::text, past_stream_created, \
     past_sequence, past_shared_below::text, mending_below::text";

const STORE: &str = "UPDATE outbox_relay.record SET system_identifier = $3::text::numeric, \
     timeline = $4, stream_created = $5, acked_position = $6, acked_sequence = $7, \
     released_position = $8, confirmed_lsn = $9::text::pg_lsn, past_stream_created = $10, \
     past_sequence = $11, past_shared_below = $12::text::pg_lsn, \
     mending_below = $13::text::pg_lsn, stored_at = clock_timestamp() \
     WHERE relay = $1 AND generation = $2";

/// How long the server may take for one statement.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

impl Recorder {
    /// A recorder that is not connected yet.
    #[must_use]
    pub const fn new(options: SourceOptions, relay: String) -> Self {
        Self { options, relay, client: None, generation: None }
    }

    /// Makes the record this process's own. Only who holds the slot may.
    pub(crate) async fn claim(&mut self) -> Result<Claimed, Failure> {
        let before = self.generation;
        let (relay, slot) = (self.relay.clone(), self.options.slot.clone());
        let found = self.work(async move |client| claim(client, &relay, &slot).await).await?;
        let generation: i64 = found.row.get(0);
        self.generation = Some(generation);
        Ok(Claimed {
            record: record(&self.relay, &found.row)?,
            is_foreign: before != Some(generation - 1),
            slot_position: found.slot_position,
            wal_end: found.wal_end,
        })
    }

    /// Writes the record. It is safe in the database when this returns.
    ///
    /// # Errors
    /// The classified failure; `record_taken_over` when another relay has claimed the record.
    pub async fn store(&mut self, record: &Record) -> Result<(), Failure> {
        let (relay, generation) = (self.relay.clone(), self.generation.unwrap_or(0));
        let written =
            self.work(async move |client| write(client, &relay, generation, record).await);
        if written.await? == 0 {
            let message = "another relay has taken the slot and the record over";
            return Err(Failure::wait(TAKEN_OVER, message));
        }
        Ok(())
    }

    /// The record as it stands, without claiming it.
    ///
    /// # Errors
    /// The classified failure.
    pub async fn read(&mut self) -> Result<Option<Record>, Failure> {
        let relay = self.relay.clone();
        let row = self
            .work(async move |client| {
                let sql = format!("SELECT {COLUMNS} FROM outbox_relay.record WHERE relay = $1");
                client.query_opt(&sql, &[&relay]).await
            })
            .await?;
        row.map(|row| record(&self.relay, &row)).transpose().map(Option::flatten)
    }

    /// A person's decision: writes the record and the act in one transaction, and makes the record
    /// nobody's, so that a relay that is at work hears of it.
    ///
    /// # Errors
    /// The classified failure; nothing is written then.
    pub async fn declare(&mut self, record: &Record, act: &Act<'_>) -> Result<(), Failure> {
        let relay = self.relay.clone();
        self.work(async move |client| {
            client.batch_execute("BEGIN").await?;
            let generation = "INSERT INTO outbox_relay.record (relay, generation) VALUES ($1, 1) \
                 ON CONFLICT (relay) DO UPDATE SET generation = record.generation + 1 \
                 RETURNING generation";
            let generation: i64 = client.query_one(generation, &[&relay]).await?.get(0);
            write(client, &relay, generation, record).await?;
            act.write(client, &relay).await?;
            client.batch_execute("COMMIT").await
        })
        .await
    }

    /// Puts an act on record that changes nothing here, as a replay.
    ///
    /// # Errors
    /// The classified failure.
    pub async fn act(&mut self, act: &Act<'_>) -> Result<(), Failure> {
        let relay = self.relay.clone();
        self.work(async move |client| act.write(client, &relay).await).await
    }

    /// Does something on the session, connecting first where needed. After a failure the next call
    /// connects anew.
    async fn work<T>(
        &mut self,
        work: impl AsyncFnOnce(&Client) -> Result<T, tokio_postgres::Error>,
    ) -> Result<T, Failure> {
        let usable = self.client.take().filter(|client| !client.is_closed());
        let is_new = usable.is_none();
        let client = match usable {
            Some(client) => client,
            None => self.options.connect().await?,
        };
        let working = async {
            if is_new {
                // Whatever the server's default: the slot lets go of log on the strength of this.
                client.batch_execute("SET synchronous_commit = on").await?;
            }
            work(&client).await
        };
        let outcome = match tokio::time::timeout(ANSWER_WITHIN, working).await {
            Ok(outcome) => outcome.map_err(|error| missing(classify::query(&error))),
            Err(_) => {
                let message = format!("the record: no answer within {ANSWER_WITHIN:?}");
                Err(Failure::wait("query_timeout", message))
            }
        };
        if outcome.is_ok() {
            self.client = Some(client);
        }
        outcome
    }
}

/// What somebody did, and why.
#[derive(Clone, Debug)]
pub struct Act<'a> {
    /// What, in a word.
    pub act: &'a str,
    /// Who, as they call themselves; the login is put on record beside it.
    pub actor: &'a str,
    /// Why.
    pub reason: &'a str,
    /// What exactly.
    pub detail: serde_json::Value,
}

impl Act<'_> {
    async fn write(&self, client: &Client, relay: &str) -> Result<(), tokio_postgres::Error> {
        let sql = "INSERT INTO outbox_relay.act (relay, act, actor, reason, detail) \
             VALUES ($1, $2, $3, $4, $5)";
        client.execute(sql, &[&relay, &self.act, &self.actor, &self.reason, &self.detail]).await?;
        Ok(())
    }
}

/// The tables of the record are made by `init`; their absence has its own way out.
fn missing(failure: Failure) -> Failure {
    if failure.code == "42P01" || failure.code == "3F000" {
        return Failure::halt(failure.code, format!("the relay's record: {}", failure.message))
            .advise("make the tables: outbox-relay init");
    }
    failure
}

async fn claim(client: &Client, relay: &str, slot: &str) -> Result<Found, tokio_postgres::Error> {
    let sql = format!(
        "INSERT INTO outbox_relay.record (relay, generation) VALUES ($1, 1) \
         ON CONFLICT (relay) DO UPDATE SET generation = record.generation + 1 RETURNING {COLUMNS}"
    );
    let row = client.query_one(&sql, &[&relay]).await?;
    let positions = "SELECT (SELECT confirmed_flush_lsn::text FROM pg_replication_slots \
           WHERE slot_name = $1), \
         CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() \
           ELSE pg_current_wal_flush_lsn() END::text";
    let positions = client.query_one(positions, &[&slot]).await?;
    let lsn = |index: usize| {
        positions.get::<_, Option<&str>>(index).and_then(|t| t.parse().ok()).unwrap_or(Lsn::ZERO)
    };
    Ok(Found { row, slot_position: lsn(0), wal_end: lsn(1) })
}

struct Found {
    row: Row,
    slot_position: Lsn,
    wal_end: Lsn,
}

async fn write(
    client: &Client,
    relay: &str,
    generation: i64,
    record: &Record,
) -> Result<u64, tokio_postgres::Error> {
    let signed = |sequence: u64| i64::try_from(sequence).unwrap_or(i64::MAX);
    let past = record.past.as_ref();
    client
        .execute(
            STORE,
            &[
                &relay,
                &generation,
                &record.source.system_identifier.to_string(),
                &i64::from(record.source.timeline),
                &record.stream_created,
                &record.acked.map(|acked| acked.position.to_string()),
                &record.acked.map(|acked| signed(acked.sequence)),
                &record.released.map(|released| released.to_string()),
                &record.confirmed.to_string(),
                &past.map(|past| past.stream_created.as_str()),
                &past.map(|past| signed(past.sequence)),
                &past.map(|past| past.shared_below.to_string()),
                &record.mending.map(|lsn| lsn.to_string()),
            ],
        )
        .await
}

/// The row's record; `None` when the row was claimed and never written.
fn record(relay: &str, row: &Row) -> Result<Option<Record>, Failure> {
    let Some(system_identifier) = row.get::<_, Option<&str>>(1) else { return Ok(None) };
    let parsed = || {
        let unsigned = |index: usize| u64::try_from(row.get::<_, i64>(index)).ok();
        let lsn = |index: usize| row.get::<_, Option<&str>>(index).map(str::parse::<Lsn>);
        let position = |index: usize| row.get::<_, Option<&str>>(index).map(str::parse);
        let acked = match position(4).transpose().ok()? {
            Some(position) => Some(Stored { position, sequence: unsigned(5)? }),
            None => None,
        };
        let past = match row.get::<_, Option<String>>(8) {
            Some(stream_created) => {
                Some(Past { stream_created, sequence: unsigned(9)?, shared_below: lsn(10)?.ok()? })
            }
            None => None,
        };
        Some(Record {
            source: SourceId {
                relay: relay.to_owned(),
                system_identifier: system_identifier.parse().ok()?,
                timeline: u32::try_from(row.get::<_, i64>(2)).ok()?,
            },
            stream_created: row.get::<_, Option<String>>(3).unwrap_or_default(),
            acked,
            released: position(6).transpose().ok()?,
            confirmed: lsn(7)?.ok()?,
            past,
            mending: lsn(11).transpose().ok()?,
        })
    };
    match parsed() {
        Some(record) => Ok(Some(record)),
        None => Err(Failure::halt("record", format!("the record of relay {relay} is unreadable"))
            .advise("see outbox_relay.record; nothing but the relay should write to it")),
    }
}
