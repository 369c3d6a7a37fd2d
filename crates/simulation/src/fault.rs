/// What goes wrong in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The relay process is killed: all it knew is gone.
    RelayKilled,
    /// The replication connection breaks.
    SourceLost,
    /// The connection to the broker breaks; what was under way may still arrive.
    SinkLost,
    /// One ack never arrives.
    AckLost,
    /// One publish never arrives.
    PublishLost,
    /// The broker answers nothing for a while.
    BrokerSilent,
    /// The broker loses its newest messages.
    TailLost,
    /// The server forgets the newest confirmed position, as after a crash.
    ConfirmForgotten,
    /// Another client writes to the stream.
    ForeignMessage,
}

impl Fault {
    /// Every fault.
    pub const ALL: [Self; 9] = [
        Self::RelayKilled,
        Self::SourceLost,
        Self::SinkLost,
        Self::AckLost,
        Self::PublishLost,
        Self::BrokerSilent,
        Self::TailLost,
        Self::ConfirmForgotten,
        Self::ForeignMessage,
    ];
}
