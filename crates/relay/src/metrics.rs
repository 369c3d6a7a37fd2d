//! Every metric: name, unit, labels, meaning. docs/metrics.md is held to this file by a test.

use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge};
use relay_core::{Link, Stats};

use crate::Snapshot;

/// What kind of metric it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down; absent or NaN while unknown.
    Gauge,
    /// Distribution.
    Histogram,
}

/// One metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name, with its unit.
    pub name: &'static str,
    /// What kind it is.
    pub kind: Kind,
    /// Its unit.
    pub unit: Unit,
    /// Its labels.
    pub labels: &'static str,
    /// What it says.
    pub meaning: &'static str,
}

const fn metric(
    name: &'static str,
    kind: Kind,
    unit: Unit,
    labels: &'static str,
    meaning: &'static str,
) -> Metric {
    Metric { name, kind, unit, labels, meaning }
}

/// Commit to ack, the one histogram.
pub const PUBLISH_LATENCY: &str = "outbox_relay_publish_latency_seconds";
/// The upper bounds of its buckets, in seconds.
pub const PUBLISH_LATENCY_BUCKETS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0];

/// All metrics, in the order of the documentation.
pub const METRICS: &[Metric] = &[
    metric("outbox_relay_build_info", Kind::Gauge, Unit::Count, "version", "Always 1."),
    metric(
        "outbox_relay_ready",
        Kind::Gauge,
        Unit::Count,
        "",
        "1 while events flow or could flow, else 0.",
    ),
    metric(
        "outbox_relay_connected",
        Kind::Gauge,
        Unit::Count,
        "dependency",
        "1 while the session with `postgresql` or `nats` is up, else 0.",
    ),
    metric(
        "outbox_relay_rows_total",
        Kind::Counter,
        Unit::Count,
        "",
        "Outbox rows read from the slot, repetitions after a reconnect included.",
    ),
    metric(
        "outbox_relay_published_total",
        Kind::Counter,
        Unit::Count,
        "",
        "Events acknowledged by JetStream.",
    ),
    metric(
        "outbox_relay_already_in_stream_total",
        Kind::Counter,
        Unit::Count,
        "",
        "Rows read again and passed over because the stream already held them: duplicates avoided.",
    ),
    metric(
        "outbox_relay_duplicate_ids_total",
        Kind::Counter,
        Unit::Count,
        "",
        "Rows that repeat the event id of another row; JetStream refused them.",
    ),
    metric(
        "outbox_relay_split_transactions_total",
        Kind::Counter,
        Unit::Count,
        "",
        "Transactions published event by event although `sink.atomic_transactions` is set and the stream takes batches; the log says why.",
    ),
    metric(
        "outbox_relay_skipped_total",
        Kind::Counter,
        Unit::Count,
        "reason",
        "Records never published, by reason: `rule` (dropped by route.types), `foreign_table`, `update`, `delete`, `truncate`, `message`, `other`.",
    ),
    metric(
        "outbox_relay_transactions_total",
        Kind::Counter,
        Unit::Count,
        "",
        "Transactions read to their commit.",
    ),
    metric(
        "outbox_relay_sessions_total",
        Kind::Counter,
        Unit::Count,
        "dependency",
        "Sessions opened; more than 1 are reconnects.",
    ),
    metric(
        "outbox_relay_failures_total",
        Kind::Counter,
        Unit::Count,
        "dependency",
        "Sessions lost or refused.",
    ),
    metric(
        "outbox_relay_in_flight_events",
        Kind::Gauge,
        Unit::Count,
        "",
        "Events read and not yet acknowledged.",
    ),
    metric(
        "outbox_relay_in_flight_bytes",
        Kind::Gauge,
        Unit::Bytes,
        "",
        "Their size, headers and body.",
    ),
    metric(
        "outbox_relay_oldest_unacknowledged_age_seconds",
        Kind::Gauge,
        Unit::Seconds,
        "",
        "Age since commit of the oldest event read and not acknowledged; 0 only while connected to both with none in flight, NaN while unknown.",
    ),
    metric(
        "outbox_relay_slot_up",
        Kind::Gauge,
        Unit::Count,
        "",
        "1 while the slot's state could be read within the last 15 s, else 0; the slot metrics are NaN then.",
    ),
    metric(
        "outbox_relay_slot_lag_bytes",
        Kind::Gauge,
        Unit::Bytes,
        "",
        "Log between the slot's confirmed LSN and the server's current LSN.",
    ),
    metric(
        "outbox_relay_slot_retained_bytes",
        Kind::Gauge,
        Unit::Bytes,
        "",
        "Log that the slot makes the server keep.",
    ),
    metric(
        "outbox_relay_slot_safe_bytes",
        Kind::Gauge,
        Unit::Bytes,
        "",
        "Log that can still be written before the slot is lost; NaN without max_slot_wal_keep_size.",
    ),
    metric(PUBLISH_LATENCY, Kind::Histogram, Unit::Seconds, "", "Commit to ack."),
];

