#![allow(clippy::wildcard_enum_match_arm, reason = "a bug changes what it names and nothing else")]

use event::Lsn;
use relay_core::{Effect, Input, Occupant, SinkOpened, SourceStarted};

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
    /// The end of a transaction is confirmed as soon as it is acknowledged, before the record.
    ConfirmBeforeRecord,
    /// The record is not read at the start.
    RecordIgnored,
    /// Two histories of one database are not told apart: neither by timeline, nor by the end of the
    /// log, nor by the stream's last event.
    HistoryIgnored,
    /// Messages that have left the stream are not counted.
    RemovedNotCounted,
    /// A slot that stands further than it was confirmed is not noticed.
    SlotMoveIgnored,
    /// A server that goes down is not let go.
    ShutdownIgnored,
    /// The events of a batch are published one by one.
    BatchTorn,
    /// A batch does not say which sequence it follows.
    BatchUnchained,
}

impl Bug {
    /// Every bug.
    pub const ALL: [Self; 17] = [
        Self::ConfirmOnRead,
        Self::ConfirmKeepalives,
        Self::HighWaterTooHigh,
        Self::HighWaterTooLow,
        Self::HighWaterByTransaction,
        Self::HighWaterIgnored,
        Self::NoChain,
        Self::ChainWithoutIds,
        Self::RefilledTailOverlooked,
        Self::ConfirmBeforeRecord,
        Self::RecordIgnored,
        Self::HistoryIgnored,
        Self::RemovedNotCounted,
        Self::SlotMoveIgnored,
        Self::ShutdownIgnored,
        Self::BatchTorn,
        Self::BatchUnchained,
    ];

    /// Changes what the core is told, or acts in its place.
    pub(crate) fn plant(self, input: &mut Input, effects: &mut Vec<Effect>) {
        match input {
            Input::Source(pgoutput::Message::Commit { end_lsn, .. })
                if self == Self::ConfirmOnRead =>
            {
                effects.push(Effect::Confirm(*end_lsn));
            }
            Input::Keepalive { wal_end, .. } if self == Self::ConfirmKeepalives => {
                effects.push(Effect::Confirm(*wal_end));
            }
            Input::Keepalive { replies_requested, .. } if self == Self::ShutdownIgnored => {
                *replies_requested = 0;
            }
            Input::SourceStopping if self == Self::ShutdownIgnored => {
                *input = Input::Deadline;
            }
            Input::SourceStarted(started) => self.plant_source(started),
            Input::SinkOpened(opened) => self.plant_sink(opened),
            _ => {}
        }
    }

    fn plant_source(self, started: &mut SourceStarted) {
        match self {
            Self::RecordIgnored => started.record = None,
            Self::SlotMoveIgnored => {
                if let Some(record) = &mut started.record {
                    record.confirmed = record.confirmed.max(started.confirmed_flush_lsn);
                }
            }
            Self::HistoryIgnored => {
                let end = Lsn::new(u64::MAX);
                started.forks.iter_mut().for_each(|fork| fork.end = end);
                started.wal_end = end;
                started.confirmed_flush_lsn = end;
                if let Some(record) = &mut started.record {
                    record.confirmed = end;
                }
            }
            _ => {}
        }
    }

    fn plant_sink(self, opened: &mut SinkOpened) {
        match self {
            Self::RefilledTailOverlooked => opened.verified = Occupant::None,
            Self::RemovedNotCounted => opened.removing = false,
            _ => {}
        }
        let Some(end) = &mut opened.end else { return };
        match self {
            Self::HighWaterTooHigh => end.position.ordinal += 1,
            Self::HighWaterTooLow if end.position.ordinal > 0 => end.position.ordinal -= 1,
            Self::HighWaterByTransaction => end.position.ordinal = u64::MAX,
            Self::HighWaterIgnored => opened.end = None,
            _ => {}
        }
    }

    /// Changes what the core wants done.
    pub(crate) fn bend(self, effects: &mut Vec<Effect>) {
        match self {
            Self::ConfirmBeforeRecord => {
                let early = effects.iter().filter_map(|effect| match effect {
                    Effect::Store(record) => Some(Effect::Confirm(record.confirmed)),
                    _ => None,
                });
                let early: Vec<_> = early.collect();
                effects.splice(0..0, early);
            }
            Self::BatchTorn => {
                let torn = effects.drain(..).flat_map(|effect| match effect {
                    Effect::PublishBatch(messages) => {
                        messages.into_iter().map(Effect::Publish).collect()
                    }
                    other => vec![other],
                });
                *effects = torn.collect();
            }
            _ => {}
        }
    }

    /// Takes conditions off a publish.
    pub(crate) fn loosen(self, publish: &mut Publish, last_sequence: u64) {
        if matches!(self, Self::NoChain | Self::ChainWithoutIds) {
            publish.expected_id = None;
        }
        if self == Self::NoChain || (self == Self::BatchUnchained && publish.messages.len() > 1) {
            publish.expected_sequence = last_sequence;
        }
    }
}
