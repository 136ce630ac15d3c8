//! The defaults that pod templates and pods share.

use corten_meta::Value;
use serde_json::json;

use super::resource_validation::{aggregate, is_huge_page};
use crate::cells::{list, text};
use crate::defaulting::{absent, default_at, default_nonzero, items, object_at, put};

/// Sets the defaults of a pod template at a JSON pointer, e.g. `/spec/template`.
pub(crate) fn default_template(object: &mut Value, template: &str) {
    drop_old_init_containers(object, &format!("{template}/metadata"));
    if let Some(spec) = object_at(object, &format!("{template}/spec")) {
        default_pod_spec(spec);
    }
}

/// Removes the annotations that once held init containers: they have no effect, and no reader may rely on them.
fn drop_old_init_containers(object: &mut Value, metadata: &str) {
    let Some(annotations) = object_at(object, &format!("{metadata}/annotations")).and_then(Value::as_object_mut) else {
        return;
    };
    let before = annotations.len();
    for stage in ["alpha", "beta"] {
        annotations.remove(&format!("pod.{stage}.kubernetes.io/init-containers"));
        annotations.remove(&format!("pod.{stage}.kubernetes.io/init-container-statuses"));
    }
    if before > 0 && annotations.is_empty() {
        crate::defaulting::remove(object, &format!("{metadata}/annotations"));
    }
}

pub(crate) fn default_pod_spec(spec: &mut Value) {
    mirror_service_account(spec);
    default_at(spec, "/dnsPolicy", "ClusterFirst");
    default_at(spec, "/restartPolicy", "Always");
    default_at(spec, "/securityContext", json!({}));
    default_at(spec, "/terminationGracePeriodSeconds", 30);
    default_at(spec, "/schedulerName", "default-scheduler");
    for list in ["/containers", "/initContainers", "/ephemeralContainers"] {
        items(spec, list).for_each(default_container);
    }
    items(spec, "/volumes").for_each(default_volume);
}

/// Keeps `serviceAccount`, the old name, and `serviceAccountName` equal.
fn mirror_service_account(spec: &mut Value) {
    let old = text(spec, "/serviceAccount").to_string();
    default_at(spec, "/serviceAccountName", old);
    let name = text(spec, "/serviceAccountName").to_string();
    if name.is_empty() {
        crate::defaulting::remove(spec, "/serviceAccountName");
    } else {
        put(spec, "/serviceAccount", name);
    }
}

fn default_container(container: &mut Value) {
    let policy = pull_policy(text(container, "/image"));
    default_at(container, "/imagePullPolicy", policy);
    default_at(container, "/terminationMessagePath", "/dev/termination-log");
    default_at(container, "/terminationMessagePolicy", "File");
    for probe in ["/livenessProbe", "/readinessProbe", "/startupProbe"] {
        if let Some(probe) = object_at(container, probe) {
            default_probe(probe);
        }
    }
    for handler in ["/lifecycle/postStart", "/lifecycle/preStop"] {
        if let Some(handler) = object_at(container, handler) {
            default_http_get(handler);
        }
    }
    for env in items(container, "/env") {
        default_at(env, "/valueFrom/fieldRef/apiVersion", "v1");
    }
}

fn default_probe(probe: &mut Value) {
    default_nonzero(probe, "/timeoutSeconds", 1);
    default_nonzero(probe, "/periodSeconds", 10);
    default_nonzero(probe, "/successThreshold", 1);
    default_nonzero(probe, "/failureThreshold", 3);
    default_http_get(probe);
    default_at(probe, "/grpc/service", "");
}

fn default_http_get(handler: &mut Value) {
    default_at(handler, "/httpGet/path", "/");
    default_at(handler, "/httpGet/scheme", "HTTP");
}

/// Reports whether a part of an image's name is valid: words with a dot, one or two underscores or any number of dashes
/// between them.
fn is_repository(part: &str) -> bool {
    let is_lowercase_or_digit = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let between = part.split(is_lowercase_or_digit).filter(|between| !between.is_empty());
    part.starts_with(is_lowercase_or_digit)
        && part.ends_with(is_lowercase_or_digit)
        && between.into_iter().all(|b| matches!(b, "." | "_" | "__") || b.bytes().all(|byte| byte == b'-'))
}

