//! The source against a real server.

#![allow(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails by panicking"
)]

use std::time::Duration;

use event::Lsn;
use pgoutput::{Message, Value};
use postgres_source::{Recorder, Session, SlotWatch, SourceEvent, SourceOptions, preflight, setup};
use relay_core::{FailureClass, FieldSource, Fields, Level, Outbox, Route, SubjectTemplate};
use testkit::{Postgres, wait_until};

const PATIENCE: Duration = Duration::from_secs(20);

fn options(postgres: &Postgres) -> SourceOptions {
    SourceOptions {
        host: "127.0.0.1".into(),
        port: postgres.port(),
        user: "postgres".into(),
        password: None,
        database: "postgres".into(),
        slot: "relay".into(),
        publication: "Outbox Pub".into(),
        application_name: "test".into(),
        connect_timeout: Duration::from_secs(5),
        status_interval: Duration::from_millis(200),
        holder_timeout: Duration::from_secs(30),
    }
}

fn outbox() -> Outbox {
    let column = |name: &str| FieldSource::Column(name.to_owned());
    Outbox {
        schema: "public".into(),
        table: "outbox".into(),
        fields: Fields {
            event_id: column("event_id"),
            aggregate_type: FieldSource::Constant("registration".into()),
            aggregate_id: column("aggregate_id"),
            aggregate_version: Some(column("aggregate_version")),
            event_type: column("event_type"),
            payload: column("payload"),
            occurred_at: Some(column("occurred_at")),
        },
        headers: Vec::new(),
        route: Route {
            subject: SubjectTemplate::parse("events.{aggregate_id}").unwrap(),
            types: Vec::new(),
        },
        message_id_prefix: "public.outbox".into(),
    }
}

async fn initialised() -> (Postgres, SourceOptions) {
    let postgres = Postgres::start().await.unwrap();
    let options = options(&postgres);
    init(&options).await;
    (postgres, options)
}

async fn init(options: &SourceOptions) {
    for step in setup::plan(options, &[outbox()], Some("outbox_relay")).await.unwrap() {
        setup::carry_out(options, &step, |_| {}).await.unwrap();
    }
}

async fn open(
    options: &SourceOptions,
) -> Result<(Session, relay_core::SourceStarted), relay_core::Failure> {
    open_with(options, outbox()).await
}

async fn open_with(
    options: &SourceOptions,
    outbox: Outbox,
) -> Result<(Session, relay_core::SourceStarted), relay_core::Failure> {
    let mut recorder = Recorder::new(options.clone(), "shop".to_owned());
    Session::open(options, &[outbox], &mut recorder).await
}

async fn insert(postgres: &Postgres, aggregate: &str) {
    let client = postgres.connect().await.unwrap();
    let sql = "INSERT INTO outbox (aggregate_id, aggregate_version, event_type, payload) \
         VALUES ($1, 1, 'T', '{}')";
    client.execute(sql, &[&aggregate]).await.unwrap();
}

/// Reads on to the next commit; gives the inserted aggregate ids and the commit's end.
async fn transaction(session: &mut Session) -> (Vec<String>, Lsn) {
    let mut ids = Vec::new();
    loop {
        let batch = tokio::time::timeout(PATIENCE, session.next()).await.unwrap();
        for event in batch {
            match event {
                SourceEvent::Message(Message::Insert { new, .. }) => match &new.values[1] {
                    Value::Text(text) => ids.push(String::from_utf8(text.to_vec()).unwrap()),
                    other => panic!("{other:?}"),
                },
                SourceEvent::Message(Message::Commit { end_lsn, .. }) if !ids.is_empty() => {
                    return (ids, end_lsn);
                }
                SourceEvent::Message(_) | SourceEvent::Keepalive { .. } => {}
                SourceEvent::Failed(failure) => panic!("{failure}"),
            }
        }
    }
}

async fn failed(session: &mut Session) -> relay_core::Failure {
    loop {
        let batch = tokio::time::timeout(PATIENCE, session.next()).await.unwrap();
        if let Some(SourceEvent::Failed(failure)) = batch.last() {
            return failure.clone();
        }
    }
}

#[tokio::test]
async fn a_row_is_streamed_and_the_last_confirmation_survives_the_close() {
    let (postgres, options) = initialised().await;
    let (mut session, started) = open(&options).await.unwrap();
    assert!(started.confirmed_flush_lsn > Lsn::ZERO && started.system_identifier > 0);
    insert(&postgres, "a").await;
    let (ids, end) = transaction(&mut session).await;
    assert_eq!(ids, ["a"]);
    session.confirm(Lsn::new(u64::MAX));
    session.close(PATIENCE).await;
    let state = SlotWatch::new(options.clone()).look().await.unwrap();
    assert_eq!(state.confirmed_flush_lsn, end, "clamped to what was received");
    let (mut session, _) =
        wait_until(PATIENCE, "the slot is free again", || async { open(&options).await.ok() })
            .await
            .unwrap();
    insert(&postgres, "b").await;
    assert_eq!(transaction(&mut session).await.0, ["b"]);
}

