//! A core, and the means to hand it inputs and look at its effects.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::wildcard_enum_match_arm, reason = "every other effect is handed on")]

use std::time::Duration;

use bytes::Bytes;
use event::{Lsn, Position, SourceId, headers};
use pgoutput::{Column, Message, Relation, Tuple, Value};
use relay_core::{
    Core, Effect, Exit, Failure, FieldSource, Fields, Input, Occupant, Options, Outbox, Record,
    Route, SinkOpened, SourceStarted, StreamEnd, SubjectTemplate,
};

pub(crate) const SECOND: Duration = Duration::from_secs(1);

pub(crate) struct Machine {
    pub(crate) core: Core,
    pub(crate) now: Duration,
    /// The record in the database; stored at once unless `record_hangs`.
    pub(crate) record: Option<Record>,
    pub(crate) record_hangs: bool,
}

impl Machine {
    /// A core with both sessions up and nothing in the stream.
    pub(crate) fn streaming(change: impl FnOnce(&mut Options)) -> Self {
        let mut machine = Self::started(change);
        machine.give(Input::SinkOpened(opened(None, 0)));
        machine
    }

    pub(crate) fn new(options: Options) -> Self {
        let core = Core::new(options);
        Self { core, now: Duration::ZERO, record: None, record_hangs: false }
    }

    pub(crate) fn started(change: impl FnOnce(&mut Options)) -> Self {
        let mut options = options();
        change(&mut options);
        let mut machine = Self::new(options);
        assert_eq!(names(&machine.give(Input::Start)), ["OpenSource"]);
        let effects = machine.start_source(|_| ());
        assert_eq!(names(&effects), ["SourceStarted", "OpenSink"]);
        machine
    }

    /// A core that was told to start.
    pub(crate) fn new_started() -> Self {
        let mut machine = Self::new(options());
        machine.give(Input::Start);
        machine
    }

    /// Hands an input in, and stores the record for as long as the core wants it stored.
    pub(crate) fn give(&mut self, input: Input) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.core.step(self.now, input, &mut effects);
        let mut done = Vec::new();
        while !effects.is_empty() {
            let mut stored = false;
            for effect in effects.drain(..) {
                match effect {
                    Effect::Store(record) => {
                        self.record = Some(record);
                        stored = !self.record_hangs;
                    }
                    other => done.push(other),
                }
            }
            if stored {
                self.core.step(self.now, Input::RecordStored, &mut effects);
            }
        }
        done
    }

    /// The replication session is up, and finds the record as it was left.
    pub(crate) fn start_source(&mut self, change: impl FnOnce(&mut SourceStarted)) -> Vec<Effect> {
        let mut started = SourceStarted {
            system_identifier: 7,
            timeline: 1,
            confirmed_flush_lsn: Lsn::new(1),
            wal_end: Lsn::new(0x1000),
            forks: Vec::new(),
            record: self.record.clone(),
            record_is_foreign: false,
        };
        change(&mut started);
        self.give(Input::SourceStarted(started))
    }

    /// Both sessions are lost with the process, and a new one finds the record.
    pub(crate) fn restart(&mut self, change: impl FnOnce(&mut Options)) {
        let mut options = options();
        change(&mut options);
        self.core = Core::new(options);
        self.give(Input::Start);
    }

    /// A whole transaction; gives the effects of all of it.
    pub(crate) fn transaction(&mut self, commit_lsn: u64, rows: &[Tuple]) -> Vec<Effect> {
        let final_lsn = Lsn::new(commit_lsn);
        let mut messages = vec![Message::Begin { final_lsn, commit_time: 0, xid: 1 }];
        messages.push(Message::Relation(relation(&["id", "aggregate"])));
        messages
            .extend(rows.iter().map(|row| Message::Insert { relation_id: 1, new: row.clone() }));
        messages.push(Message::Commit {
            flags: 0,
            commit_lsn: final_lsn,
            end_lsn: Lsn::new(commit_lsn + 8),
            commit_time: 0,
        });
        messages.into_iter().flat_map(|message| self.give(Input::Source(message))).collect()
    }

    pub(crate) fn acked(&mut self, count: u64) -> Vec<Effect> {
        self.give(Input::Acked { count, sequence: count })
    }

    /// Lets time pass to the next deadline.
    pub(crate) fn deadline(&mut self) -> Vec<Effect> {
        let (at, _) = self.core.poll_timeout().unwrap();
        self.now = self.now.max(at);
        self.give(Input::Deadline)
    }
}

