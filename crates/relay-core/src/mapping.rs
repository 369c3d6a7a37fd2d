use std::sync::Arc;

use bytes::Bytes;
use event::{Event, Payload, Subject};
use pgoutput::{Relation, Tuple, Value};

use crate::{FieldSource, Outbox, TemplateField, TypeRule};

// Type oids of the built-in types, from PostgreSQL's pg_type.dat.
const BYTEA: u32 = 17;
const JSON: u32 = 114;
const JSONB: u32 = 3_802;

/// How the rows of one table, as its last Relation record describes it, become events. Columns are
/// found by name, so a column that moved is still the same column.
#[derive(Clone, Debug)]
pub(crate) struct RowMapping {
    outbox: Arc<Outbox>,
    event_id: Source,
    aggregate_type: Source,
    aggregate_id: Source,
    aggregate_version: Option<Source>,
    event_type: Source,
    payload: Source,
    occurred_at: Option<Source>,
    headers: Vec<(String, Source)>,
}

#[derive(Clone, Debug)]
enum Source {
    Column { index: usize, name: String, type_oid: u32 },
    Constant(String),
}

/// A mapped column that the table, or the publication's column list, does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "mapped column {column} missing: {field} of {schema}.{table} names it, \
     but the table is published with the columns {}", present.join(", ")
)]
pub(crate) struct MissingColumn {
    pub(crate) field: String,
    pub(crate) column: String,
    pub(crate) schema: String,
    pub(crate) table: String,
    pub(crate) present: Vec<String>,
}

/// Why a row cannot become an event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RowError {
    #[error("{field}: column {column} is NULL")]
    Null { field: &'static str, column: String },
    #[error("{field}: column {column} is empty")]
    Empty { field: &'static str, column: String },
    #[error("{field}: column {column} holds `{found}`, which is not a whole number of 64 bits")]
    NotAVersion { field: &'static str, column: String, found: String },
    #[error("{field}: column {column} is not text in UTF-8")]
    NotText { field: String, column: String },
    #[error("payload: column {column} is bytea, but not in the hex form")]
    NotHex { column: String },
    #[error("the row has {found} columns, its Relation record {expected}")]
    ColumnCount { found: usize, expected: usize },
    #[error(transparent)]
    Subject(#[from] event::SubjectError),
}

impl RowMapping {
    pub(crate) fn compile(
        outbox: &Arc<Outbox>,
        relation: &Relation,
    ) -> Result<Self, MissingColumn> {
        let compiler = Compiler { outbox, relation };
        let fields = &outbox.fields;
        let optional = |name, source: &Option<FieldSource>| {
            source.as_ref().map(|source| compiler.source(name, source)).transpose()
        };
        let headers = outbox.headers.iter().map(|header| {
            let field = format!("headers.{}", header.header);
            Ok((header.header.clone(), compiler.column(&field, &header.column)?))
        });
        Ok(Self {
            event_id: compiler.source("event_id", &fields.event_id)?,
            aggregate_type: compiler.source("aggregate_type", &fields.aggregate_type)?,
            aggregate_id: compiler.source("aggregate_id", &fields.aggregate_id)?,
            aggregate_version: optional("aggregate_version", &fields.aggregate_version)?,
            event_type: compiler.source("event_type", &fields.event_type)?,
            payload: compiler.source("payload", &fields.payload)?,
            occurred_at: optional("occurred_at", &fields.occurred_at)?,
            headers: headers.collect::<Result<_, _>>()?,
            outbox: Arc::clone(outbox),
        })
    }

    pub(crate) fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    /// The event and its subject; `None` when a rule says that its type is not published.
    pub(crate) fn map(
        &self,
        relation: &Relation,
        row: &Tuple,
    ) -> Result<Option<(Event, Subject)>, RowError> {
        if row.values.len() != relation.columns.len() {
            return Err(RowError::ColumnCount {
                found: row.values.len(),
                expected: relation.columns.len(),
            });
        }
        let event_type = required("event_type", &self.event_type, row)?;
        let rule = self.outbox.route.types.iter().find(|(name, _)| *name == event_type);
        let template = match rule {
            Some((_, TypeRule::Drop)) => return Ok(None),
            Some((_, TypeRule::Subject(template))) => template,
            None => &self.outbox.route.subject,
        };
        let mut extra_headers = Vec::with_capacity(self.headers.len());
        for (header, source) in &self.headers {
            if let Some(value) = text(header, source, row)? {
                extra_headers.push((header.clone(), value));
            }
        }
        let event = Event {
            event_id: required("event_id", &self.event_id, row)?,
            aggregate_type: required("aggregate_type", &self.aggregate_type, row)?,
            aggregate_id: required("aggregate_id", &self.aggregate_id, row)?,
            aggregate_version: self
                .aggregate_version
                .as_ref()
                .map(|source| version("aggregate_version", source, row))
                .transpose()?,
            event_type,
            occurred_at: match &self.occurred_at {
                Some(source) => text("occurred_at", source, row)?,
                None => None,
            },
            payload: payload(&self.payload, row)?,
            extra_headers,
        };
        let subject = template.render(|field| match field {
            TemplateField::AggregateType => &event.aggregate_type,
            TemplateField::AggregateId => &event.aggregate_id,
            TemplateField::EventType => &event.event_type,
        })?;
        Ok(Some((event, subject)))
    }
}

struct Compiler<'a> {
    outbox: &'a Outbox,
    relation: &'a Relation,
}

impl Compiler<'_> {
    fn source(&self, field: &str, source: &FieldSource) -> Result<Source, MissingColumn> {
        match source {
            FieldSource::Column(column) => self.column(&format!("fields.{field}"), column),
            FieldSource::Constant(text) => Ok(Source::Constant(text.clone())),
        }
    }

    fn column(&self, field: &str, name: &str) -> Result<Source, MissingColumn> {
        let columns = &self.relation.columns;
        let found = columns.iter().enumerate().find(|(_, column)| column.name == name);
        let (index, column) = found.ok_or_else(|| MissingColumn {
            field: field.to_owned(),
            column: name.to_owned(),
            schema: self.outbox.schema.clone(),
            table: self.outbox.table.clone(),
            present: columns.iter().map(|column| column.name.clone()).collect(),
        })?;
        Ok(Source::Column { index, name: name.to_owned(), type_oid: column.type_oid })
    }
}

/// The bytes of a column, `None` for NULL. Binary and unchanged values cannot come: the relay does
/// not ask for the first, and the second stands only in updates.
fn value<'r>(
    field: &str,
    index: usize,
    name: &str,
    row: &'r Tuple,
) -> Result<Option<&'r Bytes>, RowError> {
    match row.values.get(index) {
        Some(Value::Null) => Ok(None),
        Some(Value::Text(bytes)) => Ok(Some(bytes)),
        Some(Value::Binary(_) | Value::Unchanged) | None => {
            Err(RowError::NotText { field: field.to_owned(), column: name.to_owned() })
        }
    }
}

