//! Random worlds: objects of every kind that a controller reconciles, in states that may or may not fit together, with
//! names few enough that they refer to each other.

use corten_meta::Value;
use serde_json::{Value as Json, json};

use super::Random;
use crate::tests::model::pod;

const NAMES: [&str; 3] = ["a", "b", "c"];
/// The number of kinds that [`object`] generates.
const KINDS: usize = 27;

/// Returns a world of at most this many objects; of two with the same kind and name the later one stays.
pub fn world(random: &mut Random, most: usize) -> Vec<Value> {
    let mut all: Vec<Value> =
        NAMES.iter().map(|name| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})).collect();
    all.push(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}));
    all.extend((0..most).map(|_| object(random)));
    all
}

fn one_of<'a>(random: &mut Random, all: &[&'a str]) -> &'a str {
    all[random.next(all.len())]
}

fn named(random: &mut Random, version: &str, kind: &str, namespaced: bool, body: Json) -> Value {
    let name = NAMES[random.next(NAMES.len())];
    let mut object =
        json!({"apiVersion": version, "kind": kind, "metadata": {"name": name, "uid": format!("{kind}-{name}")}});
    if namespaced {
        object["metadata"]["namespace"] = json!("default");
    }
    if random.chance(10) {
        object["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:00:00Z");
        object["metadata"]["finalizers"] = json!(["example.com/kept"]);
    }
    corten_meta::patch::merge_patch(&mut object, &body);
    object
}

/// Returns a random object.
fn object(random: &mut Random) -> Value {
    let which = random.next(KINDS);
    match which {
        0..7 => some_pod(random),
        7..14 => workload(random, which - 7),
        14 | 15 => node(random),
        16 => service(random),
        17 => endpoints(random),
        18 => volume(random),
        19 => claim(random),
        20 => budget(random),
        21 => secret(random),
        22 => role(random),
        23 => request(random),
        24 => device_claim(random),
        25 => address_range(random),
        _ => small(random),
    }
}

fn some_pod(random: &mut Random) -> Value {
    let name = format!("{}-{}", NAMES[random.next(3)], random.next(3));
    let app = NAMES[random.next(2)];
    let mut pod = pod(&name).label("app", app).phase(one_of(random, &["Pending", "Running", "Failed", "Succeeded"]));
    if random.chance(70) {
        pod = pod.on(one_of(random, &["a", "b", "c", "gone"])).ip(&format!("10.0.0.{}", 1 + random.next(9)));
    }
    if random.chance(50) {
        pod = pod.ready(i64::try_from(random.next(100)).unwrap_or(0));
    }
    if random.chance(15) {
        pod = pod.deleting();
    }
    if random.chance(60) {
        let kind = one_of(random, &["ReplicaSet", "StatefulSet", "DaemonSet", "Job", "ReplicationController"]);
        let version = ["apps/v1", "batch/v1", "v1"]
            [usize::from(kind == "Job") + 2 * usize::from(kind == "ReplicationController")];
        let owner = json!([{"apiVersion": version, "kind": kind, "name": app, "uid": format!("{kind}-{app}"), "controller": true}]);
        pod = pod.set("/metadata/ownerReferences", owner);
        if kind == "Job" {
            pod = pod.set("/metadata/finalizers", json!(["batch.kubernetes.io/job-tracking"]));
        }
    }
    if random.chance(20) {
        let mark =
            json!([{"type": "DisruptionTarget", "status": "True", "lastTransitionTime": "2026-01-02T03:00:00Z"}]);
        pod = pod.set("/status/conditions", mark);
    }
    if random.chance(25) {
        let claim = NAMES[random.next(3)];
        let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]);
        let template =
            json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
        let own = json!([{"name": "e", "ephemeral": {"volumeClaimTemplate": template}}]);
        pod = pod.set("/spec/volumes", if random.chance(50) { volumes } else { own });
    }
    if random.chance(15) {
        pod = pod.set("/spec/resourceClaims", json!([{"name": "g", "resourceClaimTemplateName": "a"}]));
    }
    pod.value()
}

