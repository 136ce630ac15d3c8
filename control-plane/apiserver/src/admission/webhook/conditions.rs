//! The match conditions of a webhook: expressions that must all hold for it to be called.

use std::collections::BTreeSet;

use corten_cel::{MATCH_CONDITIONS_BUDGET, Program, Type};
use corten_meta::{FieldError, Path, Status, Value};

use super::matching::Invocation;
use super::review;
use crate::admission::Attributes;
use crate::admission::expressions::{ADMISSION, Rights, variables};

/// A condition: its name, and its expression if it could be compiled.
pub type Condition = (String, Result<Program, String>);

/// Reads the conditions of a webhook.
pub fn read(webhook: &Value) -> Vec<Condition> {
    let conditions = webhook["matchConditions"].as_array().into_iter().flatten();
    let one = |condition: &Value| {
        let name = condition["name"].as_str().unwrap_or_default().to_owned();
        (name, compile(condition["expression"].as_str().unwrap_or_default()))
    };
    conditions.map(one).collect()
}

fn compile(expression: &str) -> Result<Program, String> {
    ADMISSION.compile(expression, &[Type::Bool]).map_err(|e| e.to_string())
}

/// Whether all conditions hold. If one cannot be evaluated and none is false, the failure policy decides.
pub async fn matches_conditions(invocation: &Invocation<'_>, a: &Attributes<'_>) -> Result<bool, Status> {
    let object = invocation.show(a, &a.object).await?;
    let old = invocation.show(a, a.old.as_ref().unwrap_or(&Value::Null)).await?;
    let mut request = review::request(a, invocation, Value::Null, Value::Null, "");
    if let Some(request) = request.as_object_mut() {
        // The objects are variables of their own, and the uid is the review's.
        ["object", "oldObject", "uid"].iter().for_each(|field| {
            request.remove(*field);
        });
    }
    match evaluate(&invocation.hook.conditions, a, &object, &old, &request) {
        Ok(matches) => Ok(matches),
        Err(_) if invocation.hook.fail_open => Ok(false),
        Err(errors) => {
            let text = if let [one] = errors.as_slice() { one.clone() } else { format!("[{}]", errors.join(", ")) };
            Err(a.forbidden(text))
        }
    }
}

fn evaluate(
    conditions: &[Condition],
    a: &Attributes<'_>,
    object: &Value,
    old: &Value,
    request: &Value,
) -> Result<bool, Vec<String>> {
    let rights = Rights(a);
    let variables = variables(&rights, object, old, request);
    let (mut budget, mut errors) = (MATCH_CONDITIONS_BUDGET, Vec::new());
    for (_, condition) in conditions {
        let program = match condition {
            Ok(program) => program,
            Err(e) => {
                errors.push(format!("compilation error: {e}"));
                continue;
            }
        };
        let outcome = program.eval_within(&variables, budget.min(corten_cel::PER_CALL_LIMIT));
        budget = budget.saturating_sub(outcome.cost);
        match outcome.value {
            Ok(corten_cel::Value::Bool(false)) => return Ok(false),
            Ok(corten_cel::Value::Bool(true)) => {}
            Ok(_) => errors.push(format!("expression '{}' is no truth value", program.text())),
            Err(e) => errors.push(format!("expression '{}' resulted in error: {e}", program.text())),
        }
    }
    if errors.is_empty() { Ok(true) } else { Err(errors) }
}

/// Refuses a configuration whose conditions cannot be compiled; what stood there before is let be.
pub fn check_configuration(a: &Attributes<'_>) -> Result<(), Status> {
    let expressions = |object: &Value| -> BTreeSet<String> {
        let webhooks = object["webhooks"].as_array().cloned().unwrap_or_default();
        let conditions = webhooks.iter().flat_map(|w| w["matchConditions"].as_array().cloned().unwrap_or_default());
        conditions.filter_map(|c| c["expression"].as_str().map(str::to_owned)).collect()
    };
    let before = a.old.as_ref().map(expressions).unwrap_or_default();
    let mut errors = Vec::new();
    for (at, webhook) in a.object["webhooks"].as_array().into_iter().flatten().enumerate() {
        for (index, condition) in webhook["matchConditions"].as_array().into_iter().flatten().enumerate() {
            let expression = condition["expression"].as_str().unwrap_or_default();
            if before.contains(expression) {
                continue;
            }
            if let Err(e) = compile(expression) {
                let path = Path::root("webhooks").index(at).child("matchConditions").index(index).child("expression");
                errors.push(FieldError::invalid(&path, expression, format!("compilation failed: {e}")));
            }
        }
    }
    if errors.is_empty() {
        return Ok(());
    }
    Err(Status::invalid(&a.target.resource.group_kind(), a.name(), errors))
}
