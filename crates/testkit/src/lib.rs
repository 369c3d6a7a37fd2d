//! Real PostgreSQL and nats-server processes on free ports of 127.0.0.1, in temporary folders, for
//! tests and the demo. Everything started here ends with the value that holds it.

mod http;
mod nats;
mod postgres;
mod program;
mod servers;
pub mod stream;
mod wait;
mod world;

pub use http::Answer;
pub use nats::{Nats, NatsOptions};
pub use postgres::{Postgres, StopMode};
pub use program::Program;
pub use servers::{Choice, Servers};
pub use wait::wait_until;
pub use world::{Relay, World, WorldOptions, binary};

/// Signals, for [`Program::signal`].
pub use nix::sys::signal::Signal;

/// A port of 127.0.0.1 that was free a moment ago.
///
/// # Errors
/// The machine has none.
pub fn free_port() -> anyhow::Result<u16> {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
    Ok(listener.local_addr()?.port())
}
