use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;
use testkit::{Nats, Postgres, Program, binary, free_port, wait_until};

/// The stream of the sample configuration.
pub(crate) const STREAM: &str = "EVENTS";
const DATABASE: &str = "shop";
const ROLE: &str = "outbox_relay";
const READY_WITHIN: Duration = Duration::from_secs(30);

/// The two servers and the relay between them, started as a user would: the built program and the
/// sample configuration.
pub(crate) struct Stage {
    relay: Program,
    pub(crate) postgres: Postgres,
    pub(crate) nats: Nats,
    http_port: u16,
    folder: TempDir,
}

impl Stage {
    pub(crate) async fn set() -> Result<Self> {
        let (postgres, nats) = tokio::join!(Postgres::start(), Nats::start());
        let (postgres, nats) = (postgres?, nats?);
        let client = postgres.connect().await?;
        client.batch_execute(&format!("CREATE DATABASE {DATABASE}")).await?;
        let http_port = free_port()?;
        let folder = TempDir::with_prefix("outbox-relay-demo-").context("make a folder")?;
        let mut init = command(&postgres, &nats, http_port, "postgres")?;
        let output = init.args(["init", "--role", ROLE]).output().context("run init")?;
        ensure!(output.status.success(), "init: {}", String::from_utf8_lossy(&output.stderr));
        eprint!("{}", String::from_utf8_lossy(&output.stdout));
        let relay = start_relay(&postgres, &nats, http_port, folder.path())?;
        let stage = Self { relay, postgres, nats, http_port, folder };
        let ready = wait_until(READY_WITHIN, "the relay is ready", || async {
            let log = stage.relay.log();
            log.contains("publishing to the stream").then_some(())
        });
        ready.await.with_context(|| stage.relay.tail())?;
        Ok(stage)
    }

    /// SIGKILL, and a new relay at once.
    pub(crate) fn kill_relay(&mut self) -> Result<()> {
        eprintln!("\nkilling the relay (SIGKILL) and starting it again");
        self.relay.kill();
        self.relay = start_relay(&self.postgres, &self.nats, self.http_port, self.folder.path())?;
        Ok(())
    }

    pub(crate) fn relay_words(&self) -> String {
        self.relay.tail()
    }

    pub(crate) fn tell_how_to_look_inside(&self) {
        let psql = self.postgres.bin().join("psql");
        let psql = if psql.is_file() { psql.display().to_string() } else { "psql".to_owned() };
        println!("everything is left running until Ctrl-C; look inside:");
        println!("  database  {psql} {}", self.postgres.url_of("postgres", DATABASE));
        println!("  broker    {} (stream {STREAM})", self.nats.url());
        for path in ["metrics", "readyz", "status"] {
            println!("  {path:<9} http://127.0.0.1:{}/{path}", self.http_port);
        }
    }
}

/// The relay's program with the sample configuration, pointed at the demo's servers.
fn command(postgres: &Postgres, nats: &Nats, http_port: u16, role: &str) -> Result<Command> {
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../outbox-relay.yaml");
    let mut command = Command::new(binary()?);
    command
        .arg("--config")
        .arg(sample)
        .env("OUTBOX_RELAY_DB_USER", role)
        .env("OUTBOX_RELAY_DB_HOST", "127.0.0.1")
        .env("OUTBOX_RELAY_DB_PORT", postgres.port().to_string())
        .env("OUTBOX_RELAY_DB_NAME", DATABASE)
        .env("OUTBOX_RELAY_NATS_HOST", "127.0.0.1")
        .env("OUTBOX_RELAY_NATS_PORT", nats.port().to_string())
        .env("OUTBOX_RELAY_HTTP", format!("127.0.0.1:{http_port}"));
    Ok(command)
}

fn start_relay(postgres: &Postgres, nats: &Nats, http_port: u16, folder: &Path) -> Result<Program> {
    let mut command = command(postgres, nats, http_port, ROLE)?;
    Program::start("outbox-relay", command.arg("run"), &folder.join("relay.log"))
}
