/// What goes wrong in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A relay process is killed: all it knew is gone.
    RelayKilled,
    /// A relay process is frozen for a while; what it had sent still arrives.
    RelayFrozen,
    /// The replication connection breaks.
    SourceLost,
    /// The connection to the broker breaks; what was under way may still arrive.
    SinkLost,
    /// One ack never arrives.
    AckLost,
    /// One ack arrives twice.
    AckDoubled,
    /// One publish never arrives.
    PublishLost,
    /// The broker answers nothing for a while.
    BrokerSilent,
    /// The stream takes nothing for a while.
    StreamFull,
    /// The broker loses its newest messages.
    TailLost,
    /// The stream is deleted and made anew.
    StreamRecreated,
    /// The server forgets the newest confirmed position, as after a crash.
    ConfirmForgotten,
    /// The server goes down in good order, and waits for its replication sessions.
    FastShutdown,
    /// A standby takes over that may lack the end of the log.
    Failover,
    /// The database is restored from an older copy.
    Restored,
    /// The slot is dropped and made anew.
    SlotRecreated,
    /// Another client writes to the stream.
    ForeignMessage,
}

impl Fault {
    /// Every fault.
    pub const ALL: [Self; 17] = [
        Self::RelayKilled,
        Self::RelayFrozen,
        Self::SourceLost,
        Self::SinkLost,
        Self::AckLost,
        Self::AckDoubled,
        Self::PublishLost,
        Self::BrokerSilent,
        Self::StreamFull,
        Self::TailLost,
        Self::StreamRecreated,
        Self::ConfirmForgotten,
        Self::FastShutdown,
        Self::Failover,
        Self::Restored,
        Self::SlotRecreated,
        Self::ForeignMessage,
    ];
}

/// A fault at its step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// When, counted in steps of the run.
    pub step: usize,
    /// What.
    pub fault: Fault,
}
