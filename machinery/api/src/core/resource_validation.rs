//! The rules of requests and limits, of a container, of a pod, and of a pod against its containers.

use std::collections::{BTreeMap, BTreeSet};

use corten_meta::field::FieldError;
use corten_meta::{Quantity, Value, names};

use crate::check::{At, Errors};

/// The known resources without a domain.
const STANDARD: [&str; 20] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "storage",
    "requests.storage",
    "services.nodeports",
    "services.loadbalancers",
];

/// The owner of the resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    Container,
    Pod,
}

pub(super) fn is_huge_page(resource: &str) -> bool {
    resource.starts_with("hugepages-")
}

/// Reports whether a resource is Kubernetes' own: without a domain, or in one of its own.
pub(crate) fn is_native(resource: &str) -> bool {
    !resource.contains('/') || resource.contains("kubernetes.io/")
}

/// Reports whether a resource can be overcommitted: extended resources and huge pages cannot.
pub(super) fn can_overcommit(resource: &str) -> bool {
    is_native(resource) && !is_huge_page(resource)
}

/// Reports whether a resource is counted in integers.
fn is_integer(resource: &str) -> bool {
    const COUNTED: [&str; 9] = [
        "pods",
        "resourcequotas",
        "services",
        "replicationcontrollers",
        "secrets",
        "configmaps",
        "persistentvolumeclaims",
        "services.nodeports",
        "services.loadbalancers",
    ];
    COUNTED.contains(&resource) || is_extended(resource)
}

/// Reports whether a resource has a domain that is not Kubernetes'.
pub(crate) fn is_extended(resource: &str) -> bool {
    !is_native(resource)
        && !resource.starts_with("requests.")
        && names::qualified_name(&format!("requests.{resource}")).is_empty()
}

/// Validates a name with a domain, or one that Kubernetes knows.
pub(crate) fn validate_resource_name(resource: &str, at: &At<'_>, errors: &mut Errors) -> bool {
    let before = errors.len();
    let messages = names::qualified_name(resource).into_iter();
    errors.extend(messages.map(|m| FieldError::invalid(&at.path, resource, m)));
    let standard =
        STANDARD.contains(&resource) || is_huge_page(resource) || resource.starts_with("requests.hugepages-");
    if errors.len() == before && !resource.contains('/') && !standard {
        let detail = "must be a standard resource type or fully qualified";
        errors.push(FieldError::invalid(&at.path, resource, detail));
    }
    errors.len() == before
}

/// Validates a quantity that is not negative, and an integer where the resource is counted.
pub(crate) fn validate_quantity(resource: &str, at: &At<'_>, errors: &mut Errors) {
    let Some(quantity) = at.quantity() else { return };
    if quantity.sign() < 0 {
        let detail = "must be greater than or equal to 0";
        errors.push(FieldError::invalid(&at.path, quantity.to_string(), detail));
    }
    if is_integer(resource) && quantity.milli_value() % 1000 != 0 {
        errors.push(FieldError::invalid(&at.path, quantity.to_string(), "must be an integer"));
    }
}

/// Validates the name of a resource that a container may have.
pub(crate) fn validate_container_resource_name(at: &At<'_>, errors: &mut Errors) {
    validate_name_of(Of::Container, at.text(), at, errors);
}

pub(super) fn validate_name_of(of: Of, resource: &str, at: &At<'_>, errors: &mut Errors) {
    let good = validate_resource_name(resource, at, errors);
    match of {
        Of::Container => {
            let standard = ["cpu", "memory", "ephemeral-storage"].contains(&resource) || is_huge_page(resource);
            if !resource.contains('/') && !standard {
                let detail = "must be a standard resource for containers";
                errors.push(FieldError::invalid(&at.path, resource, detail).as_json());
            } else if !is_native(resource) && !is_extended(resource) {
                let detail = "doesn't follow extended resource name standard";
                errors.push(FieldError::invalid(&at.path, resource, detail));
            }
        }
        Of::Pod if good && !["cpu", "memory"].contains(&resource) && !is_huge_page(resource) => {
            errors.push(FieldError::not_supported(&at.path, resource, &["cpu", "hugepages-", "memory"]));
        }
        Of::Pod => {}
    }
}

