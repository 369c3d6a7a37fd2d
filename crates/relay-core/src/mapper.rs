use std::collections::BTreeMap;
use std::sync::Arc;

use event::{Event, Headers, Position, SourceId, headers};
use pgoutput::{Relation, RelationCache, Tuple};

use crate::mapping::{MissingColumn, RowMapping};
use crate::{Outbox, Outgoing};

/// What the relay does with the rows of one relation.
#[derive(Clone, Debug)]
pub(crate) enum Table {
    Outbox(Arc<RowMapping>),
    /// An outbox table whose mapping does not fit any more. Not an error before a row comes.
    Unmappable(MissingColumn),
    Foreign,
}

/// The relations as the source last described them, and what their rows become.
#[derive(Debug)]
pub(crate) struct Mapper {
    outboxes: Vec<Arc<Outbox>>,
    relations: RelationCache,
    tables: BTreeMap<u32, Table>,
}

impl Mapper {
    pub(crate) fn new(outboxes: &[Outbox]) -> Self {
        Self {
            outboxes: outboxes.iter().cloned().map(Arc::new).collect(),
            relations: RelationCache::default(),
            tables: BTreeMap::new(),
        }
    }

    pub(crate) fn clear(&mut self) {
        self.relations.clear();
        self.tables.clear();
    }

    /// A Relation record describes the rows that follow it, also in mid-transaction.
    pub(crate) fn learn(&mut self, relation: Relation) {
        let named = |outbox: &&Arc<Outbox>| {
            outbox.schema == relation.namespace && outbox.table == relation.name
        };
        let table = match self.outboxes.iter().find(named) {
            None => Table::Foreign,
            Some(outbox) => match RowMapping::compile(outbox, &relation) {
                Ok(mapping) => Table::Outbox(Arc::new(mapping)),
                Err(missing) => Table::Unmappable(missing),
            },
        };
        self.tables.insert(relation.id, table);
        self.relations.apply(relation);
    }

    /// What is known of a relation; `None` when no Relation record has described it.
    pub(crate) fn find(&self, id: u32) -> Option<(Arc<Relation>, &Table)> {
        Some((self.relations.get(id)?, self.tables.get(&id)?))
    }
}

/// Where and when a row was committed, and in which history.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub(crate) position: Position,
    pub(crate) committed_at: i64,
    pub(crate) source: &'a SourceId,
}

/// The event of a row and its message; `None` when a rule drops it.
pub(crate) fn message(
    mapping: &RowMapping,
    relation: &Relation,
    row: &Tuple,
    place: Place<'_>,
) -> Result<Option<(Event, Outgoing)>, String> {
    let mapped = mapping.map(relation, row).map_err(|error| error.to_string())?;
    let Some((event, subject)) = mapped else { return Ok(None) };
    let message_id = format!("{}:{}", mapping.outbox().message_id_prefix, event.event_id);
    let Place { position, committed_at, source } = place;
    let headers = Headers::of(&event, &message_id, position, source, committed_at)
        .map_err(|error| format!("event {}: {error}", headers::encode_value(&event.event_id)))?;
    let outgoing = Outgoing { subject, headers, body: event.payload.bytes() };
    Ok(Some((event, outgoing)))
}
