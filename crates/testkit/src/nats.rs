use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tempfile::TempDir;

use crate::{Program, Servers, copy_folder, free_port, wait_until};

const START_WITHIN: Duration = Duration::from_secs(30);

/// What a test can ask of a nats-server.
#[derive(Clone, Debug, Default)]
pub struct NatsOptions {
    /// Further lines of the configuration file.
    pub config: String,
}

/// A nats-server with JetStream.
#[derive(Debug)]
pub struct Nats {
    folder: TempDir,
    server: PathBuf,
    port: u16,
    jetstream: bool,
    program: Option<Program>,
}

impl Nats {
    /// Starts one.
    ///
    /// # Errors
    /// There is no server program, or it does not come up.
    pub async fn start() -> Result<Self> {
        Self::start_with(NatsOptions::default()).await
    }

    /// Starts one without JetStream.
    ///
    /// # Errors
    /// There is no server program, or it does not come up.
    pub async fn start_core() -> Result<Self> {
        Self::prepare(&NatsOptions::default(), false)?.started().await
    }

    /// Starts one with options.
    ///
    /// # Errors
    /// There is no server program, or it does not come up.
    pub async fn start_with(options: NatsOptions) -> Result<Self> {
        Self::prepare(&options, true)?.started().await
    }

    fn prepare(options: &NatsOptions, jetstream: bool) -> Result<Self> {
        let server = Servers::find()?.nats_server;
        let folder = TempDir::with_prefix("outbox-relay-nats-").context("make a folder")?;
        let port = free_port()?;
        let store = folder.path().join("store");
        let mut config = format!("listen: \"127.0.0.1:{port}\"\n{}\n", options.config);
        if jetstream {
            let _ = writeln!(config, "jetstream {{ store_dir: \"{}\" }}", store.display());
        }
        fs::write(folder.path().join("nats.conf"), config).context("write nats.conf")?;
        Ok(Self { folder, server, port, jetstream, program: None })
    }

    async fn started(mut self) -> Result<Self> {
        self.start_again().await?;
        Ok(self)
    }

    /// Starts it after a [`Nats::kill`], with the same port and store.
    ///
    /// # Errors
    /// It does not come up.
    pub async fn start_again(&mut self) -> Result<()> {
        let mut command = Command::new(&self.server);
        command.arg("-c").arg(self.folder.path().join("nats.conf"));
        let log = self.folder.path().join("nats.log");
        let program = Program::start("nats-server", &mut command, &log)?;
        let connected = wait_until(START_WITHIN, "nats-server accepts connections", || async {
            let client = self.client().await.ok()?;
            if !self.jetstream {
                return Some(());
            }
            let answer = client.request("$JS.API.INFO", "".into()).await.ok()?;
            (!answer.payload.is_empty()).then_some(())
        });
        connected.await.with_context(|| program.tail())?;
        self.program = Some(program);
        Ok(())
    }

    /// The port on 127.0.0.1.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The URL for clients.
    #[must_use]
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// A client.
    ///
    /// # Errors
    /// The server does not accept it.
    pub async fn client(&self) -> Result<async_nats::Client> {
        async_nats::ConnectOptions::new()
            .connection_timeout(Duration::from_secs(5))
            .connect(self.url())
            .await
            .context("connect to nats-server")
    }

    /// The process.
    ///
    /// # Panics
    /// After [`Nats::kill`].
    #[must_use]
    pub fn program(&self) -> &Program {
        self.program.as_ref().expect("the server was killed")
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.program = None;
    }

    /// Copies the store of a killed server to a folder that does not exist yet.
    ///
    /// # Errors
    /// The files cannot be copied.
    pub fn save_store(&self, to: &Path) -> Result<()> {
        copy_folder(&self.folder.path().join("store"), to)
    }

    /// Puts a copy in the place of the store of a killed server.
    ///
    /// # Errors
    /// The files cannot be copied.
    pub fn restore_store(&self, from: &Path) -> Result<()> {
        let store = self.folder.path().join("store");
        fs::remove_dir_all(&store).context("remove the store")?;
        copy_folder(from, &store)
    }

    /// SIGSTOP.
    ///
    /// # Errors
    /// It is gone.
    pub fn pause(&self) -> Result<()> {
        self.program().pause()
    }

    /// SIGCONT.
    ///
    /// # Errors
    /// It is gone.
    pub fn resume(&self) -> Result<()> {
        self.program().resume()
    }
}
