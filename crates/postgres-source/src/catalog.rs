use std::collections::BTreeMap;

use event::Lsn;
use relay_core::{Failure, FieldSource, Outbox};
use tokio_postgres::{Client, Row};

use crate::{SourceOptions, classify, preflight::quote};

/// What the catalogs say, as far as the relay depends on it.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    pub(crate) version_num: i32,
    pub(crate) wal_level: String,
    pub(crate) database: String,
    pub(crate) may_replicate: bool,
    /// Whether the tables of the relay's record are there.
    pub(crate) record_table: bool,
    /// Whether the role may write the record.
    pub(crate) may_record: bool,
    pub(crate) publication: Option<Publication>,
    pub(crate) published: Vec<PublishedTable>,
    /// By schema and table: the tables that the configuration names and the database has.
    pub(crate) tables: BTreeMap<(String, String), Table>,
    pub(crate) slot: Option<Slot>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Publication {
    pub(crate) publishes_inserts: bool,
    pub(crate) via_root: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct PublishedTable {
    pub(crate) schema: String,
    pub(crate) table: String,
    pub(crate) columns: Option<Vec<String>>,
    pub(crate) row_filter: Option<String>,
}

#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) partitioned: bool,
    pub(crate) columns: Vec<String>,
    /// Rows older than the table's place in the publication, but not older than the slot.
    pub(crate) before_publication: Option<Unstreamable>,
}

#[derive(Clone, Debug)]
pub(crate) struct Unstreamable {
    pub(crate) rows: i64,
    pub(crate) examples: String,
}

#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) kind: String,
    pub(crate) plugin: Option<String>,
    pub(crate) database: Option<String>,
    pub(crate) wal_status: Option<String>,
    pub(crate) confirmed_flush_lsn: Lsn,
}

/// Reads the catalogs in one session.
pub(crate) async fn read(
    client: &Client,
    options: &SourceOptions,
    outboxes: &[Outbox],
) -> Result<Catalog, Failure> {
    let queries = Queries { client, options };
    let mut catalog = queries.server().await?;
    catalog.publication = queries.publication().await?;
    catalog.slot = queries.slot().await?;
    if catalog.publication.is_some() {
        catalog.published = queries.published(catalog.version_num).await?;
    }
    for outbox in outboxes {
        if let Some(mut table) = queries.table(outbox).await? {
            if catalog.slot.is_some() && catalog.publication.is_some() {
                table.before_publication = queries.before_publication(outbox, &table).await?;
            }
            catalog.tables.insert((outbox.schema.clone(), outbox.table.clone()), table);
        }
    }
    Ok(catalog)
}

struct Queries<'a> {
    client: &'a Client,
    options: &'a SourceOptions,
}

