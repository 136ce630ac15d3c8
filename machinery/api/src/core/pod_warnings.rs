//! Warnings for the author of a pod or of a pod template: valid fields that are likely mistakes.

use std::collections::BTreeMap;

use corten_meta::Value;
use corten_meta::field::Path;
use corten_meta::quote::quote;

use super::profile_annotations::{CONTAINER_SECCOMP, POD_SECCOMP, apparmor_warnings};
use super::volume_warnings::overlapping_files;
use crate::address_warnings;
use crate::check::At;

/// Labels of nodes that have newer names.
const OLD_NODE_LABELS: &[(&str, &str)] = &[
    ("beta.kubernetes.io/arch", "deprecated since v1.14; use \"kubernetes.io/arch\" instead"),
    ("beta.kubernetes.io/os", "deprecated since v1.14; use \"kubernetes.io/os\" instead"),
    (
        "failure-domain.beta.kubernetes.io/region",
        "deprecated since v1.17; use \"topology.kubernetes.io/region\" instead",
    ),
    ("failure-domain.beta.kubernetes.io/zone", "deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead"),
    ("beta.kubernetes.io/instance-type", "deprecated since v1.17; use \"node.kubernetes.io/instance-type\" instead"),
    ("app.kubernetes.io/created-by", "deprecated since v1.9"),
    ("scheduler.alpha.kubernetes.io/preferAvoidPods", "deprecated since v1.22; use Taints and Tolerations instead"),
    ("node-role.kubernetes.io/master", "use \"node-role.kubernetes.io/control-plane\" instead"),
];

/// Annotations without effect.
const OLD_ANNOTATIONS: &[(&str, &str)] = &[
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        "non-functional in v1.16+; use the \"priorityClassName\" field instead",
    ),
    ("security.alpha.kubernetes.io/sysctls", "non-functional in v1.11+; use the \"sysctls\" field instead"),
    ("security.alpha.kubernetes.io/unsafe-sysctls", "non-functional in v1.11+; use the \"sysctls\" field instead"),
];

