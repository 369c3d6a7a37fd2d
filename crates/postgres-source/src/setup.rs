//! What `outbox-relay init` does in the database, as SQL that can also be printed.

use std::time::Duration;

use relay_core::{Failure, Outbox};
use tokio_postgres::Client;

use crate::preflight::quote;
use crate::{SourceOptions, catalog, classify};

/// The reference outbox table and what belongs to it: name, up, down.
pub const MIGRATIONS: [(&str, &str, &str); 4] = [
    (
        "0001_outbox",
        include_str!("../../../sql/outbox/0001_outbox.up.sql"),
        include_str!("../../../sql/outbox/0001_outbox.down.sql"),
    ),
    (
        "0002_publication",
        include_str!("../../../sql/outbox/0002_publication.up.sql"),
        include_str!("../../../sql/outbox/0002_publication.down.sql"),
    ),
    (
        "0003_record",
        include_str!("../../../sql/outbox/0003_record.up.sql"),
        include_str!("../../../sql/outbox/0003_record.down.sql"),
    ),
    (
        "0004_relay_role",
        include_str!("../../../sql/outbox/0004_relay_role.up.sql"),
        include_str!("../../../sql/outbox/0004_relay_role.down.sql"),
    ),
];

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What it is for.
    pub title: String,
    /// How; empty when it is done already.
    pub sql: String,
}

/// How long the slot's creation may wait for open transactions.
const SLOT_WITHIN: Duration = Duration::from_secs(30);

/// What is to be done, in order: table, publication, role's grants, slot. Never drops anything.
///
/// # Errors
/// The database cannot be read, or a table other than the reference one is missing.
pub async fn plan(
    options: &SourceOptions,
    outboxes: &[Outbox],
    role: Option<&str>,
) -> Result<Vec<Step>, Failure> {
    let client = options.connect().await?;
    let catalog = catalog::read(&client, options, outboxes).await?;
    let mut steps = Vec::new();
    for outbox in outboxes {
        let known = catalog.tables.contains_key(&(outbox.schema.clone(), outbox.table.clone()));
        let name = format!("{}.{}", outbox.schema, outbox.table);
        let reference = name == "public.outbox";
        if !known && !reference {
            let message =
                format!("table {name} does not exist, and only public.outbox is made here");
            return Err(Failure::halt("table", message).advise("create it, or mend outbox[].table"));
        }
        let sql = if known { "" } else { MIGRATIONS[0].1.trim() };
        steps.push(Step { title: format!("table {name}"), sql: sql.to_owned() });
    }
    let sql = if catalog.record_table { "" } else { MIGRATIONS[2].1.trim() };
    steps.push(Step { title: "the relay's record".to_owned(), sql: sql.to_owned() });
    steps.extend(publication_steps(&catalog, options, outboxes));
    if let Some(role) = role {
        steps.extend(role_steps(&client, outboxes, role).await?);
    }
    let slot = catalog.slot.is_none().then(|| {
        format!("SELECT pg_create_logical_replication_slot('{}', 'pgoutput');", options.slot)
    });
    steps.push(Step { title: format!("slot {}", options.slot), sql: slot.unwrap_or_default() });
    Ok(steps)
}

fn publication_steps(
    catalog: &catalog::Catalog,
    options: &SourceOptions,
    outboxes: &[Outbox],
) -> Vec<Step> {
    let name = quote(&options.publication);
    let table = |outbox: &Outbox| format!("{}.{}", quote(&outbox.schema), quote(&outbox.table));
    let title = format!("publication {}", options.publication);
    if catalog.publication.is_none() {
        let tables: Vec<_> = outboxes.iter().map(table).collect();
        let sql = format!(
            "CREATE PUBLICATION {name} FOR TABLE {} WITH (publish = 'insert', \
             publish_via_partition_root = true);",
            tables.join(", ")
        );
        return vec![Step { title, sql }];
    }
    let published = |outbox: &&Outbox| {
        !catalog.published.iter().any(|t| t.schema == outbox.schema && t.table == outbox.table)
    };
    let added = outboxes.iter().filter(published).map(|outbox| {
        let table = table(outbox);
        Step {
            title: format!("{table} in {title}"),
            sql: format!("ALTER PUBLICATION {name} ADD TABLE {table};"),
        }
    });
    let mut steps: Vec<_> = added.collect();
    if steps.is_empty() {
        steps.push(Step { title, sql: String::new() });
    }
    steps
}

