//! Chaos on real processes: writers, relays, PostgreSQL and NATS, everything broken again and again,
//! and a reckoning at the end.

mod broker;
mod fault;
mod report;
mod stage;
mod writer;

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use event::Lsn;
use testkit::{World, WorldOptions, wait_until};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_postgres::NoTls;

use fault::Scene;
use report::{Report, Sample};
use stage::Stage;
use writer::Writer;

/// How long, and which run.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// How long faults go on.
    #[arg(long, default_value_t = 120)]
    seconds: u64,
    /// Chooses the faults and what is written; without it the time of day does. The same seed makes
    /// the same plan, though real processes never repeat themselves to the letter.
    #[arg(long)]
    seed: Option<u64>,
    /// One JSON object instead of lines.
    #[arg(long)]
    json: bool,
    /// Three nats-servers as a cluster, with the stream on all of them: leaders step down and die.
    #[arg(long)]
    cluster: bool,
    /// Somebody else writes to the stream as well.
    #[arg(long, conflicts_with = "cluster")]
    shared: bool,
    /// Transactions are to appear in the stream at once; those that did not are counted as torn,
    /// which a broker that dies or loses its tail may bring about.
    #[arg(long, conflicts_with = "shared")]
    atomic: bool,
    /// Run the seeds that have failed once first, each for an equal share of the time.
    #[arg(long)]
    kept_seeds: bool,
}

/// Seeds that have failed once, one a line.
const KEPT_SEEDS: &str = include_str!("seeds.txt");
const WRITERS: usize = 4;
const QUIET_WITHIN: Duration = Duration::from_secs(180);
const HOLDER_TIMEOUT: &str = "6s";

/// Runs chaos, says what it came to, and exits with 0 only when nothing was lost, doubled, out of
/// order or confirmed ahead of its time.
pub(crate) fn chaos(options: &Options) -> Result<ExitCode> {
    let clock = || std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |now| now.as_secs());
    let mut seeds = if options.kept_seeds { kept_seeds()? } else { Vec::new() };
    seeds.push(options.seed.unwrap_or_else(clock));
    let seconds = options.seconds / seeds.len() as u64;
    let runtime = tokio::runtime::Runtime::new()?;
    for seed in seeds {
        let report = runtime.block_on(run(seconds, seed, options))?;
        if options.json {
            println!("{:#}", report.json());
        } else {
            print!("{report}");
        }
        if !report.is_clean() {
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn kept_seeds() -> Result<Vec<u64>> {
    let lines = KEPT_SEEDS.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    let seeds = lines.filter(|line| !line.is_empty()).map(str::parse);
    seeds.collect::<Result<_, _>>().context("seeds.txt")
}

async fn run(seconds: u64, seed: u64, options: &Options) -> Result<Report> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let losing = rng.bool();
    let scene = match options {
        Options { cluster: true, .. } => Scene::Cluster,
        Options { shared: true, .. } => Scene::Shared,
        Options { .. } => Scene::Single { losing },
    };
    let relays = if rng.bool() { 2 } else { 1 };
    let words = match scene {
        Scene::Cluster => "three brokers",
        Scene::Shared => "one broker that others write to as well, hold_back 0s",
        Scene::Single { losing: true } => "one broker that loses its tail, hold_back 60s",
        Scene::Single { losing: false } => "one broker, hold_back 0s",
    };
    let atomic = if options.atomic { ", atomic transactions" } else { "" };
    let words = format!("{words}{atomic}, {relays} relay(s)");
    eprintln!("chaos: seed {seed}, {seconds} s, {words}");
    let mut stage = prepare(scene, options.atomic, relays, &mut rng).await?;
    stage.start_relays()?;
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..WRITERS)
        .map(|name| {
            let writer = Writer::new(stage.world.postgres.url("postgres"), name, rng.u64(..));
            tokio::spawn(writer.run(Arc::clone(&stop)))
        })
        .collect();
    let foreign = match scene {
        Scene::Shared => Some(tokio::spawn(broker::somebody(stage.world.nats.client().await?))),
        Scene::Single { .. } | Scene::Cluster => None,
    };
    let samples = tokio::spawn(sample(&stage, Arc::clone(&stop)).await?);
    let broken = break_things(&mut stage, &mut rng, Duration::from_secs(seconds)).await;
    if broken.is_err() {
        keep_logs(&stage, seed)?;
    }
    broken?;
    stage.heal_due(true).await?;
    if let Some(foreign) = foreign {
        foreign.abort();
    }
    stop.store(true, Ordering::SeqCst);
    for writer in writers {
        writer.await?;
    }
    let mut report = Report { seed, scene: words, seconds, ..Report::default() };
    report.torn = options.atomic.then_some(0);
    conclude(&mut stage, samples, &mut report).await?;
    if !report.is_clean() {
        keep_logs(&stage, seed)?;
    }
    Ok(report)
}

