use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fastrand::Rng;
use relay_core::{
    CODE_BATCH_DUPLICATE, CODE_BATCH_INCOMPLETE, CODE_OVERTAKEN, Effect, Exit, Failure,
    FailureClass, Input, Notice, Record, SourceStarted,
};

use crate::broker::{Answer, Broker, Publish, Wire};
use crate::database::{Database, Walsender};
use crate::fault::Planned;
use crate::relay::{HOLD_BACK, Relay};
use crate::{Bug, Fault, checks};

/// What a run did.
#[derive(Debug, Default)]
pub struct Report {
    /// Events committed.
    pub committed: usize,
    /// Faults injected, by kind.
    pub faults: BTreeMap<Fault, usize>,
    /// How often a person had to decide, by the code of the halt.
    pub decisions: BTreeMap<String, usize>,
    /// One line an input and effect, where the run was asked for it: equal for equal seeds.
    pub trace: Vec<String>,
}

pub(crate) const STEPS: usize = 700;
const QUIET_STEPS: usize = 60_000;
/// A server frees the slot of a client that it has not heard of for so long.
const SENDER_TIMEOUT: Duration = Duration::from_secs(30);
/// A server that goes down may be kept waiting for so long.
const SHUTDOWN_WITHIN: Duration = Duration::from_secs(30);

/// How a run differs from others.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) seed: u64,
    pub(crate) bug: Option<Bug>,
    pub(crate) trace: bool,
    pub(crate) plan: Vec<Planned>,
}

pub(crate) struct World {
    pub(crate) settings: Settings,
    pub(crate) rng: Rng,
    pub(crate) now: Duration,
    pub(crate) database: Database,
    pub(crate) broker: Broker,
    pub(crate) relays: Vec<Relay>,
    /// Wires of lost sessions: what was under way on them may still arrive.
    pub(crate) zombies: Vec<Wire>,
    /// Records of lost sessions that may still arrive, with their generation.
    pub(crate) late_records: Vec<(u64, Record)>,
    /// Transactions that a relay said would not appear at once.
    split: BTreeSet<event::Lsn>,
    pub(crate) silent_until: Duration,
    /// Since when the database server waits for its sessions to go down.
    pub(crate) stopping_since: Option<Duration>,
    /// When the broker last lost something: until the hold-back time is over, another loss would
    /// not be one of a tail.
    pub(crate) tail_lost_at: Option<Duration>,
    /// Zero in some runs: then no loss of the broker is survivable.
    pub(crate) hold_back: Duration,
    /// Halts that the faults so far excuse.
    pub(crate) excused: Vec<&'static str>,
    /// Up to where the database shares its log with the copy that it was before.
    pub(crate) shared_below: Option<event::Lsn>,
    /// Where the log ended when a person last decided.
    pub(crate) decided_at: event::Lsn,
    processes: u64,
    pub(crate) report: Report,
}

impl World {
    pub(crate) fn new(settings: Settings) -> Self {
        let mut rng = Rng::with_seed(settings.seed);
        let removing = rng.u8(..5) == 0;
        let count = if rng.u8(..3) == 0 { 2 } else { 1 };
        let hold_back = if rng.u8(..4) == 0 { Duration::ZERO } else { HOLD_BACK };
        let relays = (0..count).map(|n| Relay::new(n, rng.u64(..), hold_back)).collect();
        // None at all, fewer than the largest transaction has rows, and enough for all.
        let batch_max = [0, 0, 3, 1_000][rng.usize(..4)];
        Self {
            settings,
            rng,
            now: Duration::ZERO,
            database: Database::default(),
            broker: Broker::new(Duration::from_millis(100), removing, batch_max),
            relays,
            zombies: Vec::new(),
            late_records: Vec::new(),
            split: BTreeSet::new(),
            silent_until: Duration::ZERO,
            stopping_since: None,
            tail_lost_at: None,
            hold_back,
            excused: Vec::new(),
            shared_below: None,
            decided_at: event::Lsn::ZERO,
            processes: count,
            report: Report::default(),
        }
    }