/// Volume types that are removed or deprecated.
pub(crate) const OLD_VOLUMES: &[(&str, &str)] = &[
    ("photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
    ("gitRepo", "deprecated in v1.11, and disabled by default in v1.33+"),
    ("scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("flocker", "deprecated in v1.22, non-functional in v1.25+"),
    ("storageos", "deprecated in v1.22, non-functional in v1.25+"),
    ("quobyte", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ("rbd", "deprecated in v1.28, non-functional in v1.31+"),
];

/// Returns the warning about a deprecated volume type. One is spelled differently than its field.
pub(crate) fn of_old_volume(source: &At<'_>, kind: &str, why: &str) -> String {
    format!("{}: {why}", source.path.child(if kind == "storageos" { "storageOS" } else { kind }))
}

/// The annotation of the storage class before the field.
pub(crate) const OLD_CLASS: [(&str, &str); 1] =
    [("volume.beta.kubernetes.io/storage-class", "deprecated since v1.8; use \"storageClassName\" attribute instead")];

pub(crate) fn of_pod(pod: &Value) -> Vec<String> {
    let mut out = Vec::new();
    of_name(pod, "the Pod's hostname", &mut out);
    out.extend(warnings(&At::object(pod), false));
    out
}

/// Warns of an object whose pods' names derive from its own, if it is new.
pub(crate) fn of_names(object: &Value, old: Option<&Value>) -> Vec<String> {
    let mut out = Vec::new();
    if old.is_none() {
        of_name(object, "Pod names and hostnames", &mut out);
    }
    out
}

fn of_name(object: &Value, used_in: &str, out: &mut Vec<String>) {
    let problems = corten_meta::names::dns1123_label(corten_meta::name(object));
    if !problems.is_empty() {
        let (messages, problems) =
            ("which can result in surprising behavior; a DNS label is recommended", problems.join(" "));
        out.push(format!("metadata.name: this is used in {used_in}, {messages}: [{problems}]"));
    }
}

/// Warns of a pod template at a path, if it is new or changes.
pub(crate) fn of_template(object: &Value, old: Option<&Value>, pointer: &str, path: &Path) -> Vec<String> {
    let is_same = old.is_some_and(|old| corten_meta::generation(old) == corten_meta::generation(object));
    match object.pointer(pointer) {
        Some(template) if !is_same => warnings(&At::new(template, path), true),
        _ => Vec::new(),
    }
}

fn warnings(pod: &At<'_>, is_template: bool) -> Vec<String> {
    let spec = pod.get("spec");
    let mut out = Vec::new();
    old_node_labels(&spec, &mut out);
    old_annotations(pod, &mut out);
    for volume in spec.get("volumes").items() {
        let old = OLD_VOLUMES.iter().filter(|(kind, _)| volume.get(kind).is_set());
        out.extend(old.map(|(kind, why)| of_old_volume(&volume, kind, why)));
        of_claim_spec(&volume.get("ephemeral").get("volumeClaimTemplate").get("spec"), &mut out);
    }
    overlapping_files(&spec.get("volumes"), &mut out);
    duplicates(&spec.get("hostAliases"), "ip", &mut out);
    duplicates(&spec.get("imagePullSecrets"), "name", &mut out);
    for secret in spec.get("imagePullSecrets").items().map(|secret| secret.get("name")) {
        if secret.text().is_empty() {
            out.push(format!("{}: invalid empty name \"\"", secret.path));
        }
    }
    fractions(&spec.get("overhead"), &mut out);
    seccomp_annotations(pod, &mut out);
    // For a pod the caller warns of these before they become fields.
    if is_template {
        out.extend(apparmor_warnings(pod));
    }
    for container in containers(&spec) {
        fractions(&container.get("resources").get("limits"), &mut out);
        fractions(&container.get("resources").get("requests"), &mut out);
        hidden_variables(&container.get("env"), &mut out);
    }
    ports(&spec, &mut out);
    let grace = spec.get("terminationGracePeriodSeconds");
    if grace.number().is_some_and(|seconds| seconds < 0) {
        out.push(format!("{}: must be >= 0; negative values are invalid and will be treated as 1", grace.path));
    }
    null_selectors(&spec, &mut out);
    spec.get("dnsConfig").get("nameservers").items().for_each(|server| address_warnings::ip(&server, &mut out));
    spec.get("hostAliases").items().for_each(|alias| address_warnings::ip(&alias.get("ip"), &mut out));
    out
}

fn containers<'a>(spec: &At<'a>) -> Vec<At<'a>> {
    ["initContainers", "containers", "ephemeralContainers"].iter().flat_map(|list| spec.get(list).items()).collect()
}

/// Returns the warning about a node label that has a newer name.
pub(crate) fn old_label(key: &str) -> Option<&'static str> {
    OLD_NODE_LABELS.iter().find(|(label, _)| *label == key).map(|(_, why)| *why)
}

fn old_node_labels(spec: &At<'_>, out: &mut Vec<String>) {
    for (key, at) in spec.get("nodeSelector").entries() {
        out.extend(old_label(key).map(|why| format!("{}: {why}", at.path)));
    }
    let affinity = spec.get("affinity").get("nodeAffinity");
    let required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution").get("nodeSelectorTerms");
    let preferred = affinity.get("preferredDuringSchedulingIgnoredDuringExecution");
    required.items().for_each(|term| of_node_selector_term(&term, false, out));
    preferred.items().for_each(|term| of_node_selector_term(&term.get("preference"), true, out));
    for constraint in spec.get("topologySpreadConstraints").items() {
        let key = constraint.get("topologyKey");
        out.extend(old_label(key.text()).map(|why| format!("{}: {} is {why}", key.path, key.text())));
        null_selector(&constraint.get("labelSelector"), out);
    }
}

/// Warns of node labels in a term, and of values that no label can have.
pub(crate) fn of_node_selector_term(term: &At<'_>, has_checked_values: bool, out: &mut Vec<String>) {
    for expression in term.get("matchExpressions").items() {
        let key = expression.get("key");
        out.extend(old_label(key.text()).map(|why| format!("{}: {} is {why}", key.path, key.text())));
        for value in expression.get("values").items().filter(|_| has_checked_values) {
            let problems = corten_meta::names::label_value(value.text());
            out.extend(problems.iter().map(|why| format!("{}: {} is invalid, {why}", value.path, value.text())));
        }
    }
}

fn null_selector(selector: &At<'_>, out: &mut Vec<String>) {
    if !selector.is_set() {
        out.push(format!("{}: a null labelSelector results in matching no pod", selector.path));
    }
}

