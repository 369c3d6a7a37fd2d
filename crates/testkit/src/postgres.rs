use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid, User};
use tempfile::TempDir;
use tokio_postgres::{Client, NoTls};

use crate::{Program, Servers, copy_folder, free_port, wait_until};

const START_WITHIN: Duration = Duration::from_secs(60);

/// How a server is told to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopMode {
    /// Waits for its clients.
    Smart,
    /// Ends its clients, and lets replication sessions take what was written.
    Fast,
    /// At once, as after a crash.
    Immediate,
}

/// A PostgreSQL server with `wal_level = logical`.
#[derive(Debug)]
pub struct Postgres {
    folder: TempDir,
    bin: PathBuf,
    port: u16,
    program: Option<Program>,
}

impl Postgres {
    /// Starts one.
    ///
    /// # Errors
    /// There is no server program, or it does not come up.
    pub async fn start() -> Result<Self> {
        Self::start_with(&[]).await
    }

    /// Starts one with settings of `postgresql.conf`.
    ///
    /// # Errors
    /// There is no server program, or it does not come up.
    pub async fn start_with(settings: &[(&str, &str)]) -> Result<Self> {
        let bin = Servers::find()?.postgres_bin;
        let folder = TempDir::with_prefix("outbox-relay-pg-").context("make a folder")?;
        let port = free_port()?;
        own(folder.path())?;
        initialise(&bin, folder.path())?;
        configure(folder.path(), port, settings)?;
        let mut postgres = Self { folder, bin, port, program: None };
        postgres.start_again().await?;
        Ok(postgres)
    }

    /// Starts a copy of a stopped server's files, on a port of its own: what a restored backup is.
    ///
    /// # Errors
    /// The files cannot be copied, or the copy does not come up.
    pub async fn copy(&self) -> Result<Self> {
        let mut copy = self.copied()?;
        copy.start_again().await?;
        Ok(copy)
    }

    /// As [`Postgres::copy`], as a server that takes over from the one that was copied: on a new
    /// timeline.
    ///
    /// # Errors
    /// The files cannot be copied, or the copy does not come up.
    pub async fn promoted_copy(&self) -> Result<Self> {
        let mut copy = self.copied()?;
        copy.append("postgresql.auto.conf", "restore_command = 'false'\n")?;
        copy.append("recovery.signal", "")?;
        copy.start_again().await?;
        let promoted = wait_until(START_WITHIN, "the copy is promoted", || async {
            let client = copy.connect().await.ok()?;
            let row = client.query_one("SELECT pg_is_in_recovery()", &[]).await.ok()?;
            (!row.get::<_, bool>(0)).then_some(())
        });
        promoted.await?;
        Ok(copy)
    }

