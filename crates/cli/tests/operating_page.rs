//! The tables of docs/operating.md say what the code does, and the program says how it is used.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;
use std::process::Command;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operating.md");

fn waits(waits: bool) -> &'static str {
    if waits { "yes" } else { "no" }
}

fn sqlstates() -> String {
    let mut table =
        String::from("| SQLSTATE | waits | meaning | what to do |\n|---|---|---|---|\n");
    for row in postgres_source::TABLE {
        let state = if row.sqlstate.len() == 2 {
            format!("{}xxx", row.sqlstate)
        } else {
            row.sqlstate.into()
        };
        let _ = writeln!(
            table,
            "| `{state}` | {} | {} | {} |",
            waits(row.waits),
            row.meaning,
            row.advice
        );
    }
    table
}

fn jetstream() -> String {
    let mut table = String::from("| number | code | waits | what to do |\n|---|---|---|---|\n");
    for row in nats_sink::TABLE {
        let _ = writeln!(
            table,
            "| {} | `{}` | {} | {} |",
            row.number,
            row.code,
            waits(row.waits),
            row.advice
        );
    }
    table
}

fn replace(page: &str, marker: &str, table: &str) -> String {
    let (before, rest) = page.split_once(&format!("<!-- {marker} -->\n")).unwrap();
    let (_, after) = rest.split_once("<!-- end -->").unwrap();
    format!("{before}<!-- {marker} -->\n{table}<!-- end -->{after}")
}

#[test]
fn error_tables_are_those_of_the_code() {
    let found = std::fs::read_to_string(PAGE).unwrap();
    let page = replace(&replace(&found, "sqlstates", &sqlstates()), "jetstream", &jetstream());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(PAGE, &page).unwrap();
        return;
    }
    assert!(found == page, "docs/operating.md is stale: run the tests with UPDATE_DOCS=1");
}

fn outbox_relay(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_outbox-relay")).args(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn help_teaches_and_wrong_use_has_its_own_exit_code() {
    let (code, help, _) = outbox_relay(&["--help"]);
    assert_eq!(code, Some(0));
    for words in
        ["run", "check", "init", "config", "A first start", "Exit codes", "3 the relay halted"]
    {
        assert!(help.contains(words), "{words}\n{help}");
    }
    assert_eq!(outbox_relay(&["fly"]).0, Some(2));
    let (code, _, words) = outbox_relay(&["--config", "/nowhere.yaml", "run"]);
    assert_eq!(code, Some(2));
    assert!(words.contains("read the configuration /nowhere.yaml"), "{words}");
}

#[test]
fn the_schema_is_json() {
    let (code, schema, _) = outbox_relay(&["config", "schema"]);
    assert_eq!(code, Some(0));
    let schema: serde_json::Value = serde_json::from_str(&schema).unwrap();
    assert!(schema["properties"]["outbox"].is_object());
}
