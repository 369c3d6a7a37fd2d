//! The state machine, input by input.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod machine;

use bytes::Bytes;
use event::{Lsn, headers};
use machine::{Machine, SECOND, at, names, opened, options, relation, row, sink_failed};
use pgoutput::{Message, Tuple, Value};
use relay_core::{Effect, Exit, Failure, FailureClass, Input, Link, Notice};

#[test]
fn a_transaction_is_published_at_once_and_confirmed_when_all_of_it_is_acknowledged() {
    let mut machine = Machine::streaming(|_| ());
    let effects = machine.transaction(0x10, &[row("1"), row("2")]);
    assert_eq!(names(&effects), ["publish 1"], "the first of a session goes alone");
    assert_eq!(names(&machine.acked(1)), ["published", "publish 2"]);
    let keepalive = Input::Keepalive { wal_end: Lsn::new(0x2_0000), replies_requested: 1 };
    assert!(machine.give(keepalive.clone()).is_empty(), "an event is in flight");
    assert_eq!(names(&machine.acked(2)), ["published", "confirm 0/18"]);
    assert_eq!(names(&machine.give(keepalive)), ["confirm 0/20000"]);
    let little = Input::Keepalive { wal_end: Lsn::new(0x2_0100), replies_requested: 1 };
    assert!(machine.give(little).is_empty(), "not worth a record");
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
fn a_held_slot_is_stood_by_for_at_an_even_pace() {
    let mut machine = Machine::new(options());
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
fn a_stopping_server_is_let_go() {
    let mut machine = Machine::streaming(|_| ());
    let effects = machine.give(Input::SourceStopping);
    assert_eq!(names(&effects), ["LetGo", "AbortSource", "Retrying"]);

    let mut machine = Machine::streaming(|options| options.hold_back = 60 * SECOND);
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
