//! A TCP proxy in front of a server, for the faults of a network.

mod frames;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

pub use frames::Frame;

/// What is spoken through a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Bytes that the proxy does not understand.
    Any,
    /// NATS: single messages can be swallowed and acks delayed.
    Nats,
}

/// A proxy on a port of its own. Ends with the value.
#[derive(Debug)]
pub struct FaultProxy {
    port: u16,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    upstream: u16,
    protocol: Protocol,
    control: watch::Sender<Control>,
    plan: Mutex<Plan>,
    swallowed: AtomicU64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Control {
    /// The generation of new connections.
    generation: u64,
    /// Connections of an earlier generation than this are cut.
    cut_below: u64,
    /// Through connections of an earlier generation than this nothing passes.
    frozen_below: u64,
}

/// How many more frames pass before one is swallowed.
#[derive(Debug, Default)]
struct Plan {
    publish: Option<u64>,
    ack: Option<u64>,
    ack_delay: Duration,
}

impl FaultProxy {
    /// Starts one in front of a port of 127.0.0.1.
    ///
    /// # Errors
    /// No port is free.
    pub async fn start(upstream: u16, protocol: Protocol) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.context("listen")?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared {
            upstream,
            protocol,
            control: watch::Sender::new(Control::default()),
            plan: Mutex::default(),
            swallowed: AtomicU64::new(0),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { port, shared, accepting })
    }

    /// Its port on 127.0.0.1.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Ends every connection there is.
    pub fn cut(&self) {
        self.shared.control.send_modify(|control| {
            control.generation += 1;
            control.cut_below = control.generation;
        });
    }

    /// Nothing passes any more, while the connections stay open and new ones are taken.
    pub fn freeze(&self) {
        self.shared.control.send_modify(|control| control.frozen_below = u64::MAX);
    }

    /// Nothing passes any more through the connections that there are; new ones are sound.
    pub fn stall(&self) {
        self.shared.control.send_modify(|control| {
            control.generation += 1;
            control.frozen_below = control.generation;
        });
    }

    /// Lets everything pass again that was held up.
    pub fn thaw(&self) {
        self.shared.control.send_modify(|control| control.frozen_below = 0);
    }

    /// After so many more publishes, the next one never arrives.
    pub fn swallow_publish(&self, after: u64) {
        self.shared.plan().publish = Some(after);
    }

    /// After so many more acks, the next one never arrives.
    pub fn swallow_ack(&self, after: u64) {
        self.shared.plan().ack = Some(after);
    }

    /// Each ack arrives so much later.
    pub fn delay_acks(&self, by: Duration) {
        self.shared.plan().ack_delay = by;
    }

    /// How many frames were swallowed.
    #[must_use]
    pub fn swallowed(&self) -> u64 {
        self.shared.swallowed.load(Ordering::SeqCst)
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

impl Shared {
    fn plan(&self) -> std::sync::MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How much later a frame arrives; `None`: never.
    fn judge(&self, frame: Frame) -> Option<Duration> {
        let mut plan = self.plan();
        let delay = if frame == Frame::Ack { plan.ack_delay } else { Duration::ZERO };
        let countdown = match frame {
            Frame::Publish => &mut plan.publish,
            Frame::Ack => &mut plan.ack,
            Frame::Other => return Some(delay),
        };
        match countdown {
            Some(0) => {
                *countdown = None;
                self.swallowed.fetch_add(1, Ordering::SeqCst);
                None
            }
            Some(left) => {
                *left -= 1;
                Some(delay)
            }
            None => Some(delay),
        }
    }

    fn next(&self, arrived: &mut BytesMut) -> Option<(Frame, Bytes)> {
        match self.protocol {
            Protocol::Any if arrived.is_empty() => None,
            Protocol::Any => Some((Frame::Other, arrived.split().freeze())),
            Protocol::Nats => frames::next(arrived),
        }
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        tokio::spawn(pass(client, Arc::clone(&shared)));
    }
}

/// One connection, until either side ends it or it is cut.
async fn pass(client: TcpStream, shared: Arc<Shared>) {
    let mut control = shared.control.subscribe();
    let generation = control.borrow().generation;
    let Ok(server) = TcpStream::connect(("127.0.0.1", shared.upstream)).await else { return };
    // A delay that the proxy does not mean to make.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = pump(from_client, to_server, generation, &shared) => {}
        () = pump(from_server, to_client, generation, &shared) => {}
        _ = control.wait_for(|control| generation < control.cut_below) => {}
    }
}

const FRAMES_WAITING_MAX: usize = 4_096;

async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, generation: u64, shared: &Shared) {
    let (sender, mut receiver) = mpsc::channel(FRAMES_WAITING_MAX);
    let reading = async move {
        let mut arrived = BytesMut::with_capacity(64 * 1024);
        while let Ok(1..) = from.read_buf(&mut arrived).await {
            while let Some((frame, bytes)) = shared.next(&mut arrived) {
                let Some(delay) = shared.judge(frame) else { continue };
                if sender.send((Instant::now() + delay, bytes)).await.is_err() {
                    return;
                }
            }
        }
    };
    let writing = async move {
        let mut control = shared.control.subscribe();
        while let Some((due, bytes)) = receiver.recv().await {
            sleep_until(due).await;
            let thawed =
                control.wait_for(|control| generation >= control.frozen_below).await.is_ok();
            if !thawed || to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    };
    tokio::join!(reading, writing);
}
