use std::collections::VecDeque;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _};
use metrics::{Histogram, histogram};
use nats_sink::{Acks, Publisher, SinkEvent, SinkOptions};
use postgres_source::{Recorder, Session, SourceEvent, SourceOptions};
use relay_core::{
    Core, Effect, Exit, Failure, Input, LostRange, Options, Outgoing, Record, SinkOpened,
    SinkQuery, SourceStarted,
};
use tokio::sync::{Mutex, mpsc};
use tokio::time::{Instant, sleep_until};

use crate::metrics::PUBLISH_LATENCY;
use crate::replay::mend;
use crate::snapshot::age_seconds;
use crate::{Observed, log, slot_watch};

/// Everything a relay needs to run.
#[derive(Clone, Debug)]
pub struct RelayOptions {
    /// For the core.
    pub core: Options,
    /// For the source.
    pub source: SourceOptions,
    /// For the sink.
    pub sink: SinkOptions,
}

/// The run loop shows a sign of life at least so often.
const SIGN_OF_LIFE_EVERY: Duration = Duration::from_secs(1);
/// How often what is observed is renewed under load.
const OBSERVE_EVERY: Duration = Duration::from_millis(100);
/// How long the source may take to be closed.
const CLOSE_WITHIN: Duration = Duration::from_secs(3);

/// Runs the relay until `stop` resolves or the core halts.
pub async fn run(
    options: RelayOptions,
    observed: Arc<Observed>,
    stop: impl Future<Output = ()>,
) -> Exit {
    let (stopping, source_stopping) = mpsc::channel(1);
    let watch = slot_watch::watch(options.source.clone(), Arc::clone(&observed), stopping);
    let watch = tokio::spawn(watch);
    let exit = Shell::new(options, observed, source_stopping).run(stop).await;
    watch.abort();
    log::exit(&exit);
    exit
}

type Opening<T> = Option<BoxFuture<'static, Result<T, Failure>>>;

struct Shell {
    options: RelayOptions,
    observed: Arc<Observed>,
    observed_at: Instant,
    core: Core,
    began: Instant,
    source: Option<Session>,
    source_opening: Opening<(Session, SourceStarted)>,
    source_stopping: mpsc::Receiver<()>,
    recorder: Arc<Mutex<Recorder>>,
    /// A record being stored; dropped with the replication session.
    storing: Opening<()>,
    /// Read from the source and not yet wanted by the core; at most one batch.
    backlog: VecDeque<SourceEvent>,
    publisher: Option<Publisher>,
    acks: Option<Acks>,
    sink_opening: Opening<(Publisher, Acks, SinkOpened)>,
    /// Lost events being published again; dropped like a sink session.
    mending: Opening<Input>,
    /// Inputs that carrying out an effect brought about.
    inputs: VecDeque<Input>,
    latency: Histogram,
}

impl Shell {
    fn new(
        options: RelayOptions,
        observed: Arc<Observed>,
        source_stopping: mpsc::Receiver<()>,
    ) -> Self {
        let recorder = Recorder::new(options.source.clone(), options.core.relay.clone());
        Self {
            core: Core::new(options.core.clone()),
            options,
            observed,
            observed_at: Instant::now(),
            began: Instant::now(),
            source: None,
            source_opening: None,
            source_stopping,
            recorder: Arc::new(Mutex::new(recorder)),
            storing: None,
            backlog: VecDeque::new(),
            publisher: None,
            acks: None,
            sink_opening: None,
            mending: None,
            inputs: VecDeque::from([Input::Start]),
            latency: histogram!(PUBLISH_LATENCY),
        }
    }

