use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tempfile::TempDir;
use testkit::{Nats, Proxies, Relay, StopMode, World};
use tokio::time::{Instant, timeout};

use super::broker;
use super::fault::{ClusterFault, Fault, NatsFault, PostgresFault, RelayFault, Scene};

const STOP_WITHIN: Duration = Duration::from_secs(60);
/// A copy of the stream older than this is not put back: it must lie within the hold-back time.
const SAVED_AGE_MAX: Duration = Duration::from_secs(30);

/// The processes of a run, and what is wrong with each at the moment.
pub(super) struct Stage {
    pub(super) world: World,
    pub(super) cluster: Vec<Nats>,
    pub(super) faults: BTreeMap<&'static str, u64>,
    /// What relays said that ended by themselves.
    pub(super) halts: Vec<String>,
    pub(super) takeovers: u64,
    /// What was done, and when.
    pub(super) diary: Vec<String>,
    scene: Scene,
    rng: fastrand::Rng,
    members: Vec<Member>,
    owner: Option<usize>,
    postgres: Health,
    nats: Health,
    saved: Option<Saved>,
    healing: Vec<(Instant, Heal)>,
}

struct Member {
    config: PathBuf,
    relay: Option<Relay>,
    frozen: bool,
}

struct Saved {
    folder: TempDir,
    at: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    Up,
    /// Down, frozen or cut off, until it is healed.
    Ill,
}

#[derive(Clone, Copy, Debug)]
enum Heal {
    Relay(usize),
    Postgres(Illness),
    Nats(Illness),
    /// A node of the cluster that was killed.
    Node(usize),
}

#[derive(Clone, Copy, Debug)]
enum Illness {
    Killed,
    Frozen,
    HalfOpen { cut: bool },
}

impl Stage {
    pub(super) fn new(
        world: World,
        cluster: Vec<Nats>,
        configs: Vec<PathBuf>,
        scene: Scene,
        seed: u64,
    ) -> Self {
        let member = |config| Member { config, relay: None, frozen: false };
        Self {
            world,
            cluster,
            faults: BTreeMap::new(),
            halts: Vec::new(),
            takeovers: 0,
            diary: Vec::new(),
            scene,
            rng: fastrand::Rng::with_seed(seed),
            members: configs.into_iter().map(member).collect(),
            owner: None,
            postgres: Health::Up,
            nats: Health::Up,
            saved: None,
            healing: Vec::new(),
        }
    }

    pub(super) fn start_relays(&mut self) -> Result<()> {
        (0..self.members.len()).try_for_each(|index| self.start_relay(index))
    }

    fn start_relay(&mut self, index: usize) -> Result<()> {
        let member = &mut self.members[index];
        member.relay = Some(self.world.relay_with(&member.config)?);
        Ok(())
    }

    /// Lets a fault happen that is possible now.
    pub(super) async fn inject(&mut self) -> Result<()> {
        for _ in 0..100 {
            let fault = Fault::choose(&mut self.rng, self.scene);
            let lasts = fault.lasts(&mut self.rng);
            let before = self.diary.len();
            self.note(&format!("{} for {lasts:?}", fault.name()));
            let done = self.try_inject(fault, lasts).await?;
            if done.is_none() {
                self.diary.truncate(before);
            }
            if let Some(done) = done {
                *self.faults.entry(done.name()).or_default() += 1;
                return Ok(());
            }
        }
        Ok(())
    }

    /// `None` when what it would break is broken already; else what was done.
    async fn try_inject(&mut self, fault: Fault, lasts: Duration) -> Result<Option<Fault>> {
        let happened = match fault {
            Fault::Relay(kind) => self.relay_fault(kind, lasts).await?,
            Fault::Postgres(kind) => self.postgres_fault(kind, lasts).await?,
            Fault::Nats(kind) => self.nats_fault(kind, lasts)?,
            Fault::Cluster(ClusterFault::StepDown) => {
                broker::step_down(&self.cluster).await.is_ok()
            }
            Fault::Cluster(ClusterFault::KillLeader) => self.kill_leader(lasts).await,
            Fault::RestoreStream => return self.restore_stream().await,
        };
        Ok(happened.then_some(fault))
    }