    pub(crate) fn live(&mut self) -> Result<(), String> {
        for index in 0..self.relays.len() {
            self.input(index, Input::Start)?;
        }
        let mut plan = std::mem::take(&mut self.settings.plan).into_iter().peekable();
        for step in 0..STEPS {
            // Each step has its own dice, so that a plan with a fault less is the same run but for
            // that fault.
            self.rng = Rng::with_seed(
                self.settings.seed ^ (step as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15),
            );
            self.now += Duration::from_millis(self.rng.u64(..400));
            if self.rng.u8(..4) == 0 && self.stopping_since.is_none() {
                self.database.commit(&mut self.rng);
            }
            while let Some(planned) = plan.next_if(|planned| planned.step <= step) {
                self.fault(planned.fault)?;
            }
            self.progress()?;
        }
        self.silent_until = self.now;
        self.broker.full_until = self.now;
        for _ in 0..QUIET_STEPS {
            self.now += Duration::from_millis(100);
            self.progress()?;
            if self.is_quiet() {
                break;
            }
        }
        self.report.committed = self.database.rows().count();
        if !self.is_quiet() {
            let status: Vec<_> = self.relays.iter().map(|relay| relay.core.status()).collect();
            return Err(format!("no quiet after the faults stopped: {status:?}"));
        }
        checks::complete(&self.database, &self.broker)?;
        checks::undoubled(&self.broker)?;
        checks::ordered(&self.database, &self.broker)
    }

    /// Every committed row is confirmed.
    fn is_quiet(&self) -> bool {
        self.database.confirmed >= self.database.last_row_end()
            && self.zombies.is_empty()
            && !self.excused.contains(&"slot_moved")
            && self.stopping_since.is_none()
    }

    /// One thing that goes on by itself in each relay.
    fn progress(&mut self) -> Result<(), String> {
        for index in 0..self.relays.len() {
            self.frozen_too_long(index);
            self.publish_arrives(index)?;
            let relay = &self.relays[index];
            if relay.halted.is_some() {
                self.decide(index)?;
                continue;
            }
            if !relay.runs(self.now) {
                continue;
            }
            if let Some((at, _)) = relay.core.poll_timeout()
                && self.now >= at
            {
                self.input(index, Input::Deadline)?;
            }
            match self.rng.u8(..7) {
                0 => self.open_source(index)?,
                1 => self.open_sink(index)?,
                2 | 3 => self.source_sends(index)?,
                4 => self.answer_arrives(index)?,
                5 => self.record_arrives(index)?,
                _ => self.mends(index)?,
            }
        }
        self.zombie_arrives()?;
        self.consume();
        self.shutdown_goes_on()
    }

    /// The server lets go of a session whose client is silent.
    fn frozen_too_long(&mut self, index: usize) {
        let relay = &mut self.relays[index];
        let frozen_for = relay.frozen_until.saturating_sub(self.now);
        if relay.source.is_some() && frozen_for > SENDER_TIMEOUT {
            relay.cut_source();
        }
    }

    fn open_source(&mut self, index: usize) -> Result<(), String> {
        if !std::mem::take(&mut self.relays[index].source_opening) {
            return Ok(());
        }
        if self.stopping_since.is_some() {
            return self.input(index, Input::SourceFailed(Failure::wait("57P03", "going down")));
        }
        let held = self.relays.iter().any(|relay| relay.source.is_some());
        if held {
            let class = FailureClass::SlotHeld { pid: Some(1) };
            let failure = Failure { class, ..Failure::wait("55006", "held") };
            return self.input(index, Input::SourceFailed(failure));
        }
        self.relays[index].source = Some(Walsender::start(&self.database));
        let (record, record_is_foreign, generation) =
            self.database.claim(self.relays[index].process);
        self.relays[index].generation = generation;
        let identity = self.database.identity();
        let started = SourceStarted {
            system_identifier: identity.system_identifier,
            timeline: identity.timeline,
            confirmed_flush_lsn: self.database.confirmed,
            wal_end: self.database.wal_end(),
            forks: self.database.forks.clone(),
            record,
            record_is_foreign,
        };
        self.input(index, Input::SourceStarted(started))
    }

