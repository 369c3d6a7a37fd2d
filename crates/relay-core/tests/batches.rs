//! Transactions that appear in the stream at once.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod machine;

use event::{Lsn, Position};
use machine::{Machine, at, names, opened, relation, row, sink_failed};
use pgoutput::Message;
use relay_core::{Effect, Failure, Input, Notice, SinkOpened, SplitReason};

fn taking_batches(end: Option<Position>, last_sequence: u64) -> Input {
    Input::SinkOpened(SinkOpened { batch_events_max: 4, ..opened(end, last_sequence) })
}

fn atomic() -> Machine {
    let mut machine = Machine::started(|options| {
        options.atomic_transactions = true;
        options.in_flight_events_max = 6;
    });
    assert_eq!(names(&machine.give(taking_batches(None, 0))), ["SinkOpened"]);
    machine
}

fn begin(machine: &mut Machine, commit_lsn: u64, ids: &[&'static str]) -> Vec<Effect> {
    let final_lsn = Lsn::new(commit_lsn);
    let mut messages = vec![
        Message::Begin { final_lsn, commit_time: 0, xid: 1 },
        Message::Relation(relation(&["id", "aggregate"])),
    ];
    messages.extend(ids.iter().map(|id| Message::Insert { relation_id: 1, new: row(id) }));
    messages.into_iter().flat_map(|message| machine.give(Input::Source(message))).collect()
}

fn commit(machine: &mut Machine, commit_lsn: u64) -> Vec<Effect> {
    machine.give(Input::Source(Message::Commit {
        flags: 0,
        commit_lsn: Lsn::new(commit_lsn),
        end_lsn: Lsn::new(commit_lsn + 8),
        commit_time: 0,
    }))
}

#[test]
fn a_transaction_waits_for_its_end_and_for_those_before_it() {
    let mut machine = atomic();
    assert!(begin(&mut machine, 0x10, &["1", "2"]).is_empty());
    assert_eq!(names(&commit(&mut machine, 0x10)), ["batch 1 2"]);
    assert!(machine.transaction(0x20, &[row("3"), row("4")]).is_empty(), "a batch is in flight");
    let effects = machine.acked(2);
    assert_eq!(names(&effects), ["published", "published", "batch 3 4", "confirm 0/18"]);
    assert!(machine.transaction(0x30, &[row("5"), row("6"), row("7")]).is_empty());
    assert_eq!(names(&machine.acked(4))[2..], ["batch 5 6 7", "confirm 0/28"]);
}

#[test]
fn single_events_follow_a_batch_in_the_pipeline() {
    let mut machine = atomic();
    machine.transaction(0x10, &[row("1"), row("2")]);
    machine.acked(2);
    assert_eq!(names(&machine.transaction(0x20, &[row("3"), row("4")])), ["batch 3 4"]);
    assert_eq!(names(&machine.transaction(0x30, &[row("5")])), ["publish 5"]);
    assert_eq!(names(&machine.transaction(0x40, &[row("6")])), ["publish 6"]);
    assert!(machine.transaction(0x50, &[row("7"), row("8")]).is_empty());
    assert_eq!(machine.acked(5).len(), 3 + 1, "not before the last of them is acknowledged");
    assert_eq!(names(&machine.acked(6)), ["published", "batch 7 8", "confirm 0/48"]);
}

#[test]
fn a_lost_session_sends_the_whole_batch_again_or_nothing_of_it() {
    let mut machine = atomic();
    machine.transaction(0x10, &[row("1"), row("2")]);
    machine.give(sink_failed("connection_lost"));
    machine.deadline();
    assert_eq!(names(&machine.give(taking_batches(None, 0))), ["SinkOpened", "batch 1 2"]);
    machine.give(sink_failed("connection_lost"));
    machine.deadline();
    let effects = machine.give(taking_batches(Some(at(0x10, 1)), 2));
    assert_eq!(names(&effects), ["SinkOpened", "confirm 0/18"]);
}

#[test]
fn a_transaction_that_cannot_be_one_batch_leaves_event_by_event_and_says_so() {
    let mut machine = atomic();
    machine.transaction(0x10, &[row("0")]);
    machine.acked(1);
    assert!(begin(&mut machine, 0x20, &["1", "2", "3", "4"]).is_empty());
    let effects = machine.give(Input::Source(Message::Insert { relation_id: 1, new: row("5") }));
    assert_eq!(
        names(&effects)[1..],
        ["publish 1", "publish 2", "publish 3", "publish 4", "publish 5"]
    );
    let Effect::Notice(Notice::Split { position, reason }) = &effects[0] else { panic!() };
    assert_eq!((*position, *reason), (at(0x20, 0), SplitReason::TooManyEvents));
    assert_eq!(machine.core.stats().split_transactions, 1);
    commit(&mut machine, 0x20);
    machine.acked(6);
    assert_eq!(names(&machine.transaction(0x30, &[row("6"), row("7")])), ["batch 6 7"]);
}

#[test]
fn a_refused_batch_is_tried_again_or_split() {
    let mut machine = atomic();
    machine.transaction(0x10, &[row("1"), row("2")]);
    let retry_behind = |machine: &mut Machine, end, code: &str| {
        let mut effects = machine.give(sink_failed(code));
        machine.deadline();
        effects.extend(machine.give(taking_batches(end, 2)));
        names(&effects)
    };
    let retry = |machine: &mut Machine, code: &str| retry_behind(machine, None, code);
    let again = ["Retrying", "SinkOpened", "batch 1 2"];
    assert_eq!(retry(&mut machine, "stream_full"), again);
    assert_eq!(retry(&mut machine, "batch_incomplete"), again);
    assert_eq!(retry(&mut machine, "batch_incomplete"), again);
    let split = ["Split", "Retrying", "SinkOpened", "publish 1"];
    assert_eq!(retry(&mut machine, "batch_incomplete"), split);
    assert_eq!(names(&machine.acked(1)), ["published", "publish 2"]);
    machine.acked(2);
    assert_eq!(names(&machine.transaction(0x20, &[row("3"), row("4")])), ["batch 3 4"]);
    let effects = retry_behind(&mut machine, Some(at(0x10, 1)), "batch_duplicate");
    assert_eq!(effects, ["Split", "Retrying", "SinkOpened", "publish 3"]);
    assert_eq!(machine.core.stats().split_transactions, 2);
    // Alone, it shows which of the two the stream has.
    let effects = machine.give(Input::Duplicate { index: 0, stored: Some(at(0x10, 0)) });
    assert_eq!(names(&effects), ["DuplicateId", "CloseSink", "Retrying"]);
}

#[test]
fn a_stream_without_batches_is_named_once() {
    let mut machine = Machine::started(|options| options.atomic_transactions = true);
    let effects = machine.give(Input::SinkOpened(opened(None, 0)));
    assert_eq!(names(&effects), ["NoBatches", "SinkOpened"]);
    machine.give(sink_failed("connection_lost"));
    machine.deadline();
    assert_eq!(names(&machine.give(Input::SinkOpened(opened(None, 0)))), ["SinkOpened"]);
    assert_eq!(names(&begin(&mut machine, 0x10, &["1", "2"])), ["publish 1"]);

    let mut machine = atomic();
    machine.transaction(0x10, &[row("1"), row("2")]);
    assert_eq!(names(&machine.give(sink_failed("batch_unsupported"))), ["NoBatches", "Retrying"]);
    machine.deadline();
    assert_eq!(names(&machine.give(taking_batches(None, 0))), ["SinkOpened", "publish 1"]);
}

#[test]
fn without_the_wish_batches_are_not_used() {
    let mut machine = Machine::started(|_| ());
    machine.give(taking_batches(None, 0));
    assert_eq!(names(&begin(&mut machine, 0x10, &["1", "2"])), ["publish 1"]);
}

#[test]
fn a_stop_in_the_middle_of_a_transaction_publishes_nothing_of_it() {
    let mut machine = atomic();
    machine.transaction(0x10, &[row("1"), row("2")]);
    begin(&mut machine, 0x20, &["3", "4"]);
    assert_eq!(names(&machine.give(Input::Stop)), ["Draining"]);
    let effects = machine.acked(2);
    assert_eq!(names(&effects), ["published", "published", "confirm 0/18", "exit"]);

    let mut machine = atomic();
    begin(&mut machine, 0x10, &["1", "2"]);
    let failure = Failure::halt("slot", "words");
    assert_eq!(names(&machine.give(Input::SourceFailed(failure))), ["halt slot"]);
}
