//! The state machine, input by input.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use bytes::Bytes;
use event::{Lsn, Position, SourceId, headers};
use pgoutput::{Column, Message, Relation, Tuple, Value};
use relay_core::{
    Core, Effect, Exit, Failure, FailureClass, FieldSource, Fields, Input, Link, Notice, Occupant,
    Options, Outbox, Route, SinkOpened, SourceStarted, StreamEnd, SubjectTemplate,
};

const SECOND: Duration = Duration::from_secs(1);

struct Machine {
    core: Core,
    now: Duration,
}

impl Machine {
    /// A core with both sessions up and nothing in the stream.
    fn streaming(change: impl FnOnce(&mut Options)) -> Self {
        let mut machine = Self::started(change);
        machine.give(Input::SinkOpened(opened(None, 0)));
        machine
    }

    fn started(change: impl FnOnce(&mut Options)) -> Self {
        let mut options = options();
        change(&mut options);
        let mut machine = Self { core: Core::new(options), now: Duration::ZERO };
        assert_eq!(names(&machine.give(Input::Start)), ["OpenSource"]);
        let effects = machine.give(source_started(7));
        assert_eq!(names(&effects), ["SourceStarted", "OpenSink"]);
        machine
    }

    fn give(&mut self, input: Input) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.core.step(self.now, input, &mut effects);
        effects
    }

    /// A whole transaction; gives the effects of all of it.
    fn transaction(&mut self, commit_lsn: u64, rows: &[Tuple]) -> Vec<Effect> {
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

    fn acked(&mut self, count: u64) -> Vec<Effect> {
        self.give(Input::Acked { count, sequence: count })
    }

    /// Lets time pass to the next deadline.
    fn deadline(&mut self) -> Vec<Effect> {
        let (at, _) = self.core.poll_timeout().unwrap();
        self.now = self.now.max(at);
        self.give(Input::Deadline)
    }
}

fn options() -> Options {
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
        hold_back: Duration::ZERO,
        in_flight_events_max: 3,
        in_flight_bytes_max: 1 << 20,
        ack_timeout: 5 * SECOND,
        retry_pause_min: SECOND,
        retry_pause_max: 8 * SECOND,
        stop_timeout: 10 * SECOND,
        seed: 1,
    }
}