    /// Makes the log of a stopped server go on with a segment, by its file name.
    ///
    /// # Errors
    /// `pg_resetwal` refuses.
    pub fn reset_log(&self, segment: &str) -> Result<()> {
        let mut command = Command::new(self.bin.join("pg_resetwal"));
        command.args(["-l", segment, "-D"]).arg(self.data());
        as_server_user(&mut command)?;
        let output = command.output().context("start pg_resetwal")?;
        let words = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "pg_resetwal: {}: {words}", output.status);
        Ok(())
    }

    /// Lets a user in by password only.
    ///
    /// # Errors
    /// The file cannot be written, or the server does not answer.
    pub async fn require_password(&self, user: &str) -> Result<()> {
        let path = self.data().join("pg_hba.conf");
        let rules = fs::read_to_string(&path).context("read pg_hba.conf")?;
        let rule = format!("host all {user} 127.0.0.1/32 scram-sha-256\n");
        fs::write(&path, rule + &rules).context("write pg_hba.conf")?;
        self.connect().await?.execute("SELECT pg_reload_conf()", &[]).await?;
        Ok(())
    }

    fn copied(&self) -> Result<Self> {
        let folder = TempDir::with_prefix("outbox-relay-pg-").context("make a folder")?;
        let port = free_port()?;
        own(folder.path())?;
        copy_folder(&self.data(), &folder.path().join("data"))?;
        let copy = Self { folder, bin: self.bin.clone(), port, program: None };
        let sockets = copy.folder.path().display();
        let settings = format!("\nport = '{port}'\nunix_socket_directories = '{sockets}'\n");
        copy.append("postgresql.auto.conf", &settings)?;
        let pid = copy.data().join("postmaster.pid");
        if pid.exists() {
            fs::remove_file(pid).context("remove postmaster.pid")?;
        }
        Ok(copy)
    }

    /// Appends to a file of the data folder.
    fn append(&self, name: &str, text: &str) -> Result<()> {
        let path = self.data().join(name);
        let mut file = File::options().create(true).append(true).open(&path)?;
        file.write_all(text.as_bytes()).with_context(|| format!("write {}", path.display()))?;
        if let Some(user) = server_user()? {
            chown(&path, Some(user.uid.as_raw()), Some(user.gid.as_raw()))?;
        }
        Ok(())
    }

    /// Starts it after a stop, with the same port and data.
    ///
    /// # Errors
    /// It does not come up.
    pub async fn start_again(&mut self) -> Result<()> {
        let mut command = Command::new(self.bin.join("postgres"));
        command.arg("-D").arg(self.data());
        as_server_user(&mut command)?;
        let log = self.folder.path().join("postgres.log");
        let program = Program::start("postgres", &mut command, &log)?;
        let connected = wait_until(START_WITHIN, "postgres accepts connections", || async {
            self.connect().await.ok()
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

    /// The URL for a user of the database `postgres`; all are trusted on loopback.
    #[must_use]
    pub fn url(&self, user: &str) -> String {
        self.url_of(user, "postgres")
    }

    /// The URL for a user of a database.
    #[must_use]
    pub fn url_of(&self, user: &str, database: &str) -> String {
        format!("postgres://{user}@127.0.0.1:{}/{database}", self.port)
    }

    /// Everything it has written to its log.
    #[must_use]
    pub fn log(&self) -> String {
        let log = fs::read(self.folder.path().join("postgres.log"));
        String::from_utf8_lossy(&log.unwrap_or_default()).into_owned()
    }

    /// The folder with `psql`.
    #[must_use]
    pub fn bin(&self) -> &Path {
        &self.bin
    }

    /// A session of the superuser.
    ///
    /// # Errors
    /// The server does not accept it.
    pub async fn connect(&self) -> Result<Client> {
        self.connect_to("postgres", "postgres").await
    }

    /// A session of a user in a database.
    ///
    /// # Errors
    /// The server does not accept it.
    pub async fn connect_to(&self, user: &str, database: &str) -> Result<Client> {
        let url = self.url_of(user, database);
        let connecting = tokio_postgres::connect(&url, NoTls);
        let connecting = tokio::time::timeout(Duration::from_secs(5), connecting);
        let (client, connection) = connecting.await.context("connect to postgres in time")??;
        tokio::spawn(connection);
        Ok(client)
    }

    /// Stops it, and says how long it took.
    ///
    /// # Errors
    /// It does not end in time.
    pub async fn stop(&mut self, mode: StopMode, within: Duration) -> Result<Duration> {
        let mut program = self.program.take().context("postgres is stopped already")?;
        let began = Instant::now();
        program.signal(match mode {
            StopMode::Smart => Signal::SIGTERM,
            StopMode::Fast => Signal::SIGINT,
            StopMode::Immediate => Signal::SIGQUIT,
        })?;
        let ended = program.wait_exit(within).await;
        if ended.is_err() {
            self.kill_backends(&program);
        }
        ended.map(|_| began.elapsed())
    }

    /// SIGKILL for the server and all its processes.
    pub fn kill(&mut self) {
        if let Some(mut program) = self.program.take() {
            self.kill_backends(&program);
            program.kill();
        }
    }

    /// SIGSTOP for the server and all its processes.
    ///
    /// # Errors
    /// It is gone.
    pub fn pause(&self) -> Result<()> {
        self.signal_all(Signal::SIGSTOP)
    }

    /// SIGCONT for the server and all its processes.
    ///
    /// # Errors
    /// It is gone.
    pub fn resume(&self) -> Result<()> {
        self.signal_all(Signal::SIGCONT)
    }

    fn signal_all(&self, signal: Signal) -> Result<()> {
        let program = self.program.as_ref().context("postgres is stopped")?;
        for pid in children(program.pid()) {
            // A process that has ended since needs no signal.
            let _ = kill(pid, signal);
        }
        program.signal(signal)
    }

    /// Each backend leads a process group of its own, so the server's group does not cover them.
    fn kill_backends(&self, program: &Program) {
        for pid in children(program.pid()) {
            let _ = kill(pid, Signal::SIGKILL);
        }
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.kill();
    }
}

/// PostgreSQL refuses root; then it runs as `postgres` where there is one, else as `nobody`.
fn server_user() -> Result<Option<User>> {
    if !Uid::effective().is_root() {
        return Ok(None);
    }
    for name in ["postgres", "nobody"] {
        if let Some(user) = User::from_name(name)? {
            return Ok(Some(user));
        }
    }
    bail!("PostgreSQL does not run as root, and there is no user postgres or nobody to run it as")
}

fn as_server_user(command: &mut Command) -> Result<()> {
    if let Some(user) = server_user()? {
        command.uid(user.uid.as_raw()).gid(user.gid.as_raw()).current_dir("/");
    }
    Ok(())
}

fn own(folder: &Path) -> Result<()> {
    if let Some(user) = server_user()? {
        chown(folder, Some(user.uid.as_raw()), Some(user.gid.as_raw()))
            .with_context(|| format!("give {} to {}", folder.display(), user.name))?;
    }
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).context("open the folder")
}

fn initialise(bin: &Path, folder: &Path) -> Result<()> {
    let mut command = Command::new(bin.join("initdb"));
    command.arg("-D").arg(folder.join("data"));
    command.args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "-N"]);
    as_server_user(&mut command)?;
    let output = command.output().context("start initdb")?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        bail!("initdb: {}: {words}", output.status);
    }
    Ok(())
}

fn configure(folder: &Path, port: u16, settings: &[(&str, &str)]) -> Result<()> {
    let sockets = folder.display().to_string();
    let port = port.to_string();
    let defaults = [
        ("port", port.as_str()),
        ("listen_addresses", "127.0.0.1"),
        ("unix_socket_directories", &sockets),
        ("wal_level", "logical"),
        ("fsync", "off"),
        ("max_wal_senders", "20"),
        ("max_replication_slots", "20"),
        ("shared_buffers", "32MB"),
    ];
    let lines = defaults.iter().chain(settings).map(|(name, value)| format!("{name} = '{value}'"));
    let text = lines.collect::<Vec<_>>().join("\n");
    let file = folder.join("data/postgresql.auto.conf");
    fs::write(&file, text).with_context(|| format!("write {}", file.display()))
}

/// The processes that a process has started and that still run.
fn children(parent: u32) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let pids = entries.filter_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        // The name in parentheses may hold blanks; the parent is the second field after it.
        let fields = stat.rsplit_once(')')?.1;
        let of: u32 = fields.split_whitespace().nth(1)?.parse().ok()?;
        (of == parent).then(|| Pid::from_raw(pid))
    });
    pids.collect()
}
