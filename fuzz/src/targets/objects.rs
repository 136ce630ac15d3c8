//! Objects of users and nodes, as controllers and the scheduler read them: with every number that the API accepts.

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{Namespace, Node, Pod, Service};
use corten_scheduler::evaluate::{Cluster, evaluate};
use serde_json::{Value, json};

use super::{BETWEEN, json};
use crate::Target;

pub const TARGETS: &[Target] = &[
    Target { name: "controllers", seeds: controller_seeds, run: controllers },
    Target { name: "scheduler", seeds: scheduler_seeds, run: scheduler },
];

/// The most objects of an input: every controller reads each of them.
const MOST_OBJECTS: usize = 6;
/// The most actions of all plans for so few objects. A plan of any number of actions would take any memory.
const MOST_ACTIONS: usize = 40_000;

/// Returns an object as the API server would store it; `None` if it would refuse it.
fn stored(bytes: &[u8]) -> Option<Value> {
    let mut object = json(bytes)?;
    let kind = super::api::kind_of(&object)?;
    let report = corten_api::check_fields(&kind.schema, &object);
    if !report.type_errors.is_empty() || kind.behaviour.unreadable(&object).is_some() {
        return None;
    }
    report.restore_quantities(&mut object);
    corten_api::prune(&kind.schema, &mut object);
    kind.default(&mut object);
    let metadata = object["metadata"].as_object_mut()?;
    metadata.entry("uid").or_insert_with(|| json!("u"));
    metadata.entry("creationTimestamp").or_insert_with(|| json!("2026-01-02T03:04:05Z"));
    metadata.entry("generation").or_insert_with(|| json!(1));
    kind.validate(&object).is_empty().then_some(object)
}

fn objects(input: &[u8]) -> Vec<Value> {
    input.split(|byte| *byte == BETWEEN).take(MOST_OBJECTS).filter_map(stored).collect()
}

fn controllers(input: &[u8]) {
    let actions = corten_controllers::fuzz::planned(&objects(input));
    assert!(actions <= MOST_ACTIONS, "{actions} actions are planned at once");
}

/// Runs the scheduler: the first pod is the one to place; the others exist already.
fn scheduler(input: &[u8]) {
    let mut cluster = Cluster::default();
    for object in objects(input) {
        match object["kind"].as_str() {
            Some("Node") => cluster.nodes.extend(Node::from_value(object)),
            Some("Pod") => cluster.pods.extend(Pod::from_value(object)),
            Some("Service") => cluster.services.extend(Service::from_value(object)),
            Some("Namespace") => cluster.namespaces.extend(Namespace::from_value(object)),
            _ => {}
        }
    }
    if !cluster.pods.is_empty() {
        let pod = cluster.pods.remove(0);
        let _ = evaluate(cluster, pod);
    }
}

fn seed(objects: &[Value]) -> Vec<u8> {
    let written: Vec<Vec<u8>> = objects.iter().map(|object| object.to_string().into_bytes()).collect();
    written.join(&BETWEEN)
}

fn object(version: &str, kind: &str, name: &str, rest: Value) -> Value {
    let metadata = json!({"name": name, "namespace": "default", "uid": name, "labels": {"a": "b"}});
    let mut object = json!({"apiVersion": version, "kind": kind, "metadata": metadata});
    corten_meta::patch::merge_patch(&mut object, &rest);
    object
}

fn of_cluster(mut object: Value) -> Value {
    corten_meta::patch::merge_patch(&mut object, &json!({"metadata": {"namespace": null}}));
    object
}

fn owned(mut object: Value, version: &str, kind: &str, name: &str) -> Value {
    object["metadata"]["ownerReferences"] =
        json!([{"apiVersion": version, "kind": kind, "name": name, "uid": name, "controller": true}]);
    object
}

