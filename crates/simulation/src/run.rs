use fastrand::Rng;

use crate::fault::Planned;
use crate::world::{Report, STEPS, Settings, World};
use crate::{Bug, Fault};

/// A run that broke a promise.
#[derive(Debug)]
pub struct Broken {
    /// Which one, and how.
    pub reason: String,
    /// The faults that were planned.
    pub plan: Vec<Planned>,
    /// What happened.
    pub report: Report,
}

/// Runs one seed: faults first, then quiet, then the checks.
///
/// # Errors
/// Says which promise broke.
pub fn run(seed: u64) -> Result<Report, Box<Broken>> {
    run_plan(seed, plan(seed), None, false)
}

/// Runs one seed with a bug planted where the core meets the world.
///
/// # Errors
/// Says which promise broke.
pub fn run_with(seed: u64, bug: Bug) -> Result<Report, Box<Broken>> {
    run_plan(seed, plan(seed), Some(bug), false)
}

/// Runs one seed and writes down every input and effect.
///
/// # Errors
/// Says which promise broke.
pub fn run_traced(seed: u64) -> Result<Report, Box<Broken>> {
    run_plan(seed, plan(seed), None, true)
}

/// The faults of a seed.
#[must_use]
pub fn plan(seed: u64) -> Vec<Planned> {
    let mut rng = Rng::with_seed(!seed);
    let faults = (0..STEPS).filter_map(|step| {
        let fault = Fault::ALL[rng.usize(..Fault::ALL.len())];
        (rng.u8(..20) == 0).then_some(Planned { step, fault })
    });
    faults.collect()
}

/// Leaves out every fault that is not needed for the run to break a promise, and gives what is left
/// with its trace.
#[must_use]
pub fn shrink(seed: u64, broken: &Broken, bug: Option<Bug>) -> Box<Broken> {
    let mut plan = broken.plan.clone();
    let mut size = plan.len().div_ceil(2).max(1);
    loop {
        let mut start = 0;
        while start < plan.len() {
            let mut fewer = plan.clone();
            fewer.drain(start..(start + size).min(plan.len()));
            if run_plan(seed, fewer.clone(), bug, false).is_err() {
                plan = fewer;
            } else {
                start += size;
            }
        }
        if size == 1 {
            break;
        }
        size = size.div_ceil(2);
    }
    match run_plan(seed, plan.clone(), bug, true) {
        Err(broken) => broken,
        Ok(report) => Box::new(Broken { reason: broken.reason.clone(), plan, report }),
    }
}

fn run_plan(
    seed: u64,
    plan: Vec<Planned>,
    bug: Option<Bug>,
    trace: bool,
) -> Result<Report, Box<Broken>> {
    let mut world = World::new(Settings { seed, bug, trace, plan: plan.clone() });
    match world.live() {
        Ok(()) => Ok(world.report),
        Err(reason) => Err(Box::new(Broken { reason, plan, report: world.report })),
    }
}