fn workload(random: &mut Random, which: usize) -> Value {
    let app = NAMES[random.next(2)];
    let restart = if (4..6).contains(&which) { "Never" } else { "Always" };
    let template = json!({"metadata": {"labels": {"app": app}}, "spec": {"restartPolicy": restart, "containers": [{"name": "c", "image": format!("i{}", random.next(2))}]}});
    let spec = json!({"replicas": random.next(4), "selector": {"matchLabels": {"app": app}}, "template": template});
    let body = |extra: Json| {
        let mut spec = spec.clone();
        corten_meta::patch::merge_patch(&mut spec, &extra);
        json!({ "spec": spec })
    };
    match which {
        0 => named(
            random,
            "apps/v1",
            "Deployment",
            true,
            body(json!({"revisionHistoryLimit": 1, "strategy": {"type": "RollingUpdate"}})),
        ),
        1 => named(random, "apps/v1", "ReplicaSet", true, body(json!({}))),
        2 => named(random, "apps/v1", "StatefulSet", true, body(json!({"podManagementPolicy": "Parallel"}))),
        3 => named(random, "apps/v1", "DaemonSet", true, body(json!({"replicas": null}))),
        4 => {
            let mode = one_of(random, &["Indexed", "NonIndexed"]);
            let extra = json!({"replicas": null, "parallelism": 2, "completions": 3, "backoffLimit": 2, "ttlSecondsAfterFinished": 0, "completionMode": mode});
            named(random, "batch/v1", "Job", true, body(extra))
        }
        5 => {
            let spec = json!({"spec": {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": {"template": template}}}, "metadata": {"creationTimestamp": "2025-06-01T00:00:00Z"}});
            named(random, "batch/v1", "CronJob", true, spec)
        }
        _ => named(
            random,
            "v1",
            "ReplicationController",
            true,
            body(json!({"selector": {"matchLabels": null, "app": app}})),
        ),
    }
}

fn node(random: &mut Random) -> Value {
    let ready = one_of(random, &["True", "False", "Unknown"]);
    let mut body = json!({
        "metadata": {"labels": {"topology.kubernetes.io/zone": NAMES[random.next(2)], "kubernetes.io/hostname": "a"}, "annotations": {"corten/local-volumes": "/data"}},
        "spec": {"unschedulable": random.chance(20)},
        "status": {"conditions": [{"type": "Ready", "status": ready, "lastHeartbeatTime": "2026-01-02T03:04:00Z", "lastTransitionTime": "2026-01-02T03:04:00Z"}]},
    });
    if random.chance(30) {
        let taint = one_of(random, &["node.kubernetes.io/out-of-service", "mine"]);
        body["spec"]["taints"] = json!([{"key": taint, "effect": "NoExecute", "timeAdded": "2026-01-02T03:00:00Z"}]);
    }
    if random.chance(30) {
        let range = format!("10.244.{}.0/24", random.next(4));
        (body["spec"]["podCIDR"], body["spec"]["podCIDRs"]) = (json!(range), json!([range]));
    }
    named(random, "v1", "Node", false, body)
}

fn service(random: &mut Random) -> Value {
    let app = NAMES[random.next(2)];
    let kind = one_of(random, &["ClusterIP", "LoadBalancer", "ExternalName"]);
    let selector = if random.chance(70) { json!({ "app": app }) } else { Json::Null };
    let body = json!({"spec": {"type": kind, "clusterIP": "10.96.0.9", "ipFamilies": ["IPv4"], "selector": selector, "ports": [{"port": 80, "protocol": "TCP"}]}});
    named(random, "v1", "Service", true, body)
}

fn endpoints(random: &mut Random) -> Value {
    let address = format!("192.0.2.{}", random.next(4));
    if random.chance(60) {
        let body = json!({"subsets": [{"addresses": [{"ip": address}], "ports": [{"port": 80, "protocol": "TCP"}]}]});
        return named(random, "v1", "Endpoints", true, body);
    }
    let manager =
        one_of(random, &["endpointslice-controller.k8s.io", "endpointslicemirroring-controller.k8s.io", "example.com"]);
    let labels =
        json!({"kubernetes.io/service-name": NAMES[random.next(3)], "endpointslice.kubernetes.io/managed-by": manager});
    let body = json!({"metadata": {"labels": labels}, "addressType": "IPv4", "endpoints": [{"addresses": [address]}], "ports": [{"port": 80}]});
    named(random, "discovery.k8s.io/v1", "EndpointSlice", true, body)
}

fn volume(random: &mut Random) -> Value {
    let policy = one_of(random, &["Retain", "Delete", "Recycle"]);
    let mut body = json!({"spec": {"capacity": {"storage": "5Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "a", "persistentVolumeReclaimPolicy": policy}});
    match random.next(3) {
        0 => body["spec"]["hostPath"] = json!({"path": "/data"}),
        1 => body["spec"]["csi"] = json!({"driver": "example.com", "volumeHandle": "h"}),
        _ => {}
    }
    if random.chance(50) {
        let name = NAMES[random.next(3)];
        let uid = one_of(random, &["", "gone", &format!("PersistentVolumeClaim-{name}")]).to_owned();
        body["spec"]["claimRef"] = json!({"namespace": "default", "name": name, "uid": uid});
    }
    named(random, "v1", "PersistentVolume", false, body)
}

fn claim(random: &mut Random) -> Value {
    let mut body = json!({"spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": NAMES[random.next(2)], "resources": {"requests": {"storage": "4Gi"}}}});
    if random.chance(30) {
        body["spec"]["volumeName"] = json!(NAMES[random.next(3)]);
    }
    if random.chance(30) {
        body["metadata"]["annotations"] = json!({"volume.kubernetes.io/selected-node": "a"});
    }
    named(random, "v1", "PersistentVolumeClaim", true, body)
}

fn budget(random: &mut Random) -> Value {
    let app = NAMES[random.next(2)];
    let body = json!({"spec": {"selector": {"matchLabels": {"app": app}}, "minAvailable": random.next(3)}, "status": {"disruptedPods": {"gone": "2026-01-02T03:00:00Z"}}});
    named(random, "policy/v1", "PodDisruptionBudget", true, body)
}

fn secret(random: &mut Random) -> Value {
    if random.chance(50) {
        let body = json!({"type": "kubernetes.io/service-account-token", "metadata": {"creationTimestamp": "2020-01-01T00:00:00Z", "annotations": {"kubernetes.io/service-account.name": "a"}}});
        return named(random, "v1", "Secret", true, body);
    }
    let expires = one_of(random, &["MjAyMC0wMS0wMVQwMDowMDowMFo=", "MjA5MC0wMS0wMVQwMDowMDowMFo="]);
    let data = json!({"token-id": "YWJjZGVm", "token-secret": "MDEyMzQ1Njc4OWFiY2RlZg==", "usage-bootstrap-signing": "dHJ1ZQ==", "expiration": expires});
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": "kube-system", "name": "bootstrap-token-abcdef", "uid": "token"}, "type": "bootstrap.kubernetes.io/token", "data": data})
}

fn role(random: &mut Random) -> Value {
    let name = NAMES[random.next(3)];
    let rules = json!([{"apiGroups": [""], "resources": [name], "verbs": ["get"]}]);
    let body = match random.chance(40) {
        true => json!({"aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"part": "yes"}}]}, "rules": []}),
        false => json!({"metadata": {"labels": {"part": "yes"}}, "rules": rules}),
    };
    named(random, "rbac.authorization.k8s.io/v1", "ClusterRole", false, body)
}

fn request(random: &mut Random) -> Value {
    let created = one_of(random, &["2026-01-01T00:00:00Z", "2026-01-02T03:00:00Z"]);
    let mut body = json!({"metadata": {"creationTimestamp": created}, "spec": {"request": "", "signerName": "example.com/s", "usages": []}});
    if random.chance(50) {
        body["status"] = json!({"conditions": [{"type": "Denied", "status": "True", "lastUpdateTime": created}]});
    }
    named(random, "certificates.k8s.io/v1", "CertificateSigningRequest", false, body)
}

fn device_claim(random: &mut Random) -> Value {
    let spec = json!({"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}});
    if random.chance(50) {
        return named(random, "resource.k8s.io/v1", "ResourceClaimTemplate", true, json!({"spec": {"spec": spec}}));
    }
    let reserved = json!([{"resource": "pods", "name": "a-0", "uid": "uid-of-a-0"}, {"resource": "pods", "name": "x", "uid": "gone"}]);
    let body = json!({"spec": spec, "status": {"reservedFor": reserved, "allocation": {}}});
    named(random, "resource.k8s.io/v1", "ResourceClaim", true, body)
}

fn address_range(random: &mut Random) -> Value {
    if random.chance(60) {
        let range = one_of(random, &["10.96.0.0/24", "10.96.0.0/16"]);
        let body = json!({"spec": {"cidrs": [range]}});
        return named(random, "networking.k8s.io/v1", "ServiceCIDR", false, body);
    }
    let name = format!("10.96.0.{}", random.next(3));
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress", "metadata": {"name": name, "labels": {"ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"}}, "spec": {}})
}

/// Returns an object that controllers only read, or that every namespace has.
fn small(random: &mut Random) -> Value {
    match random.next(6) {
        0 => named(random, "v1", "ServiceAccount", true, json!({"secrets": [{"name": "a"}]})),
        1 => named(random, "v1", "Namespace", false, json!({})),
        2 => {
            let provisioner = one_of(random, &["corten/local-path", "example.com/p"]);
            let body = json!({"provisioner": provisioner, "reclaimPolicy": "Delete", "volumeBindingMode": "WaitForFirstConsumer"});
            named(random, "storage.k8s.io/v1", "StorageClass", false, body)
        }
        3 => {
            let body = json!({"spec": {"attacher": "example.com", "nodeName": "a", "source": {"persistentVolumeName": "a"}}, "status": {"attached": random.chance(50)}});
            named(random, "storage.k8s.io/v1", "VolumeAttachment", false, body)
        }
        4 => named(random, "storage.k8s.io/v1", "VolumeAttributesClass", false, json!({"driverName": "example.com"})),
        _ => {
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "kube-public", "name": "cluster-info", "uid": "info"}, "data": {"kubeconfig": "{}"}})
        }
    }
}
