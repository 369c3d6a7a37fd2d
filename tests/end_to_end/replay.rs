//! Events published once more on request.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Output;

use event::{Position, headers};
use serde_json::Value;
use testkit::stream::Stored;
use testkit::{World, WorldOptions};

use crate::no_loss::{PATIENCE, write};

fn held_back() -> WorldOptions {
    WorldOptions { delivery: "{hold_back: 10m}".to_owned(), ..WorldOptions::default() }
}

/// Runs a replay beside whatever else goes on.
async fn replay(world: &World, config: &Path, arguments: &[&str]) -> Output {
    let arguments: Vec<_> = ["replay", "--json", "--as", "ada", "--reason", "drill"]
        .iter()
        .chain(arguments)
        .map(|argument| (*argument).to_owned())
        .collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    tokio::task::block_in_place(|| world.command(config, &arguments)).unwrap()
}

fn summary(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn position(message: &Stored) -> Position {
    message.header(headers::POSITION).parse().unwrap()
}

/// The event ids of each aggregate, in the order of the stream.
fn by_aggregate<'a>(stored: impl Iterator<Item = &'a Stored>) -> BTreeMap<String, Vec<&'a str>> {
    let mut found: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for message in stored {
        found.entry(message.aggregate_id()).or_default().push(message.event_id());
    }
    found
}

