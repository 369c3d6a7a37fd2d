//! The project's own commands. `cargo xtask --help` lists them.

mod chaos;
mod demo;
mod test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The project's own commands.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the relay at work: a shop, a private PostgreSQL and a private nats-server.
    ///
    /// Half-way the relay is killed with SIGKILL and started again. Ends with what was committed
    /// and what arrived; exits with 0 only when nothing was lost, doubled or out of order.
    Demo(demo::Options),
    /// Break everything again and again for a while, on real processes, and reckon at the end.
    ///
    /// Writers commit all kinds of transactions while relays, PostgreSQL and NATS are killed,
    /// frozen, restarted and cut off, single messages are swallowed and the stream's tail is lost.
    /// Exits with 0 only when nothing was lost, doubled, out of order or confirmed too early, and no
    /// relay ended by itself.
    Chaos(chaos::Options),
    /// Format check, lints, licences where cargo-deny is installed, and every test.
    Test {
        /// Also run the end-to-end tests on the older servers, PostgreSQL 15 and nats-server 2.9, and
        /// two minutes of chaos.
        #[arg(long)]
        matrix: bool,
    },
}

fn main() -> ExitCode {
    let outcome = match Args::parse().command {
        Command::Chaos(options) => chaos::chaos(&options),
        Command::Demo(options) => demo::demo(options),
        Command::Test { matrix } => test::test(matrix).map(|()| ExitCode::SUCCESS),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::FAILURE
    })
}
