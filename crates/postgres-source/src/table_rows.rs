use relay_core::{Failure, FieldSource, Outbox};
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::preflight::quote;
use crate::{SourceOptions, classify};

/// Which rows of the outbox tables.
#[derive(Clone, Debug, Default)]
pub struct RowFilter {
    /// That happened at this time or later, as PostgreSQL reads a timestamp.
    pub since: Option<String>,
    /// That happened before this time.
    pub until: Option<String>,
    /// Of this event type.
    pub event_type: Option<String>,
    /// Of the aggregate with this id.
    pub aggregate_id: Option<String>,
    /// With one of these event ids; none: all.
    pub event_ids: Vec<String>,
}

/// The rows of one outbox table as they were at one moment, in the order of each aggregate.
#[derive(Debug)]
pub struct TableRows {
    client: Client,
    relation: pgoutput::Relation,
}

const FETCH: &str = "FETCH 1000 FROM outbox_rows";

impl TableRows {
    /// Begins to read.
    ///
    /// # Errors
    /// The classified failure. `row_order` when nothing in the table tells the order of an
    /// aggregate's events; `row_filter` when a filter names a field that the mapping does not have.
    pub async fn open(
        options: &SourceOptions,
        outbox: &Outbox,
        filter: &RowFilter,
    ) -> Result<Self, Failure> {
        let client = options.connect().await?;
        let relation = relation(&client, outbox).await?;
        let name = format!("{}.{}", quote(&outbox.schema), quote(&outbox.table));
        let columns: Vec<_> = relation.columns.iter().map(|column| quote(&column.name)).collect();
        let sql = format!(
            "BEGIN READ ONLY; DECLARE outbox_rows NO SCROLL CURSOR FOR SELECT {} FROM {name} {} {}",
            columns.join(", "),
            conditions(outbox, filter)?,
            order(outbox)?,
        );
        client.batch_execute(&sql).await.map_err(|error| classify::query(&error))?;
        Ok(Self { client, relation })
    }

    /// The table's columns.
    #[must_use]
    pub const fn relation(&self) -> &pgoutput::Relation {
        &self.relation
    }

    /// The next rows, each as PostgreSQL's text of its columns; empty at the end.
    ///
    /// # Errors
    /// The classified failure.
    pub async fn next(&mut self) -> Result<Vec<Vec<Option<String>>>, Failure> {
        let messages = self.client.simple_query(FETCH).await;
        let messages = messages.map_err(|error| classify::query(&error))?;
        let rows = messages.into_iter().filter_map(|message| {
            let SimpleQueryMessage::Row(row) = message else { return None };
            Some((0..row.len()).map(|index| row.get(index).map(str::to_owned)).collect())
        });
        Ok(rows.collect())
    }
}

/// The age in whole seconds of the oldest row that a filter lets through, by the field
/// `occurred_at`; `None` when a table does not tell.
///
/// # Errors
/// The classified failure.
pub async fn oldest(
    options: &SourceOptions,
    outboxes: &[Outbox],
    filter: &RowFilter,
) -> Result<Option<u64>, Failure> {
    let client = options.connect().await?;
    let mut oldest = 0;
    for outbox in outboxes {
        let Some(FieldSource::Column(column)) = &outbox.fields.occurred_at else {
            return Ok(None);
        };
        let sql = format!(
            "SELECT coalesce(extract(epoch FROM now() - min({})::timestamptz), 0)::float8 \
             FROM {}.{} {}",
            quote(column),
            quote(&outbox.schema),
            quote(&outbox.table),
            conditions(outbox, filter)?
        );
        match client.query_one(&sql, &[]).await {
            Ok(row) => oldest = oldest.max(row.get::<_, f64>(0).max(0.0) as u64),
            // A column of another type, as epoch seconds in a bigint.
            Err(error) if error.code().is_some_and(|code| code.code().starts_with("42")) => {
                return Ok(None);
            }
            Err(error) => return Err(classify::query(&error)),
        }
    }
    Ok(Some(oldest))
}

/// The table as a Relation record of the log would describe it.
async fn relation(client: &Client, outbox: &Outbox) -> Result<pgoutput::Relation, Failure> {
    let sql = "SELECT a.attname::text, a.atttypid, a.atttypmod FROM pg_attribute a \
         JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace \
         WHERE n.nspname = $1 AND c.relname = $2 AND a.attnum > 0 AND NOT a.attisdropped \
         ORDER BY a.attnum";
    let rows = client.query(sql, &[&outbox.schema, &outbox.table]).await;
    let rows = rows.map_err(|error| classify::query(&error))?;
    let column = |row: &tokio_postgres::Row| pgoutput::Column {
        flags: 0,
        name: row.get(0),
        type_oid: row.get(1),
        type_modifier: row.get(2),
    };
    Ok(pgoutput::Relation {
        id: 0,
        namespace: outbox.schema.clone(),
        name: outbox.table.clone(),
        replica_identity: b'd',
        columns: rows.iter().map(column).collect(),
    })
}

