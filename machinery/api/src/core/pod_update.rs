//! The rules of changes of a pod: by an update, of its status, of its ephemeral containers, of its resources.

use std::collections::{BTreeMap, BTreeSet};

use corten_meta::field::{FieldError, Path};
use corten_meta::names::address::parse_sloppy;
use corten_meta::quote::quote;
use corten_meta::{Value, names};

use super::pod_status;
use super::pod_validation::{MIRROR, validate_annotations};
use crate::cells::{list, text};
use crate::check::{At, Errors};
use crate::defaulting::items;
use crate::rules;
use crate::schema::changed_fields;
use crate::validation::legacy_ip;

/// Validates an update: only images, a shorter deadline, more tolerations, fewer scheduling gates.
pub(super) fn validate_pod_update(new: &Value, old: &Value) -> Errors {
    const UPDATABLE: &str = "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,\
                             `spec.tolerations` (only additions to existing tolerations),\
                             `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";
    let new = At::object(new);
    let old = At::object(old);
    let spec = new.get("spec");
    let before = old.get("spec");
    let mut errors = Errors::new();
    validate_annotation_update(&new, &old, &mut errors);
    for field in ["containers", "initContainers"] {
        if spec.get(field).len() != before.get(field).len() {
            errors.push(spec.get(field).forbidden("pod updates may not add or remove containers"));
            return errors;
        }
        for image in spec.get(field).items().map(|container| container.get("image")) {
            if image.must(&mut errors) && image.text().trim() != image.text() {
                errors.push(image.invalid("must not have leading or trailing whitespace"));
            }
        }
    }
    if !validate_deadline(&spec, &before, &mut errors) {
        return errors;
    }
    only_added_tolerations(&spec, &before, &mut errors);
    only_removed_gates(&spec, &before, &mut errors);
    if spec.value == before.value {
        return errors;
    }
    if !before.get("schedulingGates").is_empty() {
        validate_gated(&spec, &before, &mut errors);
    }
    let wanted = comparable(spec.value, before.value);
    const SPEC: &str = "io.k8s.api.core.v1.PodSpec";
    if !crate::schema::equal(SPEC, &wanted, before.value) {
        let changes = changed_fields(SPEC, before.value, &wanted);
        errors.push(spec.forbidden(format!("pod updates may not change fields other than {UPDATABLE}\n{changes}")));
    }
    errors
}

/// Reports whether two values are equal: an absent value, null and an empty list are, and so are false and absent where
/// upstream's struct does not distinguish them.
pub(crate) fn equal(a: &Value, b: &Value) -> bool {
    const PLAIN_SWITCHES: [&str; 7] = ["hostNetwork", "hostPID", "hostIPC", "stdin", "stdinOnce", "tty", "readOnly"];
    let nothing = |name: &str, value: &Value| match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Bool(false) => PLAIN_SWITCHES.contains(&name),
        _ => false,
    };
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            let missing = |from: &serde_json::Map<String, Value>, name: &String, value: &Value| {
                !from.contains_key(name) && !nothing(name, value)
            };
            let differs = |(name, value): (&String, &Value)| match b.get(name) {
                Some(other) => !(equal(value, other) || nothing(name, value) && nothing(name, other)),
                None => !nothing(name, value),
            };
            !a.iter().any(differs) && !b.iter().any(|(name, value)| missing(a, name, value))
        }
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        (a, b) => a == b,
    }
}

/// Reports whether the deadline leaves anything else to validate.
fn validate_deadline(spec: &At<'_>, before: &At<'_>, errors: &mut Errors) -> bool {
    let deadline = spec.get("activeDeadlineSeconds");
    match (deadline.number(), before.get("activeDeadlineSeconds").number()) {
        (Some(now), _) if !(0..=i64::from(i32::MAX)).contains(&now) => {
            deadline.within(errors, 0, i64::from(i32::MAX));
            return false;
        }
        (Some(now), Some(then)) if now > then => {
            errors.push(deadline.invalid("must be less than or equal to previous value"));
            return false;
        }
        (None, Some(_)) => errors.push(deadline.invalid("must not update from a positive integer to nil value")),
        _ => {}
    }
    true
}

