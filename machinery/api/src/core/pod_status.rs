//! The rules of the device and user fields of a pod's status.
//!
//! The transitions of container states are in `pod_update.rs`.

use corten_meta::names;

use crate::check::{At, Errors};
use crate::rules;

/// The most bytes of a message about the health of a device.
const MAX_MESSAGE: usize = 1024;

/// Validates the claim for the extended resources of a pod.
pub(super) fn validate_extended_claim(pod: &At<'_>, errors: &mut Errors) {
    let spec = pod.get("spec");
    let status = pod.get("status").get("extendedResourceClaimStatus");
    if !status.is_set() {
        return;
    }
    let mappings = status.get("requestMappings");
    if mappings.is_empty() {
        errors.push(mappings.required("at least one request mapping is required"));
    }
    let mut seen = Vec::new();
    for mapping in mappings.items() {
        let [container, resource, request] =
            ["containerName", "resourceName", "requestName"].map(|field| mapping.get(field));
        let mut containers = ["containers", "initContainers"].into_iter().flat_map(|list| spec.get(list).items());
        match containers.find(|c| c.get("name").text() == container.text()) {
            Some(found) if found.get("resources").get("requests").value.get(resource.text()).is_none() => {
                let detail = "must match the extended resource name of an entry in \
                              spec.initContainers.resources.requests or spec.containers.resources.requests";
                errors.push(resource.invalid(detail));
            }
            Some(_) => {}
            None => {
                let detail = "must match the name of an entry in spec.initContainers.name or spec.containers.name";
                errors.push(container.invalid(detail));
            }
        }
        // Upstream leaves the list out of this path.
        let named = request.with(status.path.child("requestName"));
        named.follows_also_empty(errors, names::dns1123_label);
        let key = [container.text(), resource.text(), request.text()];
        if seen.contains(&key) {
            errors.extend([&container, &resource, &request].map(At::duplicate));
        }
        seen.push(key);
    }
    status.get("resourceClaimName").must_follow(errors, names::dns1123_subdomain);
}

/// Validates users and the health of devices, of every list of container statuses.
pub(super) fn validate_containers(pod: &At<'_>, errors: &mut Errors) {
    let spec = pod.get("spec");
    let status = pod.get("status");
    let lists = ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"];
    let is_windows = spec.get("os").get("name").text() == "windows";
    for container in lists.iter().flat_map(|list| status.get(list).items()) {
        let linux = container.get("user").get("linux");
        if linux.is_set() && is_windows {
            errors.push(linux.forbidden("cannot be set for a windows pod"));
        } else if linux.is_set() {
            validate_user(&linux, errors);
        }
    }
    for (list, containers) in [("containerStatuses", "containers"), ("initContainerStatuses", "initContainers")] {
        for container in status.get(list).items() {
            let name = container.get("name").text();
            let own = spec.get(containers).items().find(|c| c.get("name").text() == name);
            container
                .get("allocatedResourcesStatus")
                .each(errors, |status, e| validate_health(status, own.as_ref(), e));
        }
    }
    for container in status.get("ephemeralContainerStatuses").items() {
        let statuses = container.get("allocatedResourcesStatus");
        if !statuses.is_empty() {
            errors.push(statuses.forbidden("must not be specified in container status"));
        }
    }
}

fn validate_user(user: &At<'_>, errors: &mut Errors) {
    rules::check(".core.v1.LinuxContainerUser", user, errors);
}

/// Validates the health of devices; skips a container that the pod does not have.
fn validate_health(status: &At<'_>, container: Option<&At<'_>>, errors: &mut Errors) {
    if let Some(container) = container {
        let name = status.get("name");
        let resources = container.get("resources");
        let claim = |c: At<'_>| match c.get("request").text() {
            "" => format!("claim:{}", c.get("name").text()),
            request => format!("claim:{}/{request}", c.get("name").text()),
        };
        let (is_known, detail) = if name.text().starts_with("claim:") {
            let detail = "must match one of the container's resource claims in a format \
                          'claim:<claimName>/<request>' or 'claim:<claimName>' if request is empty";
            (resources.get("claims").items().any(|c| claim(c) == name.text()), detail)
        } else {
            let requests = resources.get("requests");
            (requests.value.get(name.text()).is_some(), "must match one of the container's resource requests")
        };
        if !is_known {
            errors.push(name.invalid(detail));
        }
    }
    let mut seen = Vec::new();
    for resource in status.get("resources").items() {
        let health = resource.get("health");
        if !["Healthy", "Unhealthy", "Unknown"].contains(&health.text()) {
            errors.push(health.not_supported(&["Healthy", "Unhealthy", "Unknown"]));
        }
        let message = resource.get("message");
        if message.is_set() && message.is_empty() {
            errors.push(message.required("must be non-empty if specified"));
        }
        message.at_most_bytes(errors, MAX_MESSAGE);
        let id = resource.get("resourceID");
        if seen.contains(&id.text()) {
            errors.push(id.duplicate());
        }
        seen.push(id.text());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn device_statuses_fit_the_pod() {
        let container = json!({"name": "c", "resources": {"requests": {"ex.io/gpu": "1"}, "claims": [{"name": "a", "request": "r"}]}});
        let gpu = |health: &str| json!({"name": "ex.io/gpu", "resources": [{"resourceID": "0", "health": health}]});
        let claim = |name: &str| json!({"name": name, "resources": []});
        for (list, input, expected) in [
            ("containerStatuses", gpu("Healthy"), vec![]),
            ("containerStatuses", claim("claim:a/r"), vec![]),
            (
                "containerStatuses",
                claim("claim:a"),
                vec!["status.containerStatuses[0].allocatedResourcesStatus[0].name"],
            ),
            (
                "containerStatuses",
                gpu("Odd"),
                vec!["status.containerStatuses[0].allocatedResourcesStatus[0].resources[0].health"],
            ),
            (
                "ephemeralContainerStatuses",
                gpu("Healthy"),
                vec!["status.ephemeralContainerStatuses[0].allocatedResourcesStatus"],
            ),
        ] {
            let pod = json!({"spec": {"containers": [container]},
                             "status": {list: [{"name": "c", "allocatedResourcesStatus": [input]}]}});
            let mut errors = Errors::new();
            validate_containers(&At::object(&pod), &mut errors);
            let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
            assert_eq!(fields, expected, "{pod}");
        }
    }

    #[test]
    fn the_claim_of_extended_resources_maps_the_pods_requests() {
        let pod = |mapping: serde_json::Value| {
            json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"ex.io/gpu": "1"}}}]},
                   "status": {"extendedResourceClaimStatus": {"resourceClaimName": "x", "requestMappings": mapping}}})
        };
        let one = json!({"containerName": "c", "resourceName": "ex.io/gpu", "requestName": "r"});
        let other = json!({"containerName": "d", "resourceName": "ex.io/gpu", "requestName": "r"});
        for (mapping, expected) in [(json!([one]), 0), (json!([]), 1), (json!([other]), 1), (json!([one, one]), 3)] {
            let mut errors = Errors::new();
            validate_extended_claim(&At::object(&pod(mapping.clone())), &mut errors);
            assert_eq!(errors.len(), expected, "{mapping} {errors:?}");
        }
    }
}
