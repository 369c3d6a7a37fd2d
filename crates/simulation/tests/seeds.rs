//! The promises hold for many seeds, and a seed is a run.

use std::collections::BTreeMap;

use simulation::{Bug, Fault, run, run_with};

#[test]
fn promises_hold_under_every_fault() {
    let mut faults = BTreeMap::<Fault, usize>::new();
    let mut committed = 0;
    for seed in 0..1_000 {
        match run(seed) {
            Ok(report) => {
                committed += report.committed;
                for (fault, count) in report.faults {
                    *faults.entry(fault).or_default() += count;
                }
            }
            Err((reason, _)) => panic!("seed {seed}: {reason}"),
        }
    }
    assert!(committed > 100_000, "{committed} events");
    for fault in Fault::ALL {
        assert!(faults.get(&fault).is_some_and(|count| *count >= 100), "{fault:?}: {faults:?}");
    }
}

#[test]
fn a_seed_is_a_run() {
    let (first, second) = (run(42).unwrap(), run(42).unwrap());
    assert_eq!(first.trace, second.trace);
    assert_ne!(first.trace, run(43).unwrap().trace);
}

#[test]
fn every_planted_bug_is_found_within_a_thousand_seeds() {
    for bug in Bug::ALL {
        let found = (0..1_000).find(|seed| run_with(*seed, Some(bug)).is_err());
        assert!(found.is_some(), "{bug:?} breaks no promise in 1,000 seeds");
    }
}
