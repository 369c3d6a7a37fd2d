//! The promises, one module each, on real servers.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod no_loss;
mod transactions;
