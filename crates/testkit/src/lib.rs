//! Real PostgreSQL and nats-server processes on free ports of 127.0.0.1, in temporary folders, for
//! tests and the demo. Everything started here ends with the value that holds it.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

mod http;
mod nats;
mod postgres;
mod program;
mod proxy;
mod servers;
pub mod stream;
mod wait;
mod world;

pub use http::Answer;
pub use nats::{Nats, NatsOptions};
pub use postgres::{Postgres, StopMode};
pub use program::Program;
pub use proxy::{FaultProxy, Frame, Protocol};
pub use servers::{Choice, Servers};
pub use wait::wait_until;
pub use world::{Proxies, Relay, World, WorldOptions, binary};

/// Signals, for [`Program::signal`].
pub use nix::sys::signal::Signal;

/// Below the range from which systems take the ports of outgoing connections, so that a server finds
/// its port free again after a restart.
const PORTS: std::ops::Range<u16> = 11_000..32_000;

/// A port of 127.0.0.1 that was free a moment ago, and that this process has not given out before.
///
/// # Errors
/// The machine has none.
pub fn free_port() -> anyhow::Result<u16> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id().wrapping_mul(211);
    for _ in PORTS {
        let offset = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let offset = u16::try_from(offset % u32::from(PORTS.end - PORTS.start))?;
        let port = PORTS.start + offset;
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    anyhow::bail!("no port of 127.0.0.1 between {} and {} is free", PORTS.start, PORTS.end)
}

/// Copies a folder with owners, modes and times.
fn copy_folder(from: &Path, to: &Path) -> anyhow::Result<()> {
    let status = Command::new("cp").arg("--archive").arg(from).arg(to).status()?;
    anyhow::ensure!(status.success(), "copy {} to {}: {status}", from.display(), to.display());
    Ok(())
}