pub(crate) fn options() -> Options {
    let column = |name: &str| FieldSource::Column(name.to_owned());
    let constant = |text: &str| FieldSource::Constant(text.to_owned());
    let outbox = Outbox {
        schema: "public".into(),
        table: "outbox".into(),
        fields: Fields {
            event_id: column("id"),
            aggregate_type: constant("thing"),
            aggregate_id: column("aggregate"),
            aggregate_version: None,
            event_type: constant("Changed"),
            payload: constant("{}"),
            occurred_at: None,
        },
        headers: Vec::new(),
        route: Route {
            subject: SubjectTemplate::parse("events.{aggregate_id}").unwrap(),
            types: Vec::new(),
        },
        message_id_prefix: "public.outbox".into(),
    };
    Options {
        relay: "shop".into(),
        outboxes: vec![outbox],
        atomic_transactions: false,
        hold_back: Duration::ZERO,
        confirm_interval: Duration::ZERO,
        in_flight_events_max: 3,
        in_flight_bytes_max: 1 << 20,
        ack_timeout: 5 * SECOND,
        retry_pause_min: SECOND,
        retry_pause_max: 8 * SECOND,
        stop_timeout: 10 * SECOND,
        seed: 1,
    }
}

pub(crate) fn relation(columns: &[&str]) -> Relation {
    let column = |name: &&str| Column {
        flags: 0,
        name: (*name).to_owned(),
        type_oid: 25,
        type_modifier: -1,
    };
    Relation {
        id: 1,
        namespace: "public".into(),
        name: "outbox".into(),
        replica_identity: b'd',
        columns: columns.iter().map(column).collect(),
    }
}

pub(crate) fn row(id: &'static str) -> Tuple {
    let text = |text: &'static str| Value::Text(Bytes::from_static(text.as_bytes()));
    Tuple { values: vec![text(id), text("a")] }
}

pub(crate) fn at(commit_lsn: u64, ordinal: u64) -> Position {
    Position { commit_lsn: Lsn::new(commit_lsn), ordinal }
}

pub(crate) fn opened(end: Option<Position>, last_sequence: u64) -> SinkOpened {
    let source = SourceId { relay: "shop".into(), system_identifier: 7, timeline: 1 };
    SinkOpened {
        end: end.map(|position| StreamEnd {
            position,
            source,
            sequence: last_sequence,
            event_id: None,
        }),
        gapless: true,
        last_sequence,
        stream_created: "once".into(),
        verified: Occupant::None,
        removing: false,
        message_bytes_max: 2_000,
        batch_events_max: 0,
    }
}

pub(crate) fn sink_failed(code: &str) -> Input {
    Input::SinkFailed(Failure::wait(code, "words"))
}

/// The effects in short: a publish by its event id, a notice by its kind.
pub(crate) fn names(effects: &[Effect]) -> Vec<String> {
    effects
        .iter()
        .map(|effect| match effect {
            Effect::Publish(message) => {
                format!("publish {}", message.headers.get(headers::EVENT_ID).unwrap())
            }
            Effect::PublishBatch(messages) => {
                let ids = messages.iter().map(|m| m.headers.get(headers::EVENT_ID).unwrap());
                format!("batch {}", ids.collect::<Vec<_>>().join(" "))
            }
            Effect::Confirm(lsn) => format!("confirm {lsn}"),
            Effect::Notice(notice) => {
                let text = format!("{notice:?}");
                text.split([' ', '{', '(']).next().unwrap().to_owned()
            }
            Effect::Exit(Exit::Stopped) => "exit".to_owned(),
            Effect::Exit(Exit::Halted(failure)) => format!("halt {}", failure.code),
            Effect::OpenSink { .. } => "OpenSink".to_owned(),
            Effect::Published { .. } => "published".to_owned(),
            Effect::Mend(_) => "Mend".to_owned(),
            Effect::Store(_) => unreachable!("the machine stores it"),
            Effect::OpenSource | Effect::AbortSource | Effect::CloseSink => format!("{effect:?}"),
        })
        .collect()
}
