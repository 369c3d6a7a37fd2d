use serde_json::Value;

/// Reads an environment variable; tests hand in their own.
pub(crate) type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Replaces `${NAME}` and `${NAME:-default}` in every text of a document; `$$` is a dollar.
pub(crate) fn expand(
    document: &mut Value,
    environment: Environment<'_>,
    problems: &mut Vec<String>,
) {
    expand_at("", document, environment, problems);
}

fn expand_at(
    path: &str,
    value: &mut Value,
    environment: Environment<'_>,
    problems: &mut Vec<String>,
) {
    match value {
        Value::String(text) if text.contains('$') => match expand_text(text, environment) {
            Ok(expanded) => *text = expanded,
            Err(problem) => problems.push(format!("{path}: {problem}")),
        },
        Value::Array(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                expand_at(&format!("{path}[{index}]"), item, environment, problems);
            }
        }
        Value::Object(entries) => {
            for (key, item) in entries.iter_mut() {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                expand_at(&path, item, environment, problems);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn expand_text(text: &str, environment: Environment<'_>) -> Result<String, String> {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        expanded.push_str(before);
        if let Some(after) = after.strip_prefix('$') {
            expanded.push('$');
            rest = after;
            continue;
        }
        let reference = after.strip_prefix('{').and_then(|after| after.split_once('}'));
        let Some((reference, after)) = reference else {
            return Err("write ${NAME} for an environment variable, $$ for a dollar".to_owned());
        };
        let (name, default) = match reference.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (reference, None),
        };
        match environment(name).or_else(|| default.map(str::to_owned)) {
            Some(value) => expanded.push_str(&value),
            None => return Err(format!("the environment variable {name} is not set")),
        }
        rest = after;
    }
    expanded.push_str(rest);
    Ok(expanded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn references_are_expanded_wherever_a_text_stands() {
        let environment = |name: &str| (name == "A").then(|| "x y".to_owned());
        let mut document =
            json!({ "a": ["${A}-${B:-d}", 1], "b": { "c": "$$1${A}" }, "d": "${E:-}" });
        let mut problems = Vec::new();
        expand(&mut document, &environment, &mut problems);
        assert_eq!(document, json!({ "a": ["x y-d", 1], "b": { "c": "$1x y" }, "d": "" }));
        assert_eq!(problems, [""; 0]);
    }

    #[test]
    fn what_is_missing_is_named_with_its_place() {
        let mut document = json!({ "a": [{ "b": "${NO}" }], "c": "$x" });
        let mut problems = Vec::new();
        expand(&mut document, &|_| None, &mut problems);
        assert_eq!(
            problems,
            [
                "a[0].b: the environment variable NO is not set",
                "c: write ${NAME} for an environment variable, $$ for a dollar"
            ]
        );
    }
}
