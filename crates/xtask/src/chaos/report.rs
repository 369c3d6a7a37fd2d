use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use event::{Lsn, Position, headers};
use serde_json::{Value, json};
use testkit::stream::{Stored, tally};

/// What the slot had been told to forget, and how far the stream went right after.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) confirmed: Lsn,
    pub(super) last_sequence: u64,
}

/// What a run came to.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) seed: u64,
    pub(super) scene: String,
    pub(super) seconds: u64,
    pub(super) committed: usize,
    pub(super) in_stream: usize,
    pub(super) dead_lettered: usize,
    pub(super) lost: usize,
    pub(super) doubled: usize,
    pub(super) out_of_order: usize,
    pub(super) confirmed_ahead_violations: usize,
    /// Transactions that did not come as one, where they are to.
    pub(super) torn: Option<usize>,
    /// Relays that ended by themselves.
    pub(super) halts: Vec<String>,
    pub(super) faults: BTreeMap<&'static str, u64>,
    pub(super) takeovers: u64,
    pub(super) samples: usize,
    pub(super) quiet_after_seconds: f64,
    /// The first of what is wrong, for people.
    pub(super) findings: Vec<String>,
}

const FINDINGS_MAX: usize = 20;

impl Report {
    pub(super) fn judge(&mut self, committed: &[String], stored: &[Stored], samples: &[Sample]) {
        let tally = tally(committed, stored);
        self.committed = tally.committed;
        self.in_stream = tally.in_stream;
        self.lost = tally.lost;
        self.doubled = tally.doubled;
        self.out_of_order = tally.out_of_order;
        self.samples = samples.len();
        self.confirmed_ahead_violations = confirmed_ahead(stored, samples);
        self.torn = self.torn.map(|_| torn(stored));
        self.findings = findings(committed, stored);
    }

    pub(super) fn is_clean(&self) -> bool {
        let zeros = [self.lost, self.doubled, self.out_of_order, self.confirmed_ahead_violations];
        zeros == [0; 4] && self.halts.is_empty() && self.in_stream == self.committed
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "seed": self.seed,
            "scene": self.scene,
            "seconds": self.seconds,
            "committed": self.committed,
            "in_stream": self.in_stream,
            "dead_lettered": self.dead_lettered,
            "lost": self.lost,
            "doubled": self.doubled,
            "out_of_order": self.out_of_order,
            "confirmed_ahead_violations": self.confirmed_ahead_violations,
            "torn": self.torn,
            "halts": self.halts,
            "faults": self.faults,
            "faults_injected": self.faults.values().sum::<u64>(),
            "takeovers": self.takeovers,
            "samples": self.samples,
            "quiet_after_seconds": self.quiet_after_seconds,
            "findings": self.findings,
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}, {} seconds of faults, {}", self.seed, self.seconds, self.scene)?;
        writeln!(f, "committed                   {}", self.committed)?;
        writeln!(f, "in_stream                   {}", self.in_stream)?;
        writeln!(f, "dead_lettered               {}", self.dead_lettered)?;
        writeln!(f, "lost                        {}", self.lost)?;
        writeln!(f, "doubled                     {}", self.doubled)?;
        writeln!(f, "out_of_order                {}", self.out_of_order)?;
        writeln!(f, "confirmed_ahead_violations  {}", self.confirmed_ahead_violations)?;
        if let Some(torn) = self.torn {
            writeln!(f, "torn                        {torn}")?;
        }
        writeln!(f, "takeovers                   {}", self.takeovers)?;
        writeln!(f, "quiet after                 {:.1} s", self.quiet_after_seconds)?;
        writeln!(f, "faults injected             {}", self.faults.values().sum::<u64>())?;
        for (fault, count) in &self.faults {
            writeln!(f, "  {fault:<32}{count}")?;
        }
        for halt in &self.halts {
            writeln!(f, "a relay ended by itself: {halt}")?;
        }
        self.findings.iter().try_for_each(|finding| writeln!(f, "{finding}"))
    }
}

/// How often the slot had been told to forget a commit of which an event was stored only later.
fn confirmed_ahead(stored: &[Stored], samples: &[Sample]) -> usize {
    // For each message, the lowest commit LSN from it on.
    let mut lowest = Lsn::new(u64::MAX);
    let mut suffixes: Vec<(u64, Lsn)> = Vec::with_capacity(stored.len());
    for message in stored.iter().rev() {
        if let Ok(position) = message.header(headers::POSITION).parse::<Position>() {
            lowest = lowest.min(position.commit_lsn);
        }
        suffixes.push((message.sequence, lowest));
    }
    suffixes.reverse();
    let ahead = |sample: &&Sample| {
        let next = suffixes.partition_point(|(sequence, _)| *sequence <= sample.last_sequence);
        suffixes.get(next).is_some_and(|(_, lowest)| *lowest < sample.confirmed)
    };
    samples.iter().filter(ahead).count()
}

