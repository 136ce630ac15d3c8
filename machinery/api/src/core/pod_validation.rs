//! The rules of a pod and of a pod template: the list of checks, and the checks too small for a file.

use std::collections::BTreeSet;

use corten_meta::field::{FieldError, Path};
use corten_meta::{Value, names};

use super::container_validation::{
    Pod, validate_containers, validate_ephemeral_containers, validate_image_of_pod, validate_init_containers,
};
use super::profile_annotations::validate_agreement;
use super::resource_validation::{Of, validate_pod_resources, validate_resources};
use super::scheduling_validation::validate_topology_spread;
use super::security_validation::{
    containers, validate_host_process, validate_host_users, validate_os, validate_pod_security,
    validate_profile_annotations,
};
use super::volume_source::Holder;
use super::volume_validation::validate_volumes;
use crate::check::{At, Errors};
use crate::rules;
use crate::validation::{labels, legacy_ip};

/// The annotation of a mirror pod, which mirrors a static pod of the node's kubelet.
pub(super) const MIRROR: &str = "kubernetes.io/config.mirror";

/// Validates a pod, independent of its old state.
pub(super) fn validate_pod(pod: &Value) -> Errors {
    let pod = At::object(pod);
    let metadata = pod.get("metadata");
    let spec = pod.get("spec");
    let mut errors = Errors::new();
    validate_annotations(&metadata.get("annotations"), &spec, &mut errors);
    validate_pod_spec(&spec, Some(&metadata), &mut errors);
    if spec.get("serviceAccountName").is_empty() {
        validate_no_tokens(&spec, &mut errors);
    }
    for list in ["containers", "initContainers"] {
        spec.get(list).each(&mut errors, validate_image_of_pod);
    }
    errors
}

/// Validates the fields that a new pod may not have.
pub(super) fn validate_pod_create(pod: &Value) -> Errors {
    let pod = At::object(pod);
    let spec = pod.get("spec");
    let mut errors = Errors::new();
    if !spec.get("ephemeralContainers").is_empty() {
        errors.push(spec.get("ephemeralContainers").forbidden("cannot be set on create"));
    }
    if !spec.get("nodeName").is_empty() && !spec.get("schedulingGates").is_empty() {
        errors.push(spec.get("nodeName").forbidden("cannot be set until all schedulingGates have been cleared"));
    }
    validate_agreement(&pod.get("metadata").get("annotations"), &spec, &mut errors);
    errors
}

/// Validates the labels and annotations of a template.
pub(crate) fn validate_template_metadata(template: &Value, path: &Path) -> Errors {
    let template = At::new(template, path);
    let mut errors = labels(template.get("metadata").get("labels").value, &path.child("labels"));
    let annotations = template.get("metadata").get("annotations").with(path.child("annotations"));
    errors.extend(crate::kind::objectmeta::validate_annotations(annotations.value, &annotations.path));
    validate_annotations(&annotations, &template.get("spec"), &mut errors);
    errors
}

/// Validates a template at a path: its labels, annotations and spec.
pub(crate) fn validate_template(template: &Value, path: &Path) -> Errors {
    let mut errors = validate_template_metadata(template, path);
    let template = At::new(template, path);
    let spec = template.get("spec");
    validate_pod_spec(&spec, None, &mut errors);
    validate_agreement(&template.get("metadata").get("annotations"), &spec, &mut errors);
    if !spec.get("ephemeralContainers").is_empty() {
        let detail = "ephemeral containers not allowed in pod template";
        errors.push(spec.get("ephemeralContainers").forbidden(detail));
    }
    errors
}

