//! Drives the core through faults: one seed, one run.