fn conditions(outbox: &Outbox, filter: &RowFilter) -> Result<String, Failure> {
    let literal = postgres_protocol::escape::escape_literal;
    let fields = &outbox.fields;
    let mut conditions = Vec::new();
    let mut compare = |name: &str, field: Option<&FieldSource>, is: &str, value: &String| {
        let left = match field {
            Some(FieldSource::Column(column)) => quote(column),
            Some(FieldSource::Constant(text)) => format!("{}::text", literal(text)),
            None => {
                let message = format!(
                    "{}.{}: the mapping has no {name} to filter by",
                    outbox.schema, outbox.table
                );
                return Err(Failure::halt("row_filter", message)
                    .advise(format!("map {name}, or leave the filter out")));
            }
        };
        conditions.push(format!("{left} {is} {}", literal(value)));
        Ok(())
    };
    let occurred_at = fields.occurred_at.as_ref();
    if let Some(since) = &filter.since {
        compare("occurred_at", occurred_at, ">=", since)?;
    }
    if let Some(until) = &filter.until {
        compare("occurred_at", occurred_at, "<", until)?;
    }
    if let Some(event_type) = &filter.event_type {
        compare("event_type", Some(&fields.event_type), "=", event_type)?;
    }
    if let Some(aggregate_id) = &filter.aggregate_id {
        compare("aggregate_id", Some(&fields.aggregate_id), "=", aggregate_id)?;
    }
    if let FieldSource::Column(column) = &fields.event_id
        && !filter.event_ids.is_empty()
    {
        let ids: Vec<_> = filter.event_ids.iter().map(|id| literal(id)).collect();
        conditions.push(format!("{} IN ({})", quote(column), ids.join(", ")));
    }
    if conditions.is_empty() {
        return Ok(String::new());
    }
    Ok(format!("WHERE {}", conditions.join(" AND ")))
}

/// Order matters within an aggregate only.
fn order(outbox: &Outbox) -> Result<String, Failure> {
    let fields = &outbox.fields;
    let column = |field: Option<&FieldSource>| match field {
        Some(FieldSource::Column(column)) => Some(quote(column)),
        Some(FieldSource::Constant(_)) | None => None,
    };
    let within = column(fields.aggregate_version.as_ref());
    let Some(within) = within.or_else(|| column(fields.occurred_at.as_ref())) else {
        let message = format!(
            "{}.{}: neither aggregate_version nor occurred_at is mapped to a column, so the order \
             of an aggregate's rows cannot be told",
            outbox.schema, outbox.table
        );
        return Err(Failure::halt("row_order", message));
    };
    let of = [column(Some(&fields.aggregate_type)), column(Some(&fields.aggregate_id))];
    let keys: Vec<_> = of.into_iter().flatten().chain([within]).collect();
    Ok(format!("ORDER BY {}", keys.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use relay_core::{Fields, Route, SubjectTemplate};

    fn outbox() -> Outbox {
        let column = |name: &str| FieldSource::Column(name.to_owned());
        Outbox {
            schema: "public".to_owned(),
            table: "outbox".to_owned(),
            fields: Fields {
                event_id: column("id"),
                aggregate_type: FieldSource::Constant("order".to_owned()),
                aggregate_id: column("Key"),
                aggregate_version: Some(column("v")),
                event_type: column("t"),
                payload: column("p"),
                occurred_at: None,
            },
            headers: Vec::new(),
            route: Route {
                subject: SubjectTemplate::parse("s.{aggregate_id}").unwrap(),
                types: Vec::new(),
            },
            message_id_prefix: "public.outbox".to_owned(),
        }
    }

    #[test]
    fn filters_become_quoted_conditions_and_order_follows_the_version() {
        let filter = RowFilter {
            aggregate_id: Some("o'neil".to_owned()),
            event_ids: vec!["1".to_owned(), "2".to_owned()],
            ..RowFilter::default()
        };
        let conditions = conditions(&outbox(), &filter).unwrap();
        assert_eq!(conditions, r#"WHERE "Key" = 'o''neil' AND "id" IN ('1', '2')"#);
        assert_eq!(order(&outbox()).unwrap(), r#"ORDER BY "Key", "v""#);
    }

    #[test]
    fn what_the_mapping_lacks_is_named() {
        let filter = RowFilter { since: Some("now".to_owned()), ..RowFilter::default() };
        assert_eq!(conditions(&outbox(), &filter).unwrap_err().code, "row_filter");
        let mut unordered = outbox();
        unordered.fields.aggregate_version = None;
        assert_eq!(order(&unordered).unwrap_err().code, "row_order");
    }
}
