//! Validates the expressions of policies: one that does not compile is refused when it is written. This is an admission
//! plugin because the kind table, which validates the rest, knows no expressions.

use corten_cel::conditions::refusal;
use corten_meta::{FieldError, Path, Value};

use super::definition::{Form, Policy};
use crate::attributes::Attributes;
use crate::operation::Operation;
use crate::plugin::Plugin;

/// The plugin that validates the expressions of policies.
pub struct Expressions;

impl Plugin for Expressions {
    fn errors(&self, a: &Attributes<'_>) -> Vec<FieldError> {
        let writes = matches!(a.operation, Operation::Create | Operation::Update);
        if !writes || !a.subresource().is_empty() {
            return Vec::new();
        }
        policy_errors(&a.object, a.old.as_deref())
    }
}

/// Returns the errors of a policy's expressions, each with its path. Match conditions are validated again only if they
/// or the kind of the parameters changed.
fn policy_errors(policy: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let is_same = |field: &str| old.is_some_and(|old| old["spec"][field] == policy["spec"][field]);
    let validates_conditions = !is_same("paramKind") || !is_same("matchConditions");
    let compiled = Policy::from_value(corten_meta::name(policy), policy);
    let spec = Path::root("spec");
    let mut errors = Vec::new();
    let mut add = |list: &str, index: usize, field: &str, problem: Option<&String>| {
        let Some(problem) = problem else { return };
        let path = spec.child(list).index(index);
        let path = field.split('.').fold(path, |path, step| path.child(step));
        let pointer = format!("/spec/{list}/{index}/{}", field.replace('.', "/"));
        let expression = policy.pointer(&pointer).and_then(Value::as_str).unwrap_or_default();
        if expression.trim().is_empty() {
            // The kind's validation reports the missing expression.
            return;
        }
        // For some expressions, upstream reports the trimmed string that it compiles.
        let shown = if ["matchConditions", "mutations"].contains(&list) { expression.trim() } else { expression };
        errors.push(refusal(&path, shown, problem));
    };
    for (index, (_, variable)) in compiled.variables.iter().enumerate() {
        add("variables", index, "expression", variable.as_ref().err());
    }
    for (index, (_, condition)) in compiled.conditions.iter().enumerate().filter(|_| validates_conditions) {
        add("matchConditions", index, "expression", condition.as_ref().err());
    }
    for (index, validation) in compiled.validations.iter().enumerate() {
        add("validations", index, "expression", validation.compiled.as_ref().err());
        let message = validation.message_expression.as_ref().and_then(|compiled| compiled.as_ref().err());
        add("validations", index, "messageExpression", message);
    }
    for (index, (_, annotation)) in compiled.annotations.iter().enumerate() {
        add("auditAnnotations", index, "valueExpression", annotation.as_ref().err());
    }
    for (index, mutation) in compiled.mutations.iter().enumerate() {
        let field = match mutation.form {
            Form::ApplyConfiguration => "applyConfiguration.expression",
            Form::JsonPatch => "jsonPatch.expression",
        };
        // The expression of an unknown patch type is not compiled.
        let is_known = ["ApplyConfiguration", "JSONPatch"]
            .contains(&policy["spec"]["mutations"][index]["patchType"].as_str().unwrap_or_default());
        add("mutations", index, field, mutation.compiled.as_ref().err().filter(|_| is_known));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn unchanged_expressions_are_validated_again_except_conditions() {
        let policy = |kind: &str| {
            json!({"metadata": {"name": "p"}, "spec": {
                "paramKind": {"apiVersion": "v1", "kind": kind},
                "matchConditions": [{"name": "c", "expression": "nope"}],
                "validations": [{"expression": "nope"}]}})
        };
        let fields = |new: &Value, old: Option<&Value>| -> Vec<String> {
            policy_errors(new, old).into_iter().map(|error| error.field).collect()
        };
        let one = policy("ConfigMap");
        let other = policy("Secret");
        let [condition, validation] = ["spec.matchConditions[0].expression", "spec.validations[0].expression"];
        assert_eq!(fields(&one, None), [condition, validation]);
        assert_eq!(fields(&one, Some(&one)), [validation]);
        assert_eq!(fields(&one, Some(&other)), [condition, validation]);
    }
}
