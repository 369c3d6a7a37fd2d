use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tempfile::TempDir;

use crate::{
    Answer, FaultProxy, Nats, NatsOptions, Postgres, Program, Protocol, free_port, http, stream,
    wait_until,
};

/// The outbox table and the mapping that the field cases are told with.
const TABLE: &str = "CREATE TABLE outbox (id uuid PRIMARY KEY, aggregate_type text NOT NULL, \
     aggregate_id text NOT NULL, version bigint, event_type text NOT NULL, payload jsonb, \
     created_at timestamptz DEFAULT now())";
const FIELDS: &str = "{event_id: id, aggregate_type: aggregate_type, aggregate_id: aggregate_id, \
     aggregate_version: version, event_type: event_type, payload: payload, occurred_at: created_at}";

/// What a test can ask of its world.
#[derive(Clone, Debug)]
pub struct WorldOptions {
    /// Settings of `postgresql.conf`.
    pub postgres: Vec<(&'static str, &'static str)>,
    /// Further lines of `nats.conf`.
    pub nats: String,
    /// SQL that makes the outbox table.
    pub table: String,
    /// The `delivery` section, as YAML in one line.
    pub delivery: String,
    /// Leave the publication, the slot and the stream to the test.
    pub bare: bool,
    /// Put proxies between the relays and both servers.
    pub proxied: bool,
}

impl Default for WorldOptions {
    fn default() -> Self {
        Self {
            postgres: Vec::new(),
            nats: String::new(),
            table: TABLE.to_owned(),
            delivery: "{hold_back: 0s}".to_owned(),
            bare: false,
            proxied: false,
        }
    }
}

/// A database with an outbox, a broker with a stream, and the means to run relays between them.
#[derive(Debug)]
pub struct World {
    /// The database.
    pub postgres: Postgres,
    /// The broker.
    pub nats: Nats,
    /// What stands between the relays and the servers, in a world that is proxied.
    pub proxies: Option<Proxies>,
    delivery: String,
    holder_timeout: &'static str,
    folder: TempDir,
}

/// One proxy in front of each server.
#[derive(Debug)]
pub struct Proxies {
    /// In front of the database.
    pub postgres: FaultProxy,
    /// In front of the broker.
    pub nats: FaultProxy,
}

/// A relay process.
#[derive(Debug)]
pub struct Relay {
    /// The process.
    pub program: Program,
    port: u16,
}

