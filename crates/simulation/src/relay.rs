//! One relay process: the real core, and what its shell would hold.

use std::sync::Arc;
use std::time::Duration;

use event::Lsn;
use relay_core::{
    Core, Effect, FieldSource, Fields, LostRange, Options, Outbox, Outgoing, Record, Route,
    SubjectTemplate,
};

use crate::broker::Wire;
use crate::database::Walsender;

pub(crate) const HOLD_BACK: Duration = Duration::from_secs(60);

/// A process with its two sessions.
#[derive(Debug)]
pub(crate) struct Relay {
    pub(crate) core: Core,
    /// Names the process; a restart is another one.
    pub(crate) process: u64,
    /// What the process may store records under.
    pub(crate) generation: u64,
    pub(crate) source: Option<Walsender>,
    pub(crate) source_opening: bool,
    /// The server has ended the session, and the process has not seen it yet.
    pub(crate) source_cut: bool,
    pub(crate) sink: Option<Wire>,
    /// The sequence to look at, once a sink session is being opened.
    pub(crate) sink_opening: Option<Option<u64>>,
    pub(crate) storing: Option<Record>,
    pub(crate) mending: Option<LostRange>,
    pub(crate) frozen_until: Duration,
    /// Why it ended; a person has to look.
    pub(crate) halted: Option<String>,
}

impl Relay {
    pub(crate) fn new(process: u64, seed: u64, hold_back: Duration) -> Self {
        Self {
            core: Core::new(Options { hold_back, ..options(seed) }),
            process,
            generation: 0,
            source: None,
            source_opening: false,
            source_cut: false,
            sink: None,
            sink_opening: None,
            storing: None,
            mending: None,
            frozen_until: Duration::ZERO,
            halted: None,
        }
    }

    pub(crate) fn runs(&self, now: Duration) -> bool {
        self.halted.is_none() && now >= self.frozen_until
    }

    /// The slot is free again; the process learns of it in its own time.
    pub(crate) fn cut_source(&mut self) {
        self.source_cut |= self.source.take().is_some();
    }

    fn publish(&mut self, messages: Vec<Arc<Outgoing>>) -> Result<(), String> {
        let wire = self.sink.as_mut().ok_or("a publish without a session")?;
        wire.publish(messages);
        Ok(())
    }

    /// Takes over what an effect asks of the shell; gives the LSN that was confirmed.
    pub(crate) fn carry_out(&mut self, effect: Effect) -> Result<Option<Lsn>, String> {
        match effect {
            Effect::OpenSource => self.source_opening = true,
            Effect::AbortSource => {
                self.source = None;
                self.source_cut = false;
                self.storing = None;
            }
            Effect::OpenSink(query) => self.sink_opening = Some(query.verify),
            Effect::Publish(outgoing) => self.publish(vec![outgoing])?,
            Effect::PublishBatch(messages) => self.publish(messages)?,
            Effect::Confirm(lsn) => return Ok(self.source.is_some().then_some(lsn)),
            Effect::Store(record) => {
                if self.storing.replace(record).is_some() {
                    return Err("two records under way".into());
                }
            }
            Effect::Mend(range) => self.mending = Some(range),
            Effect::CloseSink | Effect::Exit(_) | Effect::Published { .. } | Effect::Notice(_) => {}
        }
        Ok(None)
    }
}

fn options(seed: u64) -> Options {
    let column = |name: &str| FieldSource::Column(name.to_owned());
    let subject = SubjectTemplate::parse("events.{aggregate_id}");
    Options {
        relay: "sim".into(),
        outboxes: subject
            .map(|subject| Outbox {
                schema: "public".into(),
                table: "outbox".into(),
                fields: Fields {
                    event_id: column("event_id"),
                    aggregate_type: FieldSource::Constant("thing".into()),
                    aggregate_id: column("aggregate_id"),
                    aggregate_version: Some(column("aggregate_version")),
                    event_type: FieldSource::Constant("Changed".into()),
                    payload: FieldSource::Constant("{}".into()),
                    occurred_at: None,
                },
                headers: Vec::new(),
                route: Route { subject, types: Vec::new() },
                message_id_prefix: "public.outbox".into(),
            })
            .into_iter()
            .collect(),
        hold_back: HOLD_BACK,
        atomic_transactions: true,
        confirm_interval: Duration::from_secs(1),
        in_flight_events_max: 16,
        in_flight_bytes_max: 1 << 20,
        ack_timeout: Duration::from_secs(5),
        retry_pause_min: Duration::from_secs(1),
        retry_pause_max: Duration::from_secs(15),
        stop_timeout: Duration::from_secs(10),
        seed,
    }
}
