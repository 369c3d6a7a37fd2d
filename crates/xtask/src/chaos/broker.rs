use std::time::Duration;

use anyhow::{Context as _, Result};
use async_nats::jetstream;
use async_nats::jetstream::stream::{Config, DiscardPolicy, StorageType};
use futures_util::future::try_join_all;
use testkit::{Nats, NatsOptions, free_port, wait_until};

pub(super) const STREAM: &str = "OUTBOX";
/// The relay's subjects.
pub(super) const OWN: &str = "outbox.>";
/// Leads the subjects of those who are not the relay.
pub(super) const FOREIGN: &str = "other.";
/// The least that the server allows: nothing may depend on the window.
const DUPLICATE_WINDOW: Duration = Duration::from_millis(100);
const NODES: usize = 3;

/// Starts three nats-servers as a cluster.
pub(super) async fn cluster() -> Result<Vec<Nats>> {
    let ports = (0..NODES).map(|_| free_port()).collect::<Result<Vec<_>>>()?;
    let routes: Vec<_> = ports.iter().map(|port| format!("nats://127.0.0.1:{port}")).collect();
    let routes = routes.join(", ");
    let start = |(index, port): (usize, &u16)| {
        let config = format!(
            "server_name: n{index}\n\
             cluster {{ name: chaos, listen: \"127.0.0.1:{port}\", routes: [{routes}] }}\n"
        );
        Nats::start_with(NatsOptions { config })
    };
    try_join_all(ports.iter().enumerate().map(start)).await
}

/// Makes the stream, as far as possible in replicas.
pub(super) async fn make_stream(nats: &Nats, replicas: usize, atomic: bool) -> Result<()> {
    let context = jetstream::new(nats.client().await?);
    let config = Config {
        name: STREAM.to_owned(),
        subjects: vec![OWN.to_owned(), format!("{FOREIGN}>")],
        storage: StorageType::File,
        discard: DiscardPolicy::New,
        num_replicas: replicas,
        duplicate_window: DUPLICATE_WINDOW,
        allow_atomic_publish: atomic,
        ..Config::default()
    };
    // A young cluster has servers that do not know of each other yet.
    wait_until(Duration::from_secs(60), "the stream is made", || async {
        context.create_stream(config.clone()).await.ok()
    })
    .await?;
    Ok(())
}

/// Writes to the stream as somebody who is not the relay, until it is aborted.
pub(super) async fn somebody(client: async_nats::Client) {
    let context = jetstream::new(client);
    loop {
        // Lost messages of theirs are not the relay's concern.
        let _ = context.publish(format!("{FOREIGN}x"), "theirs".into()).await;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The last sequence of the stream, by the first server that says it.
pub(super) async fn last_sequence(clients: &[async_nats::Client]) -> Result<u64> {
    for client in clients {
        let context = jetstream::new(client.clone());
        let state = tokio::time::timeout(Duration::from_millis(500), context.get_stream(STREAM));
        if let Ok(Ok(stream)) = state.await {
            return Ok(stream.cached_info().state.last_sequence);
        }
    }
    anyhow::bail!("no broker answers")
}

async fn info(cluster: &[Nats]) -> Result<(async_nats::Client, Option<String>)> {
    for nats in cluster {
        let Ok(client) = nats.client().await else { continue };
        let context = jetstream::new(client.clone());
        if let Ok(stream) = context.get_stream(STREAM).await {
            let leader = stream.cached_info().cluster.as_ref().and_then(|c| c.leader.clone());
            return Ok((client, leader));
        }
    }
    anyhow::bail!("no node answers")
}

/// Which node leads the stream.
pub(super) async fn leader(cluster: &[Nats]) -> Result<usize> {
    let (_, leader) = info(cluster).await?;
    let leader = leader.context("the stream has no leader")?;
    leader.trim_start_matches('n').parse().with_context(|| leader.clone())
}

/// Makes the stream's leader give up the lead.
pub(super) async fn step_down(cluster: &[Nats]) -> Result<()> {
    let (client, _) = info(cluster).await?;
    let subject = format!("$JS.API.STREAM.LEADER.STEPDOWN.{STREAM}");
    let answer = client.request(subject, "".into()).await?;
    let answer: serde_json::Value = serde_json::from_slice(&answer.payload)?;
    anyhow::ensure!(answer["success"] == true, "{answer}");
    Ok(())
}
