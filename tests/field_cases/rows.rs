//! What stands in the rows.

use std::collections::BTreeSet;
use std::time::Duration;

use event::unescape_token;
use futures_util::StreamExt as _;
use testkit::{World, WorldOptions};

use crate::support::{PATIENCE, insert, status};

#[tokio::test(flavor = "multi_thread")]
async fn c06_any_aggregate_id_is_one_token_and_comes_back() {
    let ids = ["a b", "a.b", "*", ">", "x*y", "a\tb", "a\r\nPUB evil 1", "café", "%41", "A"];
    let world = World::start(WorldOptions::default()).await.unwrap();
    let relay = world.relay().await.unwrap();
    let nats = world.nats.client().await.unwrap();
    let mut evil = nats.subscribe("evil").await.unwrap();
    nats.flush().await.unwrap();
    let client = world.postgres.connect().await.unwrap();
    for id in ids {
        insert(&client, id, 1).await;
    }
    let stored = world.messages(10, PATIENCE).await.unwrap();
    assert_eq!(stored.len(), 10);
    let subjects: BTreeSet<_> = stored.iter().map(|message| &message.subject).collect();
    assert_eq!(subjects.len(), 10);
    for (message, id) in stored.iter().zip(ids) {
        let tokens: Vec<_> = message.subject.split('.').collect();
        assert_eq!(tokens.len(), 3, "{}", message.subject);
        assert_eq!(unescape_token(tokens[2]).as_deref(), Some(id));
        assert_eq!(message.aggregate_id(), id);
    }
    let nothing = tokio::time::timeout(Duration::from_millis(500), evil.next());
    assert!(nothing.await.is_err(), "a message on `evil`");
    assert_eq!(status(&relay).await["counts"]["sink_sessions"], 1);
}

async fn bodies(column_type: &str, payloads: &[&str]) {
    let table = format!(
        "CREATE TABLE outbox (id uuid PRIMARY KEY, aggregate_type text NOT NULL, \
         aggregate_id text NOT NULL, version bigint, event_type text NOT NULL, \
         payload {column_type}, created_at timestamptz DEFAULT now())"
    );
    let world = World::start(WorldOptions { table, ..WorldOptions::default() }).await.unwrap();
    let _relay = world.relay().await.unwrap();
    let client = world.postgres.connect().await.unwrap();
    let mut printed = Vec::new();
    for (version, payload) in (1_i64..).zip(payloads) {
        let insert = format!(
            "INSERT INTO outbox (id, aggregate_type, aggregate_id, version, event_type, payload) \
             VALUES (gen_random_uuid(), 'order', 'a', $1, 'Changed', $2::text::{column_type}) \
             RETURNING payload::text"
        );
        let row = client.query_one(&insert, &[&version, payload]).await.unwrap();
        printed.push(row.get::<_, String>(0));
    }
    let stored = world.messages(payloads.len(), PATIENCE).await.unwrap();
    let seen: Vec<_> = stored.iter().map(|m| String::from_utf8_lossy(&m.body)).collect();
    assert_eq!(seen, printed);
    assert!(stored.iter().all(|message| message.header("Content-Type") == "application/json"));
}

#[tokio::test(flavor = "multi_thread")]
async fn c42_a_payload_goes_out_byte_for_byte() {
    let jsonb = r#"{"b":1.10,"aa":12345678901234567890,"u":"é"}"#;
    let json = "{\"b\" : 1.10,  \"a\":1, \"a\":2, \"n\":\"\\u0000\", \"e\":1e400}";
    let (jsonb, json) = ([jsonb, "null", "{}"], [json]);
    tokio::join!(bodies("jsonb", &jsonb), bodies("json", &json));
}

#[tokio::test(flavor = "multi_thread")]
async fn t4_two_events_of_an_aggregate_within_a_second_are_two_messages() {
    let world = World::start(WorldOptions::default()).await.unwrap();
    let _relay = world.relay().await.unwrap();
    let client = world.postgres.connect().await.unwrap();
    // The same in everything but the id and the version.
    let insert = "INSERT INTO outbox \
         SELECT gen_random_uuid(), 'order', 'a', version, 'Changed', '{}', '2026-01-01' \
         FROM generate_series(1, 2) version";
    client.batch_execute(insert).await.unwrap();
    let stored = world.messages(2, PATIENCE).await.unwrap();
    let versions: Vec<_> = stored.iter().map(|message| message.version()).collect();
    assert_eq!(versions, [1, 2]);
}
