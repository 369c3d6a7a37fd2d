use relay_core::{Effect, Input, Occupant};

use crate::broker::Publish;

/// Mistakes that a relay could make, planted where the core meets the world: the checks must find
/// each of them, or they prove nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The end of a transaction is confirmed when it has been read.
    ConfirmOnRead,
    /// A keepalive's position is confirmed whatever is in flight.
    ConfirmKeepalives,
    /// The high-water mark is taken one row too high.
    HighWaterTooHigh,
    /// The high-water mark is taken one row too low.
    HighWaterTooLow,
    /// The high-water mark is compared by transaction, not by row.
    HighWaterByTransaction,
    /// The stream's end is not read, so everything counts as missing.
    HighWaterIgnored,
    /// Publishes do not say which sequence they follow, nor which message.
    NoChain,
    /// Publishes say which sequence they follow, but not which message.
    ChainWithoutIds,
    /// A lost tail that foreign messages have refilled is taken for messages that left by age.
    RefilledTailOverlooked,
}

impl Bug {
    /// Every bug.
    pub const ALL: [Self; 9] = [
        Self::ConfirmOnRead,
        Self::ConfirmKeepalives,
        Self::HighWaterTooHigh,
        Self::HighWaterTooLow,
        Self::HighWaterByTransaction,
        Self::HighWaterIgnored,
        Self::NoChain,
        Self::ChainWithoutIds,
        Self::RefilledTailOverlooked,
    ];

    /// Changes what the core is told, or acts in its place.
    pub(crate) fn plant(self, input: &mut Input, effects: &mut Vec<Effect>) {
        match (self, input) {
            (Self::ConfirmOnRead, Input::Source(pgoutput::Message::Commit { end_lsn, .. })) => {
                effects.push(Effect::Confirm(*end_lsn));
            }
            (Self::ConfirmKeepalives, Input::Keepalive { wal_end, .. }) => {
                effects.push(Effect::Confirm(*wal_end));
            }
            (Self::RefilledTailOverlooked, Input::SinkOpened(opened)) => {
                opened.verified = Occupant::None;
            }
            (_, Input::SinkOpened(opened)) => {
                let Some(end) = &mut opened.end else { return };
                match self {
                    Self::HighWaterTooHigh => end.position.ordinal += 1,
                    Self::HighWaterTooLow if end.position.ordinal > 0 => end.position.ordinal -= 1,
                    Self::HighWaterByTransaction => end.position.ordinal = u64::MAX,
                    Self::HighWaterIgnored => opened.end = None,
                    Self::ConfirmOnRead
                    | Self::ConfirmKeepalives
                    | Self::HighWaterTooLow
                    | Self::NoChain
                    | Self::ChainWithoutIds
                    | Self::RefilledTailOverlooked => {}
                }
            }
            (_, _) => {}
        }
    }

    /// Takes conditions off a publish.
    pub(crate) fn loosen(self, publish: &mut Publish, last_sequence: u64) {
        if matches!(self, Self::NoChain | Self::ChainWithoutIds) {
            publish.expected_id = None;
        }
        if self == Self::NoChain {
            publish.expected_sequence = last_sequence;
        }
    }
}
