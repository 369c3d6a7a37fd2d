use std::sync::Arc;

use anyhow::{Context as _, Result};
use relay::Observed;
use relay_core::Exit;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing_subscriber::EnvFilter;

use crate::config::{Config, RawLogFormat};
use crate::exit;

/// Runs the relay with its HTTP endpoint.
pub(crate) async fn run(config: Config) -> Result<u8> {
    log_to_stderr(&config)?;
    let (stopped, stop) = watch::channel(false);
    tokio::spawn(wait_for_signal(stopped)?);
    let observed = Arc::new(Observed::default());
    let prometheus = console::install_recorder().context("install the metrics recorder")?;
    if let Some(address) = config.listen {
        let listener = console::bind(address).await.with_context(|| {
            format!("listen on {address}: set http.listen to a free address, or to none")
        })?;
        tracing::info!(%address, "serving /livez, /readyz, /metrics and /status");
        let serving =
            console::serve(listener, Arc::clone(&observed), prometheus, told_to(stop.clone()));
        tokio::spawn(async move {
            if let Err(error) = serving.await {
                tracing::error!(%error, "the HTTP endpoint has ended");
            }
        });
    }
    Ok(match relay::run(config.relay_options(), observed, told_to(stop)).await {
        Exit::Stopped => exit::OK,
        Exit::Halted(_) => exit::HALTED,
    })
}

async fn told_to(mut stop: watch::Receiver<bool>) {
    // An error says that the sender has gone, and it goes only with the process.
    let _ = stop.wait_for(|stop| *stop).await;
}

/// The first SIGTERM or SIGINT asks for a stop in good order, a second one ends the process.
fn wait_for_signal(stopped: watch::Sender<bool>) -> Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate()).context("watch for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("watch for SIGINT")?;
    Ok(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if stopped.send_replace(true) {
                std::process::exit(i32::from(exit::FAILED));
            }
        }
    })
}

/// Sends the log to standard error, as the configuration says.
pub(crate) fn log_to_stderr(config: &Config) -> Result<()> {
    // The replication crate logs the failures that the relay itself reports, with their advice.
    let filter = format!("{},pgwire_replication=off,async_nats=error", config.log_level);
    let filter = EnvFilter::try_new(&filter).context("log.level")?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match config.log_format {
        RawLogFormat::Json => builder.json().flatten_event(true).init(),
        RawLogFormat::Text => builder.with_ansi(false).init(),
    }
    Ok(())
}