/// How many transactions of several events came in no batch, or in several.
fn torn(stored: &[Stored]) -> usize {
    let mut transactions: HashMap<Lsn, (usize, HashSet<&str>)> = HashMap::new();
    for message in stored {
        if let Ok(position) = message.header(headers::POSITION).parse::<Position>() {
            let (events, batches) = transactions.entry(position.commit_lsn).or_default();
            *events += 1;
            batches.insert(message.header("Nats-Batch-Id"));
        }
    }
    let torn = |(events, batches): &&(usize, HashSet<&str>)| {
        *events > 1 && (batches.len() > 1 || batches.contains(""))
    };
    transactions.values().filter(torn).count()
}

fn findings(committed: &[String], stored: &[Stored]) -> Vec<String> {
    let mut first: HashMap<&str, u64> = HashMap::new();
    let mut versions: HashMap<String, (i64, u64)> = HashMap::new();
    let mut findings = Vec::new();
    for message in stored {
        let at = message.sequence;
        if let Some(before) = first.insert(message.event_id(), at) {
            findings.push(format!("doubled: {} at {before} and {at}", message.event_id()));
        }
        let (version, before) =
            versions.insert(message.aggregate_id(), (message.version(), at)).unwrap_or_default();
        if message.version() <= version {
            let (aggregate, now) = (message.aggregate_id(), message.version());
            findings.push(format!(
                "out of order: {aggregate} has {version} at {before} and {now} at {at}"
            ));
        }
    }
    let known: HashSet<_> = committed.iter().map(String::as_str).collect();
    let lost = committed.iter().filter(|id| !first.contains_key(id.as_str()));
    findings.extend(lost.map(|id| format!("lost: {id}")));
    let strange = first.iter().filter(|(id, _)| !known.contains(*id));
    findings.extend(strange.map(|(id, at)| format!("never committed: {id} at {at}")));
    findings.truncate(FINDINGS_MAX);
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(sequence: u64, position: &str) -> Stored {
        let headers = [
            (headers::POSITION, position.to_owned()),
            (headers::EVENT_ID, sequence.to_string()),
            (headers::AGGREGATE_ID, "a".to_owned()),
            (headers::AGGREGATE_VERSION, sequence.to_string()),
        ];
        let headers = headers.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Stored { sequence, subject: String::new(), headers, body: Vec::new().into() }
    }

    #[test]
    fn a_commit_that_was_forgotten_before_it_was_stored_is_counted() {
        let stream = [stored(1, "0/10:0"), stored(2, "0/20:0"), stored(3, "0/20:1")];
        let sample =
            |confirmed, last_sequence| Sample { confirmed: Lsn::new(confirmed), last_sequence };
        assert_eq!(confirmed_ahead(&stream, &[sample(0x11, 1), sample(0x21, 3)]), 0);
        assert_eq!(confirmed_ahead(&stream, &[sample(0x21, 2)]), 1, "half a transaction");
        assert_eq!(confirmed_ahead(&stream, &[sample(0x11, 0), sample(0x21, 1)]), 2);
    }

    #[test]
    fn a_transaction_in_two_batches_or_in_none_is_torn() {
        let batched = |sequence, position: &str, batch: &str| {
            let mut stored = stored(sequence, position);
            stored.headers.insert("Nats-Batch-Id".to_owned(), batch.to_owned());
            stored
        };
        let stream = [
            stored(1, "0/10:0"),
            batched(2, "0/20:0", "a"),
            batched(3, "0/20:1", "a"),
            batched(4, "0/30:0", "b"),
            batched(5, "0/30:1", "c"),
            stored(6, "0/40:0"),
            stored(7, "0/40:1"),
        ];
        assert_eq!(torn(&stream), 2);
    }

    #[test]
    fn a_clean_report_needs_every_zero() {
        let stream = [stored(1, "0/10:0"), stored(2, "0/20:0")];
        let ids = ["1", "2"].map(str::to_owned);
        let mut report = Report::default();
        report.judge(&ids, &stream, &[]);
        assert!(report.is_clean() && report.findings.is_empty(), "{report}");
        report.judge(&ids, &stream[..1], &[]);
        assert_eq!((report.lost, report.is_clean()), (1, false));
        report.judge(&ids[..1], &stream, &[]);
        assert!(!report.is_clean(), "never committed");
        assert_eq!(report.findings, ["never committed: 2 at 2"]);
        let doubled = [stored(1, "0/10:0"), stored(1, "0/10:0"), stored(2, "0/20:0")];
        report.judge(&ids, &doubled, &[]);
        assert_eq!((report.doubled, report.out_of_order, report.is_clean()), (1, 1, false));
    }
}