/// Returns `Always` for the tag `latest`, which an image without a tag also has; an invalid reference has no tag.
fn pull_policy(image: &str) -> &'static str {
    let (name, digest) = image.split_once('@').map_or((image, None), |(name, digest)| (name, Some(digest)));
    // The first part is a registry if it has a dot or a port or is `localhost`.
    let is_registry = |part: &str| part.contains(['.', ':']) || part == "localhost" || part.to_lowercase() != part;
    let (registry, rest) = name.split_once('/').filter(|(part, _)| is_registry(part)).unwrap_or(("localhost", name));
    let (path, tag) = rest.split_once(':').map_or((rest, None), |(path, tag)| (path, Some(tag)));
    let is_hash = image.len() == 64 && image.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    // A name without a folder is in the registry's library.
    let is_bare = !path.contains('/') && (!name.contains('/') || registry == "docker.io");
    let length = path.len() + if is_bare { "library/".len() } else { 0 };
    let is_read = is_host(registry)
        && !is_hash
        && length <= 255
        && path.split('/').all(is_repository)
        && tag.is_none_or(is_tag)
        && digest.is_none_or(is_digest);
    match (tag, digest) {
        (Some("latest"), _) | (None, None) if is_read => "Always",
        _ => "IfNotPresent",
    }
}

