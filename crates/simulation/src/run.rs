use std::collections::BTreeMap;
use std::time::Duration;

use event::Lsn;
use fastrand::Rng;
use relay_core::{
    Core, Effect, Exit, Failure, FieldSource, Fields, Input, Options, Outbox, Route, SourceStarted,
    SubjectTemplate,
};

use crate::broker::{Answer, Broker, Wire};
use crate::database::{Database, Walsender};
use crate::{Bug, Fault, checks};

/// What a run did.
#[derive(Debug, Default)]
pub struct Report {
    /// Events committed.
    pub committed: usize,
    /// Faults injected, by kind.
    pub faults: BTreeMap<Fault, usize>,
    /// One line an input and effect: equal for equal seeds.
    pub trace: Vec<String>,
}

const STEPS: usize = 600;
const QUIET_STEPS: usize = 30_000;
const HOLD_BACK: Duration = Duration::from_secs(60);

/// Runs one seed: faults first, then quiet, then the checks.
///
/// # Errors
/// Says which promise broke, with the trace so far.
pub fn run(seed: u64) -> Result<Report, (String, Report)> {
    run_with(seed, None)
}

/// Runs one seed with a bug planted where the core meets the world.
///
/// # Errors
/// Says which promise broke, with the trace so far.
pub fn run_with(seed: u64, bug: Option<Bug>) -> Result<Report, (String, Report)> {
    let mut world = World::new(seed, bug);
    match world.live() {
        Ok(()) => Ok(world.report),
        Err(reason) => Err((reason, world.report)),
    }
}

struct World {
    rng: Rng,
    now: Duration,
    database: Database,
    broker: Broker,
    core: Core,
    source: Option<Walsender>,
    sink: Option<Wire>,
    /// Wires of lost sessions: what was under way on them may still arrive.
    zombies: Vec<Wire>,
    /// The sequence to look at, once a sink session is being opened.
    sink_opening: Option<Option<u64>>,
    source_opening: bool,
    silent_until: Duration,
    /// When the broker last lost its tail: until the hold-back time is over, another loss would
    /// lose what no relay can bring back.
    tail_lost_at: Option<Duration>,
    bug: Option<Bug>,
    report: Report,
}

impl World {
    fn new(seed: u64, bug: Option<Bug>) -> Self {
        let mut rng = Rng::with_seed(seed);
        let core = Core::new(options(rng.u64(..)));
        Self {
            rng,
            now: Duration::ZERO,
            database: Database::default(),
            broker: Broker::new(Duration::from_millis(100)),
            core,
            source: None,
            sink: None,
            zombies: Vec::new(),
            sink_opening: None,
            source_opening: false,
            silent_until: Duration::ZERO,
            tail_lost_at: None,
            bug,
            report: Report::default(),
        }
    }

    fn live(&mut self) -> Result<(), String> {
        self.input(Input::Start)?;
        for _ in 0..STEPS {
            self.now += Duration::from_millis(self.rng.u64(..400));
            match self.rng.u8(..20) {
                0..5 => self.database.commit(&mut self.rng),
                5 => self.fault()?,
                _ => self.progress()?,
            }
        }
        self.silent_until = self.now;
        for _ in 0..QUIET_STEPS {
            self.now += Duration::from_millis(100);
            self.progress()?;
            if self.is_quiet() {
                break;
            }
        }
        self.report.committed = self.database.rows().count();
        if !self.is_quiet() {
            return Err(format!("no quiet after the faults stopped: {:?}", self.core.status()));
        }
        checks::complete(&self.database, &self.broker)?;
        checks::undoubled(&self.broker)?;
        checks::ordered(&self.broker)
    }

    /// Everything committed is confirmed.
    fn is_quiet(&self) -> bool {
        let all = self.database.transactions.last().map_or(Lsn::ZERO, |t| t.end_lsn);
        self.database.confirmed >= all && self.zombies.is_empty()
    }

    /// One thing that goes on by itself.
    fn progress(&mut self) -> Result<(), String> {
        if let Some((at, _)) = self.core.poll_timeout()
            && self.now >= at
        {
            self.input(Input::Deadline)?;
        }
        match self.rng.u8(..6) {
            0 => self.open_sessions()?,
            1 | 2 => self.source_sends()?,
            3 => self.publish_arrives()?,
            4 => self.answer_arrives()?,
            _ => self.zombie_arrives(),
        }
        Ok(())
    }

