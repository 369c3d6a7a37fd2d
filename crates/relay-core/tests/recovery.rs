//! What the core makes of the stream's end, the record and the slot.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod machine;

use event::Lsn;
use machine::{Machine, SECOND, at, names, opened, row, sink_failed};
use relay_core::{
    Effect, Exit, Failure, Fork, Input, LostRange, Occupant, Past, SinkOpened, Stored,
};

fn halted(effects: &[Effect]) -> &Failure {
    match effects.last() {
        Some(Effect::Exit(Exit::Halted(failure))) => failure,
        other => panic!("{other:?}"),
    }
}

/// A machine with two events in the stream, all acknowledged.
fn acknowledged(hold_back_seconds: u32) -> Machine {
    let mut machine = Machine::streaming(|options| options.hold_back = SECOND * hold_back_seconds);
    machine.transaction(0x10, &[row("1"), row("2")]);
    machine.acked(1);
    machine.acked(2);
    machine
}

#[test]
fn nothing_is_published_or_confirmed_before_it_is_on_record() {
    let mut machine = Machine::started(|_| ());
    machine.record_hangs = true;
    machine.give(Input::SinkOpened(opened(None, 0)));
    assert!(machine.transaction(0x10, &[row("1")]).is_empty(), "no record yet");
    assert_eq!(names(&machine.give(Input::RecordStored)), ["publish 1"]);
    assert_eq!(names(&machine.acked(1)), ["published"], "the record does not say so yet");
    let record = machine.record.clone().unwrap();
    assert_eq!(record.acked, Some(Stored { position: at(0x10, 0), sequence: 1 }));
    assert_eq!((record.released, record.confirmed), (Some(at(0x10, 0)), Lsn::new(0x18)));
    assert_eq!(names(&machine.give(Input::RecordStored)), ["confirm 0/18"]);
}

#[test]
fn what_is_on_record_is_confirmed_while_more_becomes_due() {
    let mut machine = Machine::streaming(|_| ());
    machine.record_hangs = true;
    for n in 1..=3 {
        machine.transaction(n * 0x10, &[row("1")]);
    }
    assert_eq!(names(&machine.acked(1)), ["published", "publish 1", "publish 1"]);
    assert_eq!(names(&machine.acked(2)), ["published"]);
    assert_eq!(names(&machine.give(Input::RecordStored)), ["confirm 0/18"]);
    assert_eq!(names(&machine.acked(3)), ["published"]);
    assert_eq!(names(&machine.give(Input::RecordStored)), ["confirm 0/28"]);
    assert_eq!(names(&machine.give(Input::RecordStored)), ["confirm 0/38"]);
}

#[test]
fn positions_are_put_on_record_once_an_interval_and_at_a_stop() {
    let mut machine = Machine::streaming(|options| options.confirm_interval = SECOND);
    machine.now = SECOND;
    machine.transaction(0x10, &[row("1")]);
    assert_eq!(names(&machine.acked(1)), ["published", "confirm 0/18"]);
    for n in 2..=5 {
        machine.now += SECOND / 10;
        machine.transaction(n * 0x10, &[row("1")]);
        assert_eq!(names(&machine.acked(n)), ["published"]);
    }
    let (at, _) = machine.core.poll_timeout().unwrap();
    assert_eq!(at, 2 * SECOND);
    assert_eq!(names(&machine.deadline()), ["confirm 0/58"]);
    assert!(machine.core.poll_timeout().is_none());
    machine.transaction(0x60, &[row("1")]);
    assert_eq!(names(&machine.acked(6)), ["published"]);
    assert_eq!(names(&machine.give(Input::Stop)), ["confirm 0/68", "exit"]);
}

#[test]
fn nothing_is_let_go_of_while_the_streams_end_cannot_be_looked_at() {
    let mut machine = acknowledged(60);
    machine.give(sink_failed("connection_lost"));
    machine.now += 120 * SECOND;
    assert!(!names(&machine.give(Input::Deadline)).contains(&"confirm 0/18".to_owned()));
    let mut there = opened(Some(at(0x10, 1)), 2);
    there.verified = Occupant::Ours(at(0x10, 1));
    assert_eq!(names(&machine.give(Input::SinkOpened(there))), ["SinkOpened", "confirm 0/18"]);
}

#[test]
fn a_lost_tail_is_read_again_while_it_is_held_back() {
    let mut machine = acknowledged(60);
    machine.give(sink_failed("connection_lost"));
    machine.deadline();
    let effects = machine.give(Input::SinkOpened(opened(Some(at(0x10, 0)), 1)));
    assert_eq!(names(&effects), ["CloseSink", "AbortSource", "OpenSource"]);
    machine.start_source(|_| ());
    let effects = machine.give(Input::SinkOpened(opened(Some(at(0x10, 0)), 1)));
    assert_eq!(names(&effects), ["TailLost", "SinkOpened"]);
    let effects = machine.transaction(0x10, &[row("1"), row("2")]);
    assert_eq!(names(&effects), ["publish 2"]);
}