#[tokio::test]
async fn a_second_session_learns_who_holds_the_slot() {
    let (_postgres, options) = initialised().await;
    let (_session, _) = open(&options).await.unwrap();
    let pid = SlotWatch::new(options.clone()).look().await.unwrap().active_pid.unwrap();
    let failure = open(&options).await.unwrap_err();
    assert_eq!(failure.code, "55006");
    assert_eq!(failure.class, FailureClass::SlotHeld { pid: Some(pid.cast_unsigned()) });
}

#[tokio::test]
async fn init_is_idempotent_and_check_is_content() {
    let (_postgres, options) = initialised().await;
    let again = setup::plan(&options, &[outbox()], Some("outbox_relay")).await.unwrap();
    let left: Vec<_> = again.iter().filter(|step| !step.sql.is_empty()).collect();
    assert!(left.iter().all(|step| step.title.starts_with("grants")), "{left:?}");
    let findings = preflight::check(&options, &[outbox()]).await;
    assert!(findings.iter().all(|finding| finding.level == Level::Ok), "{findings:?}");
    let as_role = SourceOptions { user: "outbox_relay".into(), ..options };
    let findings = preflight::check(&as_role, &[outbox()]).await;
    assert!(findings.iter().all(|finding| finding.level == Level::Ok), "{findings:?}");
}

#[tokio::test]
async fn a_wrong_name_halts_before_the_slot_is_touched() {
    let (postgres, options) = initialised().await;
    insert(&postgres, "a").await;
    let before = SlotWatch::new(options.clone()).look().await.unwrap().confirmed_flush_lsn;

    let wrong = SourceOptions { publication: "outbox_pbu".into(), ..options.clone() };
    let failure = open(&wrong).await.unwrap_err();
    assert_eq!((failure.code.as_str(), failure.class), ("publication", FailureClass::Halt));
    assert!(failure.message.contains("outbox_pbu"));

    let mut typo = outbox();
    typo.fields.payload = FieldSource::Column("payloadd".into());
    let failure = open_with(&options, typo).await.unwrap_err();
    assert_eq!(failure.code, "mapped_column");
    for part in ["`payloadd`", "outbox[0].fields.payload", "event_id, aggregate_id"] {
        assert!(failure.message.contains(part), "{failure}");
    }

    let wrong = SourceOptions { slot: "other".into(), ..options.clone() };
    assert_eq!(open(&wrong).await.unwrap_err().code, "slot");
    let wrong = SourceOptions { database: "nowhere".into(), ..options.clone() };
    assert_eq!(open(&wrong).await.unwrap_err().code, "3D000");
    let after = SlotWatch::new(options).look().await.unwrap().confirmed_flush_lsn;
    assert_eq!(before, after);
}

#[tokio::test]
async fn a_slot_blocked_by_an_open_transaction_names_it() {
    let postgres = Postgres::start().await.unwrap();
    let options = options(&postgres);
    let blocker = postgres.connect().await.unwrap();
    blocker.batch_execute("CREATE TABLE t (); BEGIN; INSERT INTO t DEFAULT VALUES").await.unwrap();
    let steps = setup::plan(&options, &[outbox()], None).await.unwrap();
    for step in &steps[..steps.len() - 1] {
        setup::carry_out(&options, step, |_| {}).await.unwrap();
    }
    let said = std::sync::Mutex::new(String::new());
    let slot = setup::carry_out(&options, &steps[steps.len() - 1], |text| {
        text.clone_into(&mut said.lock().unwrap());
    });
    let heard = wait_until(PATIENCE, "the blocker is named", || async {
        said.lock().unwrap().contains("idle in transaction").then_some(())
    });
    let freed = async {
        heard.await.unwrap();
        blocker.batch_execute("COMMIT").await.unwrap();
    };
    let (made, ()) = tokio::join!(slot, freed);
    made.unwrap();
    assert!(SlotWatch::new(options).look().await.is_ok());
}

#[tokio::test]
async fn a_server_that_dies_is_waited_for() {
    let (mut postgres, options) = initialised().await;
    let (mut session, _) = open(&options).await.unwrap();
    postgres.kill();
    assert_eq!(failed(&mut session).await.class, FailureClass::Wait);
    let failure = open(&options).await.unwrap_err();
    assert_eq!(failure.class, FailureClass::Wait);
    postgres.start_again().await.unwrap();
    insert(&postgres, "a").await;
    let (mut session, _) = open(&options).await.unwrap();
    assert_eq!(transaction(&mut session).await.0, ["a"]);
}

#[tokio::test]
async fn migrations_go_up_and_down_and_up() {
    let postgres = Postgres::start().await.unwrap();
    let client = postgres.connect().await.unwrap();
    for _ in 0..2 {
        for (_, up, _) in setup::MIGRATIONS {
            client.batch_execute(up).await.unwrap();
        }
        for (_, _, down) in setup::MIGRATIONS.iter().rev() {
            client.batch_execute(down).await.unwrap();
        }
    }
    let left = "SELECT count(*) FROM pg_class WHERE relname = 'outbox'";
    assert_eq!(client.query_one(left, &[]).await.unwrap().get::<_, i64>(0), 0);
}
