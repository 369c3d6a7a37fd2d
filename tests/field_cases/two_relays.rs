//! More than one relay, or a very large transaction for one.

use std::fs;
use std::time::{Duration, Instant};

use testkit::{Relay, World, WorldOptions, wait_until};

use crate::support::{PATIENCE, active_pid, assert_exact, confirmed_reaches, write};

#[tokio::test(flavor = "multi_thread")]
async fn c35_a_second_relay_stands_by_and_takes_over() {
    let options =
        WorldOptions { postgres: vec![("wal_sender_timeout", "10s")], ..WorldOptions::default() };
    let world = World::start(options).await.unwrap();
    let client = world.postgres.connect().await.unwrap();
    let mut first = world.relay().await.unwrap();
    let holder = active_pid(&client).await.unwrap();
    let second = world.relay_with(&world.config(|text| text).unwrap()).unwrap();
    let reason = second.not_ready(PATIENCE, &format!("PID {holder}")).await.unwrap();
    assert!(reason.contains("\"standby\":true"), "{reason}");
    assert_eq!(second.get("/livez").await.unwrap().status, 200);

    let mut ids = write(&world, 1, 50).await;
    first.program.kill();
    let killed = Instant::now();
    ids.extend(write(&world, 51, 100).await);
    second.ready(Duration::from_secs(15)).await.unwrap();
    assert!(killed.elapsed() < Duration::from_secs(15), "{:?}", killed.elapsed());
    assert_exact(&ids, &world.messages(400, PATIENCE).await.unwrap());
    assert!(!second.program.log().contains("ERROR"), "{}", second.program.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn c35_a_frozen_relay_that_wakes_up_adds_nothing() {
    let options =
        WorldOptions { postgres: vec![("wal_sender_timeout", "5s")], ..WorldOptions::default() };
    let world = World::start(options).await.unwrap();
    let zombie = world.relay().await.unwrap();
    let mut ids = write(&world, 1, 10).await;
    world.nats.pause().unwrap();
    ids.extend(write(&world, 11, 20).await);
    zombie.not_ready(PATIENCE, "NATS").await.unwrap();
    zombie.program.pause().unwrap();
    world.nats.resume().unwrap();
    let next = world.relay().await.unwrap();
    ids.extend(write(&world, 21, 30).await);
    world.messages(120, PATIENCE).await.unwrap();
    zombie.program.resume().unwrap();
    zombie.not_ready(PATIENCE, "\"standby\":true").await.unwrap();
    ids.extend(write(&world, 31, 40).await);
    assert_exact(&ids, &world.messages(160, PATIENCE).await.unwrap());
    next.ready(PATIENCE).await.unwrap();
}

/// The most memory the relay ever had, in MiB.
fn peak_memory(relay: &Relay) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", relay.program.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1_024
}

/// The commit of the stream's first message.
async fn commit_lsn(world: &World) -> event::Lsn {
    let context = async_nats::jetstream::new(world.nats.client().await.unwrap());
    let stream = context.get_stream("OUTBOX").await.unwrap();
    let first =
        wait_until(PATIENCE, "a first message", || async { stream.get_raw_message(1).await.ok() });
    let position = first.await.unwrap().headers.get("Outbox-Position").unwrap().to_string();
    position.parse::<event::Position>().unwrap().commit_lsn
}

#[tokio::test(flavor = "multi_thread")]
async fn c23_a_huge_transaction_is_neither_held_in_memory_nor_confirmed_in_part() {
    let world = World::start(WorldOptions::default()).await.unwrap();
    let client = world.postgres.connect().await.unwrap();
    let mut relay = world.relay().await.unwrap();
    let rows = "INSERT INTO outbox (id, aggregate_type, aggregate_id, version, event_type, payload) \
         SELECT gen_random_uuid(), 'order', (n % 1000)::text, 1 + n / 1000, 'Changed', \
           jsonb_build_object('text', repeat(md5(n::text), 30)) \
         FROM generate_series(0, 299999) n RETURNING id::text";
    let ids: Vec<String> =
        client.query(rows, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    let context = async_nats::jetstream::new(world.nats.client().await.unwrap());
    let stored =
        || async { context.get_stream("OUTBOX").await.unwrap().cached_info().state.messages };
    let commit = commit_lsn(&world).await;
    let began = Instant::now();
    while stored().await < 150_000 {
        assert!(world.confirmed().await.unwrap() < commit, "confirmed in part");
        assert!(began.elapsed() < Duration::from_secs(240), "{} stored", stored().await);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(peak_memory(&relay) < 512, "{} MiB", peak_memory(&relay));
    relay.program.kill();
    assert!(world.confirmed().await.unwrap() < commit, "confirmed in part");
    let relay = world.relay().await.unwrap();
    while stored().await < 300_000 {
        assert!(began.elapsed() < Duration::from_secs(400), "{} stored", stored().await);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(peak_memory(&relay) < 512, "{} MiB", peak_memory(&relay));
    confirmed_reaches(&world, commit).await;
    assert_exact(&ids, &world.stream().await.unwrap());
}
