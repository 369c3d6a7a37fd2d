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
    assert!(relay.program.log().contains("the stream lost its tail"));
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
