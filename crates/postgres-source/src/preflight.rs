//! What must hold before the first row is read, found in the catalogs.

use std::fmt::Write as _;

use relay_core::{Failure, FieldSource, Finding, Outbox};

pub use crate::catalog::Catalog;
use crate::{SourceOptions, catalog};

const OLDEST_VERSION: i32 = 140_000;

/// From this version on a server passes over what is older than the publication; before, it cannot
/// decode it at all.
const LATE_PUBLICATION_IS_HARMLESS: i32 = 180_000;

/// Connects and looks at everything.
pub async fn check(options: &SourceOptions, outboxes: &[Outbox]) -> Vec<Finding> {
    let catalog = async {
        let client = options.connect().await?;
        catalog::read(&client, options, outboxes).await
    };
    match catalog.await {
        Ok(catalog) => findings(&catalog, options, outboxes),
        Err(failure) => vec![unreachable(failure)],
    }
}

fn unreachable(failure: Failure) -> Finding {
    let fix = if failure.advice.is_empty() {
        "start the server, or mend source.url".to_owned()
    } else {
        failure.advice
    };
    Finding::error(failure.code, failure.message, fix)
}

/// Judges what the catalogs say.
#[must_use]
pub fn findings(catalog: &Catalog, options: &SourceOptions, outboxes: &[Outbox]) -> Vec<Finding> {
    let mut findings = server(catalog, options);
    for (index, outbox) in outboxes.iter().enumerate() {
        findings.extend(table(catalog, options, index, outbox));
    }
    findings.extend(publication(catalog, options, outboxes));
    findings.push(slot(catalog, options));
    findings
}

fn server(catalog: &Catalog, options: &SourceOptions) -> Vec<Finding> {
    let mut findings = Vec::new();
    let version = (catalog.version_num / 10_000, catalog.version_num % 10_000);
    let version = format!("{}.{}", version.0, version.1);
    findings.push(if catalog.version_num < OLDEST_VERSION {
        let message =
            format!("PostgreSQL {version} is older than 14, the oldest that is supported");
        Finding::error("server_version", message, "upgrade the server")
    } else {
        Finding::ok("server_version", format!("PostgreSQL {version}"))
    });
    findings.push(if catalog.wal_level == "logical" {
        Finding::ok("wal_level", "wal_level is logical")
    } else {
        let message = format!("wal_level is {}; logical decoding needs logical", catalog.wal_level);
        Finding::error(
            "wal_level",
            message,
            "ALTER SYSTEM SET wal_level = logical; then restart the server",
        )
    });
    findings.push(if catalog.may_replicate {
        Finding::ok("role", format!("role {} may replicate", options.user))
    } else {
        let message = format!("role {} lacks the REPLICATION attribute", options.user);
        Finding::error("role", message, format!("ALTER ROLE {} REPLICATION;", quote(&options.user)))
    });
    findings.push(record(catalog, options));
    findings
}

fn record(catalog: &Catalog, options: &SourceOptions) -> Finding {
    let (code, role) = ("record", quote(&options.user));
    if !catalog.record_table {
        let message = "the tables of the relay's record (schema outbox_relay) do not exist";
        return Finding::error(code, message, "outbox-relay init");
    }
    if !catalog.may_record {
        let message = format!("role {} may not write the relay's record", options.user);
        let fix = format!(
            "GRANT USAGE ON SCHEMA outbox_relay TO {role}; \
             GRANT SELECT, INSERT, UPDATE ON outbox_relay.record TO {role};"
        );
        return Finding::error(code, message, fix);
    }
    Finding::ok(code, "the relay can keep its record")
}

fn table(
    catalog: &Catalog,
    options: &SourceOptions,
    index: usize,
    outbox: &Outbox,
) -> Vec<Finding> {
    let name = format!("{}.{}", outbox.schema, outbox.table);
    let key = (outbox.schema.clone(), outbox.table.clone());
    let Some(table) = catalog.tables.get(&key) else {
        let message = format!("table {name} (outbox[{index}].table) does not exist");
        return vec![Finding::error("table", message, "create it, or mend outbox[].table")];
    };
    let mut findings = missing_columns(index, outbox, &name, &table.columns, "is not a column of");
    if let Some(late) = &table.before_publication {
        let publication = &options.publication;
        if late.rows > 0 {
            let message = format!(
                "{} rows of {name} were committed before publication {publication} published the \
                 table, but after slot {} began: they can never be streamed (event ids {})",
                late.rows, options.slot, late.examples
            );
            let table = format!("{}.{}", quote(&outbox.schema), quote(&outbox.table));
            let mut fix = format!(
                "write them anew, which streams them: BEGIN; WITH gone AS (DELETE FROM {table} \
                 WHERE <these event ids> RETURNING *) INSERT INTO {table} SELECT * FROM gone; COMMIT;"
            );
            if catalog.version_num < LATE_PUBLICATION_IS_HARMLESS {
                let slot = &options.slot;
                let _ = write!(
                    fix,
                    " should the relay then halt with 42704, the slot is older than the \
                     publication itself and this server can stream nothing from it: SELECT \
                     pg_drop_replication_slot('{slot}'); outbox-relay init; and write them anew again"
                );
            }
            findings.push(Finding::error("before_publication", message, fix));
        } else {
            let message = format!(
                "publication {publication} published {name} after slot {} began; the table holds \
                 no row from between, but rows deleted since were not streamed",
                options.slot
            );
            findings.push(Finding::warning("before_publication", message, "nothing, once known"));
        }
    }
    if findings.is_empty() {
        findings.push(Finding::ok("table", format!("table {name} has every mapped column")));
    }
    findings
}