/// Validates requests, limits and claims. `claims` are the names of the pod's claims.
pub(super) fn validate_resources(at: &At<'_>, of: Of, claims: &BTreeSet<&str>, errors: &mut Errors) {
    let limits = at.get("limits");
    let requests = at.get("requests");
    for (resource, quantity) in limits.entries() {
        validate_name_of(of, resource, &quantity, errors);
        validate_quantity(resource, &quantity, errors);
        validate_huge_pages(resource, &quantity, errors);
    }
    for (resource, quantity) in requests.entries() {
        validate_name_of(of, resource, &quantity, errors);
        validate_quantity(resource, &quantity, errors);
        validate_against_limit(resource, &quantity, &requests, &limits, errors);
        validate_huge_pages(resource, &quantity, errors);
    }
    let requested: Vec<&str> = limits.entries().chain(requests.entries()).map(|(resource, _)| resource).collect();
    if requested.iter().any(|r| is_huge_page(r)) && !requested.iter().any(|r| *r == "cpu" || *r == "memory") {
        errors.push(at.forbidden("HugePages require cpu or memory"));
    }
    validate_claims(&at.get("claims"), claims, errors);
}

fn validate_against_limit(resource: &str, quantity: &At<'_>, requests: &At<'_>, limits: &At<'_>, errors: &mut Errors) {
    let Some(request) = quantity.quantity() else { return };
    let overcommit = can_overcommit(resource);
    let invalid = |detail: String| FieldError::invalid(&requests.path, request.to_string(), detail);
    match limits.value.get(resource).and_then(crate::validation::quantity) {
        Some(limit) if !overcommit && request != limit => {
            errors.push(invalid(format!("must be equal to {resource} limit of {limit}")));
        }
        Some(limit) if request > limit => {
            errors.push(invalid(format!("must be less than or equal to {resource} limit of {limit}")));
        }
        None if !overcommit => {
            errors.push(limits.required("Limit must be set for non overcommitable resources"));
        }
        _ => {}
    }
}

/// Validates that huge pages are a multiple of their size.
fn validate_huge_pages(resource: &str, at: &At<'_>, errors: &mut Errors) {
    let Some(size) = resource.strip_prefix("hugepages-") else { return };
    let (Some(quantity), size) = (at.quantity(), Quantity::parse(size)) else { return };
    let is_multiple = size.is_ok_and(|s| s.value() > 0 && quantity.value() % s.value() == 0);
    if !is_multiple {
        let detail = format!("{quantity} is not positive integer multiple of {resource}");
        errors.push(FieldError::invalid(&at.path, quantity.to_string(), detail));
    }
}

fn validate_claims(claims: &At<'_>, known: &BTreeSet<&str>, errors: &mut Errors) {
    let mut seen: BTreeSet<String> = BTreeSet::new();
    for claim in claims.items() {
        let name = claim.get("name").text();
        let request = claim.get("request");
        if name.is_empty() {
            errors.push(claim.required(""));
            continue;
        }
        let key = if request.is_empty() { name.to_string() } else { format!("{name}/{}", request.text()) };
        let is_covered = request.is_empty() && seen.iter().any(|k| k.split_once('/').is_some_and(|(n, _)| n == name));
        if seen.contains(name) {
            errors.push(FieldError::duplicate(&claim.path, name));
        } else {
            request.follows(errors, names::dns1123_label);
            if is_covered || !seen.insert(key.clone()) {
                errors.push(FieldError::duplicate(&claim.path, key));
            }
        }
        if !known.contains(name) {
            let mut error = FieldError::not_found(&claim.path, name);
            error.detail = "must be one of the names in pod.spec.resourceClaims".to_string();
            match known.is_empty() {
                true => error.detail.push_str(" which is empty"),
                false => {
                    error.detail.push_str(": ");
                    error.detail.push_str(&known.iter().copied().collect::<Vec<_>>().join(", "));
                }
            }
            errors.push(error);
        }
    }
}

