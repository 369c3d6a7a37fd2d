//! What a person does when a relay halts, and what the relay's shell does to mend a lost tail.

use std::collections::BTreeSet;

use event::Lsn;
use relay_core::{Input, Scene};

use crate::broker::Content;
use crate::database::Row;
use crate::world::World;

impl World {
    /// Decides as the documentation advises, and starts the relay again.
    pub(crate) fn decide(&mut self, index: usize) -> Result<(), String> {
        let Some(code) = self.relays[index].halted.clone() else { return Ok(()) };
        // Every relay is stopped first, and what it had sent has arrived or will not.
        for relay in &mut self.relays {
            (relay.source, relay.sink, relay.source_cut) = (None, None, false);
        }
        self.zombies.clear();
        self.late_records.clear();
        *self.report.decisions.entry(code.clone()).or_default() += 1;
        self.trace(|| format!("a person decides about {code}"));
        if code == "slot_moved" {
            let lacking = self.lacking(self.database.confirmed);
            lacking.into_iter().for_each(|row| self.broker.append(Content::Replayed(row)));
        }
        let scene = Scene {
            source: self.database.identity(),
            slot_position: self.database.confirmed,
            record: self.database.record(),
            stream: self.broker.open(None),
        };
        self.database.declare(match self.shared_below {
            Some(shared_below) if code != "slot_moved" => scene.adopt(shared_below),
            Some(_) | None => scene.settle_before_slot(),
        });
        self.decided_at = self.database.wal_end();
        self.excused.clear();
        (0..self.relays.len()).try_for_each(|index| self.restart_relay(index))
    }

    /// The rows that are in the table and not in the stream, and were committed before an LSN.
    fn lacking(&self, before: Lsn) -> Vec<Row> {
        let stored: BTreeSet<&str> =
            self.broker.messages.iter().filter_map(|message| message.event_id()).collect();
        let lacking =
            self.database.rows_before(before).filter(|row| !stored.contains(row.event_id.as_str()));
        lacking.cloned().collect()
    }

    /// The shell publishes what the stream lost from the table, or a part of it before it is cut
    /// off.
    pub(crate) fn mends(&mut self, index: usize) -> Result<(), String> {
        if self.now < self.silent_until {
            return Ok(());
        }
        let Some(range) = self.relays[index].mending.clone() else { return Ok(()) };
        for row in self.lacking(range.slot_position) {
            if self.rng.u8(..8) == 0 {
                return Ok(());
            }
            self.broker.append(Content::Replayed(row));
        }
        self.relays[index].mending = None;
        let mut replayed = self.broker.messages.iter().rev().filter(|message| {
            let after = range.after.map_or(0, |after| after.sequence);
            matches!(message.content, Content::Replayed(_)) && message.sequence > after
        });
        let sequence = replayed.next().map(|message| message.sequence);
        self.input(index, Input::Mended { range, sequence })
    }
}
