//! MutatingAdmissionPolicyBinding and ValidatingAdmissionPolicyBinding.

use corten_meta::Value;
use jiff::Timestamp;

use super::webhook::default_match;
use super::{GROUP, reserved_name};
use crate::cells::{age, format_selector, name, or, text};
use crate::kind::{Behaviour, Kind};

/// A binding with the section of its rules.
struct AdmissionPolicyBinding(&'static str);

/// Returns the declaration of the mutating kind.
pub fn mutating() -> Kind {
    kind("MutatingAdmissionPolicyBinding", ".admissionregistration.v1.MutatingAdmissionPolicyBinding")
}

/// Returns the declaration of the validating kind.
pub fn validating() -> Kind {
    kind("ValidatingAdmissionPolicyBinding", ".admissionregistration.v1.ValidatingAdmissionPolicyBinding")
}

fn kind(kind: &str, rules: &'static str) -> Kind {
    Kind::new(GROUP, "v1", kind, &format!("{}s", kind.to_lowercase()))
        .cluster()
        .category("api-extensions")
        .generation()
        .conditional_update()
        .table("Name, PolicyName, ParamRef, Age")
        .behaviour(AdmissionPolicyBinding(rules))
}

impl Behaviour for AdmissionPolicyBinding {
    fn rules(&self) -> &'static str {
        self.0
    }

    fn warnings(&self, object: &Value, _old: Option<&Value>) -> Vec<String> {
        reserved_name(object)
    }

    fn default(&self, object: &mut Value) {
        default_match(object, "/spec/matchResources");
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let param = match object.pointer("/spec/paramRef").filter(|r| r.is_object()) {
            Some(r) if !text(r, "/name").is_empty() => {
                format!("{}/{}", or(text(r, "/namespace"), "*"), text(r, "/name"))
            }
            Some(r) if r["selector"].is_object() => format_selector(r.get("selector")),
            _ => "<unset>".to_string(),
        };
        vec![name(object), text(object, "/spec/policyName").into(), param.into(), age(object, now)]
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parameters_of_bindings() {
        let expressions = json!([{"key": "c", "operator": "In", "values": ["d", "e"]}]);
        for (param, wanted) in [
            (json!(null), "<unset>"),
            (json!({"name": "a"}), "*/a"),
            (json!({"name": "a", "namespace": "b"}), "b/a"),
            (json!({"selector": {"matchLabels": {"a": "b"}}}), "a=b"),
            (json!({"selector": {"matchExpressions": expressions}}), "c in (d,e)"),
        ] {
            let binding = json!({"spec": {"paramRef": param}});
            assert_eq!(mutating().behaviour.cells(&binding, Timestamp::UNIX_EPOCH)[2], wanted);
        }
    }
}
