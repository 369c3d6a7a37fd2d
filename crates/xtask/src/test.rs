use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

/// Runs everything that must be clean, and stops at the first that is not.
pub(crate) fn test(matrix: bool) -> Result<()> {
    step("format", cargo(&["fmt", "--all", "--check"]))?;
    step("lints", cargo(&["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"]))?;
    if found("cargo-deny") {
        step("licences, bans, sources", cargo(&["deny", "check", "bans", "licenses", "sources"]))?;
        advisories()?;
    } else {
        eprintln!("== licences, bans, sources, advisories: cargo-deny is not installed, left out");
    }
    if matrix {
        older_servers()?;
    }
    let mut tests = cargo(&["test", "--workspace"]);
    tests.env("OUTBOX_RELAY_SERVERS", newest()).env("RUST_TEST_THREADS", TEST_THREADS);
    step("tests, on PostgreSQL 18 and nats-server 2.15", tests)?;
    if matrix {
        let arguments = ["run", "--package", "xtask", "--", "chaos", "--kept-seeds"];
        let mut chaos = cargo(&arguments);
        chaos.args(["--seconds", CHAOS_SECONDS]).env("OUTBOX_RELAY_SERVERS", newest());
        step("chaos", chaos)?;
    }
    Ok(())
}

const CHAOS_SECONDS: &str = "120";

/// Advisories need their database; a machine that cannot reach it is told so and goes on.
fn advisories() -> Result<()> {
    let output = cargo(&["deny", "check", "advisories"]).output().context("start cargo-deny")?;
    let words = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() && words.contains("failed to fetch advisory database") {
        eprintln!("== advisories: their database cannot be reached from here, left out");
        return Ok(());
    }
    eprint!("== advisories\n{words}");
    if !output.status.success() {
        bail!("advisories: {}", output.status);
    }
    Ok(())
}

/// Most tests wait for servers rather than compute, so that many can run beside each other.
const TEST_THREADS: &str = "12";

/// Servers that the caller names stay in force.
fn newest() -> &'static str {
    let named = |name| std::env::var_os(name).is_some();
    if named("POSTGRES_BIN") || named("NATS_SERVER") { "auto" } else { "wheels" }
}

/// The end-to-end tests once more, on Debian's servers.
fn older_servers() -> Result<()> {
    let title = "end-to-end tests, on Debian's PostgreSQL and nats-server";
    for (program, package) in [("nats-server", "nats-server"), ("postgres", "postgresql-15")] {
        let there =
            found(program) || Path::new("/usr/lib/postgresql/15/bin").join(program).exists();
        if !there && !install(package) {
            eprintln!("== {title}: {package} is not here and could not be installed, left out");
            return Ok(());
        }
    }
    let mut tests = cargo(&["test", "--package", "end-to-end"]);
    tests.env("OUTBOX_RELAY_SERVERS", "system").env("RUST_TEST_THREADS", TEST_THREADS);
    step(title, tests)
}

fn install(package: &str) -> bool {
    eprintln!("== install {package}");
    let apt = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive").stdout(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let arguments = ["install", "--yes", "--no-install-recommends", package];
    apt(&arguments) || (apt(&["update"]) && apt(&arguments))
}

fn found(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()));
    command.args(arguments);
    command
}

fn step(title: &str, mut command: Command) -> Result<()> {
    eprintln!("== {title}");
    let status = command.status().with_context(|| format!("{title}: start cargo"))?;
    if !status.success() {
        bail!("{title}: {status}");
    }
    Ok(())
}