fn relation(columns: &[&str]) -> Relation {
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

fn row(id: &'static str) -> Tuple {
    let text = |text: &'static str| Value::Text(Bytes::from_static(text.as_bytes()));
    Tuple { values: vec![text(id), text("a")] }
}

fn source_started(system_identifier: u64) -> Input {
    Input::SourceStarted(SourceStarted {
        system_identifier,
        timeline: 1,
        confirmed_flush_lsn: Lsn::new(1),
    })
}

fn at(commit_lsn: u64, ordinal: u64) -> Position {
    Position { commit_lsn: Lsn::new(commit_lsn), ordinal }
}

fn opened(end: Option<Position>, last_sequence: u64) -> SinkOpened {
    let source = SourceId { relay: "shop".into(), system_identifier: 7, timeline: 1 };
    SinkOpened {
        end: end.map(|position| StreamEnd { position, source, sequence: last_sequence }),
        last_sequence,
        stream_created: "once".into(),
        verified: Occupant::None,
        message_bytes_max: 2_000,
    }
}

fn sink_failed(code: &str) -> Input {
    Input::SinkFailed(Failure::wait(code, "words"))
}

/// The effects in short: a publish by its event id, a notice by its kind.
fn names(effects: &[Effect]) -> Vec<String> {
    effects
        .iter()
        .map(|effect| match effect {
            Effect::Publish(message) => {
                format!("publish {}", message.headers.get(headers::EVENT_ID).unwrap())
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
            Effect::OpenSource | Effect::AbortSource | Effect::CloseSink => format!("{effect:?}"),
        })
        .collect()
}

#[test]
fn a_transaction_is_published_at_once_and_confirmed_when_all_of_it_is_acknowledged() {
    let mut machine = Machine::streaming(|_| ());
    let effects = machine.transaction(0x10, &[row("1"), row("2")]);
    assert_eq!(names(&effects), ["publish 1"], "the first of a session goes alone");
    assert_eq!(names(&machine.acked(1)), ["published", "publish 2"]);
    let keepalive = Input::Keepalive { wal_end: Lsn::new(0x99), replies_requested: 1 };
    assert!(machine.give(keepalive.clone()).is_empty(), "an event is in flight");
    assert_eq!(names(&machine.acked(2)), ["published", "confirm 0/18"]);
    assert_eq!(names(&machine.give(keepalive)), ["confirm 0/99"]);
    assert_eq!(machine.core.stats().published, 2);
}

#[test]
fn rows_up_to_the_high_water_mark_are_passed_over_to_the_row() {
    let mut machine = Machine::started(|_| ());
    assert!(!machine.core.wants_source(), "not before the stream's end is known");
    machine.give(Input::SinkOpened(opened(Some(at(0x10, 1)), 5)));
    assert!(machine.core.wants_source());
    let effects = machine.transaction(0x10, &[row("1"), row("2"), row("3")]);
    assert_eq!(names(&effects), ["publish 3"]);
    assert_eq!(machine.core.stats().already_in_stream, 2);
    assert_eq!(names(&machine.acked(1)), ["published", "confirm 0/18"]);
}

#[test]
fn reading_pauses_at_the_budget() {
    let mut machine = Machine::streaming(|_| ());
    machine.transaction(0x10, &[row("1"), row("2"), row("3")]);
    assert!(!machine.core.wants_source());
    machine.acked(1);
    assert!(machine.core.wants_source());
}

#[test]
fn a_lost_sink_session_goes_on_behind_the_streams_end_one_message_first() {
    let mut machine = Machine::streaming(|_| ());
    machine.transaction(0x10, &[row("1"), row("2"), row("3")]);
    assert_eq!(names(&machine.give(sink_failed("connection_lost"))), ["Retrying"]);
    assert_eq!(names(&machine.deadline()), ["OpenSink"]);
    assert!(machine.now >= SECOND);
    let effects = machine.give(Input::SinkOpened(opened(Some(at(0x10, 0)), 1)));
    assert_eq!(names(&effects), ["SinkOpened", "publish 2"]);
    assert_eq!(names(&machine.acked(1)), ["published", "publish 3"]);
}

#[test]
fn an_overdue_ack_ends_the_session() {
    let mut machine = Machine::streaming(|_| ());
    machine.transaction(0x10, &[row("1")]);
    let (at, reason) = machine.core.poll_timeout().unwrap();
    assert_eq!((at, reason), (5 * SECOND, "the oldest ack is overdue"));
    assert_eq!(names(&machine.deadline()), ["CloseSink", "Retrying"]);
    let Link::Failed(failure) = machine.core.status().sink else { panic!("open") };
    assert_eq!(failure.code, "ack_timeout");
}

#[test]
fn a_known_message_id_is_believed_only_of_a_message_that_went_alone() {
    let mut machine = Machine::streaming(|_| ());
    machine.transaction(0x8, &[row("0")]);
    machine.acked(1);
    machine.transaction(0x10, &[row("1"), row("2")]);
    let told = |index| Input::Duplicate { index, stored: Some(at(0x8, 0)) };
    assert_eq!(names(&machine.give(told(1))), ["CloseSink", "Retrying"]);
    assert_eq!(machine.core.stats().duplicate_ids, 0);
    machine.deadline();
    machine.give(Input::SinkOpened(opened(Some(at(0x8, 0)), 1)));
    assert_eq!(names(&machine.give(told(0))), ["DuplicateId", "CloseSink", "Retrying"]);
    assert_eq!(machine.core.stats().duplicate_ids, 1);
    machine.deadline();
    let effects = machine.give(Input::SinkOpened(opened(Some(at(0x8, 0)), 1)));
    assert_eq!(names(&effects), ["SinkOpened", "publish 2"]);
    // The window knows an id whose message is gone: it goes out once more, without the id.
    let gone = Input::Duplicate { index: 0, stored: None };
    assert_eq!(names(&machine.give(gone)), ["DuplicateVanished", "CloseSink", "Retrying"]);
    machine.deadline();
    let effects = machine.give(Input::SinkOpened(opened(Some(at(0x8, 0)), 1)));
    let Some(Effect::Publish(message)) = effects.last() else { panic!("{effects:?}") };
    assert_eq!(message.headers.get(headers::MESSAGE_ID), None);
    assert_eq!(message.headers.get(headers::EVENT_ID), Some("2"));
}

#[test]
fn a_bad_row_stops_everything_behind_it_and_nothing_before_it() {
    let mut machine = Machine::streaming(|_| ());
    let bad = Tuple { values: vec![row("2").values[0].clone(), Value::Null] };
    let effects = machine.transaction(0x10, &[row("1"), bad, row("3")]);
    assert_eq!(names(&effects), ["publish 1", "Draining"]);
    assert!(!machine.core.wants_source());
    let effects = machine.acked(1);
    assert_eq!(names(&effects), ["published", "halt bad_row"]);
    let Some(Effect::Exit(Exit::Halted(failure))) = effects.last() else { panic!("{effects:?}") };
    let words = "the row at 0/10:1 of public.outbox cannot be published: aggregate_id: column aggregate is NULL";
    assert_eq!(failure.message, words);
    assert_eq!(machine.core.status().confirmed, Lsn::ZERO);
}

#[test]
fn a_message_over_the_limit_is_a_bad_row() {
    let mut machine = Machine::streaming(|_| ());
    let text = Value::Text(Bytes::from(vec![b'x'; 1_000]));
    let large = Tuple { values: vec![text.clone(), text] };
    let effects = machine.transaction(0x10, &[large]);
    assert_eq!(names(&effects), ["halt bad_row"]);
}

#[test]
fn a_mapped_column_that_is_gone_stops_before_the_first_row_without_it() {
    let mut machine = Machine::streaming(|_| ());
    machine.transaction(0x10, &[row("1")]);
    machine.acked(1);
    let begin = Message::Begin { final_lsn: Lsn::new(0x20), commit_time: 0, xid: 2 };
    machine.give(Input::Source(begin));
    let renamed = Message::Relation(relation(&["id", "renamed"]));
    assert!(machine.give(Input::Source(renamed)).is_empty(), "no row yet");
    let insert = Message::Insert { relation_id: 1, new: row("2") };
    assert_eq!(names(&machine.give(Input::Source(insert))), ["halt mapped_column_missing"]);
    assert_eq!(machine.core.status().confirmed, Lsn::new(0x18));
}

#[test]
fn another_database_behind_the_same_stream_is_refused() {
    let mut machine = Machine::started(|_| ());
    let mut foreign = opened(Some(at(0x10, 0)), 1);
    foreign.end.as_mut().unwrap().source.system_identifier = 8;
    let effects = machine.give(Input::SinkOpened(foreign));
    assert_eq!(names(&effects), ["CloseSink", "halt identity"]);

    let mut machine = Machine::streaming(|_| ());
    machine.give(Input::SourceFailed(Failure::wait("connection_lost", "words")));
    machine.deadline();
    assert_eq!(names(&machine.give(source_started(8))), ["halt identity"]);
}

#[test]
fn a_held_slot_is_stood_by_for_at_an_even_pace() {
    let mut machine = Machine { core: Core::new(options()), now: Duration::ZERO };
    machine.give(Input::Start);
    let held = Failure {
        class: FailureClass::SlotHeld { pid: Some(4_711) },
        ..Failure::wait("55006", "slot is active for PID 4711")
    };
    for tries in 1..=20_u32 {
        assert_eq!(names(&machine.give(Input::SourceFailed(held.clone()))), ["Retrying"]);
        assert_eq!(names(&machine.deadline()), ["OpenSource"]);
        let even = SECOND * tries..=(SECOND + SECOND / 4) * tries;
        assert!(even.contains(&machine.now), "{:?} after {tries}", machine.now);
    }
    assert!(machine.core.status().reasons()[0].contains("PID 4711"));
}

#[test]
fn a_refused_login_halts_at_the_start_and_is_waited_out_later() {
    let mut machine = Machine::started(|_| ());
    assert_eq!(names(&machine.give(sink_failed("auth"))), ["halt auth"]);
    let mut machine = Machine::streaming(|_| ());
    assert_eq!(names(&machine.give(sink_failed("auth"))), ["Retrying"]);
}

#[test]
fn a_stopping_server_is_let_go_only_where_something_is_withheld() {
    let mut machine = Machine::streaming(|options| options.hold_back = 60 * SECOND);
    assert!(machine.give(Input::SourceStopping).is_empty(), "it can confirm everything");
    machine.transaction(0x10, &[row("1")]);
    machine.acked(1);
    let storm = Input::Keepalive { wal_end: Lsn::new(0x30), replies_requested: 4 };
    assert!(machine.give(storm.clone()).is_empty());
    assert!(machine.give(storm.clone()).is_empty());
    let effects = machine.give(storm);
    assert_eq!(names(&effects), ["LetGo", "AbortSource", "Retrying"]);
    assert_eq!(machine.core.status().confirmed, Lsn::ZERO);
}

#[test]
fn a_lost_tail_is_read_again_while_it_is_held_back_and_named_when_it_is_not() {
    let mut machine = Machine::streaming(|options| options.hold_back = 60 * SECOND);
    machine.transaction(0x10, &[row("1"), row("2")]);
    machine.acked(1);
    machine.acked(2);
    machine.give(sink_failed("connection_lost"));
    machine.deadline();
    let effects = machine.give(Input::SinkOpened(opened(Some(at(0x10, 0)), 1)));
    let expected = ["SinkOpened", "TailLost", "CloseSink", "AbortSource", "OpenSource"];
    assert_eq!(names(&effects), expected);
    machine.give(source_started(7));
    machine.give(Input::SinkOpened(opened(Some(at(0x10, 0)), 1)));
    let effects = machine.transaction(0x10, &[row("1"), row("2")]);
    assert_eq!(names(&effects), ["publish 2"]);

    let mut machine = Machine::streaming(|_| ());
    machine.transaction(0x10, &[row("1"), row("2")]);
    machine.acked(1);
    machine.acked(2);
    machine.give(sink_failed("connection_lost"));
    machine.deadline();
    let effects = machine.give(Input::SinkOpened(opened(Some(at(0x10, 0)), 1)));
    let Some(Effect::Exit(Exit::Halted(failure))) = effects.last() else { panic!("{effects:?}") };
    assert_eq!(failure.code, "tail_lost");
    assert!(failure.message.contains("0/10:0") && failure.message.contains("0/10:1"), "{failure}");
}

#[test]
fn messages_that_left_by_age_are_no_lost_tail() {
    let mut machine = Machine::streaming(|_| ());
    machine.transaction(0x10, &[row("1")]);
    machine.acked(1);
    machine.give(sink_failed("connection_lost"));
    machine.deadline();
    let effects = machine.give(Input::SinkOpened(opened(None, 1)));
    assert_eq!(names(&effects), ["SinkOpened"]);
    let effects = machine.transaction(0x20, &[row("2")]);
    assert_eq!(names(&effects), ["publish 2"]);
}

#[test]
fn a_stop_waits_for_acks_and_for_no_longer_than_it_may() {
    let mut machine = Machine::streaming(|_| ());
    machine.transaction(0x10, &[row("1")]);
    assert_eq!(names(&machine.give(Input::Stop)), ["Draining"]);
    assert_eq!(names(&machine.acked(1)), ["published", "confirm 0/18", "exit"]);
    assert_eq!(machine.core.poll_timeout(), None);

    let mut machine = Machine::streaming(|options| options.ack_timeout = 60 * SECOND);
    machine.transaction(0x10, &[row("1")]);
    machine.give(Input::Stop);
    assert_eq!(machine.core.poll_timeout().unwrap(), (10 * SECOND, "the stop has waited enough"));
    assert_eq!(names(&machine.deadline()), ["exit"]);
}

#[test]
fn notices_carry_no_payload() {
    let mut machine = Machine::streaming(|_| ());
    let effects = machine.transaction(0x10, &[row("secret-payload")]);
    let notices = effects.iter().filter(|effect| matches!(effect, Effect::Notice(_)));
    assert!(notices.map(|notice| format!("{notice:?}")).all(|text| !text.contains("secret")));
    let retrying = machine.give(sink_failed("connection_lost"));
    assert!(matches!(retrying[0], Effect::Notice(Notice::Retrying { .. })));
}
