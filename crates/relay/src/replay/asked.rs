use std::time::{Duration, SystemTime};

use event::{Lsn, Position, SourceId};
use postgres_source::{Act, Recorder, RowFilter};
use relay_core::{Failure, Outgoing, ReadEvent, SinkQuery};
use serde::Serialize;
use serde_json::json;
use tokio::time::sleep;

use super::events::{Events, LogEvents, TableEvents};
use super::republisher::{BURST, Republisher};
use super::{Ids, Progress, id_of};
use crate::RelayOptions;
use crate::snapshot::age_seconds;

/// Which events are to be published once more.
#[derive(Clone, Debug)]
pub enum Selection {
    /// From what the slot still holds: committed in `from..=to`, by commit LSN.
    Log {
        /// The first commit.
        from: Lsn,
        /// The last commit; `None`: up to the stream's end.
        to: Option<Lsn>,
        /// Further conditions; its times are not looked at.
        filter: RowFilter,
    },
    /// From the rows of the outbox tables.
    Tables(RowFilter),
}

/// A replay that somebody asks for.
#[derive(Clone, Debug)]
pub struct Replay {
    /// Which events.
    pub selection: Selection,
    /// Who asks.
    pub by: String,
    /// Why.
    pub reason: String,
    /// Only count.
    pub dry_run: bool,
    /// How long consumers remember what they have applied; older events are refused.
    pub dedupe_retention: Duration,
    /// Publish older ones too.
    pub force: bool,
    /// The most messages a second.
    pub rate: u32,
}

/// What a replay has done, or would do.
#[derive(Clone, Debug, Default, Serialize, PartialEq, Eq)]
pub struct ReplaySummary {
    /// Its name, as in the messages' headers.
    pub name: String,
    /// How many events.
    pub events: u64,
    /// The age of the oldest, in seconds; absent when it cannot be told.
    pub oldest_age_seconds: Option<u64>,
    /// The first event ids.
    pub first: Vec<String>,
    /// The last message's sequence in the stream; absent when nothing was published.
    pub last_sequence: Option<u64>,
}

/// How many event ids a summary names.
const FIRST: usize = 10;

/// Publishes events once more. Only those that are in the stream already: none overtakes its first
/// delivery.
///
/// # Errors
/// The classified failure. `log_gone` when the slot no longer holds the beginning, `retention` when
/// consumers may have forgotten what they have applied, `nothing_published` when the stream holds
/// nothing of this relay.
pub async fn replay(options: &RelayOptions, replay: &Replay) -> Result<ReplaySummary, Failure> {
    let relay = &options.core.relay;
    let source = postgres_source::identity(&options.source, relay).await?;
    let (_, _, opened) = nats_sink::open(&options.sink, relay, SinkQuery::default()).await?;
    let end = opened.end.filter(|end| end.source.system_identifier == source.system_identifier);
    let Some(end) = end else {
        let message = "the stream holds nothing of this relay and this database";
        return Err(Failure::halt("nothing_published", message).advise("start the relay first"));
    };
    let plan = Plan { options, replay, source, end: end.position };
    let (mut ids, mut summary) = plan.choose().await?;
    if replay.dry_run || summary.events == 0 {
        return Ok(summary);
    }
    plan.refuse_what_was_forgotten(&summary).await?;
    let name = format!("replay/{}", since_epoch());
    summary.name.clone_from(&name);
    let mut recorder = Recorder::new(options.source.clone(), relay.clone());
    let detail = json!({ "name": name, "events": summary.events, "selection": plan.words() });
    recorder.act(&plan.act("replay", detail)).await?;
    let begins_after = opened.last_sequence;
    summary.last_sequence = plan.publish(name, &mut ids, summary.events, begins_after).await?;
    let detail = json!({ "name": summary.name, "last_sequence": summary.last_sequence });
    recorder.act(&plan.act("replay_done", detail)).await?;
    Ok(summary)
}

struct Plan<'a> {
    options: &'a RelayOptions,
    replay: &'a Replay,
    source: SourceId,
    end: Position,
}

