//! The sink against a real server.

#![allow(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails by panicking"
)]

use std::time::Duration;

use bytes::Bytes;
use event::{Event, Headers, Lsn, Payload, Position, SourceId, Subject};
use nats_sink::{Acks, Credentials, Publisher, SinkEvent, SinkOptions, StreamSettings};
use relay_core::{FailureClass, Level, Occupant, Outgoing, SinkOpened, SinkQuery};
use testkit::{Nats, NatsOptions};
use tokio::io::AsyncWriteExt as _;

const PATIENCE: Duration = Duration::from_secs(20);
const RELAY: &str = "shop";

fn options(nats: &Nats) -> SinkOptions {
    SinkOptions {
        servers: vec![nats.url()],
        credentials: Credentials::None,
        stream: "EVENTS".into(),
        client_name: "test".into(),
        connect_timeout: Duration::from_secs(5),
        request_timeout: Duration::from_secs(5),
        in_flight_events_max: 4_096,
        shared: false,
        atomic_transactions: false,
    }
}

async fn with_stream() -> (Nats, SinkOptions) {
    let nats = Nats::start().await.unwrap();
    let options = options(&nats);
    create(&options).await;
    (nats, options)
}

async fn create(options: &SinkOptions) {
    let settings = StreamSettings {
        subjects: vec!["events.>".into()],
        duplicate_window: Duration::from_secs(120),
    };
    assert!(nats_sink::create_stream(options, &settings).await.unwrap());
    assert!(!nats_sink::create_stream(options, &settings).await.unwrap(), "never made twice");
}

fn position(n: u64) -> Position {
    Position { commit_lsn: Lsn::new(0x100 + n), ordinal: 0 }
}

fn outgoing(n: u64, message_id: &str, body: Bytes) -> Outgoing {
    let event = Event {
        event_id: n.to_string(),
        aggregate_type: "t".into(),
        aggregate_id: "a".into(),
        aggregate_version: None,
        event_type: "T".into(),
        occurred_at: None,
        payload: Payload::Binary(body.clone()),
        extra_headers: Vec::new(),
    };
    let source = SourceId { relay: RELAY.into(), system_identifier: 7, timeline: 1 };
    Outgoing {
        subject: Subject::new(format!("events.{}", n % 10)).unwrap(),
        headers: Headers::of(&event, message_id, position(n), &source, 0).unwrap(),
        body,
    }
}

async fn open(options: &SinkOptions, verify: Option<u64>) -> (Publisher, Acks, SinkOpened) {
    nats_sink::open(options, RELAY, SinkQuery { verify, past_sequence: 0 }).await.unwrap()
}

async fn publish(publisher: &mut Publisher, numbers: impl Iterator<Item = u64>) {
    for n in numbers {
        publisher
            .publish(&outgoing(n, &format!("id-{n}"), Bytes::from_static(b"x")))
            .await
            .unwrap();
    }
}

async fn next(acks: &mut Acks) -> SinkEvent {
    tokio::time::timeout(PATIENCE, acks.next()).await.unwrap()
}