fn text(field: &str, source: &Source, row: &Tuple) -> Result<Option<String>, RowError> {
    match source {
        Source::Constant(text) => Ok(Some(text.clone())),
        Source::Column { index, name, .. } => {
            let Some(bytes) = value(field, *index, name, row)? else { return Ok(None) };
            let text = std::str::from_utf8(bytes)
                .map_err(|_| RowError::NotText { field: field.to_owned(), column: name.clone() })?;
            Ok(Some(text.to_owned()))
        }
    }
}

fn required(field: &'static str, source: &Source, row: &Tuple) -> Result<String, RowError> {
    let column = || match source {
        Source::Column { name, .. } => name.clone(),
        Source::Constant(_) => String::new(),
    };
    let text =
        text(field, source, row)?.ok_or_else(|| RowError::Null { field, column: column() })?;
    if text.is_empty() {
        return Err(RowError::Empty { field, column: column() });
    }
    Ok(text)
}

fn version(field: &'static str, source: &Source, row: &Tuple) -> Result<i64, RowError> {
    let text = required(field, source, row)?;
    text.parse().map_err(|_| RowError::NotAVersion {
        field,
        column: match source {
            Source::Column { name, .. } => name.clone(),
            Source::Constant(_) => String::new(),
        },
        found: text.chars().take(40).collect(),
    })
}

fn payload(source: &Source, row: &Tuple) -> Result<Payload, RowError> {
    match source {
        Source::Constant(text) => Ok(Payload::Text(Bytes::from(text.clone()))),
        Source::Column { index, name, type_oid } => {
            let Some(bytes) = value("payload", *index, name, row)? else {
                return Ok(Payload::Null);
            };
            Ok(match *type_oid {
                JSON | JSONB => Payload::Json(bytes.clone()),
                BYTEA => Payload::Binary(
                    unhex(bytes).ok_or_else(|| RowError::NotHex { column: name.clone() })?,
                ),
                _ => Payload::Text(bytes.clone()),
            })
        }
    }
}