fn pod(name: &str) -> Value {
    let container = json!({"name": "c", "image": "i", "resources": {"requests": {"cpu": "100m", "memory": "1Gi"}}, "ports": [{"containerPort": 80, "hostPort": 80}]});
    let tolerations = json!([{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}]);
    let spec =
        json!({"containers": [container], "nodeName": "n", "tolerations": tolerations, "activeDeadlineSeconds": 9});
    let ready = json!([{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z"}]);
    let states = json!([{"name": "c", "restartCount": 3, "ready": true, "image": "i", "imageID": "i", "state": {"terminated": {"exitCode": 1, "finishedAt": "2026-01-02T03:04:06Z"}}}]);
    let status = json!({"phase": "Running", "conditions": ready, "containerStatuses": states, "podIP": "10.0.0.9",
        "podIPs": [{"ip": "10.0.0.9"}], "startTime": "2026-01-02T03:04:05Z"});
    let annotations =
        json!({"controller.kubernetes.io/pod-deletion-cost": "5", "batch.kubernetes.io/job-completion-index": "1"});
    object("v1", "Pod", name, json!({"metadata": {"annotations": annotations}, "spec": spec, "status": status}))
}

fn node() -> Value {
    let taint = json!({"key": "k", "effect": "NoExecute", "timeAdded": "2026-01-02T03:04:05Z"});
    let ready = json!({"type": "Ready", "status": "False", "lastHeartbeatTime": "2026-01-02T03:04:05Z", "lastTransitionTime": "2026-01-02T03:04:05Z"});
    let quantities = json!({"cpu": "2", "memory": "4Gi", "pods": "110", "example.com/gpu": "3"});
    let images = json!([{"names": ["i"], "sizeBytes": 1_000_000}]);
    let status = json!({"allocatable": quantities, "capacity": quantities, "conditions": [ready], "images": images,
        "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]});
    of_cluster(object(
        "v1",
        "Node",
        "n",
        json!({"spec": {"taints": [taint], "podCIDR": "10.244.1.0/24"}, "status": status}),
    ))
}

fn template() -> Value {
    json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

fn workload(version: &str, kind: &str, spec: Value) -> Value {
    let mut all = json!({"selector": {"matchLabels": {"a": "b"}}, "template": template()});
    corten_meta::patch::merge_patch(&mut all, &spec);
    object(version, kind, "w", json!({"spec": all}))
}

fn controller_seeds() -> Vec<Vec<u8>> {
    let rolling = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 1}});
    let deployment = workload(
        "apps/v1",
        "Deployment",
        json!({"replicas": 3, "strategy": rolling, "progressDeadlineSeconds": 9, "minReadySeconds": 2}),
    );
    let mut set = owned(workload("apps/v1", "ReplicaSet", json!({"replicas": 2})), "apps/v1", "Deployment", "w");
    set["metadata"]["name"] = json!("r");
    set["metadata"]["uid"] = json!("r");
    set["metadata"]["annotations"] =
        json!({"deployment.kubernetes.io/revision": "4", "deployment.kubernetes.io/max-replicas": "3"});
    set["status"] = json!({"replicas": 2, "availableReplicas": 1, "readyReplicas": 1});
    let partition = json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 1, "maxUnavailable": "50%"}});
    let stateful = workload(
        "apps/v1",
        "StatefulSet",
        json!({"replicas": 2, "serviceName": "s", "podManagementPolicy": "Parallel",
        "updateStrategy": partition, "ordinals": {"start": 5}, "minReadySeconds": 2}),
    );
    let daemons = workload(
        "apps/v1",
        "DaemonSet",
        json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}}}),
    );
    let mut of_job = template();
    of_job["spec"]["restartPolicy"] = json!("OnFailure");
    let rules = json!({"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1]}}]});
    let spec = json!({"completions": 3, "parallelism": 2, "backoffLimit": 2, "activeDeadlineSeconds": 100, "ttlSecondsAfterFinished": 5,
        "completionMode": "Indexed", "template": of_job});
    let job = object(
        "batch/v1",
        "Job",
        "w",
        json!({"spec": spec, "status": {"startTime": "2026-01-02T03:04:05Z", "failed": 1, "completedIndexes": "0-1"}}),
    );
    let mut never = spec.clone();
    never["template"]["spec"]["restartPolicy"] = json!("Never");
    never["podFailurePolicy"] = rules;
    never["backoffLimitPerIndex"] = json!(2);
    never["maxFailedIndexes"] = json!(3);
    let per_index = object("batch/v1", "Job", "w", json!({"spec": never}));
    let cron = object(
        "batch/v1",
        "CronJob",
        "w",
        json!({"spec": {"schedule": "*/5 * * * *", "startingDeadlineSeconds": 100, "successfulJobsHistoryLimit": 1,
        "jobTemplate": {"spec": {"template": of_job}}}, "status": {"lastScheduleTime": "2026-01-02T03:00:00Z"}}),
    );
    let budget = object(
        "policy/v1",
        "PodDisruptionBudget",
        "w",
        json!({"spec": {"minAvailable": "50%", "selector": {"matchLabels": {"a": "b"}}},
        "status": {"disruptedPods": {"p": "2026-01-02T03:04:05Z"}}}),
    );
    let service = object(
        "v1",
        "Service",
        "w",
        json!({"spec": {"type": "LoadBalancer", "selector": {"a": "b"}, "ports": [{"port": 80, "targetPort": 80, "nodePort": 30000}]}}),
    );
    let slice = object(
        "discovery.k8s.io/v1",
        "EndpointSlice",
        "w-1",
        json!({"addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.9"]}], "ports": [{"port": 80}],
        "metadata": {"labels": {"kubernetes.io/service-name": "w", "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"}}}),
    );
    let claim = object(
        "v1",
        "PersistentVolumeClaim",
        "data-w-5",
        json!({"spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "s", "volumeName": "v",
        "resources": {"requests": {"storage": "1Gi"}}}, "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}}),
    );
    let volume = of_cluster(object(
        "v1",
        "PersistentVolume",
        "v",
        json!({"spec": {"capacity": {"storage": "2Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "s",
        "persistentVolumeReclaimPolicy": "Recycle", "hostPath": {"path": "/tmp/x"}, "claimRef": {"namespace": "default", "name": "data-w-5", "uid": "data-w-5"}}}),
    ));
    let class = of_cluster(object(
        "storage.k8s.io/v1",
        "StorageClass",
        "s",
        json!({"provisioner": "corten/local-path", "volumeBindingMode": "WaitForFirstConsumer", "allowVolumeExpansion": true}),
    ));
    let lease = object(
        "coordination.k8s.io/v1",
        "Lease",
        "n",
        json!({"metadata": {"namespace": "kube-node-lease"}, "spec": {"renewTime": "2026-01-02T03:04:05.000000Z", "leaseDurationSeconds": 40}}),
    );
    let request = of_cluster(object(
        "certificates.k8s.io/v1",
        "CertificateSigningRequest",
        "w",
        json!({"spec": {"request": "LS0t", "signerName": "kubernetes.io/kubelet-serving", "usages": ["server auth"],
        "expirationSeconds": 600}, "status": {"conditions": [{"type": "Approved", "status": "True", "lastUpdateTime": "2026-01-02T03:04:05Z"}]}}),
    ));
    let token = object(
        "v1",
        "Secret",
        "bootstrap-token-abcdef",
        json!({"metadata": {"namespace": "kube-system"}, "type": "bootstrap.kubernetes.io/token",
        "data": {"token-id": "YWJjZGVm", "token-secret": "MDEyMzQ1Njc4OWFiY2RlZg==", "expiration": "MjAyNi0wMS0wMlQwMzowNDowNVo="}}),
    );
    let pod_of = |kind: &str, version: &str, owner: &str, name: &str| owned(pod(name), version, kind, owner);
    vec![
        seed(&[deployment, set.clone(), pod_of("ReplicaSet", "apps/v1", "r", "p")]),
        seed(&[stateful, pod_of("StatefulSet", "apps/v1", "w", "w-5"), claim.clone()]),
        seed(&[daemons, node(), pod_of("DaemonSet", "apps/v1", "w", "p")]),
        seed(&[job, pod_of("Job", "batch/v1", "w", "p")]),
        seed(&[per_index, pod_of("Job", "batch/v1", "w", "p")]),
        seed(&[cron]),
        seed(&[budget, set, pod_of("ReplicaSet", "apps/v1", "r", "p")]),
        seed(&[service, slice, pod("p"), node()]),
        seed(&[claim, volume, class, pod("p")]),
        seed(&[node(), lease, pod("p")]),
        seed(&[request, token]),
    ]
}

fn scheduler_seeds() -> Vec<Vec<u8>> {
    let mut new = pod("new");
    new["spec"]["nodeName"] = Value::Null;
    new["spec"]["priority"] = json!(7);
    new["spec"]["overhead"] = json!({"cpu": "1m"});
    new["spec"]["topologySpreadConstraints"] = json!([{"maxSkew": 1, "minDomains": 2, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"a": "b"}}}]);
    let term = json!({"topologyKey": "z", "labelSelector": {"matchLabels": {"a": "b"}}});
    let zone = json!({"matchExpressions": [{"key": "number", "operator": "Gt", "values": ["5"]}]});
    new["spec"]["affinity"] = json!({
        "podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]},
        "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": zone}]}});
    let mut node = node();
    node["spec"]["taints"] = json!([{"key": "k", "effect": "PreferNoSchedule"}]);
    node["metadata"]["labels"] = json!({"z": "one", "number": "9", "kubernetes.io/hostname": "n"});
    vec![seed(&[new, pod("p"), node])]
}