fn null_selectors(spec: &At<'_>, out: &mut Vec<String>) {
    for side in ["podAffinity", "podAntiAffinity"] {
        let affinity = spec.get("affinity").get(side);
        for term in affinity.get("requiredDuringSchedulingIgnoredDuringExecution").items() {
            null_selector(&term.get("labelSelector"), out);
        }
        for term in affinity.get("preferredDuringSchedulingIgnoredDuringExecution").items() {
            null_selector(&term.get("podAffinityTerm").get("labelSelector"), out);
        }
    }
}

fn old_annotations(pod: &At<'_>, out: &mut Vec<String>) {
    let annotations = pod.get("metadata").get("annotations");
    let old = OLD_ANNOTATIONS.iter().filter(|(key, _)| annotations.get(key).is_set());
    out.extend(old.map(|(key, why)| format!("{}: {why}", annotations.path.key(key))));
}

/// Warns of annotations that have become fields.
pub(crate) fn of_old_annotations(object: &Value, old: &[(&str, &str)]) -> Vec<String> {
    let annotations = At::object(object).get("metadata").get("annotations");
    let found = old.iter().filter(|(key, _)| annotations.get(key).is_set());
    found.map(|(key, why)| format!("{}: {why}", annotations.path.key(key))).collect()
}

fn seccomp_annotations(pod: &At<'_>, out: &mut Vec<String>) {
    let annotations = pod.get("metadata").get("annotations");
    let mut check = |of: &At<'_>, key: String| {
        if annotations.get(&key).is_set() && !of.get("securityContext").get("seccompProfile").is_set() {
            let why = "non-functional in v1.27+; use the \"seccompProfile\" field instead";
            out.push(format!("{}: {why}", annotations.path.key(key)));
        }
    };
    let spec = pod.get("spec");
    check(&spec, POD_SECCOMP.to_string());
    for container in containers(&spec) {
        check(&container, format!("{CONTAINER_SECCOMP}{}", container.get("name").text()));
    }
}

/// Warns of list items with the same identifying field.
fn duplicates(list: &At<'_>, field: &str, out: &mut Vec<String>) {
    let mut seen = Vec::new();
    for at in list.items().map(|item| item.get(field)) {
        if seen.contains(&at.text()) {
            out.push(format!("{}: duplicate {field} {}", at.path, quote(at.text())));
        } else {
            seen.push(at.text());
        }
    }
}

/// Warns of fractions of bytes.
fn fractions(resources: &At<'_>, out: &mut Vec<String>) {
    fractions_of(resources, &["memory", "ephemeral-storage"], out);
}

/// Warns of the requests of a claim.
pub(crate) fn of_claim_spec(spec: &At<'_>, out: &mut Vec<String>) {
    fractions_of(&spec.get("resources").get("requests"), &["storage"], out);
    fractions_of(&spec.get("resources").get("limits"), &["storage"], out);
}

fn fractions_of(resources: &At<'_>, names: &[&str], out: &mut Vec<String>) {
    for name in names {
        let Some(quantity) = resources.get(name).quantity() else { continue };
        if quantity.milli_value() % 1000 != 0 {
            let path = resources.path.key(name);
            out.push(format!("{path}: fractional byte value \"{quantity}\" is invalid, must be an integer"));
        }
    }
}

/// Warns of a variable that a later one of the same name hides, unless the later one uses it.
fn hidden_variables(env: &At<'_>, out: &mut Vec<String>) {
    let mut seen = Vec::new();
    for variable in env.items() {
        let name = variable.get("name").text();
        if !seen.contains(&name) {
            seen.push(name);
            continue;
        }
        let value = variable.get("value").text();
        let reference = format!("$({name})");
        if variable.get("valueFrom").is_set() || value == reference || !value.contains(&reference) {
            let why = "which may be dropped when using apply";
            out.push(format!("{}: hides previous definition of {name}, {why}", variable.path, name = quote(name)));
        }
    }
}