fn is_host(text: &str) -> bool {
    let (host, port) = text.rsplit_once(':').map_or((text, "0"), |(host, port)| (host, port));
    let is_label = |label: &str| {
        let ends = !label.starts_with('-') && !label.ends_with('-');
        ends && !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    let is_address = text.starts_with('[') && text.contains(']');
    let is_port = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    is_address || host.split('.').all(is_label) && is_port
}

fn is_tag(text: &str) -> bool {
    let is_word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let rest = |b: u8| is_word(b) || b == b'.' || b == b'-';
    text.len() <= 128 && text.bytes().next().is_some_and(is_word) && text.bytes().all(rest)
}

fn is_digest(text: &str) -> bool {
    let Some((algorithm, digits)) = text.split_once(':') else { return false };
    let length = match algorithm {
        "sha256" => 64,
        "sha384" => 96,
        "sha512" => 128,
        _ => return false,
    };
    digits.len() == length && digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

fn default_volume(volume: &mut Value) {
    let Some(fields) = volume.as_object() else { return };
    if !fields.iter().any(|(name, value)| name != "name" && !value.is_null()) {
        put(volume, "/emptyDir", json!({}));
    }
    for source in ["secret", "configMap", "downwardAPI", "projected"] {
        default_at(volume, &format!("/{source}/defaultMode"), 0o644);
    }
    default_at(volume, "/hostPath/type", "");
    for item in items(volume, "/downwardAPI/items") {
        default_at(item, "/fieldRef/apiVersion", "v1");
    }
    for source in items(volume, "/projected/sources") {
        default_at(source, "/serviceAccountToken/expirationSeconds", 3600);
        for item in items(source, "/downwardAPI/items") {
            default_at(item, "/fieldRef/apiVersion", "v1");
        }
    }
    if let Some(image) = object_at(volume, "/image") {
        let policy = pull_policy(text(image, "/reference"));
        default_at(image, "/pullPolicy", policy);
    }
    default_at(volume, "/ephemeral/volumeClaimTemplate/spec/volumeMode", "Filesystem");
}

/// Adds the values of the pod's own labels under `matchLabelKeys` and `mismatchLabelKeys` to its selectors.
pub(super) fn merge_label_keys(pod: &mut Value) {
    let labels = pod["metadata"]["labels"].as_object().cloned().unwrap_or_default();
    let merge = |term: &mut Value| {
        for (field, operator) in [("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")] {
            let keys: Vec<String> = list(term, &format!("/{field}")).iter().filter_map(as_text).collect();
            let Some(selector) = object_at(term, "/labelSelector") else { return };
            let mut expressions = list(selector, "/matchExpressions").to_vec();
            let own = keys.iter().filter_map(|key| Some((key, labels.get(key)?)));
            expressions.extend(own.map(|(key, value)| json!({"key": key, "operator": operator, "values": [value]})));
            if !expressions.is_empty() {
                put(selector, "/matchExpressions", expressions);
            }
        }
    };
    for affinity in ["podAffinity", "podAntiAffinity"] {
        let required = format!("/spec/affinity/{affinity}/requiredDuringSchedulingIgnoredDuringExecution");
        items(pod, &required).for_each(merge);
        let preferred = format!("/spec/affinity/{affinity}/preferredDuringSchedulingIgnoredDuringExecution");
        items(pod, &preferred).filter_map(|term| term.get_mut("podAffinityTerm")).for_each(merge);
    }
    items(pod, "/spec/topologySpreadConstraints").for_each(merge);
}

fn as_text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

/// Sets the defaults of a pod that a template does not have: requests from limits, service links, host ports.
pub(crate) fn default_pod_only(pod: &mut Value) {
    drop_old_init_containers(pod, "/metadata");
    if pod.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_i64).is_some_and(|s| s < 0) {
        put(pod, "/spec/terminationGracePeriodSeconds", 1);
    }
    default_at(pod, "/spec/enableServiceLinks", true);
    let host_network = crate::cells::boolean(pod, "/spec/hostNetwork");
    for list in ["/spec/containers", "/spec/initContainers"] {
        for container in items(pod, list) {
            default_requests(container);
            if host_network {
                items(container, "/ports").for_each(default_host_port);
            }
        }
    }
    if let Some(spec) = object_at(pod, "/spec") {
        default_pod_resources(spec);
    }
}

/// Sets the defaults of pod-level resources, if there are any: huge pages as the sum of the containers' limits,
/// requests as the sum of the containers' requests, or else as the limits.
fn default_pod_resources(spec: &mut Value) {
    let quantities = |spec: &Value, side: &str| {
        spec.pointer(&format!("/resources/{side}")).and_then(Value::as_object).cloned().unwrap_or_default()
    };
    let mut limits = quantities(spec, "limits");
    let mut requests = quantities(spec, "requests");
    if limits.is_empty() && requests.is_empty() {
        return;
    }
    for (resource, sum) in aggregate(spec, "limits").into_iter().filter(|(resource, _)| is_huge_page(resource)) {
        if !requests.contains_key(&resource) {
            limits.entry(resource).or_insert_with(|| sum.to_string().into());
        }
    }
    if !limits.is_empty() {
        let is_shared = |resource: &str| matches!(resource, "cpu" | "memory");
        for (resource, sum) in aggregate(spec, "requests").into_iter().filter(|(resource, _)| is_shared(resource)) {
            requests.entry(resource).or_insert_with(|| sum.to_string().into());
        }
        for (resource, limit) in limits.iter().filter(|(resource, _)| is_shared(resource) || is_huge_page(resource)) {
            requests.entry(resource.clone()).or_insert_with(|| limit.clone());
        }
    }
    for (side, quantities) in [("limits", limits), ("requests", requests)] {
        if !quantities.is_empty() {
            put(spec, &format!("/resources/{side}"), quantities);
        }
    }
}

/// Sets missing requests to the limits.
fn default_requests(container: &mut Value) {
    let Some(limits) = container.pointer("/resources/limits").and_then(Value::as_object).cloned() else { return };
    default_at(container, "/resources/requests", json!({}));
    if let Some(requests) = container.pointer_mut("/resources/requests").and_then(Value::as_object_mut) {
        for (resource, limit) in limits {
            requests.entry(resource).or_insert(limit);
        }
    }
}

fn default_host_port(port: &mut Value) {
    let container_port = crate::cells::number(port, "/containerPort");
    default_nonzero(port, "/hostPort", container_port);
}

/// Keeps the pod IP and the list of pod IPs equal; the former wins.
pub(crate) fn default_pod_ips(pod: &mut Value) {
    let ip = text(pod, "/status/podIP").to_string();
    let first = text(pod, "/status/podIPs/0/ip").to_string();
    if ip.is_empty() && !first.is_empty() {
        put(pod, "/status/podIP", first);
    } else if ip != first && !absent(pod, "/status/podIP") {
        put(pod, "/status/podIPs", json!([{"ip": ip}]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pull_policies() {
        for (image, wanted) in [
            ("nginx", "Always"),
            ("nginx:latest", "Always"),
            ("nginx:1.27", "IfNotPresent"),
            ("reg:5000/nginx", "Always"),
            ("reg:5000/nginx:1", "IfNotPresent"),
            ("nginx@sha256:abc", "IfNotPresent"),
            ("nginx:latest@sha256:abc", "IfNotPresent"),
            ("a/b/c/d", "Always"),
            ("A/b", "Always"),
            ("a.b:5/c", "Always"),
            ("[::1]:5/a", "Always"),
            ("a__b--c", "Always"),
            ("/a", "IfNotPresent"),
            ("a/", "IfNotPresent"),
            ("a/B", "IfNotPresent"),
            ("a.b:x/c", "IfNotPresent"),
            ("-a/b", "IfNotPresent"),
            ("a___b", "IfNotPresent"),
            ("a..b", "IfNotPresent"),
            ("a:", "IfNotPresent"),
            ("http://a/b", "IfNotPresent"),
            (&"a".repeat(248), "IfNotPresent"),
            (&"a".repeat(247), "Always"),
            ("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", "IfNotPresent"),
            ("Bad Value!", "IfNotPresent"),
            ("", "IfNotPresent"),
        ] {
            assert_eq!(pull_policy(image), wanted, "{image}");
        }
    }

    #[test]
    fn label_keys_are_added_to_selectors() {
        let term = json!({"labelSelector": {"matchExpressions": [{"key": "a", "operator": "Exists"}]},
            "matchLabelKeys": ["m", "none"], "mismatchLabelKeys": ["z"]});
        let wanted = json!([{"key": "a", "operator": "Exists"}, {"key": "m", "operator": "In", "values": ["1"]},
            {"key": "z", "operator": "NotIn", "values": ["2"]}]);
        let required = "requiredDuringSchedulingIgnoredDuringExecution";
        let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
        let mut pod = json!({"metadata": {"labels": {"m": "1", "z": "2"}}, "spec": {
            "affinity": {"podAffinity": {required: [term]}, "podAntiAffinity": {preferred: [{"podAffinityTerm": term}]}},
            "topologySpreadConstraints": [{"labelSelector": {}, "matchLabelKeys": ["m"]}, {"matchLabelKeys": ["m"]}]}});
        merge_label_keys(&mut pod);
        let affinity = &pod["spec"]["affinity"];
        assert_eq!(affinity["podAffinity"][required][0]["labelSelector"]["matchExpressions"], wanted);
        let other = &affinity["podAntiAffinity"][preferred][0]["podAffinityTerm"];
        assert_eq!(other["labelSelector"]["matchExpressions"], wanted);
        let constraints = &pod["spec"]["topologySpreadConstraints"];
        assert_eq!(constraints[0]["labelSelector"]["matchExpressions"], json!([wanted[1]]));
        assert_eq!(constraints[1].get("labelSelector"), None);
    }

    #[test]
    fn init_container_annotations_are_removed() {
        let old = json!({
            "pod.alpha.kubernetes.io/init-containers": "[]", "pod.beta.kubernetes.io/init-containers": "[]",
            "pod.alpha.kubernetes.io/init-container-statuses": "[]", "pod.beta.kubernetes.io/init-container-statuses": "[]",
        });
        let mut mixed = old.clone();
        mixed["a"] = "b".into();
        for (input, kept) in
            [(old, None), (mixed, Some(json!({"a": "b"}))), (json!({"a": "b"}), Some(json!({"a": "b"})))]
        {
            let mut pod = json!({"metadata": {"annotations": input}, "spec": {}});
            let mut set = json!({"metadata": {"annotations": input}, "spec": {"template": pod}});
            crate::lookup("", "v1", "pods").expect("pods").default(&mut pod);
            crate::lookup("apps", "v1", "replicasets").expect("replicasets").default(&mut set);
            assert_eq!(pod["metadata"].get("annotations"), kept.as_ref());
            assert_eq!(set["spec"]["template"]["metadata"].get("annotations"), kept.as_ref());
            assert_eq!(set["metadata"]["annotations"], input);
        }
    }

    #[test]
    fn a_plain_pod_gets_its_defaults() {
        let mut pod = json!({"spec": {"containers": [{
            "name": "a", "image": "a:1", "ports": [{"containerPort": 80}],
            "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}},
            "livenessProbe": {"httpGet": {"port": 80}, "periodSeconds": 0},
            "env": [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        }], "volumes": [{"name": "v"}, {"name": "s", "secret": {"secretName": "x"}}],
           "serviceAccountName": "sa", "hostNetwork": true}});
        let kind = crate::lookup("", "v1", "pods").expect("pods");
        kind.default(&mut pod);
        let spec = &pod["spec"];
        assert_eq!(spec["dnsPolicy"], "ClusterFirst");
        assert_eq!(spec["serviceAccount"], "sa");
        assert_eq!(spec["enableServiceLinks"], true);
        assert_eq!(
            spec["volumes"],
            json!([
            {"name": "v", "emptyDir": {}}, {"name": "s", "secret": {"secretName": "x", "defaultMode": 420}}])
        );
        let container = &spec["containers"][0];
        assert_eq!(container["ports"], json!([{"containerPort": 80, "hostPort": 80, "protocol": "TCP"}]));
        assert_eq!(container["resources"]["requests"], json!({"cpu": "500m", "memory": "1Gi"}));
        assert_eq!(container["env"][0]["valueFrom"]["fieldRef"]["apiVersion"], "v1");
        assert_eq!(
            container["livenessProbe"],
            json!({
            "httpGet": {"port": 80, "path": "/", "scheme": "HTTP"},
            "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3})
        );
        let again = pod.clone();
        kind.default(&mut pod);
        assert_eq!(pod, again, "defaulting twice changes nothing");
    }
}
