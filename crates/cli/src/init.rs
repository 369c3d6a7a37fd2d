use std::time::Duration;

use anyhow::{Result, anyhow};
use nats_sink::StreamSettings;
use postgres_source::setup;
use relay_core::Failure;

use crate::config::Config;
use crate::exit;

const DUPLICATE_WINDOW: Duration = Duration::from_secs(120);

/// Makes what is missing, or prints how.
pub(crate) async fn init(config: &Config, print: bool, role: Option<&str>) -> Result<u8> {
    let steps = setup::plan(&config.source, &config.core.outboxes, role).await;
    let steps = steps.map_err(|failure| words(&failure))?;
    if print {
        for step in &steps {
            let sql = if step.sql.is_empty() { "-- there already" } else { &step.sql };
            println!("-- {}\n{sql}\n", step.title);
        }
        let subjects = config.subject_filters().join(",");
        println!(
            "-- stream {stream}, in NATS:\n-- nats stream add {stream} --subjects '{subjects}' --storage file --retention limits --discard new --dupe-window 2m --defaults",
            stream = config.sink.stream
        );
        return Ok(exit::OK);
    }
    for step in &steps {
        setup::carry_out(&config.source, step, |blocked| eprintln!("{}: {blocked}", step.title))
            .await
            .map_err(|failure| words(&failure))?;
        say(&step.title, !step.sql.is_empty());
    }
    let settings =
        StreamSettings { subjects: config.subject_filters(), duplicate_window: DUPLICATE_WINDOW };
    let made = nats_sink::create_stream(&config.sink, &settings).await;
    say(&format!("stream {}", config.sink.stream), made.map_err(|failure| words(&failure))?);
    Ok(exit::OK)
}

fn say(what: &str, made: bool) {
    println!("{:<8} {what}", if made { "made" } else { "there" });
}

fn words(failure: &Failure) -> anyhow::Error {
    anyhow!("{failure}")
}