/// Returns the new spec with the mutable fields of the old one.
fn comparable(new: &Value, old: &Value) -> Value {
    let mut spec = new.clone();
    for field in ["containers", "initContainers"] {
        for (at, container) in items(&mut spec, &format!("/{field}")).enumerate() {
            container["image"] = old[field][at]["image"].clone();
            // Existing limits, also empty ones, make requests.
            let resources = &mut container["resources"];
            if resources["limits"].is_object() && resources["requests"].is_null() {
                resources["requests"] = Value::from(serde_json::Map::new());
            }
        }
    }
    // Upstream rebuilds these lists, and drops empty ones.
    if let Some(fields) = spec.as_object_mut() {
        fields.retain(|name, value| {
            !["containers", "initContainers"].contains(&name.as_str()) || *value != Value::Array(Vec::new())
        });
    }
    let mut restore = |field: &str| match (old.get(field), spec.as_object_mut()) {
        (Some(value), Some(object)) => {
            object.insert(field.to_string(), value.clone());
        }
        (None, Some(object)) => {
            object.remove(field);
        }
        _ => {}
    };
    for field in ["activeDeadlineSeconds", "schedulingGates", "tolerations"] {
        restore(field);
    }
    let negative = old["terminationGracePeriodSeconds"].as_i64().is_some_and(|s| s < 0);
    if negative && new["terminationGracePeriodSeconds"] == 1 {
        restore("terminationGracePeriodSeconds");
    }
    if !list(old, "/schedulingGates").is_empty() {
        // Equal selectors are shown as they came.
        let selector = |spec: &Value| spec["nodeSelector"].as_object().cloned().unwrap_or_default();
        if selector(new) != selector(old) {
            restore("nodeSelector");
        }
        let affinity = |spec: &Value| spec["affinity"]["nodeAffinity"].clone();
        if !equal(&affinity(new), &affinity(old)) {
            restore_node_affinity(&mut spec, old);
        }
    }
    spec
}

/// Restores the node affinity, which may be narrowed while a pod is gated; the other affinities stay.
fn restore_node_affinity(spec: &mut Value, old: &Value) {
    let before = old.pointer("/affinity/nodeAffinity").filter(|a| a.is_object()).cloned();
    let mut affinity = spec["affinity"].as_object().cloned().unwrap_or_default();
    match before {
        Some(before) => affinity.insert("nodeAffinity".to_string(), before),
        None => affinity.remove("nodeAffinity"),
    };
    let Some(object) = spec.as_object_mut() else { return };
    if affinity.is_empty() && !old["affinity"].is_object() {
        object.remove("affinity");
    } else {
        object.insert("affinity".to_string(), affinity.into());
    }
}

/// Validates that a gated pod is only narrowed to fewer nodes.
fn validate_gated(spec: &At<'_>, before: &At<'_>, errors: &mut Errors) {
    let selector = spec.get("nodeSelector");
    let kept = before.get("nodeSelector").entries().all(|(key, old)| selector.value.get(key) == Some(old.value));
    if !kept {
        let detail = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
        errors.push(selector.invalid(detail));
    }
    const TERMS: &str = "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    let now = list(spec.value, TERMS);
    let then = list(before.value, TERMS);
    let path = spec.get("affinity").get("nodeAffinity").get("requiredDuringSchedulingIgnoredDuringExecution");
    let path = path.path.child("nodeSelectorTerms");
    if !then.is_empty() && then.len() != now.len() {
        let detail = "no additions/deletions to non-empty NodeSelectorTerms list are allowed";
        let shown = spec.value.pointer(TERMS).cloned().unwrap_or_default();
        errors.push(FieldError::invalid(&path, shown, detail));
        return;
    }
    for (at, (now, then)) in now.iter().zip(then).enumerate() {
        let fields = ["/matchExpressions", "/matchFields"];
        let starts = fields.iter().all(|field| {
            let now = list(now, field);
            let then = list(then, field);
            now.len() >= then.len() && now.iter().zip(then).all(|(now, then)| equal(now, then))
        });
        let filled = |term: &Value| fields.iter().any(|field| !list(term, field).is_empty());
        if !starts || (!filled(then) && filled(now)) {
            let detail = "only additions are allowed (no mutations or deletions)";
            errors.push(FieldError::invalid(&path.index(at), now.clone(), detail));
        }
    }
}