/// The slot has let go of both events, and the stream has lost the second.
fn mending() -> (Machine, LostRange) {
    let mut machine = acknowledged(0);
    machine.restart(|_| ());
    machine.start_source(|started| started.confirmed_flush_lsn = Lsn::new(0x18));
    let effects = machine.give(Input::SinkOpened(opened(Some(at(0x10, 0)), 1)));
    assert_eq!(names(&effects), ["TailLost", "CloseSink", "Mending", "Mend"]);
    let Some(Effect::Mend(range)) = effects.last() else { panic!("{effects:?}") };
    (machine, range.clone())
}

#[test]
fn what_the_slot_does_not_hold_any_more_is_mended_from_the_table() {
    let (mut machine, range) = mending();
    let after = Some(Stored { position: at(0x10, 0), sequence: 1 });
    let acked = Stored { position: at(0x10, 1), sequence: 2 };
    assert_eq!(range, LostRange { after, acked, slot_position: Lsn::new(0x18) });
    assert!(!machine.core.wants_source(), "the lost events come first");
    assert_eq!(machine.record.as_ref().unwrap().mending, Some(Lsn::new(0x18)));
    let effects = machine.give(Input::Mended { range, sequence: Some(2) });
    assert_eq!(names(&effects), ["Mended", "OpenSink"]);
    let mut there = opened(Some(at(0x10, 0)), 1);
    (there.last_sequence, there.verified) = (2, Occupant::Replayed);
    assert_eq!(names(&machine.give(Input::SinkOpened(there))), ["SinkOpened"]);
    assert_eq!(machine.record.as_ref().unwrap().mending, None);
    assert_eq!(names(&machine.transaction(0x20, &[row("3")])), ["publish 3"]);
}

#[test]
fn a_slot_that_falls_back_while_mending_does_not_move_the_border() {
    let (mut machine, _) = mending();
    machine.restart(|_| ());
    machine.start_source(|started| started.confirmed_flush_lsn = Lsn::new(1));
    let effects = machine.give(Input::SinkOpened(opened(Some(at(0x10, 0)), 1)));
    let Some(Effect::Mend(range)) = effects.last() else { panic!("{effects:?}") };
    assert_eq!(range.slot_position, Lsn::new(0x18));
}

/// A person has declared that all before the slot is in, up to the stream's sequence 5.
fn declared(occupant: Occupant, gapless: bool) -> Vec<Effect> {
    let mut machine = acknowledged(0);
    if let Some(record) = &mut machine.record {
        record.acked = Some(Stored { position: at(0x17, u64::MAX), sequence: 5 });
        record.released = Some(at(0x17, u64::MAX));
    }
    machine.restart(|_| ());
    machine.start_source(|started| started.confirmed_flush_lsn = Lsn::new(0x18));
    let mut opened = opened(Some(at(0x10, 1)), 5);
    (opened.verified, opened.gapless) = (occupant, gapless);
    machine.give(Input::SinkOpened(opened))
}

#[test]
fn a_foreign_message_in_the_place_of_a_declared_one_is_a_loss_where_nobody_else_writes() {
    let lost = ["TailLost", "CloseSink", "Mending", "Mend"];
    assert_eq!(names(&declared(Occupant::Foreign, true)), lost);
    for (occupant, gapless) in [
        (Occupant::Foreign, false),
        (Occupant::Replayed, true),
        (Occupant::Ours(at(0x10, 1)), true),
        (Occupant::None, true),
    ] {
        assert_eq!(names(&declared(occupant, gapless)), ["SinkOpened"], "{occupant:?}");
    }
}

