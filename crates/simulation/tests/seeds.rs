//! The promises hold for many seeds, and a seed is a run.

use std::collections::BTreeMap;

use simulation::{Bug, Fault, plan, run, run_traced, run_with, shrink};

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
            Err(broken) => panic!("seed {seed}: {}", broken.reason),
        }
    }
    assert!(committed > 100_000, "{committed} events");
    for fault in Fault::ALL {
        assert!(faults.get(&fault).is_some_and(|count| *count >= 100), "{fault:?}: {faults:?}");
    }
}

#[test]
fn a_seed_is_a_run() {
    let (first, second) = (run_traced(42).unwrap(), run_traced(42).unwrap());
    assert_eq!(first.trace, second.trace);
    assert!(first.trace.len() > 500);
    assert_ne!(first.trace, run_traced(43).unwrap().trace);
}

#[test]
fn every_planted_bug_is_found_within_a_thousand_seeds() {
    let unseen = |bug: &Bug| (0..1_000).all(|seed| run_with(seed, *bug).is_ok());
    let unseen: Vec<_> = Bug::ALL.into_iter().filter(unseen).collect();
    assert!(unseen.is_empty(), "{unseen:?} break no promise in 1,000 seeds");
}

#[test]
fn a_failing_run_shrinks_to_the_faults_it_needs() {
    let bug = Bug::RecordIgnored;
    let (seed, broken) =
        (0..1_000).find_map(|seed| run_with(seed, bug).err().map(|broken| (seed, broken))).unwrap();
    let shrunk = shrink(seed, &broken, Some(bug));
    assert!(shrunk.plan.len() < plan(seed).len() / 2, "{:?}", shrunk.plan);
    for planned in &shrunk.plan {
        let told = format!("fault {:?}", planned.fault);
        assert!(shrunk.report.trace.iter().any(|line| line.ends_with(&told)), "{told}");
    }
}