impl Plan<'_> {
    fn words(&self) -> String {
        format!("{:?}", self.replay.selection)
    }

    fn act(&self, act: &'static str, detail: serde_json::Value) -> Act<'_> {
        Act { act, actor: &self.replay.by, reason: &self.replay.reason, detail }
    }

    async fn open(&self) -> Result<Events, Failure> {
        Ok(match &self.replay.selection {
            Selection::Log { from, .. } => {
                Events::Log(Box::new(LogEvents::open(self.options, &self.source, *from).await?))
            }
            Selection::Tables(filter) => {
                Events::Tables(Box::new(TableEvents::new(self.options, &self.source, filter)))
            }
        })
    }

    /// The set of events, frozen.
    async fn choose(&self) -> Result<(Ids, ReplaySummary), Failure> {
        if let Selection::Log { from, .. } = &self.replay.selection {
            let begins = postgres_source::log_begins(&self.options.source).await?;
            if *from < begins {
                let message = format!(
                    "the slot no longer holds what was committed between {from} and {begins}"
                );
                return Err(Failure::halt("log_gone", message).advise(format!(
                    "replay from {begins} on, or from the rows of the outbox table"
                )));
            }
        }
        let (mut ids, mut summary) = (Ids::default(), ReplaySummary::default());
        let mut events = self.open().await?;
        let mut oldest = None;
        while let Some(events) = events.next().await? {
            for event in events.iter().filter(|event| self.wants(event)) {
                ids.insert(id_of(&event.message));
                oldest = oldest.or(event.committed_at);
                if summary.first.len() < FIRST {
                    summary.first.push(event.event.event_id.clone());
                }
            }
        }
        drop(events);
        if let Selection::Tables(filter) = &self.replay.selection {
            self.leave_out_unpublished(&mut ids).await?;
            summary.oldest_age_seconds =
                postgres_source::oldest(&self.options.source, &self.options.core.outboxes, filter)
                    .await?;
        } else {
            summary.oldest_age_seconds = oldest.map(|at| age_seconds(at).max(0.0) as u64);
        }
        summary.events = ids.len() as u64;
        Ok((ids, summary))
    }

    fn wants(&self, event: &ReadEvent) -> bool {
        let Selection::Log { to, filter, .. } = &self.replay.selection else { return true };
        let is = |wanted: &Option<String>, found: &str| {
            wanted.as_ref().is_none_or(|wanted| wanted == found)
        };
        event.position <= self.end
            && to.is_none_or(|to| event.position.commit_lsn <= to)
            && is(&filter.event_type, &event.event.event_type)
            && is(&filter.aggregate_id, &event.event.aggregate_id)
            && (filter.event_ids.is_empty() || filter.event_ids.contains(&event.event.event_id))
    }

    /// Rows that were committed and are not in the stream yet come from the slot.
    async fn leave_out_unpublished(&self, ids: &mut Ids) -> Result<(), Failure> {
        let mut log = LogEvents::open(self.options, &self.source, Lsn::ZERO).await?;
        while let Some(events) = log.next().await? {
            for event in events.iter().filter(|event| event.position > self.end) {
                ids.remove(id_of(&event.message));
            }
        }
        Ok(())
    }

    async fn refuse_what_was_forgotten(&self, summary: &ReplaySummary) -> Result<(), Failure> {
        let retention = self.replay.dedupe_retention.as_secs();
        let covered = summary.oldest_age_seconds.is_some_and(|age| age < retention);
        if covered || self.replay.force {
            return Ok(());
        }
        let oldest = summary.oldest_age_seconds.map_or_else(
            || "how old the oldest event is cannot be told".to_owned(),
            |age| format!("the oldest event is {age} s old"),
        );
        let message = format!(
            "{oldest}, and consumers remember what they have applied for {retention} s \
             (delivery.dedupe_retention): they could apply it a second time"
        );
        Err(Failure::halt("retention", message).advise("narrow the replay, or take --force"))
    }

    async fn publish(
        &self,
        name: String,
        ids: &mut Ids,
        of: u64,
        begins_after: u64,
    ) -> Result<Option<u64>, Failure> {
        let replay = event::Replay {
            name,
            by: self.replay.by.clone(),
            reason: self.replay.reason.clone(),
            keeps_position: matches!(self.replay.selection, Selection::Log { .. }),
        };
        let (sink, relay) = (self.options.sink.clone(), self.options.core.relay.clone());
        let mut republisher = Republisher::new(sink, relay, replay, begins_after);
        let mut progress = Progress::new("publishing once more");
        let mut events = self.open().await?;
        let mut waiting: Vec<Outgoing> = Vec::new();
        while ids.len() > 0
            && let Some(events) = events.next().await?
        {
            for event in events {
                if ids.remove(id_of(&event.message)) {
                    waiting.push(event.message);
                }
                if waiting.len() == BURST.min(self.replay.rate as usize) {
                    self.burst(&mut republisher, &mut waiting).await?;
                    progress.at(of - ids.len() as u64, of);
                }
            }
        }
        self.burst(&mut republisher, &mut waiting).await?;
        if ids.len() > 0 {
            tracing::warn!(gone = ids.len(), "events went away while they were replayed");
        }
        Ok(republisher.last())
    }

    async fn burst(
        &self,
        republisher: &mut Republisher,
        waiting: &mut Vec<Outgoing>,
    ) -> Result<(), Failure> {
        let count = waiting.len();
        republisher.burst(std::mem::take(waiting)).await?;
        let pause = Duration::from_secs(1) * u32::try_from(count).unwrap_or(1) / self.replay.rate;
        sleep(pause).await;
        Ok(())
    }
}

/// Milliseconds since 1970, to name a replay by.
fn since_epoch() -> u128 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis()
}
