//! docker-compose.yml is the demo in containers: the same servers, ports, configuration and shop.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;

use serde::Deserialize as _;

type Yaml = std::collections::BTreeMap<String, serde_json::Value>;

fn read(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)).unwrap()
}

fn services() -> serde_json::Value {
    let file: Yaml = serde_saphyr::from_str(&read("docker-compose.yml")).unwrap();
    serde_json::Value::deserialize(&file["services"]).unwrap()
}

#[test]
fn images_are_pinned_and_the_relay_is_built_here() {
    let services = services();
    assert_eq!(services["postgres"]["image"], "postgres:18");
    assert_eq!(services["shop"]["image"], "postgres:18");
    assert!(services["nats"]["image"].as_str().unwrap().starts_with("nats:2.12"));
    for relay in ["init", "relay"] {
        assert_eq!(services[relay]["build"], ".");
    }
    let command = services["postgres"]["command"].to_string();
    assert!(command.contains("wal_level=logical"), "{command}");
    assert!(services["nats"]["command"].to_string().contains("--jetstream"));
}

#[test]
fn ports_and_names_are_those_of_the_sample_configuration() {
    let services = services();
    let sample = read("outbox-relay.yaml");
    for (service, port, database) in
        [("postgres", "5432", "DB_PORT"), ("nats", "4222", "NATS_PORT"), ("relay", "9464", "HTTP")]
    {
        let expected = format!("127.0.0.1:{port}:{port}");
        assert_eq!(services[service]["ports"][0], expected.as_str());
        let variable = sample.split(&format!("OUTBOX_RELAY_{database}:-")).nth(1).unwrap();
        let default = variable.split('}').next().unwrap();
        assert!(default.ends_with(port), "{database}: {default}");
    }
    let database = services["postgres"]["environment"]["POSTGRES_DB"].as_str().unwrap().to_owned();
    assert!(sample.contains(&format!("DB_NAME:-{database}}}")));
}

#[test]
fn every_variable_and_command_is_known() {
    let services = services();
    let sample = read("outbox-relay.yaml");
    for service in ["init", "relay"] {
        let variables = services[service]["environment"].as_object().unwrap();
        for name in variables.keys() {
            assert!(sample.contains(&format!("${{{name}:-")), "{name} is not in the sample");
        }
        assert_eq!(
            services[service]["volumes"][0],
            "./outbox-relay.yaml:/etc/outbox-relay.yaml:ro"
        );
    }
    assert_eq!(services["init"]["command"], serde_json::json!(["init", "--role", "outbox_relay"]));
    assert_eq!(services["relay"]["command"], serde_json::json!(["run"]));
    let dockerfile = read("Dockerfile");
    for line in ["OUTBOX_RELAY_CONFIG=/etc/outbox-relay.yaml", "USER 65532", "--package cli"] {
        assert!(dockerfile.contains(line), "{line}");
    }
}

#[test]
fn each_service_waits_for_what_it_needs() {
    let services = services();
    for (service, on, condition) in [
        ("init", "postgres", "service_healthy"),
        ("init", "nats", "service_healthy"),
        ("relay", "init", "service_completed_successfully"),
        ("shop", "relay", "service_healthy"),
        ("arrivals", "nats", "service_healthy"),
    ] {
        assert_eq!(services[service]["depends_on"][on]["condition"], condition, "{service}");
    }
    for service in ["postgres", "nats", "relay"] {
        assert!(services[service]["healthcheck"]["test"].is_array(), "{service}");
    }
    for file in ["shop.sql", "confirm.sql", "attend.sql"] {
        assert!(read("sql/demo/compose.sql").contains(&format!("/demo/{file}")), "{file}");
    }
}
