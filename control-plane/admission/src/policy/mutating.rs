//! MutatingAdmissionPolicy: expressions that change a write, by an apply configuration or by a JSON patch.
//!
//! Policies run one after the other. When one changes the object, earlier ones with the reinvocation policy IfNeeded
//! run once more (see `Reinvocation`).

use std::sync::Arc;
use std::time::Instant;

use corten_cel::value::to_json;
use corten_cel::{RUNTIME_BUDGET, Value as Cel};
use corten_managed_fields::{keep_managers, merge, type_of};
use corten_meta::{Status, Value};
use futures::future::BoxFuture;

use super::definition::{Binding, Form, Mutation, Policies, Policy};
use super::matching::{input, matches};
use super::params::params;
use super::scope::{Input, Scope};
use super::{conditions_hold, is_exempt};
use crate::attributes::Attributes;
use crate::door::Resource;
use crate::expressions::Rights;
use crate::metrics::{MUTATING_POLICY_CHECKS, MUTATING_POLICY_SECONDS};
use crate::operation::Operation;
use crate::plugin::{Indifferent, Plugin};

/// The plugin of MutatingAdmissionPolicies.
pub struct MutatingAdmissionPolicy(Policies);

const PLUGIN: &str = "MutatingAdmissionPolicy";

impl MutatingAdmissionPolicy {
    pub fn new() -> MutatingAdmissionPolicy {
        MutatingAdmissionPolicy(Policies::new("mutatingadmissionpolicies", "mutatingadmissionpolicybindings"))
    }
}

impl Plugin for MutatingAdmissionPolicy {
    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        let policies = self.0.current(a.target.core.objects);
        let writes = matches!(a.operation, Operation::Create | Operation::Update);
        if policies.is_empty() || is_exempt(a) || !writes {
            return Box::pin(Indifferent);
        }
        Box::pin(async move {
            a.reinvocation.begin(PLUGIN, &a.object);
            for bound in policies.iter() {
                for binding in &bound.bindings {
                    run(a, &bound.policy, binding).await?;
                }
            }
            a.reinvocation.end(PLUGIN, &a.object);
            Ok(())
        })
    }
}

/// Runs a policy under one of its bindings.
async fn run(a: &mut Attributes<'_>, policy: &Policy, binding: &Binding) -> Result<(), Status> {
    let id = format!("{}/{}", policy.name, binding.name);
    if a.reinvocation.again && !a.reinvocation.may_call_again(PLUGIN, &id) {
        return Ok(());
    }
    let before = a.object.clone();
    match bound_policy(a, policy, binding).await {
        Ok(()) => {}
        Err(why) if policy.fail_open => {
            tracing::warn!(policy = policy.name, why, "a policy could not be evaluated; going on without it");
            *a.object = before.clone();
        }
        Err(why) => return Err(denied(a, policy, binding, &why)),
    }
    let changed = *a.object != before;
    a.reinvocation.called(PLUGIN, policy.reinvoke.then_some(&id), changed);
    Ok(())
}

fn denied(a: &Attributes<'_>, policy: &Policy, binding: &Binding, why: &str) -> Status {
    let mut status =
        a.forbidden(format!("policy '{}' with binding '{}' denied request: {why}", policy.name, binding.name));
    (status.reason, status.code) = ("Invalid".to_owned(), 422);
    status
}

