//! `eviction`: a deletion that respects PodDisruptionBudgets.

use corten_admission::Operation;
use corten_meta::{FieldError, GroupKind, GroupResource, Path, Selector, Status, Value};
use http::StatusCode;
use serde_json::json;

use super::binding::set_condition;
use crate::body::Reply;
use crate::decode::{Expected, object};
use crate::response;
use crate::verbs::delete::{DeleteOptions, check_preconditions, delete_object};
use crate::verbs::guaranteed_update::guaranteed_update;
use crate::write::Scope;
use crate::write::check_namespace;

const EVICTION: Expected<'static> = Expected {
    api_version: "policy/v1",
    kind: "Eviction",
    schema: "io.k8s.api.policy.v1.Eviction",
    custom: None,
    older: Some("policy/v1beta1"),
    behaviour: None,
    is_merged: false,
};

/// The number of disrupted pods above which the disruption controller is not keeping up.
const MAX_DISRUPTED_PODS: usize = 2000;

/// Evicts the pod if its budget allows it.
pub async fn create(target: &Scope<'_>, bytes: &bytes::Bytes) -> Result<Reply, Status> {
    let mut eviction = object(target.context, bytes, &EVICTION)?;
    check_namespace(target, &mut eviction)?;
    let name = corten_meta::name(&eviction);
    if name != target.name {
        return Err(Status::bad_request("name in URL does not match name in Eviction object"));
    }
    check_ignored(target, &eviction["deleteOptions"])?;
    check_dry_run(target, &eviction["deleteOptions"]["dryRun"])?;
    let eviction = target.admission.pass(target.for_admission(), Operation::Create, eviction).await?;
    let options = DeleteOptions::from_value(target, eviction.get("deleteOptions").unwrap_or(&json!({})))?;
    let options = DeleteOptions { dry_run: options.dry_run || target.context.dry_run(), ..options };
    let pod = target.core.registry.get(target.resource, target.namespace, target.name).await?.value();
    if !is_exempt(&pod) {
        spend_budget(target, &pod, options.dry_run).await?;
    }
    if !options.dry_run {
        let disrupted = json!({ "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
                                "message": "Eviction API: evicting" });
        let disrupt = |pod: &mut Value| {
            check_preconditions(target, &options, pod)?;
            set_condition(pod, disrupted.clone(), target.context.now);
            Ok(())
        };
        guaranteed_update(target, &disrupt).await?;
    }
    // The condition raised the resourceVersion, so only a precondition on the uid can still hold.
    let version = options.resource_version.clone().filter(|_| options.dry_run);
    let options = DeleteOptions { resource_version: version, admitted: true, ..options };
    delete_object(target, &options).await?;
    Ok(response::value(target.context.accept, StatusCode::CREATED, &Status::success(201)))
}

/// Refuses to ignore read errors: an eviction has to read the pod.
fn check_ignored(target: &Scope<'_>, options: &Value) -> Result<(), Status> {
    const FIELD: &str = "ignoreStoreReadErrorWithClusterBreakingPotential";
    if options[FIELD] != true {
        return Ok(());
    }
    let why = "can not be set for pod eviction, try after removing the option";
    let error = FieldError::invalid(&Path::root("deleteOptions").child(FIELD), true, why);
    let kind = GroupKind { group: "policy".to_owned(), kind: EVICTION.kind.to_owned() };
    Err(Status::invalid(&kind, target.name, vec![error]))
}

/// Checks that query and body request the same dry run.
fn check_dry_run(target: &Scope<'_>, in_body: &Value) -> Result<(), Status> {
    let words: Vec<&str> =
        in_body.as_array().into_iter().flatten().map(|word| word.as_str().unwrap_or_default()).collect();
    if words.is_empty() || !target.context.dry_run() || words == ["All"] {
        return Ok(());
    }
    let given = words.join(" ");
    let message = format!("Non-matching dry-run options in request and content: [All] and [{given}]");
    Err(Status { code: 500, message, ..Status::default() })
}

