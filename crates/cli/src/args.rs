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
        #[arg(long, value_name = "LSN", conflicts_with_all = ["settle", "republish"], requires = "reason")]
        adopt: Option<event::Lsn>,
        /// Whatever was committed before the slot's position is in the stream, or is given up: go
        /// on with what the slot sends.
        #[arg(long, requires = "reason")]
        settle: bool,
        /// First publish every row of the outbox tables that the stream lacks and the slot will not
        /// send, then do as --settle. For events that the stream has lost when some of their rows
        /// are gone, so that the relay did not do it by itself. Rows that had been routed away from
        /// the stream are not published.
        #[arg(long, requires = "reason")]
        republish: bool,
        /// Why; kept with the decision.
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
        /// Who decides; the database login is kept beside it.
        #[arg(long = "as", value_name = "NAME", env = "USER", default_value = "unknown")]
        actor: String,
    },
    /// Publish events once more, from what the slot still holds or from the outbox tables.
    ///
    /// The relay may be at work meanwhile. Only events that the stream has had are replayed, in the
    /// order of each aggregate, behind the stream's end. Each message says in headers that it is a
    /// replay, who asked and why, and is counted apart by the duplicate window; consumers know the
    /// event by its Outbox-Event-Id. Refuses events older than delivery.dedupe_retention. Both the
    /// beginning and the end are written to outbox_relay.act.
    Replay(ReplayArgs),
    /// About the configuration.
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
}

/// Which events, and how.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("origin").required(true).args(["from_lsn", "rows"]))]
pub(crate) struct ReplayArgs {
    /// From the slot's log: what was committed at this LSN or later. How far back it reaches is
    /// decided by delivery.hold_back.
    #[arg(long, value_name = "LSN")]
    pub(crate) from_lsn: Option<event::Lsn>,
    /// Up to this commit LSN, itself included; without it, up to the stream's end.
    #[arg(long, value_name = "LSN", requires = "from_lsn")]
    pub(crate) to_lsn: Option<event::Lsn>,
    /// From the rows of the outbox tables, as far as they are still there.
    #[arg(long)]
    pub(crate) rows: bool,
    /// Rows that happened at this time or later, by the field occurred_at, as PostgreSQL reads a
    /// timestamp.
    #[arg(long, value_name = "TIME", requires = "rows")]
    pub(crate) since: Option<String>,
    /// Rows that happened before this time.
    #[arg(long, value_name = "TIME", requires = "rows")]
    pub(crate) until: Option<String>,
    /// Events of this type.
    #[arg(long = "type", value_name = "TYPE")]
    pub(crate) event_type: Option<String>,
    /// Events of the aggregate with this id.
    #[arg(long, value_name = "ID")]
    pub(crate) aggregate: Option<String>,
    /// The event with this id; may be given several times.
    #[arg(long = "event-id", value_name = "ID")]
    pub(crate) event_ids: Vec<String>,
    /// Why; kept in outbox_relay.act and in every message.
    #[arg(long, value_name = "TEXT", required_unless_present = "dry_run")]
    pub(crate) reason: Option<String>,
    /// Who asks; the database login is kept beside it.
    #[arg(long = "as", value_name = "NAME", env = "USER", default_value = "unknown")]
    pub(crate) actor: String,
    /// Only say what would be published.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Also events that consumers may have forgotten to have applied.
    #[arg(long)]
    pub(crate) force: bool,
    /// The most messages a second.
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rate: u32,
    /// One JSON object instead of lines.
    #[arg(long)]
    pub(crate) json: bool,
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
