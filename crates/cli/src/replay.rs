use anyhow::{Result, anyhow};
use postgres_source::RowFilter;
use relay::replay::{Replay, ReplaySummary, Selection};

use crate::args::ReplayArgs;
use crate::config::Config;
use crate::exit;
use crate::run::log_to_stderr;

/// Publishes events once more, or says which it would publish.
pub(crate) async fn replay(config: &Config, args: ReplayArgs) -> Result<u8> {
    log_to_stderr(config)?;
    let (json, dry_run) = (args.json, args.dry_run);
    let asked = asked(config, args);
    let summary = relay::replay::replay(&config.relay_options(), &asked).await;
    let summary = summary.map_err(|failure| anyhow!("{failure}"))?;
    if json {
        let mut object = serde_json::to_value(&summary)?;
        object["dry_run"] = dry_run.into();
        println!("{object:#}");
    } else {
        say(&summary, dry_run);
    }
    Ok(exit::OK)
}

fn asked(config: &Config, args: ReplayArgs) -> Replay {
    let filter = RowFilter {
        since: args.since,
        until: args.until,
        event_type: args.event_type,
        aggregate_id: args.aggregate,
        event_ids: args.event_ids,
    };
    Replay {
        selection: match args.from_lsn {
            Some(from) => Selection::Log { from, to: args.to_lsn, filter },
            None => Selection::Tables(filter),
        },
        by: args.actor,
        reason: args.reason.unwrap_or_default(),
        dry_run: args.dry_run,
        dedupe_retention: config.dedupe_retention,
        force: args.force,
        rate: args.rate,
    }
}

fn say(summary: &ReplaySummary, dry_run: bool) {
    let age = summary.oldest_age_seconds;
    let age = age.map_or_else(|| "of unknown age".to_owned(), |age| format!("{age} s old"));
    match (summary.events, dry_run) {
        (0, _) => return println!("no event of the stream is asked for"),
        (events, true) => println!("would publish {events} events, the oldest {age}"),
        (events, false) => println!("published {events} events, the oldest {age}"),
    }
    println!("the first: {}", summary.first.join(", "));
    if let Some(last) = summary.last_sequence {
        println!("replay {}, up to sequence {last}", summary.name);
    }
}
