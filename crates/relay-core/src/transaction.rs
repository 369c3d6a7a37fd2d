use std::sync::Arc;
use std::time::Duration;

use event::{Position, headers};
use pgoutput::{Message, Relation, Tuple};

use crate::mapper::{Place, Table, message};
use crate::mapping::RowMapping;
use crate::pipeline::InFlight;
use crate::{Core, Effect, Failure, Notice, Outgoing};

/// The transaction being read.
#[derive(Debug)]
pub(crate) struct Transaction {
    pub(crate) commit_lsn: event::Lsn,
    committed_at: i64,
    rows: u64,
}

impl Core {
    /// One message of the replication stream.
    pub(crate) fn source_message(
        &mut self,
        now: Duration,
        message: Message,
        effects: &mut Vec<Effect>,
    ) {
        if !self.source.is_open() || self.is_ending() {
            return;
        }
        self.reading_began = true;
        match message {
            Message::Begin { final_lsn, commit_time, .. } => {
                self.passed(now, final_lsn, effects);
                self.transaction =
                    Some(Transaction { commit_lsn: final_lsn, committed_at: commit_time, rows: 0 });
                self.ledger.begin();
            }
            Message::Commit { end_lsn, .. } => {
                if self.transaction.take().is_none() {
                    return self.out_of_protocol(now, "a Commit without its Begin", effects);
                }
                self.stats.transactions += 1;
                self.passed(now, end_lsn, effects);
                if !self.is_ending() {
                    self.ledger.commit(now, end_lsn);
                }
            }
            Message::Relation(relation) => self.mapper.learn(relation),
            Message::Insert { relation_id, new } => {
                self.insert(now, relation_id, &new, effects);
            }
            Message::Update { .. } => self.stats.updates += 1,
            Message::Delete { .. } => self.stats.deletes += 1,
            Message::Truncate { .. } => self.stats.truncates += 1,
            Message::Message { .. } => self.stats.messages += 1,
            Message::Type { .. } | Message::Origin { .. } => self.stats.other_records += 1,
        }
    }

    fn out_of_protocol(&mut self, now: Duration, what: &str, effects: &mut Vec<Effect>) {
        let message = format!("the replication stream holds {what}");
        self.halt(now, Failure::halt("protocol", message), effects);
    }

    fn insert(&mut self, now: Duration, id: u32, row: &Tuple, effects: &mut Vec<Effect>) {
        let Some(transaction) = &mut self.transaction else {
            return self.out_of_protocol(now, "an Insert outside a transaction", effects);
        };
        let Some((relation, table)) = self.mapper.find(id) else {
            return self.out_of_protocol(now, "an Insert before its Relation record", effects);
        };
        // Every inserted row counts, whatever its table, so that a row keeps its position when
        // tables are added to the configuration or taken out of it.
        let position = Position { commit_lsn: transaction.commit_lsn, ordinal: transaction.rows };
        let committed_at = transaction.committed_at;
        transaction.rows += 1;
        match table {
            Table::Foreign => {
                if self.stats.foreign_rows == 0 {
                    let table = format!("{}.{}", relation.namespace, relation.name);
                    effects.push(Effect::Notice(Notice::ForeignTable { table }));
                }
                self.stats.foreign_rows += 1;
                self.meet(now, position, None, effects);
            }
            Table::Unmappable(missing) => {
                let failure = Failure::halt("mapped_column_missing", missing.to_string()).advise(
                    format!("mend the mapping, then start again: the row at {position} is kept"),
                );
                self.halt(now, failure, effects);
            }
            Table::Outbox(mapping) => {
                let mapping = Arc::clone(mapping);
                self.stats.rows += 1;
                if self.high_water.is_some_and(|high_water| position <= high_water) {
                    if self.to_meet.is_some() {
                        let outgoing = self.outgoing(&mapping, &relation, row, position, 0);
                        let outgoing = outgoing.ok().flatten();
                        let id = outgoing.as_ref().and_then(|o| o.headers.get(headers::EVENT_ID));
                        self.meet(now, position, id, effects);
                    }
                    self.stats.already_in_stream += 1;
                    return self.ledger.event(position, true);
                }
                match self.outgoing(&mapping, &relation, row, position, committed_at) {
                    Ok(Some(outgoing)) => {
                        self.queue(now, position, committed_at, outgoing, effects)
                    }
                    Ok(None) => {
                        self.stats.dropped_by_rule += 1;
                        self.ledger.event(position, true);
                    }
                    Err(reason) => self.bad_row(now, &mapping, position, &reason, effects),
                }
            }
        }
    }

    /// An event that the stream does not show.
    fn queue(
        &mut self,
        now: Duration,
        position: Position,
        committed_at: i64,
        outgoing: Outgoing,
        effects: &mut Vec<Effect>,
    ) {
        self.meet(now, position, outgoing.headers.get(headers::EVENT_ID), effects);
        if self.is_ending() {
            return;
        }
        if self.unseen > 0 {
            self.seen_to_be_in(position);
            self.stats.already_in_stream += 1;
            return self.ledger.event(position, true);
        }
        self.ledger.event(position, false);
        let outgoing = Arc::new(outgoing);
        self.pipeline.push(InFlight { position, committed_at, outgoing });
    }

    /// The message for a row; `None` when a rule drops it.
    fn outgoing(
        &self,
        mapping: &RowMapping,
        relation: &Relation,
        row: &Tuple,
        position: Position,
        committed_at: i64,
    ) -> Result<Option<Outgoing>, String> {
        let source = self.identity.as_ref().ok_or("the source's identity is not known")?;
        let place = Place { position, committed_at, source };
        let Some((event, outgoing)) = message(mapping, relation, row, place)? else {
            return Ok(None);
        };
        let (bytes, max) = (outgoing.wire_bytes(), self.message_bytes_max);
        if bytes > max {
            let event_id = headers::encode_value(&event.event_id);
            return Err(format!(
                "event {event_id}: the message of {bytes} bytes (headers and body) is over the \
                 limit of {max} that the server and the stream set"
            ));
        }
        Ok(Some(outgoing))
    }

    fn bad_row(
        &mut self,
        now: Duration,
        mapping: &RowMapping,
        position: Position,
        reason: &str,
        effects: &mut Vec<Effect>,
    ) {
        let outbox = mapping.outbox();
        let message = format!(
            "the row at {position} of {}.{} cannot be published: {reason}",
            outbox.schema, outbox.table
        );
        let failure = Failure::halt("bad_row", message).advise(
            "nothing after it is published; mend the mapping or the limit it names, then start again",
        );
        self.halt(now, failure, effects);
    }
}