    async fn relay_fault(&mut self, fault: RelayFault, lasts: Duration) -> Result<bool> {
        let index = self.rng.usize(..self.members.len());
        let member = &mut self.members[index];
        let Some(relay) = member.relay.as_mut().filter(|_| !member.frozen) else {
            return Ok(false);
        };
        match fault {
            RelayFault::Freeze => {
                relay.program.pause()?;
                member.frozen = true;
                self.heal(lasts, Heal::Relay(index));
            }
            RelayFault::Stop => {
                let status = relay.program.terminate(STOP_WITHIN).await?;
                let words = relay.program.tail();
                if status.code() != Some(0) {
                    self.halts.push(format!("a stop ended with {status}: {words}"));
                }
                self.start_relay(index)?;
            }
            RelayFault::Kill => {
                relay.program.kill();
                member.relay = None;
                self.heal(lasts, Heal::Relay(index));
            }
        }
        Ok(true)
    }

    async fn postgres_fault(&mut self, fault: PostgresFault, lasts: Duration) -> Result<bool> {
        if self.postgres == Health::Ill {
            return Ok(false);
        }
        match fault {
            PostgresFault::Kill => {
                self.world.postgres.kill();
                self.postgres = Health::Ill;
                self.heal(lasts, Heal::Postgres(Illness::Killed));
            }
            PostgresFault::Restart => {
                self.world.postgres.stop(StopMode::Fast, STOP_WITHIN).await?;
                self.world.postgres.start_again().await?;
            }
            PostgresFault::Freeze => {
                self.world.postgres.pause()?;
                self.postgres = Health::Ill;
                self.heal(lasts, Heal::Postgres(Illness::Frozen));
            }
            PostgresFault::Cut => self.proxies()?.postgres.cut(),
            PostgresFault::HalfOpen => {
                match self.rng.bool() {
                    true => self.proxies()?.postgres.freeze(),
                    false => self.proxies()?.postgres.stall(),
                }
                self.postgres = Health::Ill;
                let cut = self.rng.bool();
                self.heal(lasts, Heal::Postgres(Illness::HalfOpen { cut }));
            }
            PostgresFault::EndSlotSession => {
                let end = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots \
                     WHERE active_pid IS NOT NULL";
                let client = self.world.postgres.connect().await?;
                return Ok(!client.query(end, &[]).await?.is_empty());
            }
        }
        Ok(true)
    }

    fn nats_fault(&mut self, fault: NatsFault, lasts: Duration) -> Result<bool> {
        if self.nats == Health::Ill {
            return Ok(false);
        }
        let after = self.rng.u64(0..50);
        match fault {
            NatsFault::Kill => {
                self.world.nats.kill();
                self.nats = Health::Ill;
                self.heal(lasts, Heal::Nats(Illness::Killed));
            }
            NatsFault::Freeze => {
                self.world.nats.pause()?;
                self.nats = Health::Ill;
                self.heal(lasts, Heal::Nats(Illness::Frozen));
            }
            NatsFault::Cut => self.proxies()?.nats.cut(),
            NatsFault::HalfOpen => {
                match self.rng.bool() {
                    true => self.proxies()?.nats.freeze(),
                    false => self.proxies()?.nats.stall(),
                }
                self.nats = Health::Ill;
                let cut = self.rng.bool();
                self.heal(lasts, Heal::Nats(Illness::HalfOpen { cut }));
            }
            NatsFault::SwallowPublish => self.proxies()?.nats.swallow_publish(after),
            NatsFault::SwallowAck => self.proxies()?.nats.swallow_ack(after),
        }
        Ok(true)
    }

    /// Stops the broker and puts an older copy of its files in place, or else makes one.
    async fn restore_stream(&mut self) -> Result<Option<Fault>> {
        if self.nats == Health::Ill {
            return Ok(None);
        }
        self.world.nats.kill();
        let fault = match self.saved.take().filter(|saved| saved.at.elapsed() < SAVED_AGE_MAX) {
            Some(saved) => {
                self.world.nats.restore_store(&saved.folder.path().join("store"))?;
                Fault::RestoreStream
            }
            None => {
                let folder = TempDir::with_prefix("outbox-relay-chaos-")?;
                self.world.nats.save_store(&folder.path().join("store"))?;
                self.saved = Some(Saved { folder, at: Instant::now() });
                Fault::Nats(NatsFault::Kill)
            }
        };
        self.world.nats.start_again().await?;
        Ok(Some(fault))
    }

