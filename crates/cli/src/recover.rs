use anyhow::{Result, anyhow, bail};
use event::Lsn;
use postgres_source::{Act, Recorder, SlotState, SlotWatch};
use relay_core::{Failure, Record, Scene, SinkQuery};
use serde_json::json;

use crate::config::Config;
use crate::exit;
use crate::run::log_to_stderr;

/// What a person has decided.
pub(crate) struct Decision {
    pub(crate) adopt: Option<Lsn>,
    pub(crate) settle: bool,
    pub(crate) republish: bool,
    pub(crate) reason: Option<String>,
    pub(crate) actor: String,
}

/// Shows the state of slot, record and stream, or writes down a decision about it.
pub(crate) async fn recover(config: &Config, decision: &Decision) -> Result<u8> {
    log_to_stderr(config)?;
    let mut recorder = Recorder::new(config.source.clone(), config.core.relay.clone());
    let record = recorder.read().await.map_err(|failure| words(&failure))?;
    let slot = SlotWatch::new(config.source.clone()).look().await;
    let slot = slot.map_err(|failure| words(&failure))?;
    let scene = scene(config, record, &slot).await?;
    show(config, &scene, &slot);
    let reason = decision.reason.as_deref().unwrap_or_default();
    if !decision.is_made() {
        println!("\nways on, once every relay of this name is stopped:");
        println!("  point source.url and sink at the right database and stream, and start; or");
        println!("  outbox-relay recover --adopt LSN --reason TEXT   (this database is right)");
        println!("  outbox-relay recover --settle --reason TEXT      (go on from the slot)");
        println!(
            "  outbox-relay recover --republish --reason TEXT   (as --settle, but publish first"
        );
        println!("                          what the outbox tables hold and the stream lacks)");
        return Ok(exit::OK);
    }
    if let Some(pid) = slot.active_pid {
        bail!("a relay holds the slot (PID {pid}): stop every relay of this name first");
    }
    let scene =
        if decision.republish { republish(config, scene, &slot, decision).await? } else { scene };
    let (act, decided) = match decision.adopt {
        Some(lsn) => ("adopt", scene.adopt(lsn)),
        None => ("settle", scene.settle_before_slot()),
    };
    let detail = json!({
        "shared_below": decision.adopt.map(|lsn| lsn.to_string()),
        "slot": slot.confirmed_flush_lsn.to_string(),
        "before": scene.record.as_ref().map(|record| format!("{record:?}")),
        "after": format!("{decided:?}"),
        "stream_end": scene.stream.end.as_ref().map(|end| end.position.to_string()),
        "stream_last_sequence": scene.stream.last_sequence,
    });
    let act = Act { act, actor: &decision.actor, reason, detail };
    recorder.declare(&decided, &act).await.map_err(|failure| words(&failure))?;
    println!("\ndecided: {}; start the relay again", act.act);
    Ok(exit::OK)
}

impl Decision {
    const fn is_made(&self) -> bool {
        self.adopt.is_some() || self.settle || self.republish
    }
}

/// Publishes what the stream lacks; gives the scene as it is then.
async fn republish(
    config: &Config,
    before: Scene,
    slot: &SlotState,
    decision: &Decision,
) -> Result<Scene> {
    let reason = decision.reason.as_deref().unwrap_or_default();
    let (options, begins) = (config.relay_options(), slot.confirmed_flush_lsn);
    let count = relay::replay::republish(&options, begins, &decision.actor, reason).await;
    println!("\npublished {} events of the outbox tables", count.map_err(|f| words(&f))?);
    scene(config, before.record, slot).await
}

async fn scene(config: &Config, record: Option<Record>, slot: &SlotState) -> Result<Scene> {
    let source = postgres_source::identity(&config.source, &config.core.relay).await;
    let opened = nats_sink::open(&config.sink, &config.core.relay, SinkQuery::default()).await;
    let (_, _, stream) = opened.map_err(|failure| words(&failure))?;
    Ok(Scene {
        source: source.map_err(|failure| words(&failure))?,
        slot_position: slot.confirmed_flush_lsn,
        record,
        stream,
    })
}

fn show(config: &Config, scene: &Scene, slot: &SlotState) {
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "none".to_owned());
    println!("database   {} (relay/system identifier/timeline)", scene.source);
    println!("slot       {} stands at {}", config.source.slot, slot.confirmed_flush_lsn);
    println!("log        ends at {}", slot.current_lsn);
    match &scene.record {
        None => println!("record     none"),
        Some(record) => {
            let acked = record.acked.map(|a| format!("{} at {}", a.position, a.sequence));
            println!("record     of {}, confirmed up to {}", record.source, record.confirmed);
            println!("           acknowledged up to {}", or_none(acked));
        }
    }
    let end = scene.stream.end.as_ref();
    let end = end.map(|e| format!("{} at {}, written by {}", e.position, e.sequence, e.source));
    println!("stream     {} ends with {}", config.sink.stream, or_none(end));
}

fn words(failure: &Failure) -> anyhow::Error {
    anyhow!("{failure}")
}