/// Validates the spec, in upstream's order of checks. `metadata` is the pod's, if it is one.
fn validate_pod_spec(spec: &At<'_>, metadata: Option<&At<'_>>, errors: &mut Errors) {
    let holder = if metadata.is_some() { Holder::Pod } else { Holder::Template };
    let pod_name = metadata.map_or("", |m| m.get("name").text());
    if !spec.get("terminationGracePeriodSeconds").is_set() {
        errors.push(spec.get("terminationGracePeriodSeconds").required(""));
    }
    let pod = Pod {
        volumes: validate_volumes(&spec.get("volumes"), holder, pod_name, errors),
        claims: validate_claims(&spec.get("resourceClaims"), metadata, errors),
        grace: spec.get("terminationGracePeriodSeconds").number(),
        restart_policy: spec.get("restartPolicy").text(),
        host_users: spec.get("hostUsers").value != &Value::Bool(false),
    };
    validate_containers(spec, &pod, errors);
    validate_init_containers(spec, &pod, errors);
    validate_ephemeral_containers(spec, &pod, errors);
    validate_pod_resources(spec, &pod.claims, errors);
    validate_host_network(spec, holder, errors);
    rules::check(".core.v1.PodSpec/policies", spec, errors);
    validate_pod_security(spec, errors);
    rules::check(".core.v1.PodSpec/affinity", spec, errors);
    validate_dns_config(spec, errors);
    rules::check(".core.v1.PodSpec/gates", spec, errors);
    validate_topology_spread(&spec.get("topologySpreadConstraints"), errors);
    validate_host_process(spec, errors);
    validate_host_users(spec, errors);
    validate_host_name(spec, errors);
    rules::check(".core.v1.PodSpec/names", spec, errors);
    validate_os(spec, errors);
    validate_file_keys(spec, errors);
}

/// Validates the known annotations of a pod.
pub(super) fn validate_annotations(annotations: &At<'_>, spec: &At<'_>, errors: &mut Errors) {
    const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
    if let Some(value) = annotations.value.get(MIRROR)
        && spec.get("nodeName").is_empty()
    {
        let detail = "must set spec.nodeName if mirror pod annotation is set";
        errors.push(FieldError::invalid(&annotations.path.key(MIRROR), value.clone(), detail));
    }
    if let Some(cost) = annotations.value.get(DELETION_COST).and_then(Value::as_str) {
        // A number without a plus sign and leading zeros.
        let digits = cost.strip_prefix('-').unwrap_or(cost);
        let plain = cost == "0" || (!digits.starts_with('0') && !digits.starts_with('+'));
        if !plain || cost.parse::<i32>().is_err() {
            errors.push(FieldError::invalid(&annotations.path.key(DELETION_COST), cost, "must be a 32bit integer"));
        }
    }
    validate_profile_annotations(annotations, spec, errors);
}

/// Validates that a pod without a service account projects no token.
fn validate_no_tokens(spec: &At<'_>, errors: &mut Errors) {
    for volume in spec.get("volumes").items() {
        for source in volume.get("projected").get("sources").items() {
            source.get("serviceAccountToken").when_object(errors, |at, e| {
                e.push(at.forbidden("must not be specified when serviceAccountName is not set"));
            });
        }
    }
}

/// Validates the resource claims of a pod; returns the names by which its containers refer to them.
fn validate_claims<'a>(claims: &At<'a>, metadata: Option<&At<'_>>, errors: &mut Errors) -> BTreeSet<&'a str> {
    let mirror = metadata.is_some_and(|m| m.get("annotations").value.get(MIRROR).is_some());
    let mut seen = BTreeSet::new();
    for claim in claims.items() {
        if mirror {
            let detail = "static pods do not support resource claims";
            errors.push(FieldError::forbidden(&Path::root(""), detail));
            continue;
        }
        let name = claim.get("name");
        if !name.must(errors) {
        } else if seen.insert(name.text()) {
            name.follows(errors, names::dns1123_label);
        } else {
            errors.push(name.duplicate());
        }
        rules::check(".core.v1.PodResourceClaim", &claim, errors);
    }
    claims.items().map(|claim| claim.get("name").text()).filter(|name| !name.is_empty()).collect()
}

/// Validates that container ports equal host ports on the host's network.
fn validate_host_network(spec: &At<'_>, holder: Holder, errors: &mut Errors) {
    if !spec.get("hostNetwork").is_true() {
        return;
    }
    for port in spec.get("containers").items().flat_map(|c| c.get("ports").items()) {
        let host = port.get("hostPort").number().unwrap_or_default();
        let own = port.get("containerPort").number();
        if (holder == Holder::Pod || host != 0) && Some(host) != own {
            let detail = "must match `containerPort` when `hostNetwork` is true";
            errors.push(FieldError::invalid(&port.path.child("hostPort"), host, detail));
        }
    }
}

