//! What the publication brings, hides, or brings that is not for publishing.

use std::time::{Duration, Instant};

use serde_json::Value;
use testkit::{World, WorldOptions};

use crate::support::{PATIENCE, assert_exact, count_reaches, insert, status};

/// A world whose publication has PostgreSQL's default list: inserts, updates, deletes, truncates.
async fn with_default_publication() -> World {
    let options = WorldOptions { bare: true, ..WorldOptions::default() };
    let world = World::start(options).await.unwrap();
    let client = world.postgres.connect().await.unwrap();
    let sql = "ALTER TABLE outbox REPLICA IDENTITY FULL; \
         CREATE TYPE mood AS ENUM ('calm', 'loud'); ALTER TABLE outbox ADD COLUMN mood mood; \
         CREATE PUBLICATION outbox_pub FOR TABLE outbox";
    client.batch_execute(sql).await.unwrap();
    let output = world.command(&world.config(|text| text).unwrap(), &["init"]).unwrap();
    assert!(output.status.success());
    world
}

#[tokio::test(flavor = "multi_thread")]
async fn c02_a_misspelt_publication_moves_no_slot() {
    let world = World::start(WorldOptions::default()).await.unwrap();
    let client = world.postgres.connect().await.unwrap();
    let before = world.confirmed().await.unwrap();
    let mut ids = Vec::new();
    for version in 1..=5 {
        ids.push(insert(&client, "a", version).await);
    }
    let wrong = world.config(|text| text.replace("outbox_pub", "outbox_pbu")).unwrap();
    let began = Instant::now();
    let mut relay = world.relay_with(&wrong).unwrap();
    let status = relay.program.wait_exit(Duration::from_secs(10)).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(10));
    assert_eq!(status.code(), Some(3));
    assert!(relay.program.log().contains("publication outbox_pbu does not exist"));
    assert_eq!(world.confirmed().await.unwrap(), before);

    let check = world.command(&wrong, &["check", "--json"]).unwrap();
    let findings: Value = serde_json::from_slice(&check.stdout).unwrap();
    assert_eq!((check.status.code(), &findings["can_run"]), (Some(1), &Value::Bool(false)));

    let _relay = world.relay().await.unwrap();
    assert_exact(&ids, &world.messages(5, PATIENCE).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn c02_rows_older_than_their_publication_are_reported() {
    let options = WorldOptions { bare: true, ..WorldOptions::default() };
    let world = World::start(options).await.unwrap();
    let client = world.postgres.connect().await.unwrap();
    let slot = "SELECT pg_create_logical_replication_slot('relay', 'pgoutput')";
    client.query_one(slot, &[]).await.unwrap();
    let hidden = insert(&client, "a", 1).await;
    let config = world.config(|text| text).unwrap();
    assert!(world.command(&config, &["init"]).unwrap().status.success());

    let mut relay = world.relay_with(&config).unwrap();
    let status = relay.program.wait_exit(Duration::from_secs(10)).await.unwrap();
    let log = relay.program.log();
    assert_eq!(status.code(), Some(3), "{log}");
    assert!(log.contains("can never be streamed") && log.contains(&hidden), "{log}");

    // The way out that the message gives: written anew, the row is streamed.
    let anew = "BEGIN; WITH gone AS (DELETE FROM outbox RETURNING *) \
         INSERT INTO outbox SELECT * FROM gone; COMMIT";
    client.batch_execute(anew).await.unwrap();
    let version = "SELECT current_setting('server_version_num')::int";
    if client.query_one(version, &[]).await.unwrap().get::<_, i32>(0) < 180_000 {
        let mut relay = world.relay_with(&config).unwrap();
        let status = relay.program.wait_exit(Duration::from_secs(10)).await.unwrap();
        let log = relay.program.log();
        assert_eq!(status.code(), Some(3), "{log}");
        assert!(log.contains("older than the publication"), "{log}");
        let drop_slot = "SELECT pg_drop_replication_slot('relay')";
        client.query_one(drop_slot, &[]).await.unwrap();
        assert!(world.command(&config, &["init"]).unwrap().status.success());
        client.batch_execute(anew).await.unwrap();
    }
    let _relay = world.relay().await.unwrap();
    assert_exact(&[hidden], &world.messages(1, PATIENCE).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn c07_columns_are_found_by_name_in_every_row() {
    let world = World::start(WorldOptions::default()).await.unwrap();
    let mut client = world.postgres.connect().await.unwrap();
    let mut relay = world.relay().await.unwrap();
    let insert = |version: i64, event_type: &str| {
        format!(
            "INSERT INTO outbox (id, aggregate_type, aggregate_id, version, event_type, payload) \
             VALUES (gen_random_uuid(), 'order', 'a', {version}, '{event_type}', '{{\"v\": {version}}}')"
        )
    };
    let transaction = client.transaction().await.unwrap();
    for sql in [
        &insert(1, "First"),
        "ALTER TABLE outbox ADD COLUMN trace text",
        &insert(2, "Second"),
        "ALTER TABLE outbox DROP COLUMN event_type",
        "ALTER TABLE outbox ADD COLUMN event_type text",
        &insert(3, "Third"),
    ] {
        transaction.batch_execute(sql).await.unwrap();
    }
    transaction.commit().await.unwrap();
    let stored = world.messages(3, PATIENCE).await.unwrap();
    let seen: Vec<_> = stored
        .iter()
        .map(|message| (message.version(), message.header("Outbox-Event-Type"), &message.body[..]))
        .collect();
    let expected: [(i64, &str, &[u8]); 3] =
        [(1, "First", b"{\"v\": 1}"), (2, "Second", b"{\"v\": 2}"), (3, "Third", b"{\"v\": 3}")];
    assert_eq!(seen, expected);

    client.batch_execute("ALTER TABLE outbox RENAME COLUMN payload TO body").await.unwrap();
    let before = world.wal_end().await.unwrap();
    let renamed = insert(4, "Fourth").replace("payload", "body");
    client.batch_execute(&renamed).await.unwrap();
    let status = relay.program.wait_exit(PATIENCE).await.unwrap();
    assert_eq!(status.code(), Some(3));
    assert!(
        relay.program.log().contains("mapped column payload missing"),
        "{}",
        relay.program.log()
    );
    assert!(world.confirmed().await.unwrap() <= before);

    let mended = world.config(|text| text.replace("payload: payload", "payload: body")).unwrap();
    let relay = world.relay_with(&mended).unwrap();
    relay.ready(PATIENCE).await.unwrap();
    let stored = world.messages(4, PATIENCE).await.unwrap();
    assert_eq!((stored.len(), stored[3].version()), (4, 4));
    assert_eq!(&stored[3].body[..], b"{\"v\": 4}");
}

#[tokio::test(flavor = "multi_thread")]
async fn c17_records_that_are_no_rows_are_counted_and_passed_over() {
    let world = with_default_publication().await;
    let client = world.postgres.connect().await.unwrap();
    let mut relay = world.relay().await.unwrap();
    let first = insert(&client, "a", 1).await;
    for sql in [
        "TRUNCATE outbox",
        "SELECT pg_logical_emit_message(true, 'x', 'y')",
        "SELECT pg_logical_emit_message(false, 'x', 'y')",
    ] {
        client.batch_execute(sql).await.unwrap();
    }
    let second = insert(&client, "a", 2).await;
    assert_exact(&[first, second], &world.messages(2, PATIENCE).await.unwrap());
    let counts = status(&relay).await["counts"].clone();
    assert_eq!((&counts["truncates"], &counts["messages"]), (&1.into(), &2.into()));
    assert_eq!(counts["source_sessions"], 1);
    assert!(relay.program.is_running().unwrap());
}

/// Inserts, updates and deletes in every combination; gives the ids of the inserted rows.
async fn change_rows(world: &World) -> Vec<String> {
    let client = world.postgres.connect().await.unwrap();
    let mut ids = Vec::new();
    client.batch_execute("BEGIN").await.unwrap();
    ids.push(insert(&client, "a", 1).await);
    client.batch_execute("DELETE FROM outbox; COMMIT").await.unwrap();
    ids.push(insert(&client, "a", 2).await);
    client.batch_execute("UPDATE outbox SET created_at = now()").await.unwrap();
    client.batch_execute("DELETE FROM outbox").await.unwrap();
    let large = "INSERT INTO outbox (id, aggregate_type, aggregate_id, version, event_type, payload) \
         SELECT gen_random_uuid(), 'order', 'a', 3, 'Changed', \
           jsonb_build_object('text', string_agg(md5(n::text), '')) \
         FROM generate_series(1, 160) n RETURNING id::text";
    client
        .batch_execute("ALTER TABLE outbox ALTER COLUMN payload SET STORAGE EXTERNAL")
        .await
        .unwrap();
    ids.push(client.query_one(large, &[]).await.unwrap().get(0));
    client.batch_execute("UPDATE outbox SET created_at = now()").await.unwrap();
    ids
}

#[tokio::test(flavor = "multi_thread")]
async fn c41_updates_and_deletes_of_outbox_rows_are_never_published() {
    for world in
        [with_default_publication().await, World::start(WorldOptions::default()).await.unwrap()]
    {
        let relay = world.relay().await.unwrap();
        let ids = change_rows(&world).await;
        let client = world.postgres.connect().await.unwrap();
        let last = insert(&client, "a", 4).await;
        let ids = [ids, vec![last]].concat();
        let stored = world.messages(4, PATIENCE).await.unwrap();
        assert_exact(&ids, &stored);
        assert!(stored[2].body.len() > 5_000, "the whole payload: {} bytes", stored[2].body.len());
        let counts = status(&relay).await["counts"].clone();
        let seen = (counts["updates"].as_u64().unwrap(), counts["deletes"].as_u64().unwrap());
        assert!(seen == (2, 2) || seen == (0, 0), "{seen:?}");
        count_reaches(&relay, "/counts/published", 4).await;
    }
}
