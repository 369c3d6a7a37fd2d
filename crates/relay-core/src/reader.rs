use std::sync::Arc;

use bytes::Bytes;
use event::{Event, Lsn, Position, SourceId, headers};
use pgoutput::{Message, Relation, Tuple, Value};

use crate::mapper::{Mapper, Place, Table, message};
use crate::mapping::RowMapping;
use crate::{Failure, Outbox, Outgoing};

/// An event that is read outside the delivery, to be published once more.
#[derive(Clone, Debug)]
pub struct ReadEvent {
    /// The event.
    pub event: Event,
    /// Its position; that of a row read from a table says nothing.
    pub position: Position,
    /// When its transaction committed, in microseconds since 2000-01-01 00:00 UTC; of a row read
    /// from a table it is not known.
    pub committed_at: Option<i64>,
    /// Its message, as the delivery would write it, but for what is not known of a row of a table.
    pub message: Outgoing,
}

/// Reads events from the messages of a replication stream that is only looked at.
#[derive(Debug)]
pub struct LogReader {
    mapper: Mapper,
    source: SourceId,
    transaction: Option<(Lsn, i64, u64)>,
}

impl LogReader {
    /// A reader at the start of a stream.
    #[must_use]
    pub fn new(outboxes: &[Outbox], source: SourceId) -> Self {
        Self { mapper: Mapper::new(outboxes), source, transaction: None }
    }

    /// The event that a message holds, if it holds one.
    ///
    /// # Errors
    /// A row that cannot become an event, or a message out of place.
    pub fn read(&mut self, message: Message) -> Result<Option<ReadEvent>, Failure> {
        match message {
            Message::Begin { final_lsn, commit_time, .. } => {
                self.transaction = Some((final_lsn, commit_time, 0));
                Ok(None)
            }
            Message::Relation(relation) => {
                self.mapper.learn(relation);
                Ok(None)
            }
            Message::Insert { relation_id, new } => self.insert(relation_id, &new),
            Message::Commit { .. }
            | Message::Origin { .. }
            | Message::Type { .. }
            | Message::Update { .. }
            | Message::Delete { .. }
            | Message::Truncate { .. }
            | Message::Message { .. } => Ok(None),
        }
    }

    fn insert(&mut self, id: u32, row: &Tuple) -> Result<Option<ReadEvent>, Failure> {
        let out_of_place = || Failure::halt("protocol", "an Insert out of its place");
        let (commit_lsn, committed_at, rows) =
            self.transaction.as_mut().ok_or_else(out_of_place)?;
        let position = Position { commit_lsn: *commit_lsn, ordinal: *rows };
        *rows += 1;
        let committed_at = *committed_at;
        let (relation, table) = self.mapper.find(id).ok_or_else(out_of_place)?;
        let mapping = match table {
            Table::Foreign => return Ok(None),
            Table::Unmappable(missing) => {
                return Err(Failure::halt("mapped_column_missing", missing.to_string()));
            }
            Table::Outbox(mapping) => mapping,
        };
        let place = Place { position, committed_at, source: &self.source };
        let read = message(mapping, &relation, row, place)
            .map_err(|reason| bad_row(mapping.outbox(), &position.to_string(), &reason))?;
        Ok(read.map(|(event, message)| ReadEvent {
            event,
            position,
            committed_at: Some(committed_at),
            message,
        }))
    }
}

/// Reads events from the rows of one outbox table.
#[derive(Debug)]
pub struct TableReader {
    mapping: RowMapping,
    relation: Relation,
    source: SourceId,
}

impl TableReader {
    /// A reader of rows with the columns that `relation` gives.
    ///
    /// # Errors
    /// The table lacks a column that the mapping names.
    pub fn new(outbox: &Outbox, relation: Relation, source: SourceId) -> Result<Self, Failure> {
        let mapping = RowMapping::compile(&Arc::new(outbox.clone()), &relation)
            .map_err(|missing| Failure::halt("mapped_column_missing", missing.to_string()))?;
        Ok(Self { mapping, relation, source })
    }

    /// The event of a row, given as PostgreSQL's text of each column; `None` when a rule drops it.
    ///
    /// # Errors
    /// The row cannot become an event.
    pub fn read(&self, values: &[Option<&str>]) -> Result<Option<ReadEvent>, Failure> {
        let value = |value: &Option<&str>| match value {
            Some(text) => Value::Text(Bytes::copy_from_slice(text.as_bytes())),
            None => Value::Null,
        };
        let row = Tuple { values: values.iter().map(value).collect() };
        let position = Position { commit_lsn: Lsn::ZERO, ordinal: 0 };
        let place = Place { position, committed_at: 0, source: &self.source };
        let read = message(&self.mapping, &self.relation, &row, place);
        let read = read.map_err(|reason| bad_row(self.mapping.outbox(), "rest", &reason))?;
        Ok(read.map(|(event, mut message)| {
            message.headers = message.headers.without(headers::COMMITTED_AT);
            ReadEvent { event, position, committed_at: None, message }
        }))
    }
}

fn bad_row(outbox: &Outbox, place: &str, reason: &str) -> Failure {
    let table = format!("{}.{}", outbox.schema, outbox.table);
    let message = format!("a row of {table}, at {place}, cannot be published: {reason}");
    Failure::halt("bad_row", message).advise("mend the row or the mapping")
}
