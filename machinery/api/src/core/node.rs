//! Node.

use std::collections::BTreeSet;

use corten_meta::field::{FieldError, Path};
use corten_meta::quote::quote;
use corten_meta::{Value, names};
use jiff::Timestamp;

use crate::cells::{age, boolean, list, name, or, text};
use crate::check::{At, Errors};
use crate::core::resource_validation::validate_quantity;
use crate::defaulting::{absent, put};
use crate::kind::{Behaviour, Kind};
use crate::validation::legacy_cidr;

struct Node;

pub fn kind() -> Kind {
    Kind::new("", "v1", "Node", "nodes")
        .cluster()
        .short(&["no"])
        .proxy("NodeProxyOptions")
        .status()
        .status_on_create()
        .stored_at("/registry/minions")
        .selectable(&["spec.unschedulable"])
        .table(
            "Name, Status, Roles, Age, Version; Internal-IP, External-IP, OS-Image, Kernel-Version, Container-Runtime",
        )
        .behaviour(Node)
}

impl Behaviour for Node {
    fn default(&self, node: &mut Value) {
        if absent(node, "/status/allocatable")
            && let Some(capacity) = node.pointer("/status/capacity").filter(|c| c.is_object()).cloned()
        {
            put(node, "/status/allocatable", capacity);
        }
        mirror_pod_cidr(node);
    }

    fn validate(&self, node: &Value) -> Vec<FieldError> {
        let node = At::object(node);
        let mut errors = Errors::new();
        validate_taints(&node.get("spec").get("taints"), &mut errors);
        validate_quantities(&node.get("status"), &mut errors);
        // Upstream names it under the metadata.
        let swap = node.get("status").get("nodeInfo").get("swap").get("capacity");
        if let Some(capacity) = swap.number().filter(|capacity| *capacity <= 0) {
            let path = Path::root("metadata").child("nodeSwapStatus").child("capacity");
            errors.push(FieldError::invalid(&path, capacity, "must be greater than zero"));
        }
        validate_features(&node.get("status").get("declaredFeatures"), &mut errors);
        let ranges = node.get("spec").get("podCIDRs");
        ranges.each(&mut errors, |range, e| legacy_cidr(range, &[], e));
        let families: BTreeSet<bool> = ranges.texts().map(|range| range.contains(':')).collect();
        let unread = ranges.texts().enumerate().find(|(_, range)| names::address::parse_cidr(range).is_none());
        if let Some((at, range)) = unread.filter(|_| ranges.len() > 1) {
            let why = format!("error:invalid CIDR[{at}]: <nil> (invalid CIDR address: {range})");
            let detail = format!("invalid PodCIDRs. failed to check with dual stack with {why}");
            errors.push(FieldError::internal(&ranges.path, detail));
        }
        if ranges.len() > 2 || (ranges.len() == 2 && (families.len() == 1 || unread.is_some())) {
            errors.push(ranges.invalid("may specify no more than one CIDR for each IP family"));
        }
        errors
    }

    /// Validates that the pod CIDRs of a node and its provider ID are set once.
    fn validate_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        let node = At::object(new);
        let before = At::object(old);
        let mut errors = Errors::new();
        // Upstream validates much of a node once more beside the change.
        validate_quantities(&node.get("status"), &mut errors);
        validate_features(&node.get("status").get("declaredFeatures"), &mut errors);
        node.get("status").get("addresses").unique(&mut errors);
        for (field, shown) in [("podCIDRs", "podCIDR"), ("providerID", "providerID")] {
            let now = node.get("spec").get(field);
            let then = before.get("spec").get(field);
            let changed = match now.len() == then.len() {
                true if then.value.is_array() => {
                    now.texts().zip(then.texts()).filter(|(now, then)| now != then).count()
                }
                _ => usize::from(!then.is_empty() && now.value != then.value),
            };
            let detail = format!("node updates may not change {shown} except from \"\" to valid");
            errors.extend(std::iter::repeat_n(now.forbidden(detail), changed));
        }
        validate_taints(&node.get("spec").get("taints"), &mut errors);
        let id = node.get("spec").get("externalID");
        let before = before.get("spec").get("externalID");
        if id.text() != before.text() {
            errors.push(id.forbidden("may not be updated"));
        }
        errors
    }

    fn validate_status_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        self.validate_update(new, old)
    }

    fn warnings(&self, node: &Value, _old: Option<&Value>) -> Vec<String> {
        let is_given = !text(node, "/spec/externalID").is_empty();
        let why = "spec.externalID: this field is deprecated, and is unused by Kubernetes";
        let mut out: Vec<String> = is_given.then(|| why.to_string()).into_iter().collect();
        let networks = At::object(node).get("spec").get("podCIDRs");
        networks.items().for_each(|network| crate::address_warnings::cidr(&network, &mut out));
        out
    }

    fn cells(&self, node: &Value, now: Timestamp) -> Vec<Value> {
        let info = |field: &str| text(node, &format!("/status/nodeInfo/{field}"));
        let mut kernel = or(info("kernelVersion"), "<unknown>").to_string();
        if !info("architecture").is_empty() {
            kernel.push_str(&format!(" ({})", info("architecture")));
        }
        vec![
            name(node),
            status(node).into(),
            roles(node).into(),
            age(node, now),
            info("kubeletVersion").into(),
            address(node, "InternalIP").into(),
            address(node, "ExternalIP").into(),
            or(info("osImage"), "<unknown>").into(),
            kernel.into(),
            or(info("containerRuntimeVersion"), "<unknown>").into(),
        ]
    }

    fn fields(&self, node: &Value, field: &str) -> Option<String> {
        (field == "spec.unschedulable").then(|| boolean(node, "/spec/unschedulable").to_string())
    }
}

