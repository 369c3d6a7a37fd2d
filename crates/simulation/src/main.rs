//! `cargo run -p simulation --release -- --seeds 100000`

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;

/// Runs the delivery core through faults, one seed a run, and says which seeds break a promise.
#[derive(Debug, Parser)]
struct Args {
    /// How many seeds to run.
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Print the trace of each failing seed, with every fault left out that it can do without.
    #[arg(long)]
    trace: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let began = Instant::now();
    let mut failed = 0_u64;
    for seed in args.from..args.from.saturating_add(args.seeds) {
        if let Err(broken) = simulation::run(seed) {
            failed += 1;
            let broken = simulation::shrink(seed, &broken, None);
            println!("seed {seed}: {}; with these faults: {:?}", broken.reason, broken.plan);
            if args.trace {
                broken.report.trace.iter().for_each(|line| println!("  {line}"));
            }
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    println!("{} seeds, {failed} failed, {:.0} seeds/s", args.seeds, args.seeds as f64 / seconds);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