impl World {
    /// Starts both servers and sets the outbox, the publication, the slot and the stream up.
    ///
    /// # Errors
    /// A server does not come up, or the set-up fails.
    pub async fn start(options: WorldOptions) -> Result<Self> {
        let nats_options = NatsOptions { config: options.nats };
        let (postgres, nats) =
            tokio::join!(Postgres::start_with(&options.postgres), Nats::start_with(nats_options));
        let folder = TempDir::with_prefix("outbox-relay-world-").context("make a folder")?;
        let timeout = options.postgres.iter().find(|(name, _)| *name == "wal_sender_timeout");
        let (postgres, nats) = (postgres?, nats?);
        let proxies = match options.proxied {
            true => Some(Proxies {
                postgres: FaultProxy::start(postgres.port(), Protocol::Any).await?,
                nats: FaultProxy::start(nats.port(), Protocol::Nats).await?,
            }),
            false => None,
        };
        let world = Self {
            postgres,
            nats,
            proxies,
            delivery: options.delivery,
            holder_timeout: timeout.map_or("30s", |(_, value)| value),
            folder,
        };
        let client = world.postgres.connect().await?;
        client.batch_execute(&options.table).await.context("make the outbox table")?;
        if !options.bare {
            let output = world.command(&world.config(|text| text)?, &["init"])?;
            ensure!(output.status.success(), "init: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(world)
    }

    /// Writes a configuration for the world, changed by the test, to a new file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn config(&self, change: impl FnOnce(String) -> String) -> Result<PathBuf> {
        let mut text = String::new();
        writeln!(text, "relay: {{name: shop}}")?;
        writeln!(text, "source:")?;
        let (mut postgres, mut nats) = (self.postgres.url("postgres"), self.nats.url());
        if let Some(proxies) = &self.proxies {
            postgres = postgres
                .replace(&self.postgres.port().to_string(), &proxies.postgres.port().to_string());
            nats = format!("nats://127.0.0.1:{}", proxies.nats.port());
        }
        writeln!(text, "  url: {postgres}")?;
        writeln!(text, "  publication: outbox_pub\n  slot: relay")?;
        writeln!(text, "  holder_timeout: {}", self.holder_timeout)?;
        writeln!(text, "outbox:\n  - table: outbox\n    fields: {FIELDS}")?;
        writeln!(text, "    route: {{subject: 'outbox.{{aggregate_type}}.{{aggregate_id}}'}}")?;
        writeln!(text, "sink: {{url: '{nats}', stream: OUTBOX}}")?;
        writeln!(text, "delivery: {}", self.delivery)?;
        writeln!(text, "http: {{listen: '127.0.0.1:{}'}}", free_port()?)?;
        let (_, path) = tempfile::Builder::new()
            .prefix("relay-")
            .suffix(".yaml")
            .tempfile_in(self.folder.path())?
            .keep()?;
        fs::write(&path, change(text)).context("write the configuration")?;
        Ok(path)
    }

    /// Runs a command of the relay to its end.
    ///
    /// # Errors
    /// The program is not to be had.
    pub fn command(&self, config: &Path, arguments: &[&str]) -> Result<Output> {
        let mut command = Command::new(binary()?);
        command.arg("--config").arg(config).args(arguments);
        command.output().context("run outbox-relay")
    }

    /// Starts a relay with the world's configuration and waits until it is ready.
    ///
    /// # Errors
    /// It does not become ready.
    pub async fn relay(&self) -> Result<Relay> {
        let relay = self.relay_with(&self.config(|text| text)?)?;
        relay.ready(Duration::from_secs(30)).await?;
        Ok(relay)
    }

    /// Starts a relay with a configuration, and does not wait.
    ///
    /// # Errors
    /// The program is not to be had.
    pub fn relay_with(&self, config: &Path) -> Result<Relay> {
        let text = fs::read_to_string(config)?;
        let port = text
            .rsplit_once("127.0.0.1:")
            .and_then(|(_, rest)| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok());
        let mut command = Command::new(binary()?);
        command.arg("--config").arg(config).arg("run");
        let log = config.with_extension("log");
        let program = Program::start("outbox-relay", &mut command, &log)?;
        Ok(Relay { program, port: port.context("the configuration names no HTTP port")? })
    }

    /// Every message of the stream, in order.
    ///
    /// # Errors
    /// The broker does not answer.
    pub async fn stream(&self) -> Result<Vec<stream::Stored>> {
        stream::read(&self.nats.client().await?, "OUTBOX").await
    }

    /// Waits until the stream holds so many messages, and gives them.
    ///
    /// # Errors
    /// It does not in time.
    pub async fn messages(&self, count: usize, within: Duration) -> Result<Vec<stream::Stored>> {
        let what = format!("{count} messages in the stream");
        let client = self.nats.client().await?;
        let found = wait_until(within, &what, || async {
            let held = stream::count(&client, "OUTBOX").await.ok()?;
            (held >= count).then_some(())
        });
        if let Err(error) = found.await {
            let now = self.stream().await.map(|stored| stored.len());
            return Err(error.context(format!("the stream holds {now:?}")));
        }
        self.stream().await
    }

    /// The slot's confirmed position.
    ///
    /// # Errors
    /// The database does not answer, or has no slot.
    pub async fn confirmed(&self) -> Result<event::Lsn> {
        let client = self.postgres.connect().await?;
        let sql = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots";
        Ok(client.query_one(sql, &[]).await?.get::<_, String>(0).parse()?)
    }

    /// Where the database writes its log.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn wal_end(&self) -> Result<event::Lsn> {
        let client = self.postgres.connect().await?;
        let sql = "SELECT pg_current_wal_insert_lsn()::text";
        Ok(client.query_one(sql, &[]).await?.get::<_, String>(0).parse()?)
    }
}

impl Relay {
    /// Asks the relay's HTTP endpoint.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn get(&self, path: &str) -> Result<Answer> {
        http::get(self.port, path).await
    }

    /// The address of its HTTP endpoint.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Waits until it says that it is ready.
    ///
    /// # Errors
    /// It does not in time; its last words are in the error.
    pub async fn ready(&self, within: Duration) -> Result<()> {
        let ready = wait_until(within, "the relay is ready", || async {
            let answer = self.get("/readyz").await.ok()?;
            (answer.status == 200).then_some(())
        });
        ready.await.with_context(|| self.program.tail())
    }

    /// Waits until it says that it is not ready for a reason with these words.
    ///
    /// # Errors
    /// It does not in time; its last words are in the error.
    pub async fn not_ready(&self, within: Duration, words: &str) -> Result<String> {
        let what = format!("the relay is not ready: {words}");
        let reason = wait_until(within, &what, || async {
            let answer = self.get("/readyz").await.ok()?;
            (answer.status == 503 && answer.body.contains(words)).then_some(answer.body)
        });
        reason.await.with_context(|| self.program.tail())
    }
}

/// The built relay of this checkout, made fresh once a process.
///
/// # Errors
/// It does not build.
pub fn binary() -> Result<PathBuf> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let built = BUILT.get_or_init(|| build().map_err(|error| format!("{error:#}")));
    built.clone().map_err(|error| anyhow::anyhow!(error))
}

fn build() -> Result<PathBuf> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let mut command = Command::new(cargo);
    command.args(["build", "--package", "cli", "--message-format", "json-render-diagnostics"]);
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    let output = command.output().context("run cargo build")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut path = text.lines().filter_map(|line| {
        let (_, after) = line.split_once("\"executable\":\"")?;
        after.split('"').next().map(PathBuf::from)
    });
    match path.next_back() {
        Some(path) if output.status.success() => Ok(path),
        Some(_) | None => {
            bail!("cargo build: {}", String::from_utf8_lossy(&output.stderr))
        }
    }
}
