//! ValidatingAdmissionPolicy: expressions that must hold for a write.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use corten_cel::{RUNTIME_BUDGET, Value as Cel};
use corten_meta::Status;
use corten_meta::quote::quote;
use corten_meta::status::Cause;
use futures::future::BoxFuture;
use serde_json::json;

use super::definition::{Binding, Policies, Policy, Validation};
use super::matching::{input, matches};
use super::params::params;
use super::scope::{Input, Scope};
use super::{conditions_hold, is_exempt};
use crate::attributes::Attributes;
use crate::door::Resource;
use crate::expressions::Rights;
use crate::metrics::{VALIDATING_POLICY_CHECKS, VALIDATING_POLICY_SECONDS};
use crate::plugin::{Indifferent, Plugin};

/// The maximum length of an audit annotation's value.
const MAX_ANNOTATION_BYTES: usize = 10 * 1024;

/// The plugin of ValidatingAdmissionPolicies.
pub struct ValidatingAdmissionPolicy(Policies);

impl ValidatingAdmissionPolicy {
    pub fn new() -> ValidatingAdmissionPolicy {
        ValidatingAdmissionPolicy(Policies::new("validatingadmissionpolicies", "validatingadmissionpolicybindings"))
    }
}

/// A validation that does not hold, or could not be evaluated.
struct Denied {
    message: String,
    reason: String,
    index: usize,
    /// The metrics' label of the error.
    error_type: &'static str,
}

/// The audit annotations of a policy: the distinct values of each key, over all bindings and parameters.
type Notes = BTreeMap<String, Vec<String>>;

/// The result of evaluating a policy with one set of parameters.
#[derive(Default)]
struct Evaluation {
    /// The number of evaluated validations.
    evaluated: usize,
    denied: Vec<Denied>,
    annotations: Vec<(String, String)>,
}

impl Plugin for ValidatingAdmissionPolicy {
    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        let policies = self.0.current(a.target.core.objects);
        if policies.is_empty() || is_exempt(a) {
            return Box::pin(Indifferent);
        }
        Box::pin(async move {
            let mut first = None;
            for bound in policies.iter() {
                let resource = match matches(&bound.policy.constraints, a).await {
                    Ok(None) => continue,
                    Ok(Some(resource)) => resource,
                    Err(status) if bound.policy.fail_open => {
                        tracing::warn!(policy = bound.policy.name, why = status.message, "a policy was passed over");
                        continue;
                    }
                    Err(status) => return Err(denial(a, &bound.policy, None, &failure(status.message))),
                };
                let mut notes = Notes::default();
                for binding in &bound.bindings {
                    let refused = bound_policy(a, &bound.policy, binding, &resource, &mut notes).await?;
                    first = first.or(refused);
                }
                for (key, values) in notes {
                    a.target.context.annotate(&format!("{}/{key}", bound.policy.name), &values.join(", "));
                }
            }
            first.map_or(Ok(()), Err)
        })
    }
}

fn failure(message: String) -> Denied {
    Denied { message, reason: String::new(), index: 0, error_type: "invalid_error" }
}

/// Evaluates a policy under one of its bindings, and returns its refusal, if any.
async fn bound_policy(
    a: &Attributes<'_>,
    policy: &Policy,
    binding: &Binding,
    resource: &Arc<dyn Resource>,
    notes: &mut Notes,
) -> Result<Option<Status>, Status> {
    let refuse = |why: String| match policy.fail_open {
        true => None,
        false => Some(denial(a, policy, Some(binding), &failure(format!("failed to configure binding: {why}")))),
    };
    if let Some(constraints) = &binding.constraints {
        match matches(constraints, a).await {
            Ok(None) => return Ok(None),
            Ok(Some(_)) => {}
            Err(status) => return Ok(refuse(status.message)),
        }
    }
    let params = match params(policy, binding, a).await {
        Ok(params) => params,
        Err(why) => return Ok(refuse(why)),
    };
    let mut input = input(a, resource).await?;
    let rights = Rights::new(a, &**resource);
    let mut refusal = None;
    for one in params {
        input.params = one;
        let began = Instant::now();
        let evaluation = rights.settled(|| evaluate(policy, &input, &rights)).await;
        count(a, policy, binding, &evaluation, began);
        for (key, value) in evaluation.annotations {
            let values = notes.entry(key).or_default();
            if !values.contains(&value) {
                values.push(value);
            }
        }
        for denied in &evaluation.denied {
            let refused = act(a, policy, binding, denied);
            refusal = refusal.or(refused);
        }
    }
    Ok(refusal)
}

/// Counts the validations of an evaluation: those that hold, and those that do not once for each action.
fn count(a: &Attributes<'_>, policy: &Policy, binding: &Binding, evaluation: &Evaluation, began: Instant) {
    let each = began.elapsed() / u32::try_from(evaluation.evaluated.max(1)).unwrap_or(u32::MAX);
    let one = |action: &str, error_type: &str| {
        let labels = [action, error_type, &policy.name, &binding.name];
        a.target.core.metrics.series(&VALIDATING_POLICY_CHECKS, &labels).add(1.0);
        a.target.core.metrics.series(&VALIDATING_POLICY_SECONDS, &labels).observe(each.as_secs_f64());
    };
    (evaluation.denied.len()..evaluation.evaluated).for_each(|_| one("allow", "no_error"));
    for denied in &evaluation.denied {
        binding.actions.iter().for_each(|action| one(&action.to_lowercase(), denied.error_type));
    }
}