/// Every mapped column that a list of columns lacks.
fn missing_columns(
    index: usize,
    outbox: &Outbox,
    table: &str,
    present: &[String],
    lacks: &str,
) -> Vec<Finding> {
    let fields = outbox.fields.named().filter_map(|(field, source)| match source {
        FieldSource::Column(column) => Some((format!("fields.{field}"), column)),
        FieldSource::Constant(_) => None,
    });
    let headers = outbox.headers.iter().map(|h| (format!("headers.{}", h.header), &h.column));
    fields
        .chain(headers)
        .filter(|(_, column)| !present.contains(column))
        .map(|(path, column)| {
            let message = format!(
                "mapped column `{column}` (outbox[{index}].{path}) {lacks} {table}, which has: {}",
                present.join(", ")
            );
            Finding::error("mapped_column", message, format!("mend outbox[{index}].{path}"))
        })
        .collect()
}

fn publication(catalog: &Catalog, options: &SourceOptions, outboxes: &[Outbox]) -> Vec<Finding> {
    let name = &options.publication;
    let Some(publication) = catalog.publication else {
        let message = format!("publication {name} does not exist in database {}", catalog.database);
        return vec![Finding::error(
            "publication",
            message,
            "outbox-relay init, or mend source.publication",
        )];
    };
    let mut findings = Vec::new();
    if !publication.publishes_inserts {
        let fix = format!("ALTER PUBLICATION {} SET (publish = 'insert');", quote(name));
        let message = format!("publication {name} does not publish inserts");
        findings.push(Finding::error("publication_inserts", message, fix));
    }
    for (index, outbox) in outboxes.iter().enumerate() {
        findings.extend(published_table(catalog, options, publication.via_root, index, outbox));
    }
    let named = |schema: &str, table: &str| {
        outboxes.iter().any(|outbox| outbox.schema == schema && outbox.table == table)
    };
    for other in catalog.published.iter().filter(|t| !named(&t.schema, &t.table)) {
        let table = format!("{}.{}", quote(&other.schema), quote(&other.table));
        findings.push(Finding::warning(
            "publication_extra",
            format!("publication {name} also has {table}, which the configuration does not name: its rows are counted and passed over"),
            format!("ALTER PUBLICATION {} DROP TABLE {table};", quote(name)),
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::ok("publication", format!("publication {name} covers every table")));
    }
    findings
}

fn published_table(
    catalog: &Catalog,
    options: &SourceOptions,
    via_root: bool,
    index: usize,
    outbox: &Outbox,
) -> Vec<Finding> {
    let publication = quote(&options.publication);
    let name = format!("{}.{}", quote(&outbox.schema), quote(&outbox.table));
    let key = (outbox.schema.clone(), outbox.table.clone());
    let Some(table) = catalog.tables.get(&key) else { return Vec::new() };
    if table.partitioned && !via_root {
        let message = format!(
            "{name} is partitioned, and publication {publication} names rows by their partition"
        );
        let fix =
            format!("ALTER PUBLICATION {publication} SET (publish_via_partition_root = true);");
        return vec![Finding::error("publication_root", message, fix)];
    }
    let published =
        catalog.published.iter().find(|t| t.schema == outbox.schema && t.table == outbox.table);
    let Some(published) = published else {
        let message = format!("publication {publication} does not have table {name}");
        let fix = format!("ALTER PUBLICATION {publication} ADD TABLE {name};");
        return vec![Finding::error("publication_table", message, fix)];
    };
    let mut findings = Vec::new();
    if let Some(columns) = &published.columns {
        let known = missing_columns(index, outbox, &name, &table.columns, "");
        if known.is_empty() {
            let lacks = "is left out of the publication's column list for";
            findings.extend(missing_columns(index, outbox, &name, columns, lacks));
        }
    }
    if let Some(filter) = &published.row_filter {
        let message = format!(
            "publication {publication} has a row filter on {name}: rows outside {filter} are never published"
        );
        findings.push(Finding::warning(
            "publication_filter",
            message,
            "drop the filter unless it is meant",
        ));
    }
    findings
}

fn slot(catalog: &Catalog, options: &SourceOptions) -> Finding {
    let name = &options.slot;
    let Some(slot) = &catalog.slot else {
        let message = format!("slot {name} does not exist");
        return Finding::error("slot", message, "outbox-relay init, or mend source.slot");
    };
    let other = "name another slot in source.slot, or drop this one by hand";
    if slot.kind != "logical" || slot.plugin.as_deref() != Some("pgoutput") {
        let plugin = slot.plugin.as_deref().unwrap_or("none");
        let message =
            format!("slot {name} is {} with plugin {plugin}; pgoutput is needed", slot.kind);
        return Finding::error("slot_plugin", message, other);
    }
    if slot.database.as_ref() != Some(&catalog.database) {
        let database = slot.database.as_deref().unwrap_or("none");
        let message =
            format!("slot {name} belongs to database {database}, not {}", catalog.database);
        return Finding::error("slot_database", message, other);
    }
    if slot.wal_status.as_deref() == Some("lost") {
        let message = format!("slot {name} is lost: the server has removed log that it needed");
        let fix = "events since its last confirmed position are in the outbox table only: compare \
                   it with the stream, write the missing rows anew, and make a new slot";
        return Finding::error("slot_lost", message, fix);
    }
    Finding::ok("slot", format!("slot {name} stands at {}", slot.confirmed_flush_lsn))
}

/// An identifier in quotes, as SQL wants it.
#[must_use]
pub fn quote(identifier: &str) -> String {
    format!("\"{}\"", identifier.replace('"', "\"\""))
}
