use event::{Lsn, SourceId};
use nats_sink::{Found, Scan};
use postgres_source::RowFilter;
use relay_core::{Failure, LostRange};

use super::events::{LogEvents, TableEvents};
use super::republisher::{BURST, Republisher};
use super::{Ids, Progress, id_of};
use crate::RelayOptions;

/// Rows of the outbox tables that neither the stream holds nor the slot will send.
struct Missing {
    ids: Ids,
    /// Events that the slot will send and that had been acknowledged.
    acked_in_log: u64,
    /// Messages of this replay that are in the stream already.
    republished: u64,
    last_republished: Option<u64>,
    stream_last: u64,
}

/// What to look for.
struct Search<'a> {
    options: &'a RelayOptions,
    source: &'a SourceId,
    /// The slot sends what was committed from here on.
    slot_begins: Lsn,
    range: Option<&'a LostRange>,
    replay: &'a str,
}

/// Publishes the events that the stream lost and the slot cannot send again, if the outbox tables
/// hold exactly as many rows as are missing. Gives the sequence of the last one; `None` when none
/// was missing.
///
/// # Errors
/// The classified failure; `tail_lost`, with the range, when rows are gone or cannot be told from
/// others.
pub(crate) async fn mend(
    options: &RelayOptions,
    range: &LostRange,
) -> Result<Option<u64>, Failure> {
    let source = postgres_source::identity(&options.source, &options.core.relay).await?;
    let name = format!("lost_tail/{}", range.acked.position);
    let search = Search {
        options,
        source: &source,
        slot_begins: range.slot_position,
        range: Some(range),
        replay: &name,
    };
    let missing = search.find().await?;
    let after = range.after.map_or(0, |after| after.sequence);
    let lost = range.acked.sequence.saturating_sub(after);
    let expected = lost.checked_sub(missing.acked_in_log + missing.republished);
    if expected != Some(missing.ids.len() as u64) {
        return Err(beyond_the_slot(range, lost, &missing));
    }
    let replay = event::Replay {
        name: name.clone(),
        by: "outbox-relay".to_owned(),
        reason: "the stream lost its tail".to_owned(),
        keeps_position: false,
    };
    search.publish(missing, replay).await
}

/// Publishes every row of the outbox tables that the stream lacks and the slot will not send.
/// Returns how many.
///
/// # Errors
/// The classified failure.
pub async fn republish(
    options: &RelayOptions,
    slot_begins: Lsn,
    by: &str,
    reason: &str,
) -> Result<u64, Failure> {
    let source = postgres_source::identity(&options.source, &options.core.relay).await?;
    let name = format!("lost_tail/{slot_begins}");
    let search = Search { options, source: &source, slot_begins, range: None, replay: &name };
    let missing = search.find().await?;
    let count = missing.ids.len() as u64;
    let (by, reason) = (by.to_owned(), reason.to_owned());
    let replay = event::Replay { name: name.clone(), by, reason, keeps_position: false };
    search.publish(missing, replay).await?;
    Ok(count)
}

impl Search<'_> {
    /// The tables are read before the log, so that the log covers every row that was seen.
    async fn find(&self) -> Result<Missing, Failure> {
        let mut missing = Missing {
            ids: Ids::default(),
            acked_in_log: 0,
            republished: 0,
            last_republished: None,
            stream_last: 0,
        };
        let mut rows = TableEvents::new(self.options, self.source, &RowFilter::default());
        while let Some(events) = rows.next().await? {
            events.iter().for_each(|event| missing.ids.insert(id_of(&event.message)));
        }
        let mut log = LogEvents::open(self.options, self.source, self.slot_begins).await?;
        let acked = self.range.map(|range| range.acked.position);
        while let Some(events) = log.next().await? {
            for event in events {
                missing.ids.remove(id_of(&event.message));
                let was_acked = acked.is_some_and(|acked| event.position <= acked);
                missing.acked_in_log += u64::from(was_acked);
            }
        }
        self.scan(&mut missing).await?;
        Ok(missing)
    }

    async fn scan(&self, missing: &mut Missing) -> Result<(), Failure> {
        let (sink, relay) = (&self.options.sink, &self.options.core.relay);
        let mut scan = Scan::open(sink, relay, 1).await?;
        missing.stream_last = scan.last();
        let mut progress = Progress::new("looking through the stream for what it lacks");
        let name = event::headers::encode_value(self.replay);
        while let Some(found) = scan.next().await? {
            for Found { sequence, message_id, replay, .. } in found {
                progress.at(sequence, missing.stream_last);
                if replay.as_deref() == Some(name.as_str()) {
                    missing.republished += 1;
                    missing.last_republished = Some(sequence);
                }
                if let Some(id) = &message_id {
                    let suffix = replay.map(|replay| format!("/{replay}"));
                    let id = suffix.and_then(|suffix| id.strip_suffix(&suffix)).unwrap_or(id);
                    missing.ids.remove(id);
                }
            }
        }
        Ok(())
    }

    async fn publish(
        &self,
        mut missing: Missing,
        replay: event::Replay,
    ) -> Result<Option<u64>, Failure> {
        let of = missing.ids.len() as u64;
        let (sink, relay) = (self.options.sink.clone(), self.options.core.relay.clone());
        let mut republisher = Republisher::new(sink, relay, replay, missing.stream_last);
        let mut rows = TableEvents::new(self.options, self.source, &RowFilter::default());
        let mut progress = Progress::new("publishing what the stream has lost");
        let mut burst = Vec::new();
        while missing.ids.len() > 0
            && let Some(events) = rows.next().await?
        {
            for event in events {
                if missing.ids.remove(id_of(&event.message)) {
                    burst.push(event.message);
                }
                if burst.len() == BURST {
                    republisher.burst(std::mem::take(&mut burst)).await?;
                    progress.at(of - missing.ids.len() as u64, of);
                }
            }
        }
        republisher.burst(burst).await?;
        if missing.ids.len() > 0 {
            let message = "rows were deleted while they were published again";
            return Err(Failure::wait("rows_changed", message));
        }
        Ok(republisher.last().or(missing.last_republished))
    }
}

fn beyond_the_slot(range: &LostRange, lost: u64, missing: &Missing) -> Failure {
    let after =
        range.after.map_or_else(|| "its start".to_owned(), |after| after.position.to_string());
    let message = format!(
        "the stream ends at {after}, but events up to {} had been acknowledged, {lost} messages \
         further; the slot no longer holds those committed before {}, and the outbox tables hold \
         {} rows that are in neither",
        range.acked.position,
        range.slot_position,
        missing.ids.len()
    );
    let advice = "which of them the stream had cannot be told: see outbox-relay recover for \
                  publishing what the tables have, or going on without";
    Failure::halt("tail_lost", message).advise(advice)
}