fn validate_dns_config(spec: &At<'_>, errors: &mut Errors) {
    const MAX_SERVERS: usize = 3;
    const MAX_SEARCHES: usize = 32;
    const MAX_SEARCH_TEXT: usize = 2048;
    let config = spec.get("dnsConfig");
    let servers = config.get("nameservers");
    let searches = config.get("searches");
    if spec.get("dnsPolicy").text() == "None" {
        if !config.is_object() {
            errors.push(config.required("must provide `dnsConfig` when `dnsPolicy` is None"));
            return;
        }
        if !servers.must_say(errors, "must provide at least one DNS nameserver when `dnsPolicy` is None") {
            return;
        }
    }
    if servers.len() > MAX_SERVERS {
        errors.push(servers.invalid(format!("must not have more than {MAX_SERVERS} nameservers")));
    }
    servers.each(errors, |server, e| legacy_ip(server, &[], e));
    if searches.len() > MAX_SEARCHES {
        errors.push(searches.invalid(format!("must not have more than {MAX_SEARCHES} search paths")));
    }
    if searches.texts().collect::<Vec<_>>().join(" ").len() > MAX_SEARCH_TEXT {
        let detail =
            format!("must not have more than {MAX_SEARCH_TEXT} characters (including spaces) in the search list");
        errors.push(searches.invalid(detail));
    }
    for search in searches.items().filter(|search| search.text() != ".") {
        let domain = search.text().strip_suffix('.').unwrap_or(search.text());
        let messages = search_domain(domain).into_iter();
        errors.extend(messages.map(|m| FieldError::invalid(&search.path, domain, m)));
    }
    for option in config.get("options").items().filter(|option| option.get("name").is_empty()) {
        errors.push(option.required("must not be empty"));
    }
}

/// Validates a subdomain whose labels may also have underscores, as service names in DNS do.
fn search_domain(text: &str) -> Vec<String> {
    const PATTERN: &str = "_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*";
    let mut messages = Vec::new();
    if text.len() > 253 {
        messages.push(names::max_length_message(253));
    }
    let character = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let label = |part: &str| {
        let part = part.strip_prefix('_').unwrap_or(part);
        let end = |b: Option<u8>| b.is_some_and(character);
        let inner = |b: u8| character(b) || b == b'-' || b == b'_';
        end(part.bytes().next()) && end(part.bytes().last()) && part.bytes().all(inner)
    };
    if !text.split('.').all(label) {
        let message = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must start and end with an alphanumeric character";
        messages.push(names::regex_message(message, PATTERN, &["example.com"]));
    }
    messages
}

fn validate_host_name(spec: &At<'_>, errors: &mut Errors) {
    let name = spec.get("hostnameOverride");
    if !name.is_set() {
        return;
    }
    for (field, value) in [("setHostnameAsFQDN", "setHostnameAsFQDN"), ("hostNetwork", "hostNetwork")] {
        if spec.get(field).is_true() {
            errors.push(name.forbidden(format!("may not be specified when {value} is true")));
        }
    }
    name.at_most_bytes(errors, 64);
    name.follows_also_empty(errors, names::dns1123_subdomain);
}

/// Validates the pod's overhead.
pub(crate) fn validate_overhead(overhead: &At<'_>, errors: &mut Errors) {
    if overhead.is_object() {
        let limits = serde_json::json!({"limits": overhead.value});
        validate_resources(&At::new(&limits, &overhead.path), Of::Container, &BTreeSet::new(), errors);
    }
}

/// Validates that variables from a file use a volume that another container fills.
fn validate_file_keys(spec: &At<'_>, errors: &mut Errors) {
    for variable in containers(spec).flat_map(|c| c.get("env").items()) {
        let reference = variable.get("valueFrom").get("fileKeyRef");
        if !reference.is_object() {
            continue;
        }
        let name = reference.get("volumeName");
        match spec.get("volumes").items().find(|v| v.get("name").text() == name.text()) {
            None => errors.push(FieldError::not_found(&name.path, name.text())),
            Some(volume) if !volume.get("emptyDir").is_object() => {
                errors.push(name.invalid("referenced volume must be of type emptyDir"));
            }
            Some(_) => {}
        }
    }
}
