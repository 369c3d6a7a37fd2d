use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::{Client, ConnectOptions};
use relay_core::Failure;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::task::JoinError;

use crate::classify;

/// How to reach NATS, and the stream.
#[derive(Clone, Debug)]
pub struct SinkOptions {
    /// Servers as `host:port` or `nats://host:port`, without credentials.
    pub servers: Vec<String>,
    /// How to log in.
    pub credentials: Credentials,
    /// The stream's name.
    pub stream: String,
    /// Names the connection to the server's operator.
    pub client_name: String,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// How long a request may take.
    pub request_timeout: Duration,
    /// The most publishes that will ever wait for their acks.
    pub in_flight_events_max: usize,
    /// Whether others write to the stream too.
    pub shared: bool,
    /// Whether a new stream is to take batches, and `check` is to ask for it.
    pub atomic_transactions: bool,
}

/// How to log in to NATS.
#[derive(Clone)]
pub enum Credentials {
    /// Not at all.
    None,
    /// User and password.
    UserPassword {
        /// The user.
        user: String,
        /// The password.
        password: String,
    },
    /// A token.
    Token(String),
    /// An nkey's seed.
    NkeySeed(String),
    /// A file with a JWT and its seed.
    File(PathBuf),
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::UserPassword { .. } => "UserPassword(***)",
            Self::Token(_) => "Token(***)",
            Self::NkeySeed(_) => "NkeySeed(***)",
            Self::File(_) => "File(***)",
        })
    }
}

/// Something that the connection reports outside of any request.
#[derive(Debug)]
enum ConnectionEvent {
    Disconnected,
    SlowConsumer,
}

/// A connection that ends for good when dropped, or at its first disconnect.
///
/// The client library reconnects by itself and then sends again what it had buffered, long after
/// the session is over, and offers no way to be told not to. So each connection has a runtime of its
/// own, which takes the library's tasks with it.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) client: Client,
    events: mpsc::UnboundedReceiver<ConnectionEvent>,
    _runtime: OwnRuntime,
}

impl Connection {
    /// Waits until the connection is of no more use, and says why. Cancel-safe.
    pub(crate) async fn failed(&mut self) -> Failure {
        match self.events.recv().await {
            Some(ConnectionEvent::SlowConsumer) => {
                Failure::wait("slow_consumer", "acks came faster than they were read")
            }
            Some(ConnectionEvent::Disconnected) | None => {
                Failure::wait("connection_lost", "the connection to NATS is lost")
            }
        }
    }
}

/// A runtime that can be dropped anywhere, also with a connection attempt that is given up: a bare
/// one panics where it may not block.
#[derive(Debug)]
struct OwnRuntime(Option<Runtime>);

impl OwnRuntime {
    fn start() -> std::io::Result<Self> {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).thread_name("nats").enable_all().build().map(Some).map(Self)
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, JoinError> {
        match &self.0 {
            Some(runtime) => runtime.spawn(work).await,
            None => tokio::spawn(work).await,
        }
    }
}

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// After a disconnect the library is kept from connecting again for so long that the session has
/// ended by then.
const NO_RECONNECT: Duration = Duration::from_secs(86_400);

pub(crate) async fn connect(options: &SinkOptions) -> Result<Connection, Failure> {
    let (report, events) = mpsc::unbounded_channel();
    let connected = Arc::new(AtomicBool::new(false));
    let is_connected = Arc::clone(&connected);
    let connect_options = ConnectOptions::new()
        .name(&options.client_name)
        .connection_timeout(options.connect_timeout)
        .request_timeout(Some(options.request_timeout))
        .reconnect_delay_callback(move |_| {
            if is_connected.load(Ordering::SeqCst) { NO_RECONNECT } else { Duration::ZERO }
        })
        .ping_interval(Duration::from_secs(5))
        .subscription_capacity(options.in_flight_events_max + 1_024)
        .client_capacity(options.in_flight_events_max + 1_024)
        .event_callback(move |event| {
            let report = report.clone();
            async move {
                let event = match event {
                    async_nats::Event::Disconnected | async_nats::Event::Closed => {
                        ConnectionEvent::Disconnected
                    }
                    async_nats::Event::SlowConsumer(_) => ConnectionEvent::SlowConsumer,
                    async_nats::Event::Connected
                    | async_nats::Event::LameDuckMode
                    | async_nats::Event::Draining
                    | async_nats::Event::ServerError(_)
                    | async_nats::Event::ClientError(_) => return,
                };
                // The receiver is gone once the session is.
                let _ = report.send(event);
            }
        });
    let connect_options = with_credentials(connect_options, &options.credentials).await?;
    let runtime = OwnRuntime::start()
        .map_err(|error| Failure::wait("runtime", format!("start a thread for NATS: {error}")))?;
    let servers = options.servers.clone();
    let connecting = runtime.run(async move { connect_options.connect(servers).await });
    match tokio::time::timeout(options.connect_timeout, connecting).await {
        Ok(Ok(Ok(client))) => {
            connected.store(true, Ordering::SeqCst);
            Ok(Connection { client, events, _runtime: runtime })
        }
        Ok(Ok(Err(error))) => Err(classify::connect(&error, &options.servers)),
        Ok(Err(error)) => Err(Failure::wait("runtime", format!("connect to NATS: {error}"))),
        Err(_) => {
            let servers = options.servers.join(", ");
            let message =
                format!("no connection to {servers} within {:?}", options.connect_timeout);
            Err(Failure::wait("connection_timeout", message))
        }
    }
}

async fn with_credentials(
    options: ConnectOptions,
    credentials: &Credentials,
) -> Result<ConnectOptions, Failure> {
    Ok(match credentials {
        Credentials::None => options,
        Credentials::UserPassword { user, password } => {
            options.user_and_password(user.clone(), password.clone())
        }
        Credentials::Token(token) => options.token(token.clone()),
        Credentials::NkeySeed(seed) => options.nkey(seed.clone()),
        Credentials::File(path) => options.credentials_file(path).await.map_err(|error| {
            Failure::halt("credentials_file", format!("read {}: {error}", path.display()))
                .advise("mend sink.credentials_file")
        })?,
    })
}
