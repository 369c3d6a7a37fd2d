mod arrivals;
mod shop;
mod stage;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::json;
use testkit::stream::{Tally, tally};
use testkit::wait_until;
use tokio::signal::unix::{SignalKind, signal};

use arrivals::Arrivals;
use shop::Shop;
use stage::Stage;

/// What can be asked of the demo.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Options {
    /// How many registrations the shop confirms; each has a second step.
    #[arg(long, default_value_t = 500)]
    registrations: u32,
    /// Leave everything running at the end, and say how to look inside. Ctrl-C ends it.
    #[arg(long)]
    keep: bool,
    /// End with one JSON object on standard output.
    #[arg(long)]
    json: bool,
}

/// How long the last events may take to arrive.
const ARRIVE_WITHIN: Duration = Duration::from_secs(60);

/// Runs the demo; everything it started ends with it.
pub(crate) fn demo(options: Options) -> Result<ExitCode> {
    let runtime = tokio::runtime::Runtime::new().context("start the runtime")?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).context("watch for SIGTERM")?;
        tokio::select! {
            outcome = play(options) => outcome,
            _ = tokio::signal::ctrl_c() => Ok(ExitCode::from(130)),
            _ = terminate.recv() => Ok(ExitCode::from(143)),
        }
    })
}

async fn play(options: Options) -> Result<ExitCode> {
    eprintln!("starting PostgreSQL and nats-server, and building the relay");
    let mut stage = Stage::set().await?;
    let arrivals = Arrivals::watch(&stage.nats, !options.json).await?;
    let mut shop = Shop::open(&stage.postgres, options.registrations).await?;
    shop.sell(|step, steps| {
        if step == steps / 2 {
            stage.kill_relay()?;
        }
        Ok(())
    })
    .await?;
    let all = wait_until(ARRIVE_WITHIN, "every event has arrived", || async {
        (arrivals.count() >= shop.committed().len()).then_some(())
    });
    if let Err(error) = all.await {
        eprintln!("\n{error:#}; the relay's last words:\n{}", stage.relay_words());
    }
    let client = stage.nats.client().await?;
    let stored = testkit::stream::read(&client, stage::STREAM).await?;
    let tally = tally(shop.committed(), &stored);
    arrivals.end();
    report(options, &tally, &shop, &arrivals);
    if options.keep {
        stage.tell_how_to_look_inside();
        std::future::pending::<()>().await;
    }
    let right = tally.in_stream == tally.committed
        && (tally.lost, tally.doubled, tally.out_of_order) == (0, 0, 0);
    Ok(if right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn report(options: Options, tally: &Tally, shop: &Shop, arrivals: &Arrivals) {
    let latency = arrivals.latency();
    if options.json {
        let object = json!({
            "committed": tally.committed,
            "in_stream": tally.in_stream,
            "lost": tally.lost,
            "doubled": tally.doubled,
            "out_of_order": tally.out_of_order,
            "races_lost": shop.races_lost(),
            "relay_kills": 1,
            "latency_ms": { "median": latency.median_ms, "max": latency.max_ms },
        });
        println!("{object}");
        return;
    }
    println!(
        "committed {}, in the stream {}, lost {}, doubled {}, out of order {}",
        tally.committed, tally.in_stream, tally.lost, tally.doubled, tally.out_of_order
    );
    println!(
        "{} writes lost the race for their version and so wrote no event; the relay was killed once",
        shop.races_lost()
    );
    println!(
        "from commit to a subscriber: median {:.1} ms, at most {:.1} ms (the kill included)",
        latency.median_ms, latency.max_ms
    );
}
