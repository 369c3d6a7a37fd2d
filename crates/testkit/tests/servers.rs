//! The servers start, survive what tests do to them, and end.

use std::time::Duration;

use testkit::{Nats, Postgres, StopMode, wait_until};

#[tokio::test]
async fn postgres_stops_and_comes_back_with_its_data() {
    let mut postgres = Postgres::start().await.unwrap();
    let client = postgres.connect().await.unwrap();
    client.batch_execute("CREATE TABLE t AS SELECT 7 AS n").await.unwrap();
    for mode in [StopMode::Fast, StopMode::Immediate] {
        postgres.stop(mode, Duration::from_secs(20)).await.unwrap();
        postgres.start_again().await.unwrap();
    }
    postgres.kill();
    postgres.start_again().await.unwrap();
    let client = postgres.connect().await.unwrap();
    let n: i32 = client.query_one("SELECT n FROM t", &[]).await.unwrap().get(0);
    assert_eq!(n, 7);
}

#[tokio::test]
async fn a_paused_postgres_answers_nobody_until_resumed() {
    let postgres = Postgres::start().await.unwrap();
    let client = postgres.connect().await.unwrap();
    postgres.pause().unwrap();
    let asked = tokio::time::timeout(Duration::from_millis(300), client.query_one("SELECT 1", &[]));
    assert!(asked.await.is_err());
    postgres.resume().unwrap();
    let again = wait_until(Duration::from_secs(10), "an answer", || async {
        client.query_one("SELECT 1", &[]).await.ok()
    });
    assert_eq!(again.await.unwrap().get::<_, i32>(0), 1);
}

#[tokio::test]
async fn nats_keeps_its_stream_over_a_kill() {
    let mut nats = Nats::start().await.unwrap();
    let context = async_nats::jetstream::new(nats.client().await.unwrap());
    let config = async_nats::jetstream::stream::Config {
        name: "S".into(),
        subjects: vec!["s.>".into()],
        ..Default::default()
    };
    context.create_stream(config).await.unwrap();
    context.publish("s.1", "x".into()).await.unwrap().await.unwrap();
    nats.kill();
    nats.start_again().await.unwrap();
    let context = async_nats::jetstream::new(nats.client().await.unwrap());
    let stream = context.get_stream("S").await.unwrap();
    assert_eq!(stream.cached_info().state.messages, 1);
}
