use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use crate::wait_until;

/// A child process in a process group of its own, with its output in a file. Killed when dropped.
#[derive(Debug)]
pub struct Program {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Program {
    /// Starts a command; both its outputs go to the file `log`, appended.
    ///
    /// # Errors
    /// The program or the file is not to be had.
    pub fn start(name: &str, command: &mut Command, log: &Path) -> Result<Self> {
        let open = || File::options().create(true).append(true).open(log);
        let output = open().with_context(|| format!("open {}", log.display()))?;
        let errors = output.try_clone().context("share the log file")?;
        let child = command
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .process_group(0)
            .spawn()
            .with_context(|| format!("start {name}: {}", command.get_program().display()))?;
        Ok(Self { name: name.to_owned(), child, log: log.to_owned() })
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Everything it has written.
    #[must_use]
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Sends a signal to the process alone.
    ///
    /// # Errors
    /// It is gone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill(self.group(), signal).with_context(|| format!("send {signal} to {}", self.name))
    }

    /// SIGKILL for the whole group, awaited.
    pub fn kill(&mut self) {
        // An error says that the group is gone already.
        let _ = killpg(self.group(), Signal::SIGKILL);
        let _ = self.child.wait();
    }

    /// SIGSTOP for the whole group.
    ///
    /// # Errors
    /// It is gone.
    pub fn pause(&self) -> Result<()> {
        killpg(self.group(), Signal::SIGSTOP).with_context(|| format!("pause {}", self.name))
    }

    /// SIGCONT for the whole group.
    ///
    /// # Errors
    /// It is gone.
    pub fn resume(&self) -> Result<()> {
        killpg(self.group(), Signal::SIGCONT).with_context(|| format!("resume {}", self.name))
    }

    /// SIGTERM for the process, awaited.
    ///
    /// # Errors
    /// It does not end in time.
    pub async fn terminate(&mut self, within: Duration) -> Result<ExitStatus> {
        self.signal(Signal::SIGTERM)?;
        self.wait_exit(within).await
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// It does not end in time; its last words are in the error.
    pub async fn wait_exit(&mut self, within: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + within;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                bail!(
                    "{} does not end within {within:?}; its last words:\n{}",
                    self.name,
                    self.tail()
                );
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Whether it runs.
    ///
    /// # Errors
    /// The system does not say.
    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Waits until its output holds a text.
    ///
    /// # Errors
    /// It does not in time; its last words are in the error.
    pub async fn wait_for_log(&self, within: Duration, text: &str) -> Result<()> {
        let what = format!("{text:?} in the log of {}", self.name);
        wait_until(within, &what, || async { self.log().contains(text).then_some(()) })
            .await
            .with_context(|| self.tail())
    }

    /// The last lines it has written.
    #[must_use]
    pub fn tail(&self) -> String {
        let log = self.log();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    fn group(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}
