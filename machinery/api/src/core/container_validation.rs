//! The rules of a container: those that regular, init and ephemeral containers share, and those of each.

use std::collections::BTreeSet;

use corten_meta::field::FieldError;

use super::env_validation::{validate_env, validate_env_from};
use super::mount_validation::{validate_devices, validate_mounts};
use super::probe_validation::validate_hooks;
use super::resource_validation::{Of, validate_resources};
use super::security_validation::validate_container_security;
use super::volume_validation::Volumes;
use crate::check::{At, Errors};
use crate::rules;

/// The fields of the pod that matter to its containers.
pub(super) struct Pod<'a> {
    pub volumes: Volumes<'a>,
    pub claims: BTreeSet<&'a str>,
    pub grace: Option<i64>,
    pub restart_policy: &'a str,
    pub host_users: bool,
}

pub(super) fn validate_containers(spec: &At<'_>, pod: &Pod<'_>, errors: &mut Errors) {
    let containers = spec.get("containers");
    if !containers.must(errors) {
        return;
    }
    let mut names = BTreeSet::new();
    let mut host_ports = BTreeSet::new();
    for container in containers.items() {
        validate_common(&container, pod, errors);
        let name = container.get("name");
        if !names.insert(name.text()) {
            errors.push(name.duplicate());
        }
        validate_hooks(&container, pod.grace, errors);
        validate_restart_rules(&container, errors);
    }
    for container in containers.items() {
        validate_host_ports(&container, &mut host_ports, errors);
    }
}

pub(super) fn validate_init_containers(spec: &At<'_>, pod: &Pod<'_>, errors: &mut Errors) {
    const ONLY_SIDECARS: &str = "may not be set for init containers without restartPolicy=Always";
    let mut names = container_names(spec, &["containers"]);
    for container in spec.get("initContainers").items() {
        validate_common(&container, pod, errors);
        validate_init_restart(&container, errors);
        let name = container.get("name");
        if names.contains(name.text()) {
            errors.push(name.duplicate());
        } else if !name.is_empty() {
            names.insert(name.text());
        }
        let mut own = BTreeSet::new();
        // Upstream validates each init container alone and calls it the first.
        validate_host_ports(&container.with(spec.path.child("initContainers").index(0)), &mut own, errors);
        let sidecar = container.get("restartPolicy").text() == "Always";
        if sidecar {
            validate_hooks(&container, pod.grace, errors);
            continue;
        }
        for field in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
            container.get(field).when_object(errors, |at, e| e.push(at.forbidden(ONLY_SIDECARS)));
        }
        for policy in container.get("resizePolicy").items().map(|p| p.get("restartPolicy")) {
            if policy.text() == "RestartContainer" {
                errors.push(policy.invalid("must not be set to 'RestartContainer' for non-sidecar initContainers"));
            }
        }
    }
}

/// Validates ephemeral containers: they have a name and an image, and no resources or probes.
pub(super) fn validate_ephemeral_containers(spec: &At<'_>, pod: &Pod<'_>, errors: &mut Errors) {
    const DETAIL: &str = "cannot be set for an Ephemeral Container";
    const FORBIDDEN: &[&str] = &[
        "ports",
        "resources",
        "resizePolicy",
        "restartPolicy",
        "restartPolicyRules",
        "livenessProbe",
        "readinessProbe",
        "startupProbe",
        "lifecycle",
    ];
    let others = container_names(spec, &["containers", "initContainers"]);
    let mut names = others.clone();
    for container in spec.get("ephemeralContainers").items() {
        validate_common(&container, pod, errors);
        validate_image_of_pod(&container, errors);
        let name = container.get("name");
        let target = container.get("targetContainerName");
        if !names.insert(name.text()) {
            errors.push(name.duplicate());
        }
        if !target.is_empty() && !others.contains(target.text()) {
            errors.push(FieldError::not_found(&target.path, target.text()));
        }
        for field in FORBIDDEN.iter().map(|field| container.get(field)) {
            // A field with an empty value is set; empty resources are not.
            let is_struct = field.path == container.path.child("resources");
            if field.is_set() && !(is_struct && field.is_empty()) {
                errors.push(field.forbidden(DETAIL));
            }
        }
        container.get("volumeMounts").each(errors, |mount, e| mount.forbids(e, &["subPath", "subPathExpr"], DETAIL));
    }
}

