//! A stream that others write to as well.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use event::headers;
use testkit::stream::{Stored, count_of, tally};
use testkit::{Relay, World, WorldOptions, wait_until};
use tokio::task::JoinHandle;

use crate::no_loss::{PATIENCE, write};

async fn world(delivery: &str) -> (World, PathBuf) {
    let options = WorldOptions { delivery: delivery.to_owned(), ..WorldOptions::default() };
    let world = World::start(options).await.unwrap();
    let context = async_nats::jetstream::new(world.nats.client().await.unwrap());
    let mut stream = context.get_stream("OUTBOX").await.unwrap();
    let mut config = stream.info().await.unwrap().config.clone();
    config.subjects.push("other.>".to_owned());
    config.duplicate_window = Duration::from_millis(100);
    context.update_stream(config).await.unwrap();
    let config = shared(&world);
    (world, config)
}

fn shared(world: &World) -> PathBuf {
    world.config(|text| text.replace("stream: OUTBOX", "stream: OUTBOX, shared: true")).unwrap()
}

async fn relay(world: &World) -> Relay {
    let relay = world.relay_with(&shared(world)).unwrap();
    relay.ready(PATIENCE).await.unwrap();
    relay
}

/// Somebody who writes all the time; counts what was stored.
fn somebody(client: async_nats::Client, stored: Arc<AtomicU64>) -> JoinHandle<()> {
    tokio::spawn(async move {
        let context = async_nats::jetstream::new(client);
        loop {
            if let Ok(ack) = context.publish("other.x", "theirs".into()).await
                && ack.await.is_ok()
            {
                stored.fetch_add(1, Ordering::SeqCst);
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
}

fn assert_exact(ids: &[String], stored: &[Stored]) {
    let own: Vec<_> =
        stored.iter().filter(|message| !message.event_id().is_empty()).cloned().collect();
    let tally = tally(ids, &own);
    assert_eq!((tally.in_stream, tally.committed), (ids.len(), ids.len()), "{tally:?}");
    assert_eq!((tally.lost, tally.doubled, tally.out_of_order), (0, 0, 0), "{tally:?}");
}

/// Waits until the stream holds so many messages on the relay's subjects.
async fn own_messages(world: &World, count: usize) -> Vec<Stored> {
    let client = world.nats.client().await.unwrap();
    let what = format!("{count} messages on the relay's subjects");
    let counted = wait_until(PATIENCE, &what, || async {
        let held = count_of(&client, "OUTBOX", "outbox.>").await.ok()?;
        (held >= count).then_some(())
    });
    if let Err(error) = counted.await {
        panic!("{error}; {:?}", count_of(&client, "OUTBOX", "outbox.>").await);
    }
    world.stream().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn events_arrive_once_and_in_order_among_those_of_others_through_kills() {
    let (mut world, _) = world("{hold_back: 0s}").await;
    let theirs = Arc::new(AtomicU64::new(0));
    let somebody = somebody(world.nats.client().await.unwrap(), Arc::clone(&theirs));
    let mut relay_process = relay(&world).await;
    let mut ids = write(&world, 1, 20).await;
    relay_process.program.kill();
    ids.extend(write(&world, 21, 40).await);
    let mut relay_process = relay(&world).await;
    ids.extend(write(&world, 41, 60).await);
    world.nats.kill();
    ids.extend(write(&world, 61, 80).await);
    world.nats.start_again().await.unwrap();
    ids.extend(write(&world, 81, 100).await);
    let stored = own_messages(&world, 2_000).await;
    somebody.abort();
    assert_exact(&ids, &stored);
    assert!(theirs.load(Ordering::SeqCst) > 100, "{theirs:?}");
    // A foreign message costs no session: one before the broker's death, one after it.
    relay_process.ready(PATIENCE).await.unwrap();
    let log = relay_process.program.log();
    assert!(!log.contains("overtaken"), "{log}");
    // What stands in the stream is known after another start, window or not.
    relay_process.program.kill();
    let _relay = relay(&world).await;
    ids.extend(write(&world, 101, 101).await);
    assert_exact(&ids, &own_messages(&world, 2_020).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn check_says_which_rule_holds() {
    let (world, shared) = world("{hold_back: 0s}").await;
    let own = world.config(|text| text).unwrap();
    let said = |config: &PathBuf| {
        let output = world.command(config, &["check", "--json"]).unwrap();
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let findings = found["findings"].as_array().unwrap();
        let regime = findings.iter().find(|finding| finding["code"] == "stream_regime").unwrap();
        (regime["level"].clone(), regime["message"].to_string())
    };
    assert!(said(&own).1.contains("only writer"));
    let context = async_nats::jetstream::new(world.nats.client().await.unwrap());
    context.publish("other.x", "theirs".into()).await.unwrap().await.unwrap();
    let (level, words) = said(&own);
    assert!(level == "warning" && words.contains("others write to stream OUTBOX"), "{words}");
    let (level, words) = said(&shared);
    assert!(level == "ok" && words.contains("shared"), "{words}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_and_messages_of_others_on_the_same_subject_hide_nothing() {
    let (world, config) = world("{hold_back: 10m}").await;
    let mut relay_process = relay(&world).await;
    let mut ids = write(&world, 1, 5).await;
    own_messages(&world, 100).await;
    let replay = ["replay", "--rows", "--aggregate", "7", "--reason", "drill"];
    let output = tokio::task::block_in_place(|| world.command(&config, &replay)).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let context = async_nats::jetstream::new(world.nats.client().await.unwrap());
    context.publish("outbox.order.8", "theirs".into()).await.unwrap().await.unwrap();
    // The slot sends everything again, and the last messages of two subjects tell nothing.
    relay_process.program.kill();
    let _relay = relay(&world).await;
    ids.extend(write(&world, 6, 6).await);
    let stored = own_messages(&world, 126).await;
    let first: Vec<_> = stored
        .iter()
        .filter(|message| message.header(headers::REPLAY).is_empty())
        .cloned()
        .collect();
    assert_exact(&ids, &first);
    assert_eq!(stored.len(), 126);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_tail_halts_the_relay_until_somebody_decides() {
    let (mut world, config) = world("{hold_back: 0s}").await;
    let mut relay_process = relay(&world).await;
    let mut ids = write(&world, 1, 5).await;
    own_messages(&world, 100).await;
    relay_process.program.terminate(PATIENCE).await.unwrap();
    let older = tempfile::tempdir().unwrap();
    let older = older.path().join("store");
    world.nats.kill();
    world.nats.save_store(&older).unwrap();
    world.nats.start_again().await.unwrap();
    let mut relay_process = relay(&world).await;
    ids.extend(write(&world, 6, 6).await);
    own_messages(&world, 120).await;
    relay_process.program.terminate(PATIENCE).await.unwrap();
    world.nats.kill();
    world.nats.restore_store(&older).unwrap();
    world.nats.start_again().await.unwrap();
    let mut halted = world.relay_with(&config).unwrap();
    let ended = halted.program.wait_exit(PATIENCE).await.unwrap();
    let log = halted.program.log();
    assert_eq!(ended.code(), Some(3), "{log}");
    assert!(log.contains("tail_lost") && log.contains("outbox-relay recover"), "{log}");
    assert_eq!(world.stream().await.unwrap().len(), 100);
    let decision = ["recover", "--republish", "--reason", "the broker was restored"];
    let output = world.command(&config, &decision).unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("published 20 events"), "{said}");
    let _relay = relay(&world).await;
    ids.extend(write(&world, 7, 7).await);
    assert_exact(&ids, &own_messages(&world, 140).await);
}