impl Queries<'_> {
    async fn server(&self) -> Result<Catalog, Failure> {
        let sql = "SELECT current_setting('server_version_num')::int, current_setting('wal_level'), \
             current_database()::text, (SELECT rolreplication OR rolsuper FROM pg_roles \
             WHERE rolname = current_user), \
             to_regclass('outbox_relay.record') IS NOT NULL, \
             CASE WHEN to_regclass('outbox_relay.record') IS NULL \
               OR NOT has_schema_privilege('outbox_relay', 'USAGE') THEN false \
             ELSE has_table_privilege('outbox_relay.record', 'SELECT') \
               AND has_table_privilege('outbox_relay.record', 'INSERT') \
               AND has_table_privilege('outbox_relay.record', 'UPDATE') END";
        let row = self.client.query_one(sql, &[]).await.map_err(|error| classify::query(&error))?;
        Ok(Catalog {
            version_num: row.get(0),
            wal_level: row.get(1),
            database: row.get(2),
            may_replicate: row.get::<_, Option<bool>>(3).unwrap_or(false),
            record_table: row.get(4),
            may_record: row.get(5),
            ..Catalog::default()
        })
    }

    async fn publication(&self) -> Result<Option<Publication>, Failure> {
        let sql = "SELECT pubinsert, pubviaroot FROM pg_publication WHERE pubname = $1";
        let row = self.optional(sql, &self.options.publication).await?;
        Ok(row.map(|row| Publication { publishes_inserts: row.get(0), via_root: row.get(1) }))
    }

    async fn published(&self, version_num: i32) -> Result<Vec<PublishedTable>, Failure> {
        // Column lists and row filters came with PostgreSQL 15.
        let further = if version_num >= 150_000 {
            "attnames::text[], rowfilter"
        } else {
            "NULL::text[], NULL::text"
        };
        let sql = format!(
            "SELECT schemaname::text, tablename::text, {further} FROM pg_publication_tables \
             WHERE pubname = $1"
        );
        let rows = self.client.query(&sql, &[&self.options.publication]).await;
        let rows = rows.map_err(|error| classify::query(&error))?;
        let table = |row: &Row| PublishedTable {
            schema: row.get(0),
            table: row.get(1),
            columns: row.get(2),
            row_filter: row.get(3),
        };
        Ok(rows.iter().map(table).collect())
    }

    async fn slot(&self) -> Result<Option<Slot>, Failure> {
        let sql = "SELECT slot_type, plugin::text, database::text, wal_status, \
             confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1";
        let row = self.optional(sql, &self.options.slot).await?;
        Ok(row.map(|row| Slot {
            kind: row.get(0),
            plugin: row.get(1),
            database: row.get(2),
            wal_status: row.get(3),
            confirmed_flush_lsn: row
                .get::<_, Option<&str>>(4)
                .and_then(|text| text.parse().ok())
                .unwrap_or(Lsn::ZERO),
        }))
    }

    async fn table(&self, outbox: &Outbox) -> Result<Option<Table>, Failure> {
        let sql = "SELECT c.relkind = 'p', (SELECT array_agg(a.attname::text ORDER BY a.attnum) \
               FROM pg_attribute a \
               WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) \
             FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
             WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind IN ('r', 'p')";
        let row = self.client.query_opt(sql, &[&outbox.schema, &outbox.table]).await;
        let row = row.map_err(|error| classify::query(&error))?;
        Ok(row.map(|row| Table {
            partitioned: row.get(0),
            columns: row.get::<_, Option<Vec<String>>>(1).unwrap_or_default(),
            before_publication: None,
        }))
    }

    /// A server hides from the stream what was written before the table was published, and from
    /// version 18 on it does so without an error. Such rows have a transaction id between the
    /// slot's horizon and the one that published the table.
    async fn before_publication(
        &self,
        outbox: &Outbox,
        table: &Table,
    ) -> Result<Option<Unstreamable>, Failure> {
        let event_id = match &outbox.fields.event_id {
            FieldSource::Column(name) if table.columns.contains(name) => quote(name),
            FieldSource::Column(_) | FieldSource::Constant(_) => "ctid".to_owned(),
        };
        let name = format!("{}.{}", quote(&outbox.schema), quote(&outbox.table));
        let ages = "SELECT min(age(p.xmin)), (SELECT age(catalog_xmin) FROM pg_replication_slots \
               WHERE slot_name = $2) \
             FROM (SELECT coalesce(r.xmin, p.xmin) AS xmin FROM pg_publication p \
               LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = $3::text::regclass \
               WHERE p.pubname = $1) p";
        let row = self
            .client
            .query_one(ages, &[&self.options.publication, &self.options.slot, &name])
            .await
            .map_err(|error| classify::query(&error))?;
        let (published, slot): (Option<i32>, Option<i32>) = (row.get(0), row.get(1));
        let (Some(published), Some(slot)) = (published, slot) else { return Ok(None) };
        if published > slot {
            return Ok(None);
        }
        let between = format!(
            "SELECT count(*), coalesce(string_agg(id, ', ') FILTER (WHERE n <= 5), '') FROM \
               (SELECT {event_id}::text AS id, row_number() OVER () AS n FROM {name} t \
                WHERE age(t.xmin) > $1 AND age(t.xmin) <= $2 LIMIT 1000) rows"
        );
        let row = self.client.query_one(&between, &[&published, &slot]).await;
        let row = row.map_err(|error| classify::query(&error))?;
        Ok(Some(Unstreamable { rows: row.get(0), examples: row.get(1) }))
    }

    async fn optional(&self, sql: &str, name: &str) -> Result<Option<Row>, Failure> {
        self.client.query_opt(sql, &[&name]).await.map_err(|error| classify::query(&error))
    }
}