    fn open_sessions(&mut self) -> Result<(), String> {
        if std::mem::take(&mut self.source_opening) {
            self.source = Some(Walsender::start(&self.database));
            return self.input(Input::SourceStarted(SourceStarted {
                system_identifier: 7,
                timeline: 1,
                confirmed_flush_lsn: self.database.confirmed,
            }));
        }
        if let Some(verify) = self.sink_opening
            && self.now >= self.silent_until
        {
            self.sink_opening = None;
            let opened = self.broker.open(verify);
            self.sink = Some(Wire::new(opened.last_sequence));
            return self.input(Input::SinkOpened(opened));
        }
        Ok(())
    }

    fn source_sends(&mut self) -> Result<(), String> {
        for _ in 0..1 + self.rng.usize(..8) {
            if !self.core.wants_source() {
                break;
            }
            let Some(source) = &mut self.source else { break };
            if source.caught_up(&self.database) {
                let wal_end = self.database.wal_end();
                return self.input(Input::Keepalive { wal_end, replies_requested: 0 });
            }
            if let Some(bytes) = source.send(&self.database) {
                let message = pgoutput::decode(bytes).map_err(|error| error.to_string())?;
                self.input(Input::Source(message))?;
            }
        }
        Ok(())
    }

    fn publish_arrives(&mut self) -> Result<(), String> {
        let now = self.now;
        let count = 1 + self.rng.usize(..4);
        if let Some(wire) = &mut self.sink
            && now >= self.silent_until
        {
            for _ in 0..count {
                let Some(mut publish) = wire.there.pop_front() else { break };
                if let Some(bug) = self.bug {
                    bug.loosen(&mut publish, self.broker.last_sequence());
                }
                let index = publish.index;
                let answer = self.broker.publish(now, publish);
                wire.back.push_back((index, answer));
            }
        }
        Ok(())
    }

    fn answer_arrives(&mut self) -> Result<(), String> {
        let Some(wire) = &mut self.sink else { return Ok(()) };
        let Some((index, answer)) = wire.back.pop_front() else { return Ok(()) };
        match answer {
            Answer::Stored(sequence) => {
                let count = wire.count(index);
                self.input(Input::Acked { count, sequence })
            }
            Answer::Duplicate(sequence) => {
                let stored = self.broker.position_at(sequence);
                self.input(Input::Duplicate { index, stored })
            }
            Answer::Refused => {
                self.drop_sink();
                self.input(Input::SinkFailed(Failure::wait("overtaken", "refused")))
            }
        }
    }

    /// Something of a lost session arrives late, or never.
    fn zombie_arrives(&mut self) {
        let Some(wire) = self.zombies.first_mut() else { return };
        match wire.there.pop_front() {
            Some(publish) if self.rng.bool() => {
                self.broker.publish(self.now, publish);
            }
            Some(_) => {}
            None => {
                self.zombies.remove(0);
            }
        }
    }

    fn fault(&mut self) -> Result<(), String> {
        let fault = Fault::ALL[self.rng.usize(..Fault::ALL.len())];
        if !self.may_happen(fault) {
            return Ok(());
        }
        *self.report.faults.entry(fault).or_default() += 1;
        self.report.trace.push(format!("{:?} fault {fault:?}", self.now));
        match fault {
            Fault::RelayKilled => return self.restart_relay(),
            Fault::SourceLost => {
                self.source = None;
                return self.input(Input::SourceFailed(Failure::wait("connection_lost", "eof")));
            }
            Fault::SinkLost => {
                self.drop_sink();
                return self.input(Input::SinkFailed(Failure::wait("connection_lost", "eof")));
            }
            Fault::AckLost => drop(self.sink.as_mut().and_then(|wire| wire.back.pop_front())),
            Fault::PublishLost => drop(self.sink.as_mut().and_then(|wire| wire.there.pop_front())),
            Fault::BrokerSilent => {
                self.silent_until = self.now + Duration::from_millis(self.rng.u64(..12_000));
            }
            Fault::TailLost => {
                let count = self.rng.usize(..6);
                self.broker.lose_tail(count);
                self.tail_lost_at = Some(self.now);
                self.drop_sink();
                // The broker's power is gone, and every connection with it.
                self.zombies.clear();
                return self.input(Input::SinkFailed(Failure::wait("connection_lost", "eof")));
            }
            Fault::ConfirmForgotten => {
                self.database.confirmed = self.database.confirmed_before;
                self.source = None;
                return self.input(Input::SourceFailed(Failure::wait("57P02", "crash")));
            }
            Fault::ForeignMessage => self.broker.foreign(),
        }
        Ok(())
    }