fn only_added_tolerations(spec: &At<'_>, before: &At<'_>, errors: &mut Errors) {
    let bare = |toleration: &Value| {
        let mut fields = toleration.as_object().cloned().unwrap_or_default();
        fields.remove("tolerationSeconds");
        fields
    };
    let now: Vec<_> = spec.get("tolerations").items().map(|t| bare(t.value)).collect();
    if !before.get("tolerations").items().all(|t| now.contains(&bare(t.value))) {
        let detail = "existing toleration can not be modified except its tolerationSeconds";
        errors.push(spec.get("tolerations").forbidden(detail));
        return;
    }
    // Upstream validates them once more beside the change.
    rules::check(".core.v1.PodSpec/tolerations", spec, errors);
}

fn only_removed_gates(spec: &At<'_>, before: &At<'_>, errors: &mut Errors) {
    let old: Vec<&str> = before.get("schedulingGates").items().map(|g| g.get("name").text()).collect();
    let names: Vec<At<'_>> = spec.get("schedulingGates").items().map(|gate| gate.get("name")).collect();
    for (at, name) in names.iter().enumerate() {
        // Of gates with the same name, upstream uses the last.
        let is_last = names[at + 1..].iter().all(|later| later.text() != name.text());
        if is_last && !old.contains(&name.text()) {
            let detail = format!("only deletion is allowed, but found new scheduling gate '{}'", name.text());
            errors.push(name.forbidden(detail));
        }
    }
}

/// Validates that two annotations do not change, and validates all known ones again.
fn validate_annotation_update(new: &At<'_>, old: &At<'_>, errors: &mut Errors) {
    let nothing = serde_json::Map::new();
    let [now, then] = [new, old].map(|object| object.get("metadata").get("annotations").value);
    let now = now.as_object().unwrap_or(&nothing);
    let then = then.as_object().unwrap_or(&nothing);
    let path = Path::root("metadata").child("annotations");
    let mut forbid = |key: &str, profile: &str, mirror: &str| {
        if key.starts_with("container.apparmor.security.beta.kubernetes.io/") {
            errors.push(FieldError::forbidden(&path.key(key), format!("may not {profile} AppArmor annotations")));
        }
        if key == MIRROR {
            errors.push(FieldError::forbidden(&path.key(key), format!("may not {mirror} mirror pod annotation")));
        }
    };
    for (key, _) in then.iter().filter(|(key, value)| now.get(*key) != Some(*value)) {
        forbid(key, "remove or update", "remove or update");
    }
    for (key, _) in now.iter().filter(|(key, _)| !then.contains_key(*key)) {
        forbid(key, "add", "add");
    }
    validate_annotations(&new.get("metadata").get("annotations"), &new.get("spec"), errors);
}

