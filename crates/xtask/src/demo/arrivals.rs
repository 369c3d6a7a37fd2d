use std::io::{IsTerminal as _, Write as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result};
use async_nats::Message;
use event::headers;
use futures_util::StreamExt as _;
use testkit::Nats;
use tokio::task::JoinHandle;

/// How often the progress line is renewed.
const LINE_EVERY: Duration = Duration::from_millis(100);
/// The same where each renewal is a line of its own.
const PLAIN_LINE_EVERY: Duration = Duration::from_secs(1);

/// What a subscriber sees arrive.
pub(crate) struct Arrivals {
    latencies: Arc<Mutex<Vec<Duration>>>,
    watching: JoinHandle<()>,
    on_terminal: bool,
}

pub(crate) struct Latency {
    pub(crate) median_ms: f64,
    pub(crate) max_ms: f64,
}

impl Arrivals {
    pub(crate) async fn watch(nats: &Nats, talkative: bool) -> Result<Self> {
        let client = nats.client().await?;
        let mut messages = client.subscribe("events.>").await.context("subscribe")?;
        client.flush().await.context("subscribe")?;
        let latencies = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&latencies);
        let on_terminal = std::io::stderr().is_terminal();
        let every = if on_terminal && talkative { LINE_EVERY } else { PLAIN_LINE_EVERY };
        let watching = tokio::spawn(async move {
            let mut shown = Instant::now();
            while let Some(message) = messages.next().await {
                let latency = latency(&message);
                let mut latencies = noted.lock().unwrap_or_else(PoisonError::into_inner);
                latencies.extend(latency);
                if shown.elapsed() >= every {
                    shown = Instant::now();
                    show(&message, latencies.len(), latency, on_terminal);
                }
            }
            // The client lives as long as the subscription.
            drop(client);
        });
        Ok(Self { latencies, watching, on_terminal })
    }

    pub(crate) fn count(&self) -> usize {
        self.latencies.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    pub(crate) fn end(&self) {
        self.watching.abort();
        if self.on_terminal {
            eprintln!();
        }
    }

    pub(crate) fn latency(&self) -> Latency {
        let mut latencies = self.latencies.lock().unwrap_or_else(PoisonError::into_inner).clone();
        latencies.sort_unstable();
        let ms = |at: usize| latencies.get(at).map_or(0.0, |d| d.as_secs_f64() * 1e3);
        Latency {
            median_ms: ms(latencies.len() / 2),
            max_ms: ms(latencies.len().saturating_sub(1)),
        }
    }
}

fn header<'m>(message: &'m Message, name: &str) -> &'m str {
    message.headers.as_ref().and_then(|map| map.get(name)).map_or("", |value| value.as_str())
}

/// From the commit until now.
fn latency(message: &Message) -> Option<Duration> {
    let committed = headers::parse_rfc3339(header(message, headers::COMMITTED_AT))?;
    let year_2000 = SystemTime::UNIX_EPOCH + Duration::from_secs(946_684_800);
    let committed = year_2000 + Duration::from_micros(u64::try_from(committed).ok()?);
    Some(SystemTime::now().duration_since(committed).unwrap_or_default())
}

fn show(message: &Message, count: usize, latency: Option<Duration>, on_terminal: bool) {
    let line = format!(
        "{count:>6} arrived  {}  {}  version {}  at {}  {:.1} ms after its commit",
        message.subject,
        header(message, headers::EVENT_TYPE),
        header(message, headers::AGGREGATE_VERSION),
        header(message, headers::POSITION),
        latency.unwrap_or_default().as_secs_f64() * 1e3,
    );
    if on_terminal {
        eprint!("\r\x1b[2K{line}");
        // A terminal that is gone needs no progress.
        let _ = std::io::stderr().flush();
    } else {
        eprintln!("{line}");
    }
}