/// Registers the description of every metric with the installed recorder.
pub fn describe() {
    for metric in METRICS {
        match metric.kind {
            Kind::Counter => describe_counter!(metric.name, metric.unit, metric.meaning),
            Kind::Gauge => describe_gauge!(metric.name, metric.unit, metric.meaning),
            Kind::Histogram => describe_histogram!(metric.name, metric.unit, metric.meaning),
        }
    }
    gauge!("outbox_relay_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
}

/// Sets every metric but the histogram from what is known now.
pub fn export(snapshot: &Snapshot) {
    let status = &snapshot.status;
    let flag = |on: bool| f64::from(u8::from(on));
    gauge!("outbox_relay_ready").set(flag(snapshot.reasons().is_empty()));
    for (dependency, link) in [("postgresql", &status.source), ("nats", &status.sink)] {
        gauge!("outbox_relay_connected", "dependency" => dependency).set(flag(*link == Link::Open));
    }
    gauge!("outbox_relay_in_flight_events").set(status.in_flight_events as f64);
    gauge!("outbox_relay_in_flight_bytes").set(status.in_flight_bytes as f64);
    gauge!("outbox_relay_oldest_unacknowledged_age_seconds").set(snapshot.oldest_age_seconds());
    let slot = snapshot.fresh_slot();
    gauge!("outbox_relay_slot_up").set(flag(slot.is_some()));
    let bytes = |value: Option<f64>| value.unwrap_or(f64::NAN);
    gauge!("outbox_relay_slot_lag_bytes").set(bytes(slot.map(|slot| slot.lag_bytes)));
    gauge!("outbox_relay_slot_retained_bytes").set(bytes(slot.map(|slot| slot.retained_bytes)));
    gauge!("outbox_relay_slot_safe_bytes").set(bytes(slot.and_then(|slot| slot.safe_bytes)));
    export_counts(&snapshot.stats);
}

fn export_counts(stats: &Stats) {
    counter!("outbox_relay_rows_total").absolute(stats.rows);
    counter!("outbox_relay_published_total").absolute(stats.published);
    counter!("outbox_relay_already_in_stream_total").absolute(stats.already_in_stream);
    counter!("outbox_relay_duplicate_ids_total").absolute(stats.duplicate_ids);
    counter!("outbox_relay_split_transactions_total").absolute(stats.split_transactions);
    counter!("outbox_relay_transactions_total").absolute(stats.transactions);
    for (reason, count) in [
        ("rule", stats.dropped_by_rule),
        ("foreign_table", stats.foreign_rows),
        ("update", stats.updates),
        ("delete", stats.deletes),
        ("truncate", stats.truncates),
        ("message", stats.messages),
        ("other", stats.other_records),
    ] {
        counter!("outbox_relay_skipped_total", "reason" => reason).absolute(count);
    }
    for (dependency, sessions, failures) in [
        ("postgresql", stats.source_sessions, stats.source_failures),
        ("nats", stats.sink_sessions, stats.sink_failures),
    ] {
        counter!("outbox_relay_sessions_total", "dependency" => dependency).absolute(sessions);
        counter!("outbox_relay_failures_total", "dependency" => dependency).absolute(failures);
    }
}