/// Validates a write of status. Unchanged fields are skipped: their errors are older. To get the errors of all fields,
/// a caller passes the same object twice.
pub(super) fn validate_pod_status_update(new: &Value, old: &Value) -> Errors {
    let is_same_object = std::ptr::eq(new, old);
    let changed = |field: &str| is_same_object || new["status"].get(field) != old["status"].get(field);
    let new = At::object(new);
    let old = At::object(old);
    let status = new.get("status");
    let before = old.get("status");
    let mut errors = Errors::new();
    validate_annotation_update(&new, &old, &mut errors);
    if changed("conditions") {
        validate_conditions(&status.get("conditions"), &mut errors);
    }
    let [node, node_before] = [&new, &old].map(|pod| pod.value["spec"]["nodeName"].as_str().unwrap_or_default());
    if node != node_before {
        errors.push(status.get("nodeName").forbidden("may not be changed directly"));
    }
    let nominated = status.get("nominatedNodeName");
    if nominated.text() != before.value["nominatedNodeName"].as_str().unwrap_or_default() && !nominated.is_empty() {
        nominated.follows(&mut errors, names::dns1123_subdomain);
        if !node_before.is_empty() {
            errors.push(nominated.forbidden("may not be set on pods that are already bound to a node"));
        }
    }
    if status.value["observedGeneration"].as_i64().is_some_and(|n| n < 0) {
        errors.push(status.get("observedGeneration").invalid("must be a non-negative integer"));
    }
    if changed("qosClass") && !before.get("qosClass").is_empty() && !status.get("qosClass").is_empty() {
        status.get("qosClass").unchanged(&mut errors, &before.get("qosClass"));
    }
    let containers = ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"];
    for field in containers.into_iter().filter(|field| changed(field)) {
        validate_transitions(&status.get(field), &before.get(field), &old.get("spec"), &mut errors);
    }
    if changed("resourceClaimStatuses") {
        validate_claim_statuses(&new, &mut errors);
    }
    if changed("extendedResourceClaimStatus") {
        pod_status::validate_extended_claim(&new, &mut errors);
    }
    if ["podIPs", "hostIPs", "hostIP"].into_iter().any(changed) {
        validate_all_addresses(&status, &before, &mut errors);
    }
    if containers.into_iter().any(changed) {
        pod_status::validate_containers(&new, &mut errors);
    }
    errors
}

fn validate_all_addresses(status: &At<'_>, before: &At<'_>, errors: &mut Errors) {
    validate_addresses(status, before, "podIPs", errors);
    if let Some(first) = status.get("hostIPs").items().next()
        && first.get("ip").text() != status.get("hostIP").text()
    {
        errors.push(first.get("ip").invalid("must be equal to `hostIP`"));
    }
    validate_addresses(status, before, "hostIPs", errors);
}

fn validate_conditions(conditions: &At<'_>, errors: &mut Errors) {
    for condition in conditions.items() {
        if condition.get("observedGeneration").number().is_some_and(|n| n < 0) {
            errors.push(condition.get("observedGeneration").invalid("must be a non-negative integer"));
        }
        let kind = condition.get("type").with(condition.path.child("Type"));
        if !["PodScheduled", "Ready", "Initialized"].contains(&kind.text()) {
            kind.follows_also_empty(errors, names::qualified_name);
        }
    }
}

/// Validates that a terminated container stays so, unless it may restart.
fn validate_transitions(now: &At<'_>, then: &At<'_>, spec: &At<'_>, errors: &mut Errors) {
    if then.is_empty() {
        return;
    }
    let restarts: BTreeMap<&str, bool> = ["containers", "initContainers"]
        .iter()
        .flat_map(|list| spec.get(list).items().map(move |c| (*list, c)))
        .map(|(list, c)| (c.get("name").text(), may_restart(&c, list == "initContainers", spec)))
        .collect();
    for old in then.items() {
        let name = old.get("name").text();
        let code = old.get("state").get("terminated").get("exitCode").number();
        if !old.get("state").get("terminated").is_object() {
            continue;
        }
        let container = restarts.get(name).copied().unwrap_or_default();
        let on_failure = spec.get("restartPolicy").text() == "OnFailure" && code.unwrap_or_default() != 0;
        let known = restarts.contains_key(name);
        let alive = |s: &At<'_>| s.get("name").text() == name && !s.get("state").get("terminated").is_object();
        let restarts = container || (known && on_failure);
        if !restarts && now.items().any(|s| alive(&s)) {
            errors.push(old.get("state").forbidden("may not be transitioned to non-terminated state"));
        }
    }
}