/// Takes the binding's actions for a failed validation.
fn act(a: &Attributes<'_>, policy: &Policy, binding: &Binding, denied: &Denied) -> Option<Status> {
    let has = |action: &str| binding.actions.iter().any(|enabled| enabled == action);
    let policy_name = &policy.name;
    let binding_name = &binding.name;
    let message = &denied.message;
    if has("Audit") {
        let note = json!([{ "message": message, "policy": policy_name, "binding": binding_name,
                            "expressionIndex": denied.index, "validationActions": binding.actions }]);
        a.target.context.annotate("validation.policy.admission.k8s.io/validation_failure", &note.to_string());
    }
    if has("Warn") {
        a.target.context.warn(format!(
            "Validation failed for ValidatingAdmissionPolicy '{policy_name}' with binding '{binding_name}': {message}"
        ));
    }
    has("Deny").then(|| denial(a, policy, Some(binding), denied))
}

/// Returns the answer to a refused write.
fn denial(a: &Attributes<'_>, policy: &Policy, binding: Option<&Binding>, denied: &Denied) -> Status {
    let name = &policy.name;
    let message = match binding {
        Some(binding) => format!(
            "ValidatingAdmissionPolicy '{name}' with binding '{}' denied request: {}",
            binding.name, denied.message
        ),
        None => format!("ValidatingAdmissionPolicy '{name}' denied request: {}", denied.message),
    };
    let mut status = a.forbidden(&message);
    (status.reason, status.code) = match denied.reason.as_str() {
        "Forbidden" => ("Forbidden".to_owned(), 403),
        "Unauthorized" => ("Unauthorized".to_owned(), 401),
        "RequestEntityTooLarge" => ("RequestEntityTooLarge".to_owned(), 413),
        _ => ("Invalid".to_owned(), 422),
    };
    if let Some(details) = &mut status.details {
        details.causes.push(Cause { reason: String::new(), message, field: String::new() });
    }
    status
}

/// Evaluates a policy. Pure except for the checks of the authorizer.
fn evaluate<'a>(policy: &'a Policy, input: &'a Input, rights: &'a Rights<'a>) -> Evaluation {
    let scope = Scope::new(input, rights, &policy.variables);
    let mut evaluation = Evaluation::default();
    let fail = |evaluation: &mut Evaluation, index: usize, message: String| {
        if !policy.fail_open {
            evaluation.denied.push(Denied { index, ..failure(message) });
        }
    };
    match conditions_hold(policy, &scope) {
        Ok(true) => {}
        Ok(false) => return evaluation,
        Err(message) => {
            fail(&mut evaluation, 0, message);
            return evaluation;
        }
    }
    evaluation.evaluated = policy.validations.len();
    let mut budget = RUNTIME_BUDGET;
    for (index, validation) in policy.validations.iter().enumerate() {
        let value = match &validation.compiled {
            Ok(program) => scope
                .eval(program, &mut budget)
                .map_err(|error| format!("expression '{}' resulted in error: {error}", validation.expression)),
            Err(error) => Err(error.clone()),
        };
        match value {
            Ok(Cel::Bool(true)) => {}
            Ok(_) => {
                let message = message(validation, &scope, &mut budget);
                let reason = validation.reason.clone();
                evaluation.denied.push(Denied { message, reason, index, error_type: "no_error" });
            }
            Err(message) => fail(&mut evaluation, index, message),
        }
    }
    let mut budget = RUNTIME_BUDGET;
    for (key, compiled) in &policy.annotations {
        let Ok(program) = compiled else { continue };
        match scope.eval(program, &mut budget) {
            Ok(Cel::String(value)) if !value.trim().is_empty() => {
                evaluation.annotations.push((key.clone(), shortened(value.trim())));
            }
            Ok(_) => {}
            Err(error) => fail(&mut evaluation, 0, format!("audit annotation {}: {error}", quote(key))),
        }
    }
    evaluation
}

fn shortened(value: &str) -> String {
    let mut end = value.len().min(MAX_ANNOTATION_BYTES);
    while !value.is_char_boundary(end) {
        end -= 1;
    }
    value[..end].to_owned()
}

/// Returns the message of a validation that does not hold.
fn message(validation: &Validation, scope: &Scope<'_>, budget: &mut u64) -> String {
    let expression = validation.message_expression.as_ref().and_then(|compiled| compiled.as_ref().ok());
    let evaluated = expression.and_then(|program| scope.eval(program, budget).ok());
    if let Some(message) = evaluated.as_ref().and_then(Cel::as_str).and_then(corten_structural::valid_message) {
        return message;
    }
    match validation.message.trim() {
        "" => format!("failed expression: {}", validation.expression.trim()),
        message => message.to_owned(),
    }
}