async fn bound_policy(a: &mut Attributes<'_>, policy: &Policy, binding: &Binding) -> Result<(), String> {
    let message = |status: Status| status.message;
    let Some(resource) = matches(&policy.constraints, a).await.map_err(message)? else { return Ok(()) };
    if let Some(constraints) = &binding.constraints
        && matches(constraints, a).await.map_err(message)?.is_none()
    {
        return Ok(());
    }
    for one in params(policy, binding, a).await? {
        for (index, mutation) in policy.mutations.iter().enumerate() {
            // Each mutation sees the changes of those before it.
            let mut input = input(a, &resource).await.map_err(message)?;
            input.params = one.clone();
            let rights = Rights::new(a, &*resource);
            let began = Instant::now();
            let mutated = rights.settled(|| mutate(policy, mutation, index == 0, &input, &rights, &*resource)).await;
            let error_type = if mutated.is_ok() { "no_error" } else { "invalid_error" };
            let labels = [error_type, &policy.name, &binding.name];
            a.target.core.metrics.series(&MUTATING_POLICY_CHECKS, &labels).add(1.0);
            a.target.core.metrics.series(&MUTATING_POLICY_SECONDS, &labels).observe(began.elapsed().as_secs_f64());
            let Some(object) = mutated? else { return Ok(()) };
            *a.object = read(a, &resource, object).await.map_err(message)?;
        }
    }
    Ok(())
}

/// Returns the object in the version of the request, with its defaults and with well-formed managed fields.
async fn read(a: &Attributes<'_>, resource: &Arc<dyn Resource>, object: Value) -> Result<Value, Status> {
    let own = &a.target.resource;
    let mut object = object;
    if resource.kind().api_version() != own.kind().api_version() {
        resource.kind().default(&mut object);
        object = resource.convert(object, own.kind()).await?;
    }
    own.kind().default(&mut object);
    if let Some(warning) = keep_managers(&mut object, &a.object) {
        a.target.context.warn(warning);
    }
    Ok(object)
}

/// Returns the mutated object; none if the policy does not match it.
fn mutate<'a>(
    policy: &'a Policy,
    mutation: &'a Mutation,
    first: bool,
    input: &'a Input,
    rights: &'a Rights<'a>,
    resource: &dyn Resource,
) -> Result<Option<Value>, String> {
    let scope = Scope::new(input, rights, &policy.variables);
    if first && !conditions_hold(policy, &scope)? {
        return Ok(None);
    }
    let program = mutation.compiled.as_ref().map_err(Clone::clone)?;
    let mut budget = RUNTIME_BUDGET;
    let value = scope.eval(program, &mut budget).map_err(|error| error.to_string())?;
    match mutation.form {
        Form::ApplyConfiguration => apply(&value, &input.object, resource).map(Some),
        Form::JsonPatch => {
            let mut object = input.object.clone();
            let patch = patch(&value)?;
            match corten_meta::patch::json_patch(&mut object, &patch) {
                // A patch whose test operation fails does not apply to this object, which stays as it is.
                Ok(()) | Err(corten_meta::Error::PatchTestFailed(_)) => Ok(Some(object)),
                Err(error) => Err(format!("JSON Patch: {error}")),
            }
        }
    }
}

/// Applies a configuration to the object.
fn apply(value: &Cel<'_>, object: &Value, resource: &dyn Resource) -> Result<Value, String> {
    let mut config = to_json(value).map_err(|error| format!("type mismatch: {error}"))?;
    if !config.is_object() {
        return Err("unsupported return type from ApplyConfiguration expression".to_owned());
    }
    for field in ["apiVersion", "kind"] {
        config[field] = object[field].clone();
    }
    Ok(merge(type_of(resource.kind()), object, &config))
}

/// Converts the operations of a patch to JSON; those without a value have none.
fn patch(value: &Cel<'_>) -> Result<Value, String> {
    let Cel::List(list) = value else {
        return Err("type mismatch: JSONPatchType.expression should evaluate to array".to_owned());
    };
    let mut operations = Vec::new();
    for item in list.iter() {
        let item = item.map_err(|error| error.to_string())?;
        if !matches!(&item, Cel::Message(message) if &*message.0 == "JSONPatch") {
            return Err("type mismatch: JSONPatchType.expression should evaluate to array of JSONPatch".to_owned());
        }
        operations.push(to_json(&item).map_err(|error| {
            format!("JSONPath valueExpression evaluated to a type that could not marshal to JSON: {error}")
        })?);
    }
    Ok(Value::Array(operations))
}
