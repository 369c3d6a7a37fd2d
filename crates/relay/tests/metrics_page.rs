//! docs/metrics.md says what the code does.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;

use relay::metrics::{Kind, METRICS, PUBLISH_LATENCY_BUCKETS};

fn page() -> String {
    let mut page = String::from(
        "# Metrics\n\nServed at `/metrics` in Prometheus's text form. Names and meanings are generated \
         from the code.\n\nA figure that is not known is `NaN` or absent, never 0: alert on \
         `outbox_relay_ready == 0` and `outbox_relay_slot_up == 0` first, then on the figures.\n\n\
         | metric | kind | labels | meaning |\n|---|---|---|---|\n",
    );
    for metric in METRICS {
        let kind = match metric.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let labels =
            if metric.labels.is_empty() { String::new() } else { format!("`{}`", metric.labels) };
        let _ = writeln!(page, "| `{}` | {kind} | {labels} | {} |", metric.name, metric.meaning);
    }
    let buckets = PUBLISH_LATENCY_BUCKETS.map(|bound| bound.to_string()).join(", ");
    let _ = writeln!(page, "\nThe buckets of the histogram end at {buckets} seconds.");
    page
}

#[test]
fn the_page_is_the_code() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, page()).unwrap();
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    assert!(found == page(), "docs/metrics.md is stale: run the tests with UPDATE_DOCS=1");
}

#[test]
fn names_follow_the_rule() {
    for metric in METRICS {
        assert!(metric.name.starts_with("outbox_relay_"), "{}", metric.name);
        let total = metric.name.ends_with("_total");
        assert_eq!(total, metric.kind == Kind::Counter, "{}", metric.name);
    }
}
