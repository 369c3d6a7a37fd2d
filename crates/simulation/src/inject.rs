//! Faults, as they come over the world.

use std::time::Duration;

use relay_core::{Failure, Input};

use crate::Fault;
use crate::broker::Answer;
use crate::relay::HOLD_BACK;
use crate::world::World;

impl World {
    pub(crate) fn fault(&mut self, fault: Fault) -> Result<(), String> {
        let index = self.rng.usize(..self.relays.len());
        if !self.may_happen(fault, index) {
            return Ok(());
        }
        *self.report.faults.entry(fault).or_default() += 1;
        self.trace(|| format!("fault {fault:?}"));
        match fault {
            Fault::RelayKilled => return self.restart_relay(index),
            Fault::RelayFrozen => {
                let seconds = self.rng.u64(..60);
                self.relays[index].frozen_until = self.now + Duration::from_secs(seconds);
            }
            Fault::SourceLost => self.relays[index].cut_source(),
            Fault::SinkLost => {
                self.drop_sink(index);
                return self.input(index, lost());
            }
            Fault::AckLost => {
                if let Some(wire) = &mut self.relays[index].sink {
                    wire.back.pop_front();
                }
            }
            Fault::AckDoubled => {
                if let Some(wire) = &mut self.relays[index].sink
                    && let Some(answer) = wire.back.front().cloned()
                {
                    wire.back.push_front(answer);
                }
            }
            Fault::PublishLost => {
                if let Some(wire) = &mut self.relays[index].sink
                    && let Some(lost) = wire.there.pop_front()
                    && lost.messages.len() > 1
                    && self.rng.bool()
                {
                    // One message of the batch, and not the one that asks to store it.
                    wire.back.push_back((lost.index, Answer::Incomplete));
                }
            }
            Fault::BrokerSilent => {
                self.silent_until = self.now + Duration::from_millis(self.rng.u64(..12_000));
            }
            Fault::StreamFull => {
                self.broker.full_until = self.now + Duration::from_millis(self.rng.u64(..20_000));
            }
            Fault::TailLost => {
                let count = self.rng.usize(..6);
                self.broker.lose_tail(count);
                return self.broker_power_cut();
            }
            Fault::StreamRecreated => {
                self.broker.recreate();
                return self.broker_power_cut();
            }
            Fault::ConfirmForgotten => {
                self.database.forget_confirmation();
                self.cut_all_sources();
            }
            Fault::FastShutdown => {
                self.stopping_since = Some(self.now);
                let holder = self.relays.iter().position(|relay| relay.source.is_some());
                // Other sessions are ended first, so the relay hears of it.
                let told = |holder: &usize| self.relays[*holder].runs(self.now);
                if let Some(holder) = holder.filter(told) {
                    return self.input(holder, Input::SourceStopping);
                }
            }
            Fault::Failover | Fault::Restored => self.lose_end(fault == Fault::Failover),
            Fault::SlotRecreated => {
                self.database.recreate_slot();
                self.cut_all_sources();
                self.excused.push("slot_moved");
            }
            Fault::ForeignMessage => self.broker.append(crate::broker::Content::Foreign),
        }
        Ok(())
    }

    fn may_happen(&self, fault: Fault, index: usize) -> bool {
        let relay = &self.relays[index];
        let settled = self.tail_lost_at.is_none_or(|at| self.now > at + HOLD_BACK);
        let survivable = settled && !self.hold_back.is_zero() && !self.broker.removing;
        match fault {
            Fault::SourceLost => relay.source.is_some(),
            Fault::SinkLost => relay.sink.is_some() && relay.runs(self.now),
            // The newest six messages must still be held back.
            Fault::TailLost => {
                let held = self.broker.messages.iter().rev().take(6).all(|message| {
                    message.position().is_none_or(|at| at.commit_lsn > self.database.confirmed)
                });
                survivable && held
            }
            Fault::StreamRecreated => survivable && self.all_well(),
            // Nobody can tell a foreign message that has left from one of ours.
            Fault::ForeignMessage => !self.broker.removing,
            // A copy from before a recovery would undo it: that is for a person to see.
            Fault::Failover | Fault::Restored => {
                settled && self.all_well() && !self.broker.removing && !self.broker.has_replays()
            }
            Fault::SlotRecreated => {
                settled && self.all_well() && !self.broker.removing && self.database.has_record()
            }
            Fault::FastShutdown => self.stopping_since.is_none(),
            Fault::RelayKilled
            | Fault::RelayFrozen
            | Fault::AckLost
            | Fault::AckDoubled
            | Fault::PublishLost
            | Fault::BrokerSilent
            | Fault::StreamFull
            | Fault::ConfirmForgotten => true,
        }
    }

    /// A catastrophe comes alone: no other is being mended.
    fn all_well(&self) -> bool {
        self.stopping_since.is_none()
            && self.excused.is_empty()
            && self.relays.iter().all(|relay| relay.halted.is_none() && relay.mending.is_none())
    }

    fn cut_all_sources(&mut self) {
        for relay in &mut self.relays {
            relay.cut_source();
        }
    }

    /// The broker's power is gone, and every connection with it.
    fn broker_power_cut(&mut self) -> Result<(), String> {
        self.tail_lost_at = Some(self.now);
        for index in 0..self.relays.len() {
            let relay = &self.relays[index];
            let had_session =
                relay.sink.is_some() || relay.sink_opening.is_some() || relay.mending.is_some();
            self.drop_sink(index);
            if had_session && self.relays[index].halted.is_none() {
                self.input(index, lost())?;
            }
        }
        self.zombies.clear();
        Ok(())
    }

    fn lose_end(&mut self, new_timeline: bool) {
        let lost = self.rng.usize(..5);
        let fork = self.database.lose_end(lost, new_timeline);
        // A copy from before the last decision makes that one open again.
        let open = self.shared_below.filter(|_| self.decided_at > fork);
        self.shared_below = Some(open.map_or(fork, |open| open.min(fork)));
        self.late_records.clear();
        self.cut_all_sources();
        self.excused.extend(["timeline", "restored", "history"]);
    }
}

fn lost() -> Input {
    Input::SinkFailed(Failure::wait("connection_lost", "eof"))
}