/// Validates that the resources of a pod are enough for its containers.
pub(super) fn validate_pod_resources(spec: &At<'_>, claims: &BTreeSet<&str>, errors: &mut Errors) {
    let resources = spec.get("resources");
    if !resources.is_object() {
        return;
    }
    if spec.get("os").get("name").text() == "windows" {
        errors.push(resources.forbidden("may not be set for a windows pod"));
        return;
    }
    if resources.get("claims").is_set() {
        errors.push(resources.get("claims").forbidden("claims may not be set for Resources at pod-level"));
    }
    validate_resources(&resources, Of::Pod, claims, errors);
    for (resource, sum) in aggregate(spec.value, "requests") {
        let own = resources.get("requests");
        let Some(request) = own.value.get(&resource).and_then(crate::validation::quantity) else { continue };
        if sum > request {
            let detail = format!("must be greater than or equal to aggregate container requests of {sum}");
            errors.push(FieldError::invalid(&own.path.key(&resource), request.to_string(), detail));
        }
    }
    for (resource, sum) in aggregate(spec.value, "limits").into_iter().filter(|(r, _)| is_huge_page(r)) {
        let limits = resources.get("limits");
        let Some(limit) = limits.value.get(&resource).and_then(crate::validation::quantity) else { continue };
        if sum > limit {
            let detail = format!("must be greater than or equal to aggregate container limits of {sum}");
            errors.push(FieldError::invalid(&limits.path.key(&resource), limit.to_string(), detail));
        }
    }
    validate_container_limits(spec, &resources, errors);
}

/// Validates that no container exceeds the pod.
fn validate_container_limits(spec: &At<'_>, resources: &At<'_>, errors: &mut Errors) {
    for (at, container) in spec.get("containers").items().enumerate() {
        for (resource, limit) in container.get("resources").get("limits").entries() {
            let pod_limit = resources.get("limits").value.get(resource).and_then(crate::validation::quantity);
            let (Some(limit), Some(pod_limit)) = (limit.quantity(), pod_limit) else { continue };
            if limit > pod_limit {
                let path = resources.path.child("containers").index(at).key(resource).child("limits");
                let detail = format!("must be less than or equal to pod limits of {pod_limit}");
                errors.push(FieldError::invalid(&path, limit.to_string(), detail));
            }
        }
    }
}

/// Returns the needs of all containers: those that run in parallel, or the largest init container with the sidecars
/// that started before it, whichever is more. A sum has the format of its first summand, a maximum that of the largest.
pub(crate) fn aggregate(spec: &Value, side: &str) -> BTreeMap<String, Quantity> {
    type ResourceList = BTreeMap<String, Quantity>;
    let quantities = |container: &Value| -> ResourceList {
        let map = container.pointer(&format!("/resources/{side}")).and_then(Value::as_object).into_iter().flatten();
        map.filter_map(|(name, quantity)| Some((name.clone(), crate::validation::quantity(quantity)?))).collect()
    };
    let add = |sum: &mut ResourceList, more: &ResourceList| {
        for (name, quantity) in more {
            match sum.get_mut(name) {
                Some(total) => *total += quantity,
                None => drop(sum.insert(name.clone(), quantity.clone())),
            }
        }
    };
    let raise = |top: &mut ResourceList, other: ResourceList| {
        for (name, quantity) in other {
            if top.get(&name).is_none_or(|before| quantity > *before) {
                top.insert(name, quantity);
            }
        }
    };
    let mut running = ResourceList::new();
    let mut sidecars = ResourceList::new();
    let mut peak = ResourceList::new();
    for container in crate::cells::list(spec, "/containers") {
        add(&mut running, &quantities(container));
    }
    for container in crate::cells::list(spec, "/initContainers") {
        let mut own = quantities(container);
        if container["restartPolicy"] == "Always" {
            add(&mut running, &own);
            add(&mut sidecars, &own);
            own = sidecars.clone();
        } else {
            add(&mut own, &sidecars);
        }
        raise(&mut peak, own);
    }
    raise(&mut running, peak);
    running
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A sum has the format of its first summand, a maximum that of the largest.
    #[test]
    fn quantities_are_added_up() {
        let with = |cpu: &str| json!({"resources": {"requests": {"cpu": cpu}}});
        let sidecar = json!({"restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}});
        for (containers, init, wanted) in [
            (json!([with("500m"), with("1")]), json!([]), "1500m"),
            (json!([with("1"), with("1Gi")]), json!([]), "1073741825"),
            (json!([with("1")]), json!([with("1Gi")]), "1Gi"),
            (json!([with("1")]), json!([sidecar, with("500m")]), "2"),
            (json!([with("1")]), json!([sidecar, with("3")]), "4"),
        ] {
            let sums = aggregate(&json!({"containers": containers, "initContainers": init}), "requests");
            assert_eq!(sums["cpu"].to_string(), wanted);
        }
    }
}