/// The bytes behind bytea's hex output form, `\x` and two digits a byte.
fn unhex(text: &[u8]) -> Option<Bytes> {
    let digits = text.strip_prefix(b"\\x")?;
    if digits.len() % 2 != 0 {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|d| u8::try_from(d).ok());
    digits.chunks_exact(2).map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{outbox, relation, row};

    fn map(
        columns: &[(&str, u32)],
        values: &[Option<&str>],
    ) -> Result<Option<(Event, Subject)>, RowError> {
        let relation = relation(1, columns);
        RowMapping::compile(&Arc::new(outbox()), &relation).unwrap().map(&relation, &row(values))
    }

    const COLUMNS: [(&str, u32); 6] = [
        ("event_id", 2950),
        ("aggregate_id", 25),
        ("aggregate_version", 20),
        ("event_type", 25),
        ("payload", JSONB),
        ("tenant_id", 25),
    ];

    #[test]
    fn a_row_becomes_an_event_by_column_name() {
        let values =
            [Some("e1"), Some("a.b"), Some("7"), Some("Confirmed"), Some(r#"{"n": 1.10}"#), None];
        let (event, subject) = map(&COLUMNS, &values).unwrap().unwrap();
        assert_eq!(subject.as_str(), "events.registration.a%2Eb");
        assert_eq!(event.event_id, "e1");
        assert_eq!(event.aggregate_version, Some(7));
        assert_eq!(event.payload, Payload::Json(Bytes::from_static(br#"{"n": 1.10}"#)));
        assert_eq!(event.extra_headers, []);

        let mut moved = COLUMNS;
        moved.reverse();
        let mut values = values;
        values.reverse();
        values[0] = Some("t9");
        let (other, _) = map(&moved, &values).unwrap().unwrap();
        assert_eq!(other.extra_headers, [("tenant".to_owned(), "t9".to_owned())]);
        assert_eq!(Event { extra_headers: vec![], ..other }, event);
    }

    #[test]
    fn payload_kinds_keep_their_bytes() {
        for (type_oid, text, expected) in [
            (JSON, Some("null"), Payload::Json(Bytes::from_static(b"null"))),
            (25, Some(""), Payload::Text(Bytes::new())),
            (BYTEA, Some("\\x00ffAb"), Payload::Binary(Bytes::from_static(b"\x00\xff\xab"))),
            (BYTEA, Some("\\x"), Payload::Binary(Bytes::new())),
            (JSONB, None, Payload::Null),
        ] {
            let mut columns = COLUMNS;
            columns[4].1 = type_oid;
            let values = [Some("e"), Some("a"), Some("1"), Some("T"), text, None];
            let (event, _) = map(&columns, &values).unwrap().unwrap();
            assert_eq!(event.payload, expected);
        }
        let mut columns = COLUMNS;
        columns[4].1 = BYTEA;
        let values = [Some("e"), Some("a"), Some("1"), Some("T"), Some("\\x1"), None];
        assert_eq!(map(&columns, &values), Err(RowError::NotHex { column: "payload".into() }));
    }

    #[test]
    fn a_bad_row_names_its_field() {
        let good = [Some("e"), Some("a"), Some("1"), Some("T"), None, None];
        for (index, value, expected) in [
            (0, None, "event_id: column event_id is NULL"),
            (1, Some(""), "aggregate_id: column aggregate_id is empty"),
            (
                2,
                Some("1.5"),
                "aggregate_version: column aggregate_version holds `1.5`, which is not a whole number of 64 bits",
            ),
            (2, None, "aggregate_version: column aggregate_version is NULL"),
            (3, None, "event_type: column event_type is NULL"),
        ] {
            let mut values = good;
            values[index] = value;
            assert_eq!(map(&COLUMNS, &values).unwrap_err().to_string(), expected);
        }
        assert_eq!(map(&COLUMNS, &good[..5]), Err(RowError::ColumnCount { found: 5, expected: 6 }));
    }

    #[test]
    fn rules_by_type_drop_or_reroute() {
        let subject = |event_type| {
            map(&COLUMNS, &[Some("e"), Some("a"), Some("1"), Some(event_type), None, None]).unwrap()
        };
        assert_eq!(subject("AuditOnly"), None);
        let (_, subject) = subject("Loud").unwrap();
        assert_eq!(subject.as_str(), "loud.a");
    }

    #[test]
    fn a_missing_column_is_named_with_the_real_ones() {
        let relation = relation(1, &[("event_id", 2950), ("body", 25)]);
        let error = RowMapping::compile(&Arc::new(outbox()), &relation).unwrap_err();
        assert_eq!(
            error.to_string(),
            "mapped column aggregate_id missing: fields.aggregate_id of public.outbox names it, \
             but the table is published with the columns event_id, body"
        );
    }
}
