use std::time::Duration;

/// What a run does to its processes and connections.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    Relay(RelayFault),
    Postgres(PostgresFault),
    Nats(NatsFault),
    Cluster(ClusterFault),
    RestoreStream,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum RelayFault {
    Kill,
    Stop,
    Freeze,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum PostgresFault {
    Kill,
    Restart,
    Freeze,
    Cut,
    HalfOpen,
    EndSlotSession,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum NatsFault {
    Kill,
    Freeze,
    Cut,
    HalfOpen,
    SwallowPublish,
    SwallowAck,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum ClusterFault {
    StepDown,
    KillLeader,
}

/// Where a run takes its faults from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scene {
    /// One nats-server behind a proxy.
    Single {
        /// Whether the broker may lose its tail: only with a hold-back time that covers it.
        losing: bool,
    },
    /// The same, with somebody else writing to the stream.
    Shared,
    /// Three of them in a cluster.
    Cluster,
}

const ALWAYS: &[Fault] = &[
    Fault::Relay(RelayFault::Kill),
    Fault::Relay(RelayFault::Stop),
    Fault::Relay(RelayFault::Freeze),
    Fault::Postgres(PostgresFault::Kill),
    Fault::Postgres(PostgresFault::Restart),
    Fault::Postgres(PostgresFault::Freeze),
    Fault::Postgres(PostgresFault::Cut),
    Fault::Postgres(PostgresFault::HalfOpen),
    Fault::Postgres(PostgresFault::EndSlotSession),
];
const SINGLE: &[Fault] = &[
    Fault::Nats(NatsFault::Kill),
    Fault::Nats(NatsFault::Freeze),
    Fault::Nats(NatsFault::Cut),
    Fault::Nats(NatsFault::HalfOpen),
    Fault::Nats(NatsFault::SwallowPublish),
    Fault::Nats(NatsFault::SwallowAck),
];
const CLUSTER: &[Fault] =
    &[Fault::Cluster(ClusterFault::StepDown), Fault::Cluster(ClusterFault::KillLeader)];

impl Fault {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Relay(RelayFault::Kill) => "relay_killed",
            Self::Relay(RelayFault::Stop) => "relay_stopped",
            Self::Relay(RelayFault::Freeze) => "relay_frozen",
            Self::Postgres(PostgresFault::Kill) => "postgres_killed",
            Self::Postgres(PostgresFault::Restart) => "postgres_restarted",
            Self::Postgres(PostgresFault::Freeze) => "postgres_frozen",
            Self::Postgres(PostgresFault::Cut) => "postgres_connections_cut",
            Self::Postgres(PostgresFault::HalfOpen) => "postgres_connections_half_open",
            Self::Postgres(PostgresFault::EndSlotSession) => "slot_session_ended",
            Self::Nats(NatsFault::Kill) => "nats_killed",
            Self::Nats(NatsFault::Freeze) => "nats_frozen",
            Self::Nats(NatsFault::Cut) => "nats_connections_cut",
            Self::Nats(NatsFault::HalfOpen) => "nats_connections_half_open",
            Self::Nats(NatsFault::SwallowPublish) => "publish_swallowed",
            Self::Nats(NatsFault::SwallowAck) => "ack_swallowed",
            Self::Cluster(ClusterFault::StepDown) => "leader_stepped_down",
            Self::Cluster(ClusterFault::KillLeader) => "leader_killed",
            Self::RestoreStream => "stream_restored",
        }
    }

    /// The next fault, each kind as likely as the other.
    pub(super) fn choose(rng: &mut fastrand::Rng, scene: Scene) -> Self {
        let more: &[&[Self]] = match scene {
            Scene::Single { losing: true } => &[SINGLE, &[Self::RestoreStream]],
            Scene::Single { losing: false } | Scene::Shared => &[SINGLE],
            // Two kinds against nine: they are what the scene is for.
            Scene::Cluster => &[CLUSTER, CLUSTER, CLUSTER],
        };
        let all: Vec<_> = ALWAYS.iter().chain(more.iter().copied().flatten()).copied().collect();
        all[rng.usize(..all.len())]
    }

    /// How long it lasts.
    pub(super) fn lasts(self, rng: &mut fastrand::Rng) -> Duration {
        let milliseconds = match self {
            // Beyond the time after which another relay takes over, or short of it.
            Self::Relay(RelayFault::Freeze) => rng.u64(100..15_000),
            Self::Postgres(PostgresFault::Freeze | PostgresFault::HalfOpen)
            | Self::Nats(NatsFault::Freeze | NatsFault::HalfOpen) => rng.u64(100..8_000),
            Self::Relay(RelayFault::Kill)
            | Self::Postgres(PostgresFault::Kill)
            | Self::Nats(NatsFault::Kill)
            | Self::Cluster(ClusterFault::KillLeader) => rng.u64(0..3_000),
            Self::Relay(RelayFault::Stop)
            | Self::Postgres(
                PostgresFault::Restart | PostgresFault::Cut | PostgresFault::EndSlotSession,
            )
            | Self::Nats(NatsFault::Cut | NatsFault::SwallowPublish | NatsFault::SwallowAck)
            | Self::Cluster(ClusterFault::StepDown)
            | Self::RestoreStream => 0,
        };
        Duration::from_millis(milliseconds)
    }
}