async fn role_steps(
    client: &Client,
    outboxes: &[Outbox],
    role: &str,
) -> Result<Vec<Step>, Failure> {
    let known = client
        .query_opt("SELECT 1 FROM pg_roles WHERE rolname = $1", &[&role])
        .await
        .map_err(|error| classify::query(&error))?
        .is_some();
    let name = quote(role);
    let create =
        if known { String::new() } else { format!("CREATE ROLE {name} LOGIN REPLICATION;") };
    let mut steps = vec![Step { title: format!("role {role}"), sql: create }];
    steps.push(Step {
        title: format!("grants on the relay's record for {role}"),
        sql: format!(
            "GRANT USAGE ON SCHEMA outbox_relay TO {name}; \
             GRANT SELECT, INSERT, UPDATE ON outbox_relay.record TO {name}; \
             GRANT SELECT, INSERT ON outbox_relay.act TO {name};"
        ),
    });
    for outbox in outboxes {
        let (schema, table) = (quote(&outbox.schema), quote(&outbox.table));
        steps.push(Step {
            title: format!("grants on {}.{} for {role}", outbox.schema, outbox.table),
            sql: format!(
                "GRANT USAGE ON SCHEMA {schema} TO {name}; GRANT SELECT ON {schema}.{table} TO {name};"
            ),
        });
    }
    Ok(steps)
}

/// Carries out one step. The slot is given up when open transactions keep it waiting, and `blocked`
/// hears of them while it waits.
///
/// # Errors
/// The classified failure.
pub async fn carry_out(
    options: &SourceOptions,
    step: &Step,
    blocked: impl Fn(&str),
) -> Result<(), Failure> {
    if step.sql.is_empty() {
        return Ok(());
    }
    let client = options.connect().await?;
    let limit = format!("SET statement_timeout = {}", SLOT_WITHIN.as_millis());
    client.batch_execute(&limit).await.map_err(|error| classify::query(&error))?;
    let mut work = Box::pin(client.batch_execute(&step.sql));
    let patience = Duration::from_secs(5);
    let outcome = match tokio::time::timeout(patience, &mut work).await {
        Ok(outcome) => outcome,
        Err(_) => {
            blocked(&blockers(options).await);
            work.await
        }
    };
    outcome.map_err(|error| {
        let failure = classify::query(&error);
        if failure.code == "57014" {
            let message = format!("{} was not done within {SLOT_WITHIN:?}", step.title);
            let advice = "end the open transactions it waits for, then run init again";
            return Failure::halt("blocked", message).advise(advice);
        }
        failure
    })
}

/// The transactions that a new slot waits for: all that have written and not ended.
async fn blockers(options: &SourceOptions) -> String {
    let sql = "SELECT string_agg(format('PID %s (%s, %s, open for %s s)', pid, usename, state, \
           round(extract(epoch FROM clock_timestamp() - xact_start))), ', ' ORDER BY xact_start) \
         FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()";
    let prepared = "SELECT string_agg(format('prepared transaction %s', gid), ', ') \
         FROM pg_prepared_xacts";
    let asked = async {
        let client = options.connect().await.ok()?;
        let sessions: Option<String> = client.query_one(sql, &[]).await.ok()?.get(0);
        let prepared: Option<String> = client.query_one(prepared, &[]).await.ok()?.get(0);
        Some([sessions, prepared].into_iter().flatten().collect::<Vec<_>>().join(", "))
    };
    match asked.await {
        Some(found) if !found.is_empty() => format!("waiting for open transactions: {found}"),
        Some(_) | None => "waiting for open transactions".to_owned(),
    }
}