fn container_names<'a>(spec: &At<'a>, lists: &[&str]) -> BTreeSet<&'a str> {
    lists.iter().flat_map(|list| spec.get(list).items()).map(|c| c.get("name").text()).collect()
}

/// Validates the fields that regular, init and ephemeral containers share.
fn validate_common(container: &At<'_>, pod: &Pod<'_>, errors: &mut Errors) {
    rules::check(".core.v1.Container/common", container, errors);
    validate_env(&container.get("env"), errors);
    validate_env_from(&container.get("envFrom"), errors);
    validate_mounts(container, &pod.volumes, errors);
    validate_devices(container, &pod.volumes, errors);
    container.get("imagePullPolicy").must_be_one_of(errors, &["Always", "IfNotPresent", "Never"]);
    validate_resources(&container.get("resources"), Of::Container, &pod.claims, errors);
    validate_resize_policy(&container.get("resizePolicy"), pod.restart_policy, errors);
    validate_container_security(&container.get("securityContext"), pod.host_users, errors);
}

/// Validates the image of a pod, which must be exact; whitespace in a template's is tolerated.
pub(super) fn validate_image_of_pod(container: &At<'_>, errors: &mut Errors) {
    let image = container.get("image");
    if image.text().trim() != image.text() {
        errors.push(image.invalid("must not have leading or trailing whitespace"));
    }
}

/// Validates that no two ports of a pod use the same host port.
fn validate_host_ports(container: &At<'_>, taken: &mut BTreeSet<String>, errors: &mut Errors) {
    for port in container.get("ports").items() {
        let host = port.get("hostPort");
        let Some(number) = host.number().filter(|n| *n != 0) else { continue };
        let key = format!("{}/{}/{number}", port.get("protocol").text(), port.get("hostIP").text());
        if taken.contains(&key) {
            errors.push(FieldError::duplicate(&host.path, key));
        } else {
            taken.insert(key);
        }
    }
}

/// Validates the restart policy and rules of an init container; the rules only with a policy.
fn validate_init_restart(container: &At<'_>, errors: &mut Errors) {
    let policy = container.get("restartPolicy");
    if policy.is_set() {
        validate_restart_rules(container, errors);
    } else if !container.get("restartPolicyRules").is_empty() {
        errors.push(policy.required("must specify restartPolicy when restart rules are used"));
    }
}

/// Validates the restart rules, which act by exit code.
fn validate_restart_rules(container: &At<'_>, errors: &mut Errors) {
    let policy = container.get("restartPolicy");
    let rules = container.get("restartPolicyRules");
    if !policy.is_set() {
        if rules.is_empty() {
            return;
        }
        errors.push(policy.required("must specify restartPolicy when restart rules are used"));
    }
    rules::check(".core.v1.Container/restart", container, errors);
}

fn validate_resize_policy(policies: &At<'_>, restart_policy: &str, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for policy in policies.items() {
        // The errors below name the list: upstream leaves the index out.
        let resource = policy.get("resourceName");
        let restart = policy.get("restartPolicy");
        let resource = resource.with(policies.path.clone());
        let restart = restart.with(policies.path.clone());
        if !seen.insert(resource.text()) {
            errors.push(FieldError::duplicate(&policy.path, resource.text()));
        }
        resource.must_be_one_of(errors, &["cpu", "memory"]);
        restart.must_be_one_of(errors, &["NotRequired", "RestartContainer"]);
        if restart_policy == "Never" && restart.text() != "NotRequired" {
            errors.push(restart.invalid("must be 'NotRequired' when pod `restartPolicy` is 'Never'"));
        }
    }
}
