use event::Lsn;
use relay_core::Failure;
use tokio_postgres::Client;

use crate::{SourceOptions, classify};

/// What a slot still holds, looked at through a temporary copy of it: the slot itself stays where it
/// is, and may be in use meanwhile.
#[derive(Debug)]
pub struct LogCopy {
    client: Client,
    fetch: String,
}

const FETCH_ROWS: u32 = 1_000;

impl LogCopy {
    /// Decodes everything that the slot still holds up to now. The server keeps the result in a
    /// temporary file where it is large.
    ///
    /// # Errors
    /// The classified failure.
    pub async fn open(options: &SourceOptions) -> Result<Self, Failure> {
        let client = options.connect().await?;
        let copy = format!("outbox_relay_copy_{}", std::process::id());
        let copied =
            "SELECT pg_copy_logical_replication_slot($1::text::name, $2::text::name, true)";
        client.execute(copied, &[&options.slot, &copy]).await.map_err(|error| no_copy(&error))?;
        let literal = postgres_protocol::escape::escape_literal;
        let publication = format!("\"{}\"", options.publication.replace('"', "\"\""));
        let declare = format!(
            "BEGIN; DECLARE log NO SCROLL CURSOR FOR SELECT data FROM \
             pg_logical_slot_peek_binary_changes({}, NULL, NULL, 'proto_version', '1', \
             'publication_names', {})",
            literal(&copy),
            literal(&publication)
        );
        client.batch_execute(&declare).await.map_err(|error| classify::query(&error))?;
        Ok(Self { client, fetch: format!("FETCH {FETCH_ROWS} FROM log") })
    }

    /// The next messages, in the order of the replication stream; empty at the end.
    ///
    /// # Errors
    /// The classified failure; a message that cannot be read halts.
    pub async fn next(&mut self) -> Result<Vec<pgoutput::Message>, Failure> {
        let rows = self.client.query(&self.fetch, &[]).await;
        let rows = rows.map_err(|error| classify::query(&error))?;
        let decode = |row: &tokio_postgres::Row| {
            let data = bytes::Bytes::copy_from_slice(row.get::<_, &[u8]>(0));
            pgoutput::decode(data).map_err(|error| Failure::halt("protocol", error.to_string()))
        };
        rows.iter().map(decode).collect()
    }
}

fn no_copy(error: &tokio_postgres::Error) -> Failure {
    let failure = classify::query(error);
    if failure.code == "53400" {
        let advice = "raise max_replication_slots: reading a slot's log takes a temporary one";
        return Failure { class: relay_core::FailureClass::Halt, ..failure }.advise(advice);
    }
    failure
}

/// Where a slot's log begins to hold whole transactions, for messages to people.
///
/// # Errors
/// The classified failure; `42704` when there is no such slot.
pub async fn log_begins(options: &SourceOptions) -> Result<Lsn, Failure> {
    let client = options.connect().await?;
    let sql = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1";
    let row = client.query_opt(sql, &[&options.slot]).await;
    let row = row.map_err(|error| classify::query(&error))?;
    let lsn =
        row.and_then(|row| row.get::<_, Option<String>>(0)).and_then(|text| text.parse().ok());
    lsn.ok_or_else(|| {
        Failure::halt("42704", format!("there is no slot {}", options.slot))
            .advise("create it: outbox-relay init")
    })
}