/// Reports whether a terminated container may run again with any exit code.
fn may_restart(container: &At<'_>, init: bool, spec: &At<'_>) -> bool {
    let own = container.get("restartPolicy");
    let rules = !container.get("restartPolicyRules").is_empty();
    let policy = if own.is_set() { own.text() } else { spec.get("restartPolicy").text() };
    // If a pod's rules may restart all of its containers, each may run again.
    let all = super::security_validation::containers(spec)
        .flat_map(|c| c.get("restartPolicyRules").items())
        .any(|rule| rule.get("action").text() == "RestartAllContainers");
    all || rules || policy == "Always" || (own.text() == "OnFailure" && !init)
}

fn validate_claim_statuses(pod: &At<'_>, errors: &mut Errors) {
    let claims = pod.get("spec").get("resourceClaims");
    let known: Vec<&str> = claims.items().map(|c| c.get("name").text()).collect();
    let mut seen = Vec::new();
    for status in pod.get("status").get("resourceClaimStatuses").items() {
        let name = status.get("name");
        if !known.contains(&name.text()) {
            errors.push(name.invalid("must match the name of an entry in `spec.resourceClaims`"));
        }
        if seen.contains(&name.text()) {
            errors.push(name.duplicate());
        }
        seen.push(name.text());
        status.get("resourceClaimName").follows_when_set(errors, names::dns1123_subdomain);
    }
}

fn validate_addresses(status: &At<'_>, before: &At<'_>, field: &str, errors: &mut Errors) {
    let addresses = status.get(field);
    let old: Vec<&str> = before.get(field).items().map(|a| a.get("ip").text()).collect();
    for address in addresses.items() {
        legacy_ip(&address.get("ip").with(address.path.clone()), &old, errors);
    }
    let ips: Vec<&str> = addresses.items().map(|a| a.get("ip").text()).collect();
    if ips.len() < 2 {
        return;
    }
    let read = ips.iter().map(|ip| parse_sloppy(ip));
    if let Some(at) = read.clone().position(|ip| ip.is_none()) {
        let detail = format!("failed to check for dual stack with error:invalid IP[{at}]: {}", ips[at]);
        errors.push(FieldError::internal(&addresses.path, detail));
    }
    let is_pair = ips.len() == 2 && read.flatten().map(|ip| ip.is_ipv6()).collect::<BTreeSet<_>>().len() == 2;
    if !is_pair {
        errors.push(addresses.invalid("may specify no more than one IP for each IP family"));
    }
}

/// Validates that ephemeral containers are only added, never changed or removed.
pub(super) fn validate_ephemeral_update(new: &Value, old: &Value) -> Errors {
    if old.pointer("/metadata/annotations").is_some_and(|a| a.get(MIRROR).is_some()) {
        let detail = "static pods do not support ephemeral containers";
        return vec![FieldError::forbidden(&Path::default(), detail)];
    }
    let path = Path::root("spec").child("ephemeralContainers");
    let mut errors = Errors::new();
    for before in list(old, "/spec/ephemeralContainers") {
        let name = text(before, "/name");
        let detail = match list(new, "/spec/ephemeralContainers").iter().find(|c| text(c, "/name") == name) {
            None => format!("existing ephemeral containers {} may not be removed\n", quote(name)),
            Some(now) if !equal(now, before) => {
                let changes = changed_fields("io.k8s.api.core.v1.EphemeralContainer", before, now);
                format!("existing ephemeral containers {} may not be changed\n{changes}", quote(name))
            }
            Some(_) => continue,
        };
        errors.push(FieldError::forbidden(&path, detail));
    }
    errors
}