async fn prepare(
    scene: Scene,
    atomic: bool,
    relays: usize,
    rng: &mut fastrand::Rng,
) -> Result<Stage> {
    let hold_back = if scene == (Scene::Single { losing: true }) { "60s" } else { "0s" };
    let options = WorldOptions {
        postgres: vec![("wal_sender_timeout", HOLDER_TIMEOUT)],
        delivery: format!("{{hold_back: {hold_back}}}"),
        bare: true,
        proxied: true,
        ..WorldOptions::default()
    };
    let world = World::start(options).await?;
    let cluster = if scene == Scene::Cluster { broker::cluster().await? } else { Vec::new() };
    match cluster.first() {
        Some(node) => broker::make_stream(node, cluster.len(), atomic).await?,
        None => broker::make_stream(&world.nats, 1, atomic).await?,
    }
    let urls: Vec<_> = cluster.iter().map(testkit::Nats::url).collect();
    let single = world.proxies.as_ref().context("proxies")?.nats.port();
    let own = |text: String| match scene {
        Scene::Single { .. } => text,
        Scene::Shared => text.replace("stream: OUTBOX", "stream: OUTBOX, shared: true"),
        Scene::Cluster => text.replace(&format!("nats://127.0.0.1:{single}"), &urls.join(",")),
    };
    let batches = |text: String| match atomic {
        true => text.replace("stream: OUTBOX", "stream: OUTBOX, atomic_transactions: true"),
        false => text,
    };
    let configs =
        (0..relays).map(|_| world.config(|text| batches(own(text)))).collect::<Result<Vec<_>>>()?;
    let init = world.command(&configs[0], &["init"])?;
    anyhow::ensure!(init.status.success(), "init: {}", String::from_utf8_lossy(&init.stderr));
    Ok(Stage::new(world, cluster, configs, scene, rng.u64(..)))
}

/// Samples what the slot has been told to forget, until the writers stop.
async fn sample(
    stage: &Stage,
    stop: Arc<AtomicBool>,
) -> Result<impl Future<Output = Vec<Sample>> + Send + 'static> {
    let url = stage.world.postgres.url("postgres");
    let brokers: Vec<_> = match stage.cluster.is_empty() {
        true => vec![&stage.world.nats],
        false => stage.cluster.iter().collect(),
    };
    let mut clients = Vec::new();
    for nats in brokers {
        clients.push(nats.client().await?);
    }
    Ok(async move {
        let mut samples = Vec::new();
        while !stop.load(Ordering::SeqCst) {
            let once = take_samples(&url, &clients, &stop, &mut samples);
            // A frozen database answers never.
            let _ = timeout(Duration::from_secs(30), once).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        samples
    })
}

async fn take_samples(
    url: &str,
    clients: &[async_nats::Client],
    stop: &AtomicBool,
    samples: &mut Vec<Sample>,
) -> Result<()> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    let sql = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots";
    while !stop.load(Ordering::SeqCst) {
        let row = client.query_one(sql, &[]).await?;
        let confirmed: Lsn = row.get::<_, String>(0).parse()?;
        if let Ok(last_sequence) = broker::last_sequence(clients).await {
            samples.push(Sample { confirmed, last_sequence });
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

async fn break_things(stage: &mut Stage, rng: &mut fastrand::Rng, lasts: Duration) -> Result<()> {
    let began = Instant::now();
    let mut next_fault = began + Duration::from_secs(3);
    let mut said_at = began;
    while began.elapsed() < lasts {
        let tick = Instant::now() + Duration::from_millis(200);
        let due = stage.next_due().map_or(tick, |due| due.min(tick));
        sleep_until(due.min(next_fault)).await;
        stage.heal_due(false).await?;
        stage.look().await?;
        if Instant::now() >= next_fault {
            stage.inject().await?;
            next_fault = Instant::now() + Duration::from_millis(rng.u64(200..2_500));
        }
        if said_at.elapsed() >= Duration::from_secs(10) {
            said_at = Instant::now();
            let faults: u64 = stage.faults.values().sum();
            let (seconds, takeovers) = (began.elapsed().as_secs(), stage.takeovers);
            eprintln!("chaos: {seconds} s, {faults} faults, {takeovers} takeovers");
        }
    }
    Ok(())
}

/// Waits until everything that was committed has arrived, and reckons.
async fn conclude(
    stage: &mut Stage,
    samples: JoinHandle<Vec<Sample>>,
    report: &mut Report,
) -> Result<()> {
    let client = stage.world.postgres.connect().await?;
    let rows = client.query("SELECT id::text FROM outbox", &[]).await?;
    let committed: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    let broker = stage.cluster.first().unwrap_or(&stage.world.nats);
    let nats = broker.client().await?;
    let began = Instant::now();
    let quiet = wait_until(QUIET_WITHIN, "everything committed is in the stream", || async {
        let held = testkit::stream::count_of(&nats, broker::STREAM, broker::OWN).await.ok()?;
        (held >= committed.len()).then_some(())
    });
    if let Err(error) = quiet.await {
        eprintln!("chaos: {error:#}");
    }
    report.quiet_after_seconds = began.elapsed().as_secs_f64();
    stage.look().await?;
    let mut stored = testkit::stream::read(&nats, broker::STREAM).await?;
    stored.retain(|message| !message.subject.starts_with(broker::FOREIGN));
    report.judge(&committed, &stored, &samples.await?);
    report.faults = std::mem::take(&mut stage.faults);
    report.halts = std::mem::take(&mut stage.halts);
    report.takeovers = stage.takeovers;
    Ok(())
}

fn keep_logs(stage: &Stage, seed: u64) -> Result<()> {
    let folder = Path::new("target/chaos").join(seed.to_string());
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    for (index, log) in stage.logs().iter().enumerate() {
        fs::write(folder.join(format!("relay-{index}.log")), log)?;
    }
    fs::write(folder.join("postgres.log"), stage.world.postgres.log())?;
    fs::write(folder.join("faults.log"), stage.diary.join("\n"))?;
    eprintln!("chaos: the logs are in {}", folder.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_kept_seeds_can_be_read() {
        super::kept_seeds().unwrap();
    }
}
