use std::fmt;
use std::time::Duration;

use relay_core::Failure;
use tokio::sync::oneshot;
use tokio_postgres::{Client, Config, NoTls};

use crate::classify;

/// How to reach the database, the slot and the publication.
#[derive(Clone)]
pub struct SourceOptions {
    /// A host name, an address, or the folder of a Unix socket.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The role.
    pub user: String,
    /// Its password.
    pub password: Option<String>,
    /// The database.
    pub database: String,
    /// The slot's name: lower-case letters, digits and underscores.
    pub slot: String,
    /// The publication's name, as the catalog spells it.
    pub publication: String,
    /// Names the sessions to the server's operator.
    pub application_name: String,
    /// How long connecting and logging in may take.
    pub connect_timeout: Duration,
    /// How often the server hears how far the relay is.
    pub status_interval: Duration,
    /// How long the server lets a silent relay hold the slot: `wal_sender_timeout` of the
    /// replication session. Whole milliseconds.
    pub holder_timeout: Duration,
}

impl fmt::Debug for SourceOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceOptions")
            .field("host", &self.host)
            .field("port", &self.port)
            .field("user", &self.user)
            .field("database", &self.database)
            .field("slot", &self.slot)
            .field("publication", &self.publication)
            .finish_non_exhaustive()
    }
}

/// Session settings that decide how values are written as text. Pinned, so that a role's or a
/// database's own settings change nothing in an event.
pub(crate) const PINNED_SETTINGS: &str = "-c datestyle=ISO -c timezone=UTC \
     -c intervalstyle=postgres -c bytea_output=hex -c extra_float_digits=1";

impl SourceOptions {
    /// An ordinary session, for queries.
    pub(crate) async fn connect(&self) -> Result<Client, Failure> {
        self.connect_watched().await.map(|(client, _)| client)
    }

    /// An ordinary session, and what resolves when it ends.
    pub(crate) async fn connect_watched(&self) -> Result<(Client, oneshot::Receiver<()>), Failure> {
        let mut config = Config::new();
        config
            .host(&self.host)
            .port(self.port)
            .user(&self.user)
            .dbname(&self.database)
            .application_name(&self.application_name)
            .options(PINNED_SETTINGS)
            .connect_timeout(self.connect_timeout);
        if let Some(password) = &self.password {
            config.password(password);
        }
        let connecting = tokio::time::timeout(self.connect_timeout, config.connect(NoTls));
        match connecting.await {
            Ok(Ok((client, connection))) => {
                let (ending, ended) = oneshot::channel();
                tokio::spawn(async move {
                    // Why it ended shows in the next session's attempt.
                    let _ = connection.await;
                    drop(ending);
                });
                Ok((client, ended))
            }
            Ok(Err(error)) => Err(classify::query(&error)),
            Err(_) => Err(Failure::wait(
                "connection_timeout",
                format!(
                    "no session on {}:{} within {:?}",
                    self.host, self.port, self.connect_timeout
                ),
            )),
        }
    }
}