    async fn run(mut self, stop: impl Future<Output = ()>) -> Exit {
        let mut stop = std::pin::pin!(stop.fuse());
        let mut stopped = false;
        loop {
            if let Some(exit) = self.work().await {
                if let Some(source) = self.source.take() {
                    source.close(CLOSE_WITHIN).await;
                }
                return exit;
            }
            let due = self.core.poll_timeout().map(|(at, _)| self.began + at);
            let sign_of_life = Instant::now() + SIGN_OF_LIFE_EVERY;
            let wake = due.map_or(sign_of_life, |due| due.min(sign_of_life));
            let input = tokio::select! {
                biased;
                () = &mut stop, if !stopped => { stopped = true; Some(Input::Stop) }
                opened = opened(&mut self.source_opening) => Some(self.source_opened(opened)),
                opened = opened(&mut self.sink_opening) => Some(self.sink_opened(opened)),
                stored = opened(&mut self.storing) => Some(self.stored(stored)),
                mended = opened(&mut self.mending) => {
                    Some(mended.unwrap_or_else(Input::SinkFailed))
                }
                event = next_ack(self.acks.as_mut()) => Some(self.sink_event(event)),
                Some(()) = self.source_stopping.recv() => Some(self.source_stops()),
                batch = next_batch(self.source.as_mut(), self.backlog.is_empty()) => {
                    self.backlog.extend(batch);
                    None
                }
                () = sleep_until(wake) => Some(Input::Deadline),
            };
            self.inputs.extend(input);
        }
    }

    /// Hands in all there is to hand in; says when the core has ended.
    async fn work(&mut self) -> Option<Exit> {
        loop {
            while let Some(input) = self.inputs.pop_front() {
                if let Some(exit) = self.step(input).await {
                    return Some(exit);
                }
            }
            match self.next_of_backlog() {
                Some(input) => self.inputs.push_back(input),
                None => break,
            }
        }
        self.observe();
        None
    }

    /// A failure behind unread messages is handed in at once: the server will send them again.
    fn next_of_backlog(&mut self) -> Option<Input> {
        if let Some(SourceEvent::Failed(failure)) = self.backlog.back() {
            let failure = failure.clone();
            self.backlog.clear();
            self.source = None;
            self.storing = None;
            return Some(Input::SourceFailed(failure));
        }
        if !self.core.wants_source() {
            return None;
        }
        Some(match self.backlog.pop_front()? {
            SourceEvent::Message(message) => Input::Source(message),
            SourceEvent::Keepalive { wal_end, replies_requested } => {
                Input::Keepalive { wal_end, replies_requested }
            }
            SourceEvent::Failed(failure) => Input::SourceFailed(failure),
        })
    }

    async fn step(&mut self, input: Input) -> Option<Exit> {
        let mut effects = Vec::new();
        self.core.step(self.began.elapsed(), input, &mut effects);
        let mut exit = None;
        for effect in effects {
            match effect {
                Effect::OpenSource => self.open_source(),
                Effect::AbortSource => self.abort_source(),
                Effect::OpenSink(query) => self.open_sink(query),
                Effect::CloseSink => self.close_sink(),
                Effect::Publish(outgoing) => self.publish(&[outgoing]).await,
                Effect::PublishBatch(messages) => self.publish(&messages).await,
                Effect::Published { committed_at } => {
                    self.latency.record(age_seconds(committed_at));
                }
                Effect::Confirm(lsn) => {
                    if let Some(source) = &self.source {
                        source.confirm(lsn);
                    }
                }
                Effect::Store(record) => self.store(record),
                Effect::Mend(range) => self.mend(range),
                Effect::Notice(notice) => log::notice(&notice),
                Effect::Exit(end) => exit = Some(end),
            }
        }
        exit
    }

    fn open_source(&mut self) {
        let (source, outboxes) = (self.options.source.clone(), self.options.core.outboxes.clone());
        let recorder = Arc::clone(&self.recorder);
        let opening =
            async move { Session::open(&source, &outboxes, &mut *recorder.lock().await).await };
        self.source_opening = Some(opening.boxed());
    }

    fn store(&mut self, record: Record) {
        let recorder = Arc::clone(&self.recorder);
        let storing = async move { recorder.lock().await.store(&record).await };
        self.storing = Some(storing.boxed());
    }

