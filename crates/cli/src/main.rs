//! The outbox-relay command.

mod args;
mod check;
mod config;
mod init;
mod recover;
mod replay;
mod run;

use std::process::ExitCode;

use clap::Parser as _;

use crate::args::{Args, Command, ConfigCommand};
use crate::config::Config;

/// Exit codes, as `--help` tells them.
pub(crate) mod exit {
    /// All is well.
    pub(crate) const OK: u8 = 0;
    /// The command could not do its work; the words say why.
    pub(crate) const FAILED: u8 = 1;
    /// The command line or the configuration is wrong.
    pub(crate) const USAGE: u8 = 2;
    /// The relay halted: going on would lose, double or reorder events, or cannot succeed.
    pub(crate) const HALTED: u8 = 3;
}

fn main() -> ExitCode {
    let args = Args::parse();
    match args.command {
        Command::Config { command: ConfigCommand::Schema } => {
            return print_json(&config::schema());
        }
        Command::Config { command: ConfigCommand::Reference } => {
            print!("{}", config::markdown());
            return ExitCode::from(exit::OK);
        }
        Command::Run
        | Command::Check { .. }
        | Command::Init { .. }
        | Command::Recover { .. }
        | Command::Replay(_)
        | Command::Config { command: ConfigCommand::Show } => {}
    }
    let config = match Config::load(&args.config) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("outbox-relay: {error:#}");
            return ExitCode::from(exit::USAGE);
        }
    };
    if let Command::Config { command: ConfigCommand::Show } = args.command {
        return print_json(&config.redacted());
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("outbox-relay: start the runtime: {error}");
            return ExitCode::from(exit::FAILED);
        }
    };
    let outcome = runtime.block_on(async {
        match args.command {
            Command::Run => run::run(config).await,
            Command::Check { json } => check::check(&config, json).await,
            Command::Init { print, role } => init::init(&config, print, role.as_deref()).await,
            Command::Recover { adopt, settle, republish, reason, actor } => {
                let decision = recover::Decision { adopt, settle, republish, reason, actor };
                recover::recover(&config, &decision).await
            }
            Command::Replay(args) => replay::replay(&config, args).await,
            Command::Config { .. } => Ok(exit::OK),
        }
    });
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("outbox-relay: {error:#}");
            ExitCode::from(exit::FAILED)
        }
    }
}

fn print_json(value: &serde_json::Value) -> ExitCode {
    println!("{value:#}");
    ExitCode::from(exit::OK)
}