async fn acked(acks: &mut Acks, expected: u64) -> u64 {
    loop {
        match next(acks).await {
            SinkEvent::Acked { count, sequence } if count == expected => return sequence,
            SinkEvent::Acked { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

/// What ends the session.
async fn end(acks: &mut Acks) -> SinkEvent {
    loop {
        match next(acks).await {
            SinkEvent::Acked { .. } => {}
            other => return other,
        }
    }
}

fn code(event: SinkEvent) -> String {
    match event {
        SinkEvent::Failed(failure) => failure.code,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_chain_is_stored_in_order_and_its_end_is_read_back() {
    let (_nats, options) = with_stream().await;
    let (mut publisher, mut acks, opened) = open(&options, None).await;
    assert_eq!((opened.end, opened.last_sequence), (None, 0));
    publish(&mut publisher, 1..=2_000).await;
    assert_eq!(acked(&mut acks, 2_000).await, 2_000);
    let (_, _, opened) = open(&options, Some(1_500)).await;
    let end = opened.end.unwrap();
    assert_eq!((end.position, end.sequence), (position(2_000), 2_000));
    assert_eq!(end.source.system_identifier, 7);
    assert_eq!(opened.verified, Occupant::Ours(position(1_500)));
}

#[tokio::test]
async fn a_foreign_message_ends_the_session_and_the_next_one_goes_on() {
    let (nats, options) = with_stream().await;
    let (mut publisher, mut acks, _) = open(&options, None).await;
    publish(&mut publisher, 1..=10).await;
    acked(&mut acks, 10).await;
    let context = async_nats::jetstream::new(nats.client().await.unwrap());
    context.publish("events.foreign", "x".into()).await.unwrap().await.unwrap();
    publish(&mut publisher, 11..=20).await;
    assert_eq!(code(end(&mut acks).await), "overtaken");
    let (mut publisher, mut acks, opened) = open(&options, Some(11)).await;
    assert_eq!(opened.end.unwrap().position, position(10));
    assert_eq!((opened.last_sequence, opened.verified), (11, Occupant::Foreign));
    publish(&mut publisher, 11..=20).await;
    assert_eq!(acked(&mut acks, 10).await, 21);
}

#[tokio::test]
async fn a_lost_publish_is_noticed_even_when_a_foreign_message_takes_its_place() {
    let (nats, options) = with_stream().await;
    let (mut publisher, mut acks, _) = open(&options, None).await;
    publish(&mut publisher, 1..=1).await;
    acked(&mut acks, 1).await;
    // A message that goes astray, and a foreign one that makes the next sequence right again.
    let mut lost = outgoing(2, "id-2", Bytes::new());
    lost.subject = Subject::new("nobody.listens").unwrap();
    publisher.publish(&lost).await.unwrap();
    assert_eq!(code(end(&mut acks).await), "no_stream");
    let context = async_nats::jetstream::new(nats.client().await.unwrap());
    context.publish("events.foreign", "x".into()).await.unwrap().await.unwrap();
    publish(&mut publisher, 3..=3).await;
    assert_eq!(code(end(&mut acks).await), "overtaken");
    assert_eq!(open(&options, None).await.2.end.unwrap().position, position(1));
}

#[tokio::test]
async fn a_known_message_id_is_reported_with_what_has_it() {
    let (nats, options) = with_stream().await;
    let (mut publisher, mut acks, _) = open(&options, None).await;
    publish(&mut publisher, 1..=3).await;
    acked(&mut acks, 3).await;
    publisher.publish(&outgoing(4, "id-2", Bytes::new())).await.unwrap();
    let expected = SinkEvent::Duplicate { index: 3, stored: Some(position(2)) };
    assert_eq!(end(&mut acks).await, expected);

    let context = async_nats::jetstream::new(nats.client().await.unwrap());
    context.get_stream("EVENTS").await.unwrap().purge().await.unwrap();
    let (mut publisher, mut acks, opened) = open(&options, Some(3)).await;
    assert_eq!((opened.end, opened.last_sequence), (None, 3));
    assert_eq!(opened.verified, Occupant::None);
    publisher.publish(&outgoing(2, "id-2", Bytes::new())).await.unwrap();
    assert_eq!(end(&mut acks).await, SinkEvent::Duplicate { index: 0, stored: None });
}

#[tokio::test]
async fn a_missing_stream_is_named() {
    let nats = Nats::start().await.unwrap();
    let options = options(&nats);
    let failure = nats_sink::open(&options, RELAY, SinkQuery::default()).await.unwrap_err();
    assert_eq!((failure.code.as_str(), failure.class), ("no_stream", FailureClass::Wait));
    assert!(failure.to_string().contains("EVENTS") && failure.advice.contains("init"), "{failure}");
}

#[tokio::test]
async fn an_attempt_to_connect_can_be_given_up_at_any_time() {
    let nats = Nats::start().await.unwrap();
    let options = options(&nats);
    nats.pause().unwrap();
    for milliseconds in [0, 1, 20] {
        let patience = Duration::from_millis(milliseconds);
        assert!(
            tokio::time::timeout(patience, nats_sink::open(&options, RELAY, SinkQuery::default()))
                .await
                .is_err()
        );
    }
    nats.resume().unwrap();
    assert_eq!(
        nats_sink::open(&options, RELAY, SinkQuery::default()).await.unwrap_err().code,
        "no_stream"
    );
}

#[tokio::test]
async fn a_killed_server_ends_the_session_and_keeps_what_it_acknowledged() {
    let (mut nats, options) = with_stream().await;
    let (mut publisher, mut acks, _) = open(&options, None).await;
    publish(&mut publisher, 1..=100).await;
    acked(&mut acks, 100).await;
    nats.kill();
    assert_eq!(code(end(&mut acks).await), "connection_lost");
    let failure = nats_sink::open(&options, RELAY, SinkQuery::default()).await.unwrap_err();
    assert_eq!(failure.code, "connection_refused");
    nats.start_again().await.unwrap();
    assert_eq!(open(&options, None).await.2.end.unwrap().position, position(100));
}

#[tokio::test]
async fn hostile_foreign_messages_at_the_end_do_no_harm() {
    let (nats, options) = with_stream().await;
    let (mut publisher, mut acks, _) = open(&options, None).await;
    publish(&mut publisher, 1..=5).await;
    acked(&mut acks, 5).await;
    let mut socket = tokio::net::TcpStream::connect(("127.0.0.1", nats.port())).await.unwrap();
    socket.write_all(b"CONNECT {\"verbose\":false,\"headers\":true}\r\n").await.unwrap();
    for line in [&b"X: a\rb\r\n"[..], b"Y: \xff\xfe\r\n", b"Outbox-Source: x\r\n", b"broken\r\n"] {
        let headers = [b"NATS/1.0\r\n", line, b"\r\n"].concat();
        let head = format!("HPUB events.evil {} {}\r\n", headers.len(), headers.len());
        socket.write_all(&[head.as_bytes(), &headers, b"\r\n"].concat()).await.unwrap();
    }
    let huge = format!("NATS/1.0\r\nZ: {}\r\n\r\n", "z".repeat(60_000));
    let head = format!("HPUB events.evil {} {}\r\n{huge}\r\nPING\r\n", huge.len(), huge.len());
    socket.write_all(head.as_bytes()).await.unwrap();
    let stored = testkit::wait_until(PATIENCE, "the foreign messages are stored", || async {
        let opened = nats_sink::open(&options, RELAY, SinkQuery::default()).await.ok()?.2;
        (opened.last_sequence == 10).then_some(opened)
    });
    assert_eq!(stored.await.unwrap().end.unwrap().position, position(5));
}

#[tokio::test]
async fn a_message_over_the_servers_limit_is_not_sent() {
    let nats = Nats::start_with(NatsOptions { config: "max_payload: 65536".into() }).await.unwrap();
    let options = options(&nats);
    create(&options).await;
    let (mut publisher, mut acks, opened) = open(&options, None).await;
    let body = Bytes::from(vec![b'x'; 65_500]);
    let large = outgoing(1, "id-1", body);
    assert!(large.wire_bytes() > opened.message_bytes_max && opened.message_bytes_max < 65_536);
    let failure = publisher.publish(&large).await.unwrap_err();
    assert_eq!((failure.code.as_str(), failure.class), ("message_too_large", FailureClass::Halt));
    let rest = opened.message_bytes_max - outgoing(1, "id-1", Bytes::new()).wire_bytes();
    let fits = outgoing(1, "id-1", Bytes::from(vec![b'x'; rest]));
    assert_eq!(fits.wire_bytes(), opened.message_bytes_max);
    publisher.publish(&fits).await.unwrap();
    acked(&mut acks, 1).await;
}

#[tokio::test]
async fn check_finds_what_does_not_fit() {
    let (_nats, options) = with_stream().await;
    let findings = nats_sink::check(&options, &["events.*".into()], RELAY).await;
    assert!(findings.iter().all(|finding| finding.level == Level::Ok), "{findings:?}");
    let findings = nats_sink::check(&options, &["other.*".into()], RELAY).await;
    let error = findings.iter().find(|finding| finding.level == Level::Error).unwrap();
    assert_eq!(error.code, "stream_subjects");
    assert!(error.fix.contains("events.>,other.*"), "{}", error.fix);
}