    fn open_sink(&mut self, index: usize) -> Result<(), String> {
        if let Some(verify) = self.relays[index].sink_opening
            && self.now >= self.silent_until
        {
            self.relays[index].sink_opening = None;
            let opened = self.broker.open(verify);
            self.relays[index].sink = Some(Wire::new(opened.last_sequence));
            return self.input(index, Input::SinkOpened(opened));
        }
        Ok(())
    }

    fn source_sends(&mut self, index: usize) -> Result<(), String> {
        if std::mem::take(&mut self.relays[index].source_cut) {
            self.relays[index].storing = None;
            return self.input(index, Input::SourceFailed(Failure::wait("connection_lost", "eof")));
        }
        for _ in 0..1 + self.rng.usize(..8) {
            let relay = &mut self.relays[index];
            if !relay.core.wants_source() {
                break;
            }
            let Some(source) = &mut relay.source else { break };
            if source.caught_up(&self.database) {
                let wal_end = self.database.wal_end();
                return self.input(index, Input::Keepalive { wal_end, replies_requested: 0 });
            }
            if let Some(bytes) = source.send(&self.database) {
                let message = pgoutput::decode(bytes).map_err(|error| error.to_string())?;
                self.input(index, Input::Source(message))?;
            }
        }
        Ok(())
    }

    fn publish_arrives(&mut self, index: usize) -> Result<(), String> {
        let count = 1 + self.rng.usize(..4);
        if self.now < self.silent_until || self.rng.bool() {
            return Ok(());
        }
        for _ in 0..count {
            let Some(wire) = &mut self.relays[index].sink else { break };
            let Some(publish) = wire.there.pop_front() else { break };
            let answer = (publish.index, self.stream_takes(publish)?);
            if let Some(wire) = &mut self.relays[index].sink {
                wire.back.push_back(answer);
            }
        }
        Ok(())
    }

    fn stream_takes(&mut self, mut publish: Publish) -> Result<Answer, String> {
        if let Some(bug) = self.settings.bug {
            bug.loosen(&mut publish, self.broker.last_sequence());
        }
        let answer = self.broker.publish(self.now, publish);
        if matches!(answer, Answer::Stored(_)) {
            checks::at_once(&self.database, &self.broker, &self.split)?;
        }
        Ok(answer)
    }

    fn answer_arrives(&mut self, index: usize) -> Result<(), String> {
        let Some(wire) = &mut self.relays[index].sink else { return Ok(()) };
        let Some((publish, answer)) = wire.back.pop_front() else { return Ok(()) };
        match answer {
            Answer::Stored(sequence) => {
                let count = wire.count(publish);
                self.input(index, Input::Acked { count, sequence })
            }
            Answer::Duplicate(sequence) => {
                let stored = self.broker.position_at(sequence);
                self.input(index, Input::Duplicate { index: publish, stored })
            }
            Answer::Refused => self.refused(index, CODE_OVERTAKEN),
            Answer::Full => self.refused(index, "stream_full"),
            Answer::Incomplete => self.refused(index, CODE_BATCH_INCOMPLETE),
            Answer::DuplicateInBatch => self.refused(index, CODE_BATCH_DUPLICATE),
        }
    }

    fn refused(&mut self, index: usize, code: &str) -> Result<(), String> {
        self.drop_sink(index);
        self.input(index, Input::SinkFailed(Failure::wait(code, "refused")))
    }

    fn record_arrives(&mut self, index: usize) -> Result<(), String> {
        if self.stopping_since.is_some() || self.relays[index].source_cut {
            return Ok(());
        }
        let Some(record) = self.relays[index].storing.take() else { return Ok(()) };
        if self.database.store(self.relays[index].generation, record) {
            return self.input(index, Input::RecordStored);
        }
        self.relays[index].source = None;
        self.input(index, Input::SourceFailed(Failure::wait("record_taken_over", "overtaken")))
    }

    /// Something of a lost session arrives late, or never.
    fn zombie_arrives(&mut self) -> Result<(), String> {
        if let Some((generation, record)) = self.late_records.pop()
            && self.rng.bool()
        {
            self.database.store(generation, record);
        }
        let Some(wire) = self.zombies.first_mut() else { return Ok(()) };
        match wire.there.pop_front() {
            Some(publish) if self.rng.bool() => {
                self.stream_takes(publish)?;
            }
            Some(_) => {}
            None => {
                self.zombies.remove(0);
            }
        }
        Ok(())
    }

