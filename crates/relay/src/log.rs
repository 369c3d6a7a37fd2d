use relay_core::{Exit, FailureClass, Notice, SplitReason};
use tracing::{error, info, warn};

/// Writes what the core has to say into the log, once, where it is acted upon.
pub(crate) fn notice(notice: &Notice) {
    match notice {
        Notice::Retrying { dependency, failure, pause } => {
            let seconds = pause.as_secs_f64();
            if let FailureClass::SlotHeld { pid } = failure.class {
                info!(%dependency, holder_pid = pid, retry_in_seconds = seconds, "standing by: another session holds the slot");
            } else {
                warn!(%dependency, code = %failure.code, error = %failure, retry_in_seconds = seconds, "waiting for a dependency");
            }
        }
        Notice::SourceStarted => info!("streaming from the slot"),
        Notice::SinkOpened { high_water } => {
            let high_water = high_water.map(|position| position.to_string());
            info!(high_water, "publishing to the stream");
        }
        Notice::TailLost { stream_end, acked } => {
            let stream_end = stream_end.map(|position| position.to_string());
            error!(stream_end, %acked, "the stream lost what it had acknowledged: publishing it again");
        }
        Notice::Mending { from, to } => {
            let from = from.map(|position| position.to_string());
            error!(from, %to, "the slot no longer holds all of the lost events");
        }
        Notice::Mended { sequence } => info!(sequence, "the lost events are in the stream again"),
        Notice::LetGo => info!(
            "the database server is stopping; the replication session is let go, since what is in flight or held back may not be confirmed yet"
        ),
        Notice::DuplicateId { position, stored } => error!(
            %position, %stored, "two rows have one event id; JetStream keeps the first only"
        ),
        Notice::DuplicateVanished { position } => warn!(
            %position, "the duplicate window knows an id whose message is gone; publishing without the id"
        ),
        Notice::ForeignTable { table } => warn!(
            table,
            "the publication brings rows of a table that the configuration does not name; they are counted and passed over"
        ),
        Notice::Split { position, reason } => {
            let reason = match reason {
                SplitReason::TooManyEvents => "more events than the server takes as one batch",
                SplitReason::NoRoom => {
                    "more than may be in flight: raise delivery.in_flight_events_max or in_flight_bytes_max"
                }
                SplitReason::DuplicateId => {
                    "the stream has one of its message ids already: each row needs an event id of its own"
                }
                SplitReason::Refused => "the stream refused it as a batch again and again",
            };
            warn!(%position, reason, "a transaction appears event by event, not at once");
        }
        Notice::NoBatches => warn!(
            "the stream takes no atomic batches: transactions appear event by event, not at once; set allow_atomic on the stream (nats-server 2.12 or later; see outbox-relay check) and restart the relay, or leave sink.atomic_transactions out"
        ),
        Notice::Draining { in_flight } => info!(in_flight, "stopping: waiting for acks"),
    }
}

/// Writes why the relay ends.
pub(crate) fn exit(exit: &Exit) {
    match exit {
        Exit::Stopped => info!("stopped"),
        Exit::Halted(failure) => {
            error!(code = %failure.code, error = %failure.message, advice = %failure.advice, "halted");
        }
    }
}
