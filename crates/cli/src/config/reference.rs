use std::fmt::Write as _;

use schemars::generate::SchemaSettings;
use serde_json::Value;

use super::raw::RawConfig;

/// The JSON Schema of the configuration.
pub(crate) fn schema() -> Value {
    let generator = SchemaSettings::draft2020_12().into_generator();
    generator.into_root_schema_for::<RawConfig>().to_value()
}

/// The reference of every key, as Markdown: what docs/configuration.md holds.
pub(crate) fn markdown() -> String {
    let generator =
        SchemaSettings::draft2020_12().with(|s| s.inline_subschemas = true).into_generator();
    let schema = generator.into_root_schema_for::<RawConfig>().to_value();
    let mut rows = String::from("| key | default | meaning |\n|---|---|---|\n");
    table("", &schema, &mut rows);
    format!("{HEAD}\n{rows}")
}

const HEAD: &str = "# Configuration

One YAML file, `outbox-relay.yaml` beside the README for a start. `outbox-relay config schema` prints
its JSON Schema for editors, `outbox-relay config show` what is in force, without secrets.

- Unknown keys are refused, and every fault is told with its key path.
- `${NAME}` anywhere in a text is replaced by an environment variable, `${NAME:-default}` by its
  default where the variable is not set; `$$` is a dollar.
- A secret can stand in a file: `password_file`, `token_file`, `nkey_seed_file`. One line break at
  the end of the file does not count. Secrets are never printed.
- Durations are written as in `500ms`, `5s`, `2m`; sizes as in `64MiB`.

This page is generated from the types that read the file; a test holds it to them.
";

fn table(prefix: &str, schema: &Value, rows: &mut String) {
    let Some(properties) = schema["properties"].as_object() else { return };
    let required = schema["required"].as_array();
    for (name, property) in properties {
        let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        let inner =
            [property, &property["items"]].into_iter().find(|s| s["properties"].is_object());
        if let Some(inner) = inner {
            let path = if property["items"].is_object() { format!("{path}[]") } else { path };
            table(&path, inner, rows);
            continue;
        }
        let needed = required.is_some_and(|names| names.iter().any(|n| n == name));
        let default = match &property["default"] {
            Value::Null if needed => "required".to_owned(),
            Value::Null => String::new(),
            Value::String(text) => format!("`{text}`"),
            Value::Object(map) if map.is_empty() => String::new(),
            Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                format!("`{}`", property["default"])
            }
        };
        let meaning = property["description"].as_str().unwrap_or_default().replace('\n', " ");
        let _ = writeln!(rows, "| `{path}` | {default} | {meaning} |");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_says_what_the_types_say() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, markdown()).unwrap();
        }
        let page = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            page == markdown(),
            "docs/configuration.md is stale: run the tests with UPDATE_DOCS=1"
        );
        for key in ["`outbox[].fields.payload` | required", "`delivery.hold_back` | `2m`"] {
            assert!(page.contains(key), "{key}");
        }
    }

    #[test]
    fn the_schema_refuses_unknown_keys_everywhere() {
        let text = schema().to_string();
        assert!(text.matches("\"additionalProperties\":false").count() >= 10, "{text}");
    }
}