/// Returns whether an eviction disrupts nothing: the pod does not run or is being deleted.
fn is_exempt(pod: &Value) -> bool {
    let phase = pod.pointer("/status/phase").and_then(Value::as_str).unwrap_or_default();
    matches!(phase, "Succeeded" | "Failed" | "Pending") || corten_meta::deletion_timestamp(pod).is_some()
}

/// Finds the budget of the pod and takes one disruption from it.
async fn spend_budget(target: &Scope<'_>, pod: &Value, dry_run: bool) -> Result<(), Status> {
    let core = target.core;
    core.registry.caches.fresh().await?;
    let labels = corten_meta::labels(pod);
    let budgets: Vec<String> = core
        .registry
        .cached_list("policy", "v1", "poddisruptionbudgets", target.namespace)
        .into_iter()
        .filter(|budget| {
            let selector = budget.value().pointer("/spec/selector").cloned().unwrap_or(Value::Null);
            selector.is_object() && Selector::from_label_selector(&selector).is_ok_and(|s| s.matches(&labels))
        })
        .map(|budget| budget.header.name.clone())
        .collect();
    let name = match budgets.as_slice() {
        [] => return Ok(()),
        [one] => one,
        _ => {
            let message =
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
            return Err(Status { code: 500, message: message.to_owned(), ..Status::default() });
        }
    };
    let resource = core.registry.required("policy", "v1", "poddisruptionbudgets")?;
    let budget = target.at(&resource, target.namespace, name);
    let pod_name = corten_meta::name(pod).to_owned();
    let ready = is_ready(pod);
    if dry_run {
        let current = core.registry.get(&resource, target.namespace, name).await?.value();
        return disrupt(target, &current, &pod_name, ready).map(|_| ());
    }
    let spend = |budget: &mut Value| {
        *budget = disrupt(target, budget, &pod_name, ready)?;
        Ok(())
    };
    guaranteed_update(&budget, &spend).await.map(drop)
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod.pointer("/status/conditions").and_then(Value::as_array);
    conditions.is_some_and(|list| list.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"))
}

/// Returns the budget with one disruption less, or 429.
fn disrupt(target: &Scope<'_>, budget: &Value, pod: &str, ready: bool) -> Result<Value, Status> {
    let number = |pointer: &str| budget.pointer(pointer).and_then(Value::as_i64).unwrap_or(0);
    let name = corten_meta::name(budget);
    let refused = |why: String, retry_after: i32| {
        let message = "Cannot evict pod as it would violate the pod's disruption budget.";
        let mut status = Status::too_many_requests(message, retry_after);
        let cause = corten_meta::Cause { reason: "DisruptionBudget".to_owned(), message: why, field: String::new() };
        status.details.get_or_insert_default().causes.push(cause);
        Err(status)
    };
    if !ready {
        let always = budget.pointer("/spec/unhealthyPodEvictionPolicy").and_then(Value::as_str) == Some("AlwaysAllow");
        let desired = number("/status/desiredHealthy");
        if always || (number("/status/currentHealthy") >= desired && desired > 0) {
            return Ok(budget.clone());
        }
    }
    if number("/status/observedGeneration") < corten_meta::generation(budget) {
        return refused(format!("The disruption budget {name} is still being processed by the server."), 10);
    }
    let disrupted = budget.pointer("/status/disruptedPods").and_then(Value::as_object).map_or(0, serde_json::Map::len);
    let allowed = number("/status/disruptionsAllowed");
    let forbidden = |why: &str| {
        let resource = GroupResource { group: "policy".to_owned(), resource: "poddisruptionbudget".to_owned() };
        Err(Status::forbidden(&resource, name, why))
    };
    if allowed < 0 {
        return forbidden("pdb disruptions allowed is negative");
    }
    if disrupted > MAX_DISRUPTED_PODS {
        return forbidden("DisruptedPods map too big - too many evictions not confirmed by PDB controller");
    }
    if allowed == 0 {
        // The time of the next allowed disruption is unknown, so the response has no Retry-After.
        return refused(why_none(budget), 0);
    }
    let mut new = budget.clone();
    corten_meta::set(&mut new, "/status/disruptionsAllowed", (allowed - 1).into());
    let key = pod.replace('~', "~0").replace('/', "~1");
    let now = corten_meta::time::rfc3339(target.context.now);
    if allowed == 1 {
        set_insufficient(&mut new, &now);
    }
    corten_meta::set(&mut new, &format!("/status/disruptedPods/{key}"), now.into());
    Ok(new)
}

/// The condition of whether a budget allows disruptions.
const ALLOWED: &str = "DisruptionAllowed";

/// Returns why a budget allows no disruption. A failed sync of the controller counts for more than its old numbers.
fn why_none(budget: &Value) -> String {
    let name = corten_meta::name(budget);
    let number = |pointer: &str| budget.pointer(pointer).and_then(Value::as_i64).unwrap_or(0);
    let desired = number("/status/desiredHealthy");
    let current = number("/status/currentHealthy");
    let conditions = budget.pointer("/status/conditions").and_then(Value::as_array);
    let condition = conditions.into_iter().flatten().find(|c| c["type"] == ALLOWED && c["status"] == "False");
    let text = |field: &str| condition.and_then(|c| c[field].as_str()).unwrap_or_default();
    let reason = text("reason");
    let message = text("message");
    let not_allowed = format!("The disruption budget {name} does not allow evicting pods currently");
    match message {
        message if reason == "SyncFailed" && !message.is_empty() => {
            format!("{not_allowed} because it failed sync: {message}")
        }
        _ if current <= desired => {
            format!("The disruption budget {name} needs {desired} healthy pods and has {current} currently")
        }
        "" => not_allowed,
        message => format!("{not_allowed} ({reason}): {message}"),
    }
}

/// Sets the condition of a budget whose last disruption is spent.
fn set_insufficient(budget: &mut Value, now: &str) {
    let observed = budget.pointer("/status/observedGeneration").cloned();
    let Some(status) = budget.get_mut("status").and_then(Value::as_object_mut) else { return };
    let conditions = status.entry("conditions").or_insert_with(|| json!([]));
    let Some(conditions) = conditions.as_array_mut() else { return };
    let at = conditions.iter().position(|c| c["type"] == ALLOWED);
    let since =
        at.map(|at| &conditions[at]).filter(|c| c["status"] == "False").map(|c| c["lastTransitionTime"].clone());
    let mut condition = json!({ "type": ALLOWED, "status": "False", "reason": "InsufficientPods", "message": "",
                                "lastTransitionTime": since.unwrap_or_else(|| now.into()) });
    if let Some(observed) = observed {
        condition["observedGeneration"] = observed;
    }
    match at {
        Some(at) => conditions[at] = condition,
        None => conditions.push(condition),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(reason: &str, current: i64) -> Value {
        json!({ "metadata": { "name": "b" }, "status": { "desiredHealthy": 2, "currentHealthy": current,
            "observedGeneration": 3, "conditions": [
            { "type": ALLOWED, "status": "False", "reason": reason, "message": "no scale", "lastTransitionTime": "t" } ] } })
    }

    #[test]
    fn a_budget_that_allows_nothing_has_a_reason() {
        let not_allowed = "The disruption budget b does not allow evicting pods currently";
        for (reason, current, wanted) in [
            ("SyncFailed", 1, format!("{not_allowed} because it failed sync: no scale")),
            ("Other", 1, "The disruption budget b needs 2 healthy pods and has 1 currently".to_owned()),
            ("Other", 3, format!("{not_allowed} (Other): no scale")),
        ] {
            assert_eq!(why_none(&budget(reason, current)), wanted);
        }
        let silent = json!({ "metadata": { "name": "b" }, "status": { "desiredHealthy": 1, "currentHealthy": 2 } });
        assert_eq!(why_none(&silent), not_allowed);
    }

    #[test]
    fn the_last_disruption_changes_the_condition() {
        let mut known = budget("Other", 3);
        set_insufficient(&mut known, "now");
        let condition = &known["status"]["conditions"][0];
        assert_eq!((&condition["reason"], &condition["lastTransitionTime"]), (&json!("InsufficientPods"), &json!("t")));
        let mut new = json!({ "status": {} });
        set_insufficient(&mut new, "now");
        assert_eq!(new["status"]["conditions"][0]["lastTransitionTime"], "now");
    }
}