fn ports(spec: &At<'_>, out: &mut Vec<String>) {
    let mut names: BTreeMap<&str, Path> = BTreeMap::new();
    let mut by_number: BTreeMap<(i64, &str), Vec<At<'_>>> = BTreeMap::new();
    let mut of_names = Vec::new();
    for port in containers(spec).iter().flat_map(|container| container.get("ports").items()) {
        let number = port.get("containerPort").number().unwrap_or_default();
        if !port.get("hostIP").is_empty() && port.get("hostPort").number().unwrap_or_default() == 0 {
            let name = port.get("name");
            let protocol = port.get("protocol");
            let ip = port.get("hostIP");
            out.push(format!(
                "{}: hostIP set without hostPort: {{Name:{} HostPort:0 ContainerPort:{number} Protocol:{} HostIP:{}}}",
                port.path,
                name.text(),
                protocol.text(),
                ip.text()
            ));
        }
        let others = by_number.entry((number, port.get("protocol").text())).or_default();
        for other in others.iter() {
            out.extend(overlap(&port, other).map(|word| format!("{}: {word} with {}", port.path, other.path)));
        }
        let name = port.get("name").text();
        match names.get(name) {
            _ if name.is_empty() => {}
            Some(other) => of_names.push(format!(
                "{}: duplicate port name {name} with {other}, services and probes that select ports by name will use \
                 {other}",
                port.path,
                name = quote(name)
            )),
            None => {
                names.insert(name, port.path.clone());
            }
        }
        others.push(port);
    }
    out.extend(of_names);
}

/// Returns how two ports overlap.
fn overlap(port: &At<'_>, other: &At<'_>) -> Option<&'static str> {
    let host_port = |at: &At<'_>| at.get("hostPort").number().unwrap_or_default();
    let ip = port.get("hostIP").text();
    let other_ip = other.get("hostIP").text();
    let number = host_port(port);
    let other_number = host_port(other);
    if ip == other_ip && number == other_number {
        Some("duplicate port definition")
    } else if number == 0 || other_number == 0 {
        Some("overlapping port definition")
    } else if number == other_number && ip.is_empty() != other_ip.is_empty() {
        Some("dangerously ambiguous port definition")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn likely_mistakes_are_warned_of() {
        let pod = json!({
            "metadata": {"name": "a.b", "annotations": {"scheduler.alpha.kubernetes.io/critical-pod": ""}},
            "spec": {
                "dnsConfig": {"nameservers": ["FD00::1"]},
                "nodeSelector": {"beta.kubernetes.io/os": "linux"},
                "imagePullSecrets": [{"name": "a"}, {"name": "a"}],
                "terminationGracePeriodSeconds": -1,
                "volumes": [{"name": "v", "rbd": {}}, {"name": "o", "storageos": {}}],
                "topologySpreadConstraints": [{"topologyKey": "zone"}],
                "containers": [{
                    "name": "c",
                    "resources": {"limits": {"memory": "1500m"}},
                    "env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}, {"name": "A", "value": "$(A)3"}],
                    "ports": [{"name": "x", "containerPort": 80, "protocol": "TCP"}, {"name": "x", "containerPort": 80, "protocol": "TCP"}],
                }],
            },
        });
        let messages = of_pod(&pod);
        assert!(
            messages[0].starts_with("metadata.name: this is used in the Pod's hostname, which can"),
            "{messages:?}"
        );
        assert_eq!(
            messages[1..],
            [
                "spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use \"kubernetes.io/os\" instead",
                "spec.topologySpreadConstraints[0].labelSelector: a null labelSelector results in matching no pod",
                "metadata.annotations[scheduler.alpha.kubernetes.io/critical-pod]: non-functional in v1.16+; use the \"priorityClassName\" field instead",
                "spec.volumes[0].rbd: deprecated in v1.28, non-functional in v1.31+",
                "spec.volumes[1].storageOS: deprecated in v1.22, non-functional in v1.25+",
                "spec.imagePullSecrets[1].name: duplicate name \"a\"",
                "spec.containers[0].resources.limits[memory]: fractional byte value \"1500m\" is invalid, must be an integer",
                "spec.containers[0].env[1]: hides previous definition of \"A\", which may be dropped when using apply",
                "spec.containers[0].ports[1]: duplicate port definition with spec.containers[0].ports[0]",
                "spec.containers[0].ports[1]: duplicate port name \"x\" with spec.containers[0].ports[0], services and probes that select ports by name will use spec.containers[0].ports[0]",
                "spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1",
                "spec.dnsConfig.nameservers[0]: IPv6 address \"FD00::1\" should be in RFC 5952 canonical format (\"fd00::1\")",
            ]
        );
        let object = json!({"spec": {"template": pod}});
        let path = Path::root("spec").child("template");
        assert_eq!(of_template(&object, None, "/spec/template", &path).len(), 12);
        assert!(of_template(&object, Some(&object), "/spec/template", &path).is_empty());
    }
}
