//! Field cases, each by its id: what has broken for people who do this job, on real servers.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod broker;
mod outages;
mod publication;
mod rows;
mod slot;
mod support;
mod two_relays;
mod wire;
