//! The state in which a cluster comes to rest once the faults have stopped.

use std::collections::{BTreeMap, BTreeSet};

use corten_client::{Client, Error, ListOptions, Resource};
use serde_json::Value;

use crate::users::{LIMITED, NAMESPACE, Written};

/// The objects of the cluster.
struct Objects {
    deployments: Vec<Value>,
    replica_sets: Vec<Value>,
    stateful_sets: Vec<Value>,
    jobs: Vec<Value>,
    pods: Vec<Value>,
    nodes: Vec<Value>,
    services: Vec<Value>,
    slices: Vec<Value>,
    quotas: Vec<Value>,
    config_maps: Vec<Value>,
}

/// Returns what still differs from rest.
pub async fn unrest(client: &Client, written: &BTreeMap<String, Written>) -> Result<Vec<String>, Error> {
    let objects = read(client).await?;
    let workloads = objects.deployments.iter().chain(&objects.stateful_sets);
    let found = workloads
        .filter_map(workload)
        .chain(objects.jobs.iter().filter_map(job))
        .chain(objects.pods.iter().filter_map(pod))
        .chain(objects.nodes.iter().filter_map(node))
        .chain(orphans(&objects))
        .chain(objects.services.iter().filter_map(|one| service(one, &objects)))
        .chain(objects.quotas.iter().filter_map(|one| quota(one, &objects.pods)))
        .chain(written.iter().filter_map(|(name, one)| config_map(name, *one, &objects.config_maps)));
    Ok(found.collect())
}

async fn read(client: &Client) -> Result<Objects, Error> {
    let list = async |group: &str, plural: &str, namespace: &str| {
        let resource = Resource::new(group, "v1", plural, plural != "nodes");
        Ok::<_, Error>(client.dynamic(&resource).list(namespace, &ListOptions::default()).await?.items)
    };
    Ok(Objects {
        deployments: list("apps", "deployments", NAMESPACE).await?,
        replica_sets: list("apps", "replicasets", NAMESPACE).await?,
        stateful_sets: list("apps", "statefulsets", NAMESPACE).await?,
        jobs: list("batch", "jobs", NAMESPACE).await?,
        pods: list("", "pods", "").await?,
        nodes: list("", "nodes", "").await?,
        services: list("", "services", NAMESPACE).await?,
        slices: list("discovery.k8s.io", "endpointslices", NAMESPACE).await?,
        quotas: list("", "resourcequotas", LIMITED).await?,
        config_maps: list("", "configmaps", NAMESPACE).await?,
    })
}

/// All replicas of a workload are there, ready, and of its template.
fn workload(object: &Value) -> Option<String> {
    let status = &object["status"];
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let wanted = number(&object["spec"]["replicas"]);
    let counts = ["replicas", "readyReplicas", "updatedReplicas"].map(|field| number(&status[field]));
    let is_observed = number(&status["observedGeneration"]) == number(&object["metadata"]["generation"]);
    let is_done = counts == [wanted; 3] && is_observed;
    (!is_done).then(|| format!("{} wants {wanted} replicas and has {status}", title(object)))
}

fn job(object: &Value) -> Option<String> {
    let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let is_complete = conditions.iter().any(|one| one["type"] == "Complete" && one["status"] == "True");
    (!is_complete).then(|| format!("{} has {}", title(object), object["status"]))
}

fn pod(object: &Value) -> Option<String> {
    let is_terminal = matches!(object["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    let is_deleted = !object["metadata"]["deletionTimestamp"].is_null();
    let is_done = !is_deleted && (is_terminal || is_ready(object));
    (!is_done).then(|| format!("{} on {} has {}", title(object), object["spec"]["nodeName"], object["status"]))
}

fn node(object: &Value) -> Option<String> {
    let is_done = is_ready(object) && object["spec"]["taints"].as_array().is_none_or(Vec::is_empty);
    (!is_done).then(|| format!("{} is not ready: {}", title(object), object["spec"]))
}

fn is_ready(object: &Value) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|one| one["type"] == "Ready" && one["status"] == "True")
}

/// Every owner exists.
fn orphans(objects: &Objects) -> Vec<String> {
    let owners = [&objects.deployments, &objects.replica_sets, &objects.stateful_sets, &objects.jobs];
    let uids: BTreeSet<&str> = owners.into_iter().flatten().map(corten_meta::uid).collect();
    let is_orphan = |object: &&Value| {
        let owner = object["metadata"]["ownerReferences"][0]["uid"].as_str();
        owner.is_some_and(|owner| !uids.contains(owner))
    };
    let owned = objects.replica_sets.iter().chain(&objects.pods).filter(is_orphan);
    owned.map(|object| format!("the owner of {} is gone", title(object))).collect()
}

/// The endpoints of a Service are its ready pods.
fn service(object: &Value, objects: &Objects) -> Option<String> {
    let app = &object["spec"]["selector"]["app"];
    let is_backend = |pod: &&Value| {
        pod["metadata"]["namespace"] == NAMESPACE && pod["metadata"]["labels"]["app"] == *app && is_ready(pod)
    };
    let pods: BTreeSet<&str> =
        objects.pods.iter().filter(is_backend).filter_map(|pod| pod["status"]["podIP"].as_str()).collect();
    let name = corten_meta::name(object);
    let is_own = |slice: &&Value| slice["metadata"]["labels"]["kubernetes.io/service-name"] == name;
    let endpoints = objects.slices.iter().filter(is_own).filter_map(|slice| slice["endpoints"].as_array()).flatten();
    let ready = endpoints.filter(|endpoint| endpoint["conditions"]["ready"] == true);
    let ready: BTreeSet<&str> = ready.filter_map(|endpoint| endpoint["addresses"][0].as_str()).collect();
    (ready != pods).then(|| format!("{} has the endpoints {ready:?}, and its pods are {pods:?}", title(object)))
}

/// The quota counts the pods that there are.
fn quota(object: &Value, pods: &[Value]) -> Option<String> {
    let is_counted = |pod: &&Value| {
        let is_terminal = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        pod["metadata"]["namespace"] == LIMITED && !is_terminal
    };
    let count = pods.iter().filter(is_counted).count().to_string();
    let used = object["status"]["used"]["pods"].as_str().unwrap_or_default();
    (used != count).then(|| format!("{} counts {used} pods of {count}", title(object)))
}

/// An acknowledged number is there, and none that was never sent.
fn config_map(name: &str, written: Written, found: &[Value]) -> Option<String> {
    let object = found.iter().find(|object| corten_meta::name(object) == name);
    let number = object.and_then(|object| object["data"]["number"].as_str()?.parse().ok()).unwrap_or(0);
    let is_kept = (written.acknowledged..=written.sent).contains(&number);
    (!is_kept).then(|| format!("ConfigMap {name} has {number}: {written:?}"))
}

fn title(object: &Value) -> String {
    let kind = object["kind"].as_str().unwrap_or("object");
    format!("{kind} {}/{}", corten_meta::namespace(object), corten_meta::name(object))
}