    fn consume(&mut self) {
        let pick = self.rng.usize(..12);
        self.broker.consume(pick);
    }

    /// The server goes down once nobody holds the slot, or everything is confirmed.
    fn shutdown_goes_on(&mut self) -> Result<(), String> {
        let Some(since) = self.stopping_since else { return Ok(()) };
        let held = self.relays.iter().position(|relay| relay.source.is_some());
        let holder = match held {
            Some(holder) if self.database.confirmed < self.database.wal_end() => holder,
            Some(_) | None => {
                self.stopping_since = None;
                self.relays.iter_mut().for_each(Relay::cut_source);
                return Ok(());
            }
        };
        if !self.relays[holder].runs(self.now) {
            self.relays[holder].cut_source();
            return Ok(());
        }
        if self.now > since + SHUTDOWN_WITHIN {
            return Err("the relay keeps the database server from going down".into());
        }
        let caught_up = self.relays[holder]
            .source
            .as_ref()
            .is_some_and(|source| source.caught_up(&self.database));
        if caught_up && self.relays[holder].core.wants_source() {
            let wal_end = self.database.wal_end();
            return self.input(holder, Input::Keepalive { wal_end, replies_requested: 20 });
        }
        Ok(())
    }

    pub(crate) fn restart_relay(&mut self, index: usize) -> Result<(), String> {
        self.drop_sink(index);
        let relay = &mut self.relays[index];
        if let Some(record) = relay.storing.take() {
            self.late_records.push((relay.generation, record));
        }
        self.processes += 1;
        self.relays[index] = Relay::new(self.processes, self.rng.u64(..), self.hold_back);
        self.input(index, Input::Start)
    }

    pub(crate) fn drop_sink(&mut self, index: usize) {
        let relay = &mut self.relays[index];
        relay.mending = None;
        relay.sink_opening = None;
        if let Some(wire) = relay.sink.take() {
            self.zombies.push(wire);
        }
    }

    pub(crate) fn input(&mut self, index: usize, mut input: Input) -> Result<(), String> {
        let mut effects = Vec::new();
        if let Some(bug) = self.settings.bug {
            bug.plant(&mut input, &mut effects);
        }
        self.trace(|| format!("relay {index}: {input:?}"));
        self.relays[index].core.step(self.now, input, &mut effects);
        if let Some(bug) = self.settings.bug {
            bug.bend(&mut effects);
        }
        for effect in effects {
            self.trace(|| format!("relay {index}:   {effect:?}"));
            match &effect {
                Effect::CloseSink => self.drop_sink(index),
                Effect::Exit(Exit::Stopped) => return Err("stopped unasked".into()),
                Effect::Exit(Exit::Halted(failure)) => {
                    if !self.excused.contains(&failure.code.as_str()) {
                        return Err(format!("halted: {failure}"));
                    }
                    self.relays[index].halted = Some(failure.code.clone());
                    self.relays[index].source = None;
                    self.relays[index].source_cut = false;
                    self.drop_sink(index);
                }
                Effect::AbortSource => {
                    let relay = &mut self.relays[index];
                    if let Some(record) = relay.storing.take() {
                        self.late_records.push((relay.generation, record));
                    }
                }
                Effect::OpenSource
                | Effect::OpenSink { .. }
                | Effect::Publish(_)
                | Effect::PublishBatch(_)
                | Effect::Published { .. }
                | Effect::Confirm(_)
                | Effect::Store(_)
                | Effect::Mend(_) => {}
                Effect::Notice(Notice::Split { position, .. }) => {
                    self.split.insert(position.commit_lsn);
                }
                Effect::Notice(_) => {}
            }
            if let Some(lsn) = self.relays[index].carry_out(effect)? {
                checks::not_ahead(&self.database, &self.broker, lsn)?;
                self.database.confirm(lsn);
            }
        }
        Ok(())
    }

    pub(crate) fn trace(&mut self, line: impl FnOnce() -> String) {
        if self.settings.trace {
            let line = format!("{:>8.1}s {}", self.now.as_secs_f64(), line());
            self.report.trace.push(line);
        }
    }
}
