//! The defaults that every pod template and every pod share.

use corten_meta::Value;
use serde_json::json;

use super::resource_validation::{aggregate, is_huge_page};
use crate::cells::text;
use crate::defaulting::{absent, default_at, default_nonzero, items, object_at, put};

/// Defaults of a pod template at a JSON pointer, e.g. `/spec/template`.
pub(crate) fn default_template(object: &mut Value, template: &str) {
    if let Some(spec) = object_at(object, &format!("{template}/spec")) {
        default_pod_spec(spec);
    }
}

/// Defaults of a pod's spec.
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

/// `serviceAccount` is the old name of `serviceAccountName`; the two are kept equal.
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

/// Whether the last part of an image's name can be one. Of what is no name no tag is known.
fn is_repository(part: &str) -> bool {
    let is_end = |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let bytes = part.as_bytes();
    is_end(bytes.first())
        && is_end(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(b))
}

/// `Always` for the tag `latest`, which is also what an image without a tag has.
fn pull_policy(image: &str) -> &'static str {
    let (name, digest) = image.split_once('@').map_or((image, ""), |(n, d)| (n, d));
    let last = name.rsplit('/').next().unwrap_or(name);
    if !is_repository(last.split(':').next().unwrap_or_default()) || name.len() > 255 {
        return "IfNotPresent";
    }
    match last.split_once(':') {
        Some((_, "latest")) => "Always",
        Some(_) => "IfNotPresent",
        None if digest.is_empty() => "Always",
        None => "IfNotPresent",
    }
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

/// What only a pod itself gets, never a template: requests from limits, service links, host ports.
pub(crate) fn default_pod_only(pod: &mut Value) {
    if pod.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_i64).is_some_and(|s| s < 0) {
        put(pod, "/spec/terminationGracePeriodSeconds", 1);
    }
    default_at(pod, "/spec/enableServiceLinks", true);
    let host_network = crate::cells::truth(pod, "/spec/hostNetwork");
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

/// What a pod as a whole asks for, where it says something about that: huge pages as many as its containers may have,
/// requests as its containers have them, or else as its limits are.
fn default_pod_resources(spec: &mut Value) {
    let amounts = |spec: &Value, side: &str| {
        spec.pointer(&format!("/resources/{side}")).and_then(Value::as_object).cloned().unwrap_or_default()
    };
    let (mut limits, mut requests) = (amounts(spec, "limits"), amounts(spec, "requests"));
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
    for (side, amounts) in [("limits", limits), ("requests", requests)] {
        if !amounts.is_empty() {
            put(spec, &format!("/resources/{side}"), amounts);
        }
    }
}

/// A request that is not given is the limit.
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

/// The one address and the list of addresses are kept equal; the one wins.
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
            ("nginx:latest@sha256:abc", "Always"),
            ("Bad Value!", "IfNotPresent"),
            ("", "IfNotPresent"),
        ] {
            assert_eq!(pull_policy(image), wanted, "{image}");
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
