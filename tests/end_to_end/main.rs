//! The promises, one module each, on real servers.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod atomic;
mod identity;
mod no_loss;
mod replay;
mod shared_stream;
mod stream_loss;
mod transactions;