    async fn kill_leader(&mut self, lasts: Duration) -> bool {
        if self.nats == Health::Ill {
            return false;
        }
        let Ok(leader) = broker::leader(&self.cluster).await else { return false };
        self.cluster[leader].kill();
        self.nats = Health::Ill;
        self.heal(lasts, Heal::Node(leader));
        true
    }

    fn proxies(&self) -> Result<&Proxies> {
        self.world.proxies.as_ref().context("the world has no proxies")
    }

    fn note(&mut self, what: &str) {
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let of_the_day = now.as_secs() % 86_400;
        let (hour, minute, second) =
            (of_the_day / 3_600, of_the_day / 60 % 60, now.as_secs_f64() % 60.0);
        self.diary.push(format!("{hour:02}:{minute:02}:{second:06.3} UTC {what}"));
    }

    fn heal(&mut self, after: Duration, heal: Heal) {
        self.healing.push((Instant::now() + after, heal));
    }

    /// When something is to be healed next.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.healing.iter().map(|(due, _)| *due).min()
    }

    /// Heals what is due, or everything.
    pub(super) async fn heal_due(&mut self, everything: bool) -> Result<()> {
        let now = Instant::now();
        let (due, later): (Vec<_>, Vec<_>) = std::mem::take(&mut self.healing)
            .into_iter()
            .partition(|(due, _)| everything || *due <= now);
        self.healing = later;
        for (_, heal) in due {
            self.note(&format!("{heal:?} is well"));
            self.carry_out(heal).await.with_context(|| format!("{heal:?}"))?;
        }
        Ok(())
    }

    async fn carry_out(&mut self, heal: Heal) -> Result<()> {
        match heal {
            Heal::Relay(index) => {
                let member = &mut self.members[index];
                member.frozen = false;
                match &member.relay {
                    Some(relay) => relay.program.resume(),
                    None => self.start_relay(index),
                }
            }
            Heal::Postgres(illness) => {
                match illness {
                    Illness::Killed => self.world.postgres.start_again().await?,
                    Illness::Frozen => self.world.postgres.resume()?,
                    Illness::HalfOpen { cut } => thaw(&self.proxies()?.postgres, cut),
                }
                self.postgres = Health::Up;
                Ok(())
            }
            Heal::Nats(illness) => {
                match illness {
                    Illness::Killed => self.world.nats.start_again().await?,
                    Illness::Frozen => self.world.nats.resume()?,
                    Illness::HalfOpen { cut } => thaw(&self.proxies()?.nats, cut),
                }
                self.nats = Health::Up;
                Ok(())
            }
            Heal::Node(index) => {
                self.cluster[index].start_again().await?;
                self.nats = Health::Up;
                Ok(())
            }
        }
    }

    /// Looks at the relays: which one is at work, and whether one has ended by itself.
    pub(super) async fn look(&mut self) -> Result<()> {
        for index in 0..self.members.len() {
            let member = &mut self.members[index];
            let Some(relay) = member.relay.as_mut().filter(|_| !member.frozen) else { continue };
            if !relay.program.is_running()? {
                let words = relay.program.tail();
                self.halts.push(words);
                self.start_relay(index)?;
                continue;
            }
            let status = timeout(Duration::from_millis(300), relay.get("/status")).await;
            let Ok(Ok(status)) = status else { continue };
            let status: serde_json::Value = serde_json::from_str(&status.body)?;
            if status["postgresql"]["state"] == "open" {
                let before = self.owner.replace(index);
                self.takeovers += u64::from(before.is_some_and(|before| before != index));
            }
        }
        Ok(())
    }

    /// The relays' own words.
    pub(super) fn logs(&self) -> Vec<String> {
        let read = |member: &Member| std::fs::read_to_string(member.config.with_extension("log"));
        self.members.iter().map(|member| read(member).unwrap_or_default()).collect()
    }
}

fn thaw(proxy: &testkit::FaultProxy, cut: bool) {
    if cut {
        proxy.cut();
    }
    proxy.thaw();
}
