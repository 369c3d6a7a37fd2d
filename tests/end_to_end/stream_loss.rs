//! A stream that lost what it had acknowledged gets exactly that again.

use std::path::PathBuf;
use std::process::Output;

use event::headers;
use testkit::stream::{Stored, tally};
use testkit::{World, WorldOptions, wait_until};

use crate::no_loss::{PATIENCE, write};

const WORDS: &str = "the stream lost what it had acknowledged: publishing it again";

fn held_back() -> WorldOptions {
    WorldOptions { delivery: "{hold_back: 2m}".to_owned(), ..WorldOptions::default() }
}

fn assert_exact(ids: &[String], stored: &[Stored]) {
    let tally = tally(ids, stored);
    assert_eq!((tally.in_stream, tally.committed), (ids.len(), ids.len()), "{tally:?}");
    assert_eq!((tally.lost, tally.doubled, tally.out_of_order), (0, 0, 0), "{tally:?}");
}

async fn make_stream_anew(world: &World) {
    let context = async_nats::jetstream::new(world.nats.client().await.unwrap());
    context.delete_stream("OUTBOX").await.unwrap();
    succeeds(&world.command(&world.config(|text| text).unwrap(), &["init"]).unwrap());
}

fn succeeds(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A world whose relay has published versions 1 to 10 and then stopped.
async fn published(options: WorldOptions) -> (World, Vec<String>) {
    let world = World::start(options).await.unwrap();
    let mut relay = world.relay().await.unwrap();
    let ids = write(&world, 1, 10).await;
    world.messages(200, PATIENCE).await.unwrap();
    relay.program.terminate(PATIENCE).await.unwrap();
    (world, ids)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_made_anew_while_the_relay_was_down_is_filled_again() {
    let (world, mut ids) = published(held_back()).await;
    make_stream_anew(&world).await;
    let relay = world.relay().await.unwrap();
    ids.extend(write(&world, 11, 12).await);
    assert_exact(&ids, &world.messages(240, PATIENCE).await.unwrap());
    assert!(relay.program.log().contains(WORDS), "{}", relay.program.tail());
}

/// Restores the broker's store as it was after 100 messages, beside a relay at work; where asked,
/// only when the slot no longer holds most of what is lost.
async fn restore_the_store(
    options: WorldOptions,
    let_go: bool,
) -> (World, Vec<String>, testkit::Relay) {
    let mut world = World::start(options).await.unwrap();
    let relay = world.relay().await.unwrap();
    let mut ids = write(&world, 1, 5).await;
    world.messages(100, PATIENCE).await.unwrap();
    let older = tempfile::tempdir().unwrap();
    let older = older.path().join("store");
    world.nats.kill();
    world.nats.save_store(&older).unwrap();
    world.nats.start_again().await.unwrap();
    ids.extend(write(&world, 6, 9).await);
    let most = world.wal_end().await.unwrap();
    ids.extend(write(&world, 10, 10).await);
    world.messages(200, PATIENCE).await.unwrap();
    if let_go {
        wait_until(PATIENCE, "the slot has let go of the events", || async {
            (world.confirmed().await.ok()? >= most).then_some(())
        })
        .await
        .unwrap();
    }
    world.nats.kill();
    world.nats.restore_store(&older).unwrap();
    world.nats.start_again().await.unwrap();
    (world, ids, relay)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_store_gets_exactly_its_lost_tail_from_the_log() {
    let (world, mut ids, relay) = restore_the_store(held_back(), false).await;
    ids.extend(write(&world, 11, 11).await);
    let stored = world.messages(220, PATIENCE).await.unwrap();
    assert_exact(&ids, &stored);
    assert!(stored.iter().all(|message| message.header(headers::REPLAY).is_empty()));
    relay.ready(PATIENCE).await.unwrap();
    assert!(relay.program.log().contains(WORDS), "{}", relay.program.tail());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loss_beyond_the_slot_is_mended_from_the_rows() {
    let (world, mut ids, relay) = restore_the_store(WorldOptions::default(), true).await;
    ids.extend(write(&world, 11, 11).await);
    let stored = world.messages(220, PATIENCE).await.unwrap();
    assert_exact(&ids, &stored);
    let replayed: Vec<_> =
        stored.iter().filter(|message| !message.header(headers::REPLAY).is_empty()).collect();
    assert!(!replayed.is_empty() && replayed.len() <= 100, "{}", replayed.len());
    for message in &replayed {
        assert!(message.header(headers::REPLAY).starts_with("lost_tail/"));
        assert_eq!(message.header(headers::REPLAY_BY), "outbox-relay");
        assert_eq!(message.header(headers::POSITION), "");
        assert!((6..=10).contains(&message.version()), "{}", message.version());
    }
    relay.ready(PATIENCE).await.unwrap();
    // What was mended is known at the next start, and nothing is published a third time.
    drop(relay);
    let _relay = world.relay().await.unwrap();
    ids.extend(write(&world, 12, 12).await);
    assert_exact(&ids, &world.messages(240, PATIENCE).await.unwrap());
}

/// A world with one of the lost rows gone; gives the configuration of a relay that has halted.
async fn halted() -> (World, Vec<String>, String, PathBuf) {
    let (world, mut ids) = published(WorldOptions::default()).await;
    make_stream_anew(&world).await;
    let client = world.postgres.connect().await.unwrap();
    let delete = "DELETE FROM outbox WHERE aggregate_id = '7' AND version = 10 RETURNING id::text";
    let deleted: String = client.query_one(delete, &[]).await.unwrap().get(0);
    ids.retain(|id| *id != deleted);
    let config = world.config(|text| text).unwrap();
    let mut relay = world.relay_with(&config).unwrap();
    let status = relay.program.wait_exit(PATIENCE).await.unwrap();
    let log = relay.program.log();
    assert_eq!(status.code(), Some(3), "{log}");
    assert!(log.contains("tail_lost") && log.contains("outbox-relay recover"), "{log}");
    assert!(log.contains("200 messages further"), "{log}");
    assert_eq!(world.stream().await.unwrap().len(), 0, "nothing is published by guess");
    (world, ids, log, config)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loss_whose_rows_are_gone_halts_until_the_rest_is_published_by_decision() {
    let (world, mut ids, log, config) = halted().await;
    assert!(log.contains("hold 199 rows"), "{log}");
    let shown = succeeds(&world.command(&config, &["recover"]).unwrap());
    assert!(shown.contains("OUTBOX ends with none"), "{shown}");
    assert!(shown.contains("--republish"), "{shown}");
    let decision = ["recover", "--republish", "--as", "ada", "--reason", "row 7/10 was a mistake"];
    let said = succeeds(&world.command(&config, &decision).unwrap());
    assert!(said.contains("published 199 events"), "{said}");
    let _relay = world.relay().await.unwrap();
    ids.extend(write(&world, 11, 11).await);
    let stored = world.messages(219, PATIENCE).await.unwrap();
    assert_exact(&ids, &stored);
    assert_eq!(stored[0].header(headers::REPLAY_BY), "ada");
    assert_eq!(stored[0].header(headers::REPLAY_REASON), "row 7/10 was a mistake");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loss_whose_rows_are_gone_may_be_given_up_on_record() {
    let (world, _, _, config) = halted().await;
    let refused = world.command(&config, &["recover", "--settle"]).unwrap();
    assert_eq!(refused.status.code(), Some(2), "a decision needs a reason");
    let decision = ["recover", "--settle", "--as", "ada", "--reason", "consumers have them"];
    succeeds(&world.command(&config, &decision).unwrap());
    let _relay = world.relay().await.unwrap();
    let ids = write(&world, 11, 11).await;
    assert_exact(&ids, &world.messages(20, PATIENCE).await.unwrap());
    let client = world.postgres.connect().await.unwrap();
    let sql = "SELECT act, actor, reason, login::text FROM outbox_relay.act";
    let row = client.query_one(sql, &[]).await.unwrap();
    let column = |index| row.get::<_, String>(index);
    assert_eq!(
        (column(0).as_str(), column(1).as_str(), column(2).as_str(), column(3).as_str()),
        ("settle", "ada", "consumers have them", "postgres")
    );
}
