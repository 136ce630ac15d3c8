//! Device selectors are CEL expressions: one that does not compile is refused when it is written, and not when the
//! scheduler first evaluates it.

use corten_cel::{CompileError, Env, device};
use corten_meta::{FieldError, Path, Value};

use super::attributes::Attributes;
use super::operation::Operation;
use super::plugin::Plugin;

pub struct DeviceSelectors;

impl Plugin for DeviceSelectors {
    fn errors(&self, a: &Attributes<'_>) -> Vec<FieldError> {
        // The spec of a claim is immutable, so it is validated at creation only.
        let writes = match a.operation {
            Operation::Create => true,
            Operation::Update => !a.is("resource.k8s.io", "resourceclaims", ""),
            _ => false,
        };
        if !writes || !a.subresource().is_empty() {
            return Vec::new();
        }
        errors(&a.object["spec"])
    }
}

fn errors(spec: &Value) -> Vec<FieldError> {
    let mut found = Vec::new();
    collect(spec, &Path::root("spec"), &mut found);
    if found.is_empty() {
        return Vec::new();
    }
    let env = device::environment();
    found.into_iter().filter_map(|(path, expression)| error(&env, &path, expression)).collect()
}

/// Collects the expressions of all selectors at any depth; the schema of `config` is the driver's own.
fn collect<'a>(value: &'a Value, path: &Path, found: &mut Vec<(Path, &'a str)>) {
    match value {
        // A request with both alternatives is invalid anyway; neither is compiled.
        Value::Object(fields) if fields.contains_key("exactly") && fields.contains_key("firstAvailable") => {}
        Value::Object(fields) => {
            for (name, inner) in fields.iter().filter(|(name, _)| *name != "config") {
                let path = path.child(name);
                if name == "expression" {
                    found.push((path, inner.as_str().unwrap_or_default()));
                } else {
                    collect(inner, &path, found);
                }
            }
        }
        // A list with too many items is refused without compiling them.
        Value::Array(items) if items.len() > 32 => {}
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(at, item)| collect(item, &path.index(at), found));
        }
        _ => {}
    }
}

fn error(env: &Env, path: &Path, expression: &str) -> Option<FieldError> {
    let problem = match device::compile(env, expression) {
        Ok(program) => {
            let costly = env.estimate(&program).max > device::MAX_COST;
            return costly.then(|| FieldError::forbidden(path, "too complex, exceeds cost limit"));
        }
        Err(problem) => problem,
    };
    let detail = match problem {
        CompileError::Issues(issues) => format!("compilation failed: {issues}"),
        CompileError::Instantiation(error) => {
            return Some(FieldError::internal(path, format!("program instantiation failed: {error}")));
        }
        CompileError::Output(wanted, found) => format!("{wanted} or the unknown type, not {found}"),
    };
    Some(FieldError::invalid(path, expression, detail))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn selectors_compile_at_any_depth() {
        let selector = |expression: &str| json!([{ "cel": { "expression": expression } }]);
        let claim = |expression: &str| {
            json!({ "devices": { "requests": [{ "name": "r", "exactly": { "selectors": selector(expression) } }],
                "config": [{ "opaque": { "parameters": { "expression": "not ours" } } }] } })
        };
        let good = claim("device.driver == 'x' && device.attributes['x'].model == 'a'");
        assert!(errors(&good).is_empty());
        let bad = claim("device.nope");
        let messages: Vec<String> = errors(&bad).iter().map(ToString::to_string).collect();
        assert_eq!(messages.len(), 1, "{messages:?}");
        let path = "spec.devices.requests[0].exactly.selectors[0].cel.expression: Invalid value: \"device.nope\": compilation failed: ERROR: <input>:1:7: undefined field 'nope'";
        assert!(messages[0].starts_with(path), "{messages:?}");
        let costly: Vec<String> = errors(&claim("type(1) == int")).iter().map(ToString::to_string).collect();
        let path = "spec.devices.requests[0].exactly.selectors[0].cel.expression";
        assert_eq!(costly, [format!("{path}: Forbidden: too complex, exceeds cost limit")]);
    }
}