    /// Without its record the relay may confirm nothing: the session is given up.
    fn stored(&mut self, stored: Result<(), Failure>) -> Input {
        match stored {
            Ok(()) => Input::RecordStored,
            Err(failure) => {
                self.abort_source();
                Input::SourceFailed(failure)
            }
        }
    }

    fn abort_source(&mut self) {
        self.source_opening = None;
        self.storing = None;
        self.backlog.clear();
        if let Some(source) = self.source.take() {
            source.abort();
        }
    }

    fn open_sink(&mut self, query: SinkQuery) {
        let (sink, relay) = (self.options.sink.clone(), self.options.core.relay.clone());
        let opening = async move { nats_sink::open(&sink, &relay, query).await };
        self.sink_opening = Some(opening.boxed());
    }

    fn mend(&mut self, range: LostRange) {
        let options = self.options.clone();
        let mending = async move {
            let sequence = mend(&options, &range).await?;
            Ok(Input::Mended { range, sequence })
        };
        self.mending = Some(mending.boxed());
    }

    fn close_sink(&mut self) {
        self.mending = None;
        self.sink_opening = None;
        self.publisher = None;
        self.acks = None;
    }

    /// A publish that fails ends the session; those behind it in the same step find none.
    async fn publish(&mut self, messages: &[Arc<Outgoing>]) {
        let Some(publisher) = &mut self.publisher else { return };
        let sent = match messages {
            [message] => publisher.publish(message).await,
            batch => publisher.publish_batch(batch).await,
        };
        if let Err(failure) = sent {
            self.close_sink();
            self.inputs.push_back(Input::SinkFailed(failure));
        }
    }

    fn source_opened(&mut self, opened: Result<(Session, SourceStarted), Failure>) -> Input {
        self.backlog.clear();
        match opened {
            Ok((session, started)) => {
                self.source = Some(session);
                Input::SourceStarted(started)
            }
            Err(failure) => Input::SourceFailed(failure),
        }
    }

    /// A session that is being opened may hold a server up that goes down, as one at work does.
    fn source_stops(&mut self) -> Input {
        match self.source_opening.take() {
            Some(_) => {
                let message = "the database server is stopping or starting";
                Input::SourceFailed(Failure::wait("server_stopping", message))
            }
            None => Input::SourceStopping,
        }
    }

    fn sink_opened(&mut self, opened: Result<(Publisher, Acks, SinkOpened), Failure>) -> Input {
        match opened {
            Ok((publisher, acks, opened)) => {
                self.publisher = Some(publisher);
                self.acks = Some(acks);
                Input::SinkOpened(opened)
            }
            Err(failure) => Input::SinkFailed(failure),
        }
    }

    fn sink_event(&mut self, event: SinkEvent) -> Input {
        match event {
            SinkEvent::Acked { count, sequence } => Input::Acked { count, sequence },
            SinkEvent::Duplicate { index, stored } => Input::Duplicate { index, stored },
            SinkEvent::Failed(failure) => {
                self.close_sink();
                Input::SinkFailed(failure)
            }
        }
    }

    fn observe(&mut self) {
        let now = Instant::now();
        if now >= self.observed_at + OBSERVE_EVERY || self.core.status().in_flight_events == 0 {
            self.observed_at = now;
            self.observed.relay(self.core.status(), *self.core.stats());
        }
    }
}

/// The outcome of an opening under way; never, when none is.
async fn opened<T>(opening: &mut Opening<T>) -> Result<T, Failure> {
    match opening {
        Some(future) => {
            let outcome = future.await;
            *opening = None;
            outcome
        }
        None => pending().await,
    }
}

async fn next_ack(acks: Option<&mut Acks>) -> SinkEvent {
    match acks {
        Some(acks) => acks.next().await,
        None => pending().await,
    }
}

/// The next batch of the source, once the last one has been handed in.
async fn next_batch(source: Option<&mut Session>, wanted: bool) -> Vec<SourceEvent> {
    match source {
        Some(source) if wanted => source.next().await,
        Some(_) | None => pending().await,
    }
}
