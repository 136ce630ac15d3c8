//! The match conditions of a webhook: expressions that must all hold for it to be called.

use std::sync::LazyLock;
use std::time::Instant;

use corten_cel::conditions::{Condition, all_hold, compile, refusal};
use corten_cel::{Env, Value as Cel};
use corten_meta::field::aggregate;
use corten_meta::{FieldError, Path, Status, Value};

use super::invocation::Invocation;
use super::review;
use crate::attributes::Attributes;
use crate::expressions::{self, Rights};
use crate::metrics::{CONDITION_ERRORS, CONDITION_EXCLUSIONS, CONDITION_SECONDS};

/// The environment of match conditions.
static ENV: LazyLock<Env> = LazyLock::new(|| expressions::env(false, true));

/// Reads the match conditions of a webhook.
pub fn read(webhook: &Value) -> Vec<Condition> {
    let conditions = webhook["matchConditions"].as_array().into_iter().flatten();
    conditions.map(|condition| compile(&ENV, condition["expression"].as_str().unwrap_or_default())).collect()
}

/// Reports whether all match conditions hold. If one cannot be evaluated and none is false, the failure policy decides.
pub async fn matches_conditions(invocation: &Invocation<'_>, a: &Attributes<'_>) -> Result<bool, Status> {
    let object = invocation.show(a, &a.object).await?;
    let old = invocation.show(a, a.old.as_deref().unwrap_or(&Value::Null)).await?;
    let mut request = review::request(a, invocation, Value::Null, Value::Null, "");
    if let Some(request) = request.as_object_mut() {
        // The objects are variables of their own, and the uid belongs to the review.
        ["object", "oldObject", "uid"].iter().for_each(|field| {
            request.remove(*field);
        });
    }
    let rights = Rights::new(a, &*a.target.resource);
    let held = rights.settled(|| {
        let [authorizer, request_resource] = rights.variables();
        let variables = [
            ("object", Cel::json(&object)),
            ("oldObject", Cel::json(&old)),
            ("request", Cel::json(&request)),
            ("namespaceObject", Cel::json(&Value::Null)),
            authorizer,
            request_resource,
        ];
        all_hold(invocation.hook.conditions.iter(), &variables)
    });
    let began = Instant::now();
    let held = held.await;
    let metrics = a.target.core.metrics;
    let step = if invocation.hook.mutates { "admit" } else { "validate" };
    let labels = ["webhook", &invocation.hook.name, a.operation.word(), step];
    metrics.series(&CONDITION_SECONDS, &labels).observe(began.elapsed().as_secs_f64());
    match &held {
        Ok(true) => {}
        Ok(false) => metrics.series(&CONDITION_EXCLUSIONS, &labels).add(1.0),
        Err(_) => metrics.series(&CONDITION_ERRORS, &labels).add(1.0),
    }
    match held {
        Ok(matches) => Ok(matches),
        Err(_) if invocation.hook.fail_open => Ok(false),
        Err(errors) => Err(a.forbidden(aggregate(&errors).unwrap_or_default())),
    }
}

/// Returns the errors of a configuration's match conditions that do not compile; unchanged conditions are not validated
/// again.
pub fn errors(a: &Attributes<'_>) -> Vec<FieldError> {
    let conditions = |object: &Value| -> Vec<Value> {
        let webhooks = object["webhooks"].as_array().into_iter().flatten();
        webhooks.map(|webhook| webhook["matchConditions"].clone()).collect()
    };
    if a.old.as_deref().is_some_and(|old| conditions(old) == conditions(&a.object)) {
        return Vec::new();
    }
    let mut errors = Vec::new();
    for (at, webhook) in a.object["webhooks"].as_array().into_iter().flatten().enumerate() {
        for (index, condition) in webhook["matchConditions"].as_array().into_iter().flatten().enumerate() {
            let expression = condition["expression"].as_str().unwrap_or_default();
            let expression = expression.trim();
            if expression.is_empty() {
                continue;
            }
            if let Err(e) = compile(&ENV, expression) {
                let path = Path::root("webhooks").index(at).child("matchConditions").index(index).child("expression");
                errors.push(refusal(&path, expression, &e));
            }
        }
    }
    errors
}