#[test]
fn a_recreated_stream_is_noticed_by_a_new_process() {
    let mut machine = acknowledged(60);
    machine.deadline();
    machine.restart(|options| options.hold_back = 60 * SECOND);
    machine.start_source(|_| ());
    let mut empty = opened(None, 0);
    empty.stream_created = "anew".into();
    assert_eq!(names(&machine.give(Input::SinkOpened(empty))), ["TailLost", "SinkOpened"]);
    assert_eq!(machine.core.stats().tails_lost, 1);
    let effects = machine.transaction(0x10, &[row("1"), row("2")]);
    assert_eq!(names(&effects), ["publish 1"]);
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
fn messages_that_left_behind_the_record_are_counted() {
    let mut machine = acknowledged(0);
    machine.restart(|_| ());
    machine.start_source(|started| started.confirmed_flush_lsn = Lsn::new(0x18));
    // Two more were published after the record was written, and consumed.
    let gone = SinkOpened { removing: true, ..opened(None, 4) };
    machine.give(Input::SinkOpened(gone));
    let effects = machine.transaction(0x20, &[row("3"), row("4"), row("5")]);
    assert_eq!(names(&effects), ["publish 5"]);
    assert_eq!(machine.core.stats().already_in_stream, 2);
}

#[test]
fn a_slot_that_somebody_moved_is_refused() {
    let mut machine = acknowledged(0);
    machine.restart(|_| ());
    let effects = machine.start_source(|started| started.confirmed_flush_lsn = Lsn::new(0x19));
    let failure = halted(&effects);
    assert_eq!(failure.code, "slot_moved");
    assert!(failure.message.contains("0/19") && failure.message.contains("0/18"), "{failure}");
    assert_eq!(machine.record.as_ref().unwrap().confirmed, Lsn::new(0x18), "left as it was");
}

#[test]
fn a_synchronized_slot_may_be_further_than_the_record() {
    let mut machine = acknowledged(60);
    machine.deadline();
    machine.restart(|_| ());
    let effects = machine.start_source(|started| {
        started.timeline = 2;
        started.forks = vec![Fork { timeline: 1, end: Lsn::new(0x40) }];
        started.confirmed_flush_lsn = Lsn::new(0x30);
    });
    assert_eq!(names(&effects), ["SourceStarted", "OpenSink"]);
}

/// What a process says that twice finds this end, on a server on timeline 2 that left timeline 1 at
/// 0/20.
fn after_failover(change: impl Fn(&mut SinkOpened)) -> Vec<Effect> {
    let mut machine = Machine::new_started();
    let failover = |machine: &mut Machine| {
        machine.start_source(|started| {
            started.timeline = 2;
            started.forks = vec![Fork { timeline: 1, end: Lsn::new(0x20) }];
        })
    };
    failover(&mut machine);
    let mut end = opened(Some(at(0x10, 0)), 1);
    change(&mut end);
    let effects = machine.give(Input::SinkOpened(end.clone()));
    if names(&effects) != ["CloseSink", "AbortSource", "Retrying"] {
        return effects;
    }
    machine.deadline();
    failover(&mut machine);
    machine.give(Input::SinkOpened(end))
}

#[test]
fn a_stream_ahead_of_the_database_is_refused_once_it_is_sure() {
    assert_eq!(names(&after_failover(|_| ())), ["SinkOpened"], "both share what is in the stream");
    let ahead = after_failover(|end| end.end.as_mut().unwrap().position = at(0x20, 0));
    assert_eq!(halted(&ahead).code, "timeline");
    let unknown = after_failover(|end| end.end.as_mut().unwrap().source.timeline = 3);
    assert_eq!(halted(&unknown).code, "timeline");
    let other = after_failover(|end| end.end.as_mut().unwrap().source.system_identifier = 8);
    assert_eq!(halted(&other).code, "identity");
    let restored = after_failover(|end| {
        let end = end.end.as_mut().unwrap();
        end.source.timeline = 2;
        end.position = at(0x1000, 0);
    });
    assert_eq!(halted(&restored).code, "restored");
}

#[test]
fn a_record_of_another_database_is_refused() {
    let mut machine = acknowledged(0);
    machine.restart(|_| ());
    let effects = machine.start_source(|started| started.system_identifier = 8);
    assert_eq!(halted(&effects).code, "identity");
}

#[test]
fn the_streams_last_event_must_be_met_before_anything_is_confirmed_or_published() {
    let end = |id: &str| {
        let mut end = opened(Some(at(0x20, 0)), 2);
        end.end.as_mut().unwrap().event_id = Some(id.to_owned());
        Input::SinkOpened(end)
    };
    let mut machine = Machine::started(|_| ());
    machine.give(end("2"));
    assert!(machine.transaction(0x10, &[row("1")]).is_empty(), "not before the end is met");
    let effects = machine.transaction(0x20, &[row("2")]);
    assert_eq!(names(&effects), ["confirm 0/18", "confirm 0/28"]);

    let mut machine = Machine::started(|_| ());
    machine.give(end("2"));
    machine.transaction(0x10, &[row("1")]);
    let effects = machine.transaction(0x20, &[row("another")]);
    assert_eq!(halted(&effects).code, "history");
    assert_eq!(machine.core.status().confirmed, Lsn::ZERO);

    let mut machine = Machine::started(|_| ());
    machine.give(end("2"));
    let effects = machine.transaction(0x30, &[row("3")]);
    assert_eq!(names(&effects), ["halt history"]);
}

#[test]
fn a_past_that_a_person_declared_is_left_alone() {
    let mut machine = acknowledged(0);
    let mut record = machine.record.clone().unwrap();
    let past = Past { stream_created: "once".into(), sequence: 9, shared_below: Lsn::new(0x20) };
    record.acked = past.end();
    record.past = Some(past);
    machine.record = Some(record);
    machine.restart(|_| ());
    machine.start_source(|_| ());
    let mut ahead = opened(Some(at(0x40, 0)), 9);
    ahead.verified = Occupant::Ours(at(0x40, 0));
    machine.give(Input::SinkOpened(ahead));
    machine.transaction(0x10, &[row("1"), row("2")]);
    assert_eq!(names(&machine.transaction(0x20, &[row("3")])), ["publish 3"]);
}

#[test]
fn a_message_that_somebody_else_published_makes_it_begin_anew() {
    let mut machine = acknowledged(60);
    machine.give(sink_failed("overtaken"));
    machine.deadline();
    let mut end = opened(Some(at(0x20, 0)), 3);
    end.verified = Occupant::Ours(at(0x10, 1));
    let effects = machine.give(Input::SinkOpened(end));
    assert_eq!(names(&effects), ["CloseSink", "AbortSource", "OpenSource"]);
}