fn is_replay(message: &&Stored) -> bool {
    !message.header(headers::REPLAY).is_empty()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_from_the_log_repeats_a_range_beside_a_relay_at_work() {
    let world = World::start(held_back()).await.unwrap();
    let relay = world.relay().await.unwrap();
    write(&world, 1, 10).await;
    let first = world.messages(200, PATIENCE).await.unwrap();
    let (from, to) = (position(&first[60]).commit_lsn, position(&first[159]).commit_lsn);
    let (from, to) = (from.to_string(), to.to_string());
    let range = ["--from-lsn", &from, "--to-lsn", &to];
    let config = world.config(|text| text).unwrap();

    let dry = summary(&replay(&world, &config, &[&range[..], &["--dry-run"]].concat()).await);
    assert_eq!((&dry["events"], &dry["dry_run"]), (&100.into(), &true.into()), "{dry}");
    assert_eq!(dry["first"][0], first[60].event_id());
    assert_eq!(world.stream().await.unwrap().len(), 200);

    let (done, newer) = tokio::join!(replay(&world, &config, &range), write(&world, 11, 30));
    let done = summary(&done);
    assert_eq!(done["events"], 100, "{done}");
    let stored = world.messages(700, PATIENCE).await.unwrap();
    assert_eq!(stored.len(), 700);
    let replayed: Vec<_> = stored.iter().filter(is_replay).collect();
    let wanted = by_aggregate(first[60..160].iter());
    assert_eq!(by_aggregate(replayed.iter().copied()), wanted);
    for (again, before) in replayed.iter().zip(&first[60..160]) {
        assert_eq!(again.header(headers::REPLAY), done["name"]);
        assert_eq!(again.header(headers::REPLAY_BY), "ada");
        assert_eq!(again.header(headers::REPLAY_REASON), "drill");
        assert_eq!(again.header(headers::POSITION), "");
        assert_eq!(again.header(headers::REPLAYED_POSITION), before.header(headers::POSITION));
        assert_eq!((&again.subject, &again.body), (&before.subject, &before.body));
    }
    assert_eq!(replayed.last().unwrap().sequence, done["last_sequence"].as_u64().unwrap());
    // What the relay published meanwhile is whole, once and in order.
    let own: Vec<_> = stored.iter().filter(|message| !is_replay(message)).skip(200).collect();
    let own: Vec<_> = own.iter().map(|message| message.event_id()).collect();
    assert_eq!(own, newer);
    relay.ready(PATIENCE).await.unwrap();

    let client = world.postgres.connect().await.unwrap();
    let sql = "SELECT act, actor, reason, detail::text FROM outbox_relay.act ORDER BY at";
    let acts = client.query(sql, &[]).await.unwrap();
    let names: Vec<String> = acts.iter().map(|row| row.get(0)).collect();
    assert_eq!(names, ["replay", "replay_done"]);
    assert!(acts[0].get::<_, String>(3).contains("\"events\": 100"));
    let slots = client.query("SELECT slot_name::text FROM pg_replication_slots", &[]).await;
    let slots: Vec<String> = slots.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(slots, ["relay"], "no copy of the slot is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_from_rows_takes_what_the_filters_say_and_no_unpublished_row() {
    let world = World::start(WorldOptions::default()).await.unwrap();
    let mut relay = world.relay().await.unwrap();
    let ids = write(&world, 1, 5).await;
    world.messages(100, PATIENCE).await.unwrap();
    relay.program.terminate(PATIENCE).await.unwrap();
    // Committed, but not in the stream yet: these come from the slot first.
    let later = write(&world, 6, 6).await;
    let config = world.config(|text| text).unwrap();
    let done = summary(&replay(&world, &config, &["--rows", "--aggregate", "7"]).await);
    assert_eq!(done["events"], 5, "{done}");
    let stored = world.messages(105, PATIENCE).await.unwrap();
    let versions: Vec<_> = stored[100..].iter().map(Stored::version).collect();
    assert_eq!(versions, [1, 2, 3, 4, 5]);
    assert!(stored[100..].iter().all(|message| message.aggregate_id() == "7"));

    let one = ["--rows", "--event-id", ids[3].as_str(), "--event-id", later[3].as_str()];
    assert_eq!(summary(&replay(&world, &config, &one).await)["events"], 1);
    let none = ["--rows", "--until", "2001-01-01"];
    assert_eq!(summary(&replay(&world, &config, &none).await)["events"], 0);
    let other = ["--rows", "--type", "Deleted"];
    assert_eq!(summary(&replay(&world, &config, &other).await)["events"], 0);
    let stored = world.messages(106, PATIENCE).await.unwrap();
    assert_eq!((stored.len(), stored[105].event_id()), (106, ids[3].as_str()));

    // The relay publishes the rest, once: a replay does not count as the delivery.
    let _relay = world.relay().await.unwrap();
    let stored = world.messages(126, PATIENCE).await.unwrap();
    let last: Vec<_> = stored[106..].iter().map(Stored::event_id).collect();
    assert_eq!((stored.len(), last), (126, later.iter().map(String::as_str).collect()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_refuses_what_it_cannot_do_safely() {
    let world = World::start(WorldOptions::default()).await.unwrap();
    let config = world.config(|text| text).unwrap();
    let refused = |output: &Output, words: &str| {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(words), "{said}");
    };
    refused(&replay(&world, &config, &["--rows"]).await, "start the relay first");

    let _relay = world.relay().await.unwrap();
    write(&world, 1, 5).await;
    let first = world.messages(100, PATIENCE).await.unwrap();
    let confirmed = position(&first[99]).commit_lsn;
    testkit::wait_until(PATIENCE, "the slot forgets", || async {
        (world.confirmed().await.ok()? > confirmed).then_some(())
    })
    .await
    .unwrap();
    let from = position(&first[0]).commit_lsn.to_string();
    let gone = replay(&world, &config, &["--from-lsn", &from]).await;
    refused(&gone, "the slot no longer holds what was committed between");

    let client = world.postgres.connect().await.unwrap();
    let age = "UPDATE outbox SET created_at = now() - interval '8 days' WHERE aggregate_id = '7'";
    client.batch_execute(age).await.unwrap();
    let old = replay(&world, &config, &["--rows", "--aggregate", "7"]).await;
    refused(&old, "delivery.dedupe_retention");
    assert_eq!(world.stream().await.unwrap().len(), 100, "nothing was published");
    let forced = replay(&world, &config, &["--rows", "--aggregate", "7", "--force"]).await;
    assert_eq!(summary(&forced)["events"], 5);
    assert_eq!(world.messages(105, PATIENCE).await.unwrap().len(), 105);

    let unordered = |text: String| {
        text.replace("aggregate_version: version, ", "").replace(", occurred_at: created_at", "")
    };
    let unordered = world.config(unordered).unwrap();
    refused(&replay(&world, &unordered, &["--rows"]).await, "order of an aggregate");
    let usage = world.command(&config, &["replay", "--rows"]).unwrap();
    assert_eq!(usage.status.code(), Some(2), "a replay needs a reason");
}
