//! What the tests of this crate share.

use bytes::Bytes;
use pgoutput::{Relation, Tuple, Value};

use crate::{FieldSource, Fields, HeaderColumn, Outbox, Route, SubjectTemplate, TypeRule};

pub(crate) fn outbox() -> Outbox {
    let column = |name: &str| FieldSource::Column(name.to_owned());
    Outbox {
        schema: "public".into(),
        table: "outbox".into(),
        fields: Fields {
            event_id: column("event_id"),
            aggregate_type: FieldSource::Constant("registration".into()),
            aggregate_id: column("aggregate_id"),
            aggregate_version: Some(column("aggregate_version")),
            event_type: column("event_type"),
            payload: column("payload"),
            occurred_at: None,
        },
        headers: vec![HeaderColumn { header: "tenant".into(), column: "tenant_id".into() }],
        route: Route {
            subject: SubjectTemplate::parse("events.{aggregate_type}.{aggregate_id}").unwrap(),
            types: vec![
                ("AuditOnly".into(), TypeRule::Drop),
                (
                    "Loud".into(),
                    TypeRule::Subject(SubjectTemplate::parse("loud.{aggregate_id}").unwrap()),
                ),
            ],
        },
        message_id_prefix: "public.outbox".into(),
    }
}

pub(crate) fn relation(id: u32, columns: &[(&str, u32)]) -> Relation {
    Relation {
        id,
        namespace: "public".into(),
        name: "outbox".into(),
        replica_identity: b'd',
        columns: columns
            .iter()
            .map(|(name, type_oid)| pgoutput::Column {
                flags: 0,
                name: (*name).to_owned(),
                type_oid: *type_oid,
                type_modifier: -1,
            })
            .collect(),
    }
}

pub(crate) fn row(values: &[Option<&str>]) -> Tuple {
    let value = |text: &Option<&str>| match text {
        None => Value::Null,
        Some(text) => Value::Text(Bytes::from(text.as_bytes().to_vec())),
    };
    Tuple { values: values.iter().map(value).collect() }
}
