use std::path::PathBuf;

use clap::{Parser, Subcommand};

/// Publishes the rows of PostgreSQL outbox tables to NATS JetStream: each committed row once, in
/// order per aggregate, through any crash.
///
/// A first start: write outbox-relay.yaml, run `outbox-relay init`, then `outbox-relay check`, then
/// `outbox-relay run`.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Exit codes: 0 all is well; 1 the work could not be done; 2 the command line or the \
configuration is wrong; 3 the relay halted, since going on would lose, double or reorder events."
)]
pub(crate) struct Args {
    /// The configuration file.
    #[arg(
        long,
        short,
        global = true,
        default_value = "outbox-relay.yaml",
        env = "OUTBOX_RELAY_CONFIG"
    )]
    pub(crate) config: PathBuf,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the relay until SIGTERM or Ctrl-C.
    ///
    /// It waits for a database or broker that is down, and stands by while another relay holds the
    /// slot. It ends only when told to, or when going on would break a promise.
    Run,
    /// Look at the database, the slot, the mapping and the stream, and say what to mend and how.
    ///
    /// Changes nothing. Exits with 0 when the relay can run, with 1 when it cannot.
    Check {
        /// One JSON object instead of lines.
        #[arg(long)]
        json: bool,
    },
    /// Make what is missing: the reference table, the publication, the slot, the stream.
    ///
    /// Never changes or drops what is there. Connect as a role that may do so; the relay itself
    /// needs far less, see --role.
    Init {
        /// Print the SQL instead of running it.
        #[arg(long)]
        print: bool,
        /// Also make this role, and grant it the least that the relay needs.
        #[arg(long, value_name = "NAME")]
        role: Option<String>,
    },
    /// Show why a relay halted over its slot, its stream or its database, and decide how to go on.
    ///
    /// Without a decision it only shows: the slot, what the relay has on record, the stream's end,
    /// and what a start would say. Stop every relay of this name before deciding. A decision is
    /// written to outbox_relay.act with who and why.
    Recover {
        /// This database is the right one: what the stream holds beyond it stays there and belongs
        /// to the past. Events committed below LSN are shared by both; after a failover that is
        /// where the timeline forked, after a restore where the copy ended, for another database
        /// 0/0.
        #[arg(long, value_name = "LSN", conflicts_with = "settle", requires = "reason")]
        adopt: Option<event::Lsn>,
        /// Whatever was committed before the slot's position is in the stream, or is given up: go
        /// on with what the slot sends.
        #[arg(long, requires = "reason")]
        settle: bool,
        /// Why; kept with the decision.
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
        /// Who decides; the database login is kept beside it.
        #[arg(long = "as", value_name = "NAME", env = "USER", default_value = "unknown")]
        actor: String,
    },
    /// About the configuration.
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
}

#[derive(Clone, Copy, Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print the JSON Schema of the configuration file.
    Schema,
    /// Print the reference of every key, as Markdown.
    Reference,
    /// Print the configuration in force, without secrets.
    Show,
}
