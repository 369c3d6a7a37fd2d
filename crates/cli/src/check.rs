use anyhow::Result;
use relay_core::{Finding, Level};
use serde_json::json;

use crate::config::Config;
use crate::exit;

/// Looks at everything and says what it found.
pub(crate) async fn check(config: &Config, as_json: bool) -> Result<u8> {
    let filters = config.subject_filters();
    let (mut findings, sink) = tokio::join!(
        postgres_source::preflight::check(&config.source, &config.core.outboxes),
        nats_sink::check(&config.sink, &filters, &config.core.relay),
    );
    findings.extend(sink);
    let worst = findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok);
    if as_json {
        println!("{:#}", to_json(&findings, worst));
    } else {
        findings.iter().for_each(print);
    }
    Ok(if worst == Level::Error { exit::FAILED } else { exit::OK })
}

fn print(finding: &Finding) {
    println!("{:<8} {:<20} {}", finding.level.name(), finding.code, finding.message);
    if !finding.fix.is_empty() {
        println!("{:<29} mend: {}", "", finding.fix);
    }
}

fn to_json(findings: &[Finding], worst: Level) -> serde_json::Value {
    let finding = |finding: &Finding| {
        json!({
            "level": finding.level.name(),
            "code": finding.code,
            "message": finding.message,
            "fix": finding.fix,
        })
    };
    json!({
        "can_run": worst != Level::Error,
        "findings": findings.iter().map(finding).collect::<Vec<_>>(),
    })
}
