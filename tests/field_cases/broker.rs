//! What the broker refuses, loses or hides.

use std::time::{Duration, Instant};

use testkit::{World, WorldOptions};

use crate::support::{PATIENCE, assert_exact, count_reaches, write};

async fn without_a_stream(core_subscriber: bool) {
    let options =
        WorldOptions { delivery: "{hold_back: 2m}".to_owned(), ..WorldOptions::default() };
    let world = World::start(options).await.unwrap();
    let relay = world.relay().await.unwrap();
    let client = world.nats.client().await.unwrap();
    let subscriber = client.subscribe("outbox.>").await.unwrap();
    client.flush().await.unwrap();
    let subscriber = core_subscriber.then_some(subscriber);
    let context = async_nats::jetstream::new(client.clone());
    let mut ids = write(&world, 1, 25).await;
    count_reaches(&relay, "/counts/published", 100).await;
    let confirmed = world.confirmed().await.unwrap();

    context.delete_stream("OUTBOX").await.unwrap();
    let deleted = Instant::now();
    ids.extend(write(&world, 26, 50).await);
    let reason = relay.not_ready(Duration::from_secs(15), "no stream").await.unwrap();
    assert!(reason.contains("OUTBOX"), "{reason}");
    while deleted.elapsed() < Duration::from_secs(60) {
        assert_eq!(world.confirmed().await.unwrap(), confirmed, "the slot is frozen");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let tries = relay.program.log().matches("waiting for a dependency").count();
    assert!(tries as u64 <= deleted.elapsed().as_secs() + 1, "{tries} tries");

    let output = world.command(&world.config(|text| text).unwrap(), &["init"]).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    relay.ready(PATIENCE).await.unwrap();
    assert_exact(&ids, &world.messages(200, PATIENCE).await.unwrap());
    assert!(relay.program.log().contains("the stream lost what it had acknowledged"));
    drop(subscriber);
}

#[tokio::test(flavor = "multi_thread")]
async fn c04_a_deleted_stream_is_waited_for_and_filled_again() {
    without_a_stream(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c04_a_core_subscriber_does_not_hide_that_the_stream_is_gone() {
    without_a_stream(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c10_a_broker_that_is_killed_under_load_loses_doubles_and_reorders_nothing() {
    let mut world = World::start(WorldOptions::default()).await.unwrap();
    let relay = world.relay().await.unwrap();
    let mut ids = Vec::new();
    for part in 0..4 {
        ids.extend(write(&world, part * 125 + 1, (part + 1) * 125).await);
        if part == 0 || part == 2 {
            world.nats.kill();
            ids.extend(write(&world, 1_000 + part * 10, 1_000 + part * 10 + 9).await);
            tokio::time::sleep(Duration::from_secs(5)).await;
            world.nats.start_again().await.unwrap();
        }
    }
    let stored = world.messages(2_080, PATIENCE).await.unwrap();
    let found: std::collections::BTreeSet<_> = stored.iter().map(|m| m.event_id()).collect();
    assert_eq!((stored.len(), found.len()), (2_080, 2_080));
    // The versions written during the outages jump ahead, so commit order is that of the ids.
    let order: Vec<_> = stored.iter().map(|message| message.event_id().to_owned()).collect();
    assert_eq!(order, ids);
    relay.ready(PATIENCE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn c33_a_full_stream_is_waited_for() {
    let world = World::start(WorldOptions::default()).await.unwrap();
    let context = async_nats::jetstream::new(world.nats.client().await.unwrap());
    let mut stream = context.get_stream("OUTBOX").await.unwrap();
    let mut config = stream.info().await.unwrap().config.clone();
    config.max_messages = 100;
    context.update_stream(config).await.unwrap();
    let relay = world.relay().await.unwrap();
    let mut ids = write(&world, 1, 25).await;
    world.messages(100, PATIENCE).await.unwrap();
    count_reaches(&relay, "/counts/published", 100).await;
    let before = world.wal_end().await.unwrap();
    let kept = world.stream().await.unwrap();
    ids.extend(write(&world, 26, 37).await);
    let full = Instant::now();
    relay.not_ready(Duration::from_secs(15), "stream_full").await.unwrap();
    tokio::time::sleep(Duration::from_secs(30).saturating_sub(full.elapsed())).await;
    assert!(world.confirmed().await.unwrap() <= before, "the slot is frozen");
    let tries = relay.program.log().matches("waiting for a dependency").count();
    assert!(tries as u64 <= full.elapsed().as_secs() + 1, "{tries} tries");
    stream.purge().await.unwrap();
    relay.ready(PATIENCE).await.unwrap();
    let rest = world.messages(48, PATIENCE).await.unwrap();
    assert_exact(&ids, &[kept, rest].concat());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_jetstream_never_counts_as_delivered() {
    let world = World::start(WorldOptions::default()).await.unwrap();
    let core_only = testkit::Nats::start_core().await.unwrap();
    let url = core_only.url();
    let config = world.config(|text| text.replace(&world.nats.url(), &url)).unwrap();
    let relay = world.relay_with(&config).unwrap();
    let client = core_only.client().await.unwrap();
    let _subscriber = client.subscribe("outbox.>").await.unwrap();
    let ids = write(&world, 1, 5).await;
    relay.not_ready(Duration::from_secs(15), "jetstream").await.unwrap();
    drop(relay);
    let _relay = world.relay().await.unwrap();
    assert_exact(&ids, &world.messages(20, PATIENCE).await.unwrap());
}