    fn may_happen(&self, fault: Fault) -> bool {
        match fault {
            Fault::SourceLost | Fault::ConfirmForgotten => self.source.is_some(),
            Fault::SinkLost => self.sink.is_some(),
            // The newest six messages must still be held back.
            Fault::TailLost => {
                let settled = self.tail_lost_at.is_none_or(|at| self.now > at + HOLD_BACK);
                let held = self.broker.messages.iter().rev().take(6).all(|message| {
                    message.position().is_none_or(|at| at.commit_lsn > self.database.confirmed)
                });
                self.sink.is_some() && settled && held
            }
            Fault::RelayKilled
            | Fault::AckLost
            | Fault::PublishLost
            | Fault::BrokerSilent
            | Fault::ForeignMessage => true,
        }
    }

    fn restart_relay(&mut self) -> Result<(), String> {
        self.drop_sink();
        self.source = None;
        self.sink_opening = None;
        self.source_opening = false;
        self.core = Core::new(options(self.rng.u64(..)));
        self.input(Input::Start)
    }

    fn drop_sink(&mut self) {
        if let Some(wire) = self.sink.take() {
            self.zombies.push(wire);
        }
    }

    fn input(&mut self, mut input: Input) -> Result<(), String> {
        let mut effects = Vec::new();
        if let Some(bug) = self.bug {
            bug.plant(&mut input, &mut effects);
        }
        self.report.trace.push(format!("{:?} {input:?}", self.now));
        self.core.step(self.now, input, &mut effects);
        for effect in effects {
            self.report.trace.push(format!("{:?}   {effect:?}", self.now));
            match effect {
                Effect::OpenSource => self.source_opening = true,
                Effect::AbortSource => self.source = None,
                Effect::OpenSink { verify } => self.sink_opening = Some(verify),
                Effect::CloseSink => {
                    self.sink_opening = None;
                    self.drop_sink();
                }
                Effect::Publish(outgoing) => match &mut self.sink {
                    Some(wire) => wire.publish(outgoing),
                    None => return Err("a publish without a session".into()),
                },
                Effect::Confirm(lsn) => {
                    checks::not_ahead(&self.database, &self.broker, lsn)?;
                    self.database.confirm(lsn);
                }
                Effect::Published { .. } | Effect::Notice(_) => {}
                Effect::Exit(Exit::Stopped) => return Err("stopped unasked".into()),
                Effect::Exit(Exit::Halted(failure)) => return Err(format!("halted: {failure}")),
            }
        }
        Ok(())
    }
}

fn options(seed: u64) -> Options {
    let column = |name: &str| FieldSource::Column(name.to_owned());
    let subject = SubjectTemplate::parse("events.{aggregate_id}");
    Options {
        relay: "sim".into(),
        outboxes: subject
            .map(|subject| Outbox {
                schema: "public".into(),
                table: "outbox".into(),
                fields: Fields {
                    event_id: column("event_id"),
                    aggregate_type: FieldSource::Constant("thing".into()),
                    aggregate_id: column("aggregate_id"),
                    aggregate_version: Some(column("aggregate_version")),
                    event_type: FieldSource::Constant("Changed".into()),
                    payload: FieldSource::Constant("{}".into()),
                    occurred_at: None,
                },
                headers: Vec::new(),
                route: Route { subject, types: Vec::new() },
                message_id_prefix: "public.outbox".into(),
            })
            .into_iter()
            .collect(),
        hold_back: HOLD_BACK,
        in_flight_events_max: 16,
        in_flight_bytes_max: 1 << 20,
        ack_timeout: Duration::from_secs(5),
        retry_pause_min: Duration::from_secs(1),
        retry_pause_max: Duration::from_secs(15),
        stop_timeout: Duration::from_secs(10),
        seed,
    }
}
