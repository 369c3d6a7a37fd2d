//! Another database, a restored one, a failover that lost log, a slot that was moved: noticed before
//! anything is published.

use std::time::Duration;

use testkit::stream::tally;
use testkit::{Postgres, StopMode, World, WorldOptions, wait_until};

use crate::no_loss::{PATIENCE, write};

fn held_back() -> WorldOptions {
    WorldOptions { delivery: "{hold_back: 2m}".to_owned(), ..WorldOptions::default() }
}

/// A relay halts, exit code 3, with a code in its words, and leaves the stream as it is.
async fn halts(world: &World, code: &str) -> String {
    let before = world.stream().await.unwrap();
    let mut relay = world.relay_with(&world.config(|text| text).unwrap()).unwrap();
    let status = relay.program.wait_exit(PATIENCE).await.unwrap();
    let log = relay.program.log();
    assert_eq!(status.code(), Some(3), "{log}");
    assert!(log.contains(code) && log.contains("outbox-relay recover"), "{log}");
    assert_eq!(world.stream().await.unwrap(), before);
    log
}

fn decide(world: &World, arguments: &[&str]) -> String {
    let arguments = [&["recover", "--as", "ada", "--reason", "drill"], arguments].concat();
    let output = world.command(&world.config(|text| text).unwrap(), &arguments).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

async fn assert_exact(world: &World, ids: &[String]) {
    let stored = world.messages(ids.len(), PATIENCE).await.unwrap();
    let tally = tally(ids, &stored);
    assert_eq!((tally.in_stream, tally.lost, tally.doubled), (ids.len(), 0, 0), "{tally:?}");
    assert_eq!(tally.out_of_order, 0, "{tally:?}");
}

/// Writes and waits until it is published and the relay has stopped.
async fn publish(world: &World, ids: &mut Vec<String>, from: i64, to: i64) {
    let mut relay = world.relay().await.unwrap();
    ids.extend(write(world, from, to).await);
    world.messages(ids.len(), PATIENCE).await.unwrap();
    relay.program.terminate(PATIENCE).await.unwrap();
}

/// A cold copy of the database as it is now; the database goes on.
async fn copied(world: &mut World, promoted: bool) -> Postgres {
    world.postgres.stop(StopMode::Fast, PATIENCE).await.unwrap();
    let copy = match promoted {
        true => world.postgres.promoted_copy().await.unwrap(),
        false => world.postgres.copy().await.unwrap(),
    };
    world.postgres.start_again().await.unwrap();
    copy
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_made_anew_halts_the_relay_until_somebody_decides() {
    let world = World::start(WorldOptions::default()).await.unwrap();
    let mut ids = Vec::new();
    publish(&world, &mut ids, 1, 2).await;
    let client = world.postgres.connect().await.unwrap();
    client.query_one("SELECT pg_drop_replication_slot('relay')", &[]).await.unwrap();
    let lost = write(&world, 3, 3).await;
    let make = "SELECT pg_create_logical_replication_slot('relay', 'pgoutput')";
    client.query_one(make, &[]).await.unwrap();
    halts(&world, "slot_moved").await;

    let said = decide(&world, &["--republish"]);
    assert!(said.contains("published 20 events"), "{said}");
    ids.extend(lost);
    publish(&world, &mut ids, 4, 4).await;
    assert_exact(&world, &ids).await;
    let acts = client.query("SELECT act, actor FROM outbox_relay.act", &[]).await.unwrap();
    let acts: Vec<(String, String)> = acts.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(acts, [("settle".to_owned(), "ada".to_owned())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decision_is_refused_while_a_relay_holds_the_slot() {
    let world = World::start(WorldOptions::default()).await.unwrap();
    let _relay = world.relay().await.unwrap();
    let arguments = ["recover", "--settle", "--reason", "drill"];
    let output = world.command(&world.config(|text| text).unwrap(), &arguments).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("stop every relay of this name"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failover_that_lost_log_is_noticed_and_adopted_at_the_fork() {
    let mut world = World::start(held_back()).await.unwrap();
    let mut ids = Vec::new();
    publish(&world, &mut ids, 1, 2).await;
    let standby = copied(&mut world, true).await;
    publish(&world, &mut ids, 3, 3).await;
    // The old server is gone, and with it what the copy had not received.
    world.postgres = standby;
    let log = halts(&world, "timeline").await;
    let left = log.split("left that timeline at ").nth(1).unwrap();
    let fork = left.split(|c: char| !(c.is_ascii_hexdigit() || c == '/')).next().unwrap();
    decide(&world, &["--adopt", fork]);
    // The versions that the stream had from the lost log happen once more, as other events.
    publish(&world, &mut ids, 4, 5).await;
    assert_exact(&world, &ids).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failover_that_lost_nothing_goes_on_by_itself() {
    let mut world = World::start(held_back()).await.unwrap();
    let mut ids = Vec::new();
    publish(&world, &mut ids, 1, 2).await;
    world.postgres = copied(&mut world, true).await;
    publish(&world, &mut ids, 3, 3).await;
    assert_exact(&world, &ids).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_database_halts_before_its_log_and_after_it() {
    let mut world = World::start(held_back()).await.unwrap();
    let mut ids = Vec::new();
    publish(&world, &mut ids, 1, 2).await;
    let copy = copied(&mut world, false).await;
    publish(&world, &mut ids, 3, 3).await;
    world.postgres = copy;
    halts(&world, "restored").await;
    // The copy goes another way until its log is longer than that of the lost server.
    let stream_end = world.stream().await.unwrap().pop().unwrap();
    let position: event::Position = stream_end.header(event::headers::POSITION).parse().unwrap();
    let mut version = 4;
    wait_until(Duration::from_secs(60), "the copy's log is the longer one", || {
        version += 1;
        let (world, version) = (&world, version);
        async move {
            write(world, version, version).await;
            (world.wal_end().await.ok()? > position.commit_lsn).then_some(())
        }
    })
    .await
    .unwrap();
    halts(&world, "history").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_database_is_refused_by_its_identity() {
    let world = World::start(WorldOptions::default()).await.unwrap();
    let mut ids = Vec::new();
    publish(&world, &mut ids, 1, 1).await;
    let nats = world.nats.url();
    let other = World::start(WorldOptions::default()).await.unwrap();
    let own = other.nats.url();
    let config = other.config(|text| text.replace(&own, &nats)).unwrap();
    let mut relay = other.relay_with(&config).unwrap();
    let status = relay.program.wait_exit(PATIENCE).await.unwrap();
    assert_eq!(status.code(), Some(3), "{}", relay.program.tail());
    assert!(relay.program.log().contains("another database"), "{}", relay.program.tail());
    assert_exact(&world, &ids).await;
}
