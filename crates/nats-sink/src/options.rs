use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use async_nats::{Client, ConnectOptions};
use relay_core::Failure;
use tokio::sync::mpsc;

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
pub(crate) enum ConnectionEvent {
    Disconnected,
    SlowConsumer,
}

/// A new connection, which ends for good at its first disconnect: the client must not reconnect by
/// itself, since it would send again what it had buffered for the old session.
pub(crate) async fn connect(
    options: &SinkOptions,
) -> Result<(Client, mpsc::UnboundedReceiver<ConnectionEvent>), Failure> {
    let (events, received) = mpsc::unbounded_channel();
    let connect_options = ConnectOptions::new()
        .name(&options.client_name)
        .connection_timeout(options.connect_timeout)
        .request_timeout(Some(options.request_timeout))
        .max_reconnects(1)
        .reconnect_delay_callback(|_| Duration::from_secs(3_600))
        .ping_interval(Duration::from_secs(5))
        .subscription_capacity(options.in_flight_events_max + 1_024)
        .client_capacity(options.in_flight_events_max + 1_024)
        .event_callback(move |event| {
            let events = events.clone();
            async move {
                let report = match event {
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
                let _ = events.send(report);
            }
        });
    let connect_options = with_credentials(connect_options, &options.credentials).await?;
    let connecting = connect_options.connect(options.servers.clone());
    match tokio::time::timeout(options.connect_timeout, connecting).await {
        Ok(Ok(client)) => Ok((client, received)),
        Ok(Err(error)) => Err(classify::connect(&error, &options.servers)),
        Err(_) => {
            let message = format!(
                "no connection to {} within {:?}",
                options.servers.join(", "),
                options.connect_timeout
            );
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
