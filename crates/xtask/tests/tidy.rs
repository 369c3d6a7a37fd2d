//! What keeps the tree in shape: dependencies point downwards, the map names every crate, files stay
//! small, nothing is left open.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

/// Our crates from the bottom up, in layers: a crate depends on crates of lower layers only.
const LAYERS: [&[&str]; 8] = [
    &["event"],
    &["pgoutput"],
    &["relay-core"],
    &["postgres-source", "nats-sink", "simulation", "testkit"],
    &["relay"],
    &["console"],
    &["cli"],
    &["xtask"],
];

/// Crates that only tests use; nothing that ships depends on them.
const TESTS_ONLY: [&str; 3] = ["simulation", "testkit", "xtask"];

/// What the pure crates may depend on.
const PURE: [(&str, &[&str]); 3] = [
    ("event", &["bytes", "thiserror"]),
    ("pgoutput", &["event", "bytes", "thiserror"]),
    ("relay-core", &["event", "pgoutput", "bytes", "thiserror"]),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn crates() -> Vec<String> {
    let entries = fs::read_dir(root().join("crates")).unwrap();
    let mut names: Vec<_> = entries
        .filter(|entry| entry.as_ref().unwrap().path().join("Cargo.toml").is_file())
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// The names under `[dependencies]`.
fn dependencies(name: &str) -> Vec<String> {
    let manifest = fs::read_to_string(root().join("crates").join(name).join("Cargo.toml")).unwrap();
    let section = manifest.split("[dependencies]\n").nth(1).unwrap_or_default();
    let section = section.split("\n[").next().unwrap();
    let names = section.lines().filter_map(|line| line.split(['.', ' ', '=']).next());
    names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[test]
fn dependencies_point_downwards() {
    let layer = |name: &str| LAYERS.iter().position(|layer| layer.contains(&name));
    for name in crates() {
        let own = layer(&name).unwrap_or_else(|| panic!("{name} has no layer"));
        for dependency in dependencies(&name) {
            if let Some(other) = layer(&dependency) {
                assert!(other < own, "{name} depends on {dependency}");
                let ships = !TESTS_ONLY.contains(&name.as_str());
                assert!(!(ships && TESTS_ONLY.contains(&dependency.as_str())), "{name}");
            }
        }
    }
}

#[test]
fn pure_crates_stay_pure() {
    for (name, allowed) in PURE {
        for dependency in dependencies(name) {
            assert!(allowed.contains(&dependency.as_str()), "{name} depends on {dependency}");
        }
        for file in rust_files(&root().join("crates").join(name).join("src")) {
            let text = fs::read_to_string(&file).unwrap();
            for word in [".await", "Instant::now", "SystemTime", "std::net", "std::fs", "rand::"] {
                assert!(!text.contains(word), "{}: {word}", file.display());
            }
        }
    }
}

#[test]
fn the_map_names_every_crate_and_no_other() {
    let page = fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let mut mapped: Vec<_> = rows.filter(|name| *name != "end-to-end").map(str::to_owned).collect();
    mapped.sort();
    assert_eq!(mapped, crates());
    assert!(page.lines().count() <= 300);
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

#[test]
fn files_stay_small_and_nothing_is_left_open() {
    let root = root();
    let files = [rust_files(&root.join("crates")), rust_files(&root.join("tests"))].concat();
    assert!(files.len() > 60, "{}", files.len());
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let lines = text.lines().count();
        assert!(lines <= 600, "{} has {lines} lines", file.display());
        for word in [
            concat!("TO", "DO"),
            concat!("FIX", "ME"),
            concat!("#[ign", "ore"),
            concat!("unimple", "mented!"),
        ] {
            assert!(!text.contains(word), "{}: {word}", file.display());
        }
    }
}

#[test]
fn migrations_come_in_pairs() {
    let folder = root().join("sql/outbox");
    let mut ups = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if let Some(stem) = path.to_str().unwrap().strip_suffix(".up.sql") {
            ups += 1;
            assert!(Path::new(&format!("{stem}.down.sql")).is_file(), "{stem}");
        }
    }
    assert_eq!(ups, 4);
}