/// Keeps the pod CIDR and the list of pod CIDRs consistent.
fn mirror_pod_cidr(node: &mut Value) {
    let one = text(node, "/spec/podCIDR").to_string();
    let first = text(node, "/spec/podCIDRs/0").to_string();
    if one.is_empty() && !first.is_empty() {
        put(node, "/spec/podCIDR", first);
    } else if one != first {
        put(node, "/spec/podCIDRs", vec![one]);
    }
}

/// Validates taints, which are identified by key and effect. Upstream names them under the metadata.
fn validate_taints(taints: &At<'_>, errors: &mut Errors) {
    let path = Path::root("metadata").child("taints");
    let mut seen = BTreeSet::new();
    for taint in taints.with(path).items() {
        let key = taint.get("key");
        let value = taint.get("value");
        let effect = taint.get("effect");
        key.follows_also_empty(errors, names::qualified_name);
        let messages = names::label_value(value.text());
        if !messages.is_empty() {
            errors.push(value.invalid(messages.join(";")));
        }
        effect.must_be_one_of(errors, &["NoSchedule", "PreferNoSchedule", "NoExecute"]);
        if !seen.insert((key.text(), effect.text())) {
            let mut error = taint.duplicate();
            error.detail = "taints must be unique by key and effect pair".to_string();
            errors.push(error);
        }
    }
}

/// Validates the declared features of a node: names in order, each once.
fn validate_features(features: &At<'_>, errors: &mut Errors) {
    let is_name = |part: &str| {
        part.bytes().all(|b| b.is_ascii_alphanumeric()) && part.starts_with(|c: char| c.is_ascii_alphabetic())
    };
    let mut before: Option<&str> = None;
    for feature in features.items() {
        // The order is checked at the first of two, so its error comes first.
        match before.map(|before| before.cmp(feature.value.as_str().unwrap_or_default())) {
            Some(std::cmp::Ordering::Equal) => errors.push(feature.duplicate()),
            Some(std::cmp::Ordering::Greater) => errors.push(feature.invalid("list must be sorted alphabetically")),
            _ => {}
        }
        let name = feature.value.as_str().unwrap_or_default();
        if name.len() > 253 {
            errors.push(
                feature.invalid(format!("invalid feature name {}: must be no more than 253 characters", quote(name))),
            );
        } else if !name.starts_with(|c: char| c.is_ascii_uppercase()) || !name.split('/').all(is_name) {
            errors.push(feature.invalid(format!(
                "invalid feature name {}: must start with an UpperCamelCase segment, with subsequent segments separated \
                 by '/' (e.g., MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters and slashes",
                quote(name)
            )));
        }
        before = feature.value.as_str();
    }
}

fn validate_quantities(status: &At<'_>, errors: &mut Errors) {
    for field in ["capacity", "allocatable"].map(|field| status.get(field)) {
        for (resource, quantity) in field.entries() {
            validate_quantity(resource, &quantity.with(field.path.child(resource)), errors);
        }
    }
}

fn status(node: &Value) -> String {
    let ready = list(node, "/status/conditions").iter().rfind(|c| text(c, "/type") == "Ready");
    let mut status = match ready {
        Some(c) if text(c, "/status") == "True" => "Ready".to_string(),
        Some(_) => "NotReady".to_string(),
        None => "Unknown".to_string(),
    };
    if boolean(node, "/spec/unschedulable") {
        status.push_str(",SchedulingDisabled");
    }
    status
}

fn roles(node: &Value) -> String {
    let labels = corten_meta::labels(node);
    let roles: BTreeSet<&str> = labels
        .iter()
        .filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => Some(role),
            None if key == "kubernetes.io/role" => Some(value.as_str()),
            None => None,
        })
        .filter(|role| !role.is_empty())
        .collect();
    if roles.is_empty() { "<none>".to_string() } else { roles.into_iter().collect::<Vec<_>>().join(",") }
}

fn address<'a>(node: &'a Value, kind: &str) -> &'a str {
    let found = list(node, "/status/addresses").iter().find(|a| text(a, "/type") == kind);
    found.map_or("<none>", |a| text(a, "/address"))
}
