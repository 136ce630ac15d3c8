//! Namespaces that are created and deleted, with their objects and quotas.
//!
//! No object of a live namespace is deleted, pods are deleted before all else, and at the end every terminating
//! namespace is gone, with custom resources whose CustomResourceDefinition is created and deleted. The usage of a quota
//! matches the objects.

use corten_meta::Value;
use http::Method;
use serde_json::json;

use super::cluster::{World, collection, path_of, play, put};
use super::custom;
use super::server::{Invariant, Server, Write};
use super::{Random, all, any, delete, kubelet, touch};

const EMPTIER: &str = "namespace-controller";
const COUNTER: &str = "resourcequota-controller";
const KINDS: [&str; 5] = ["ConfigMap", "Secret", "Pod", "Endpoints", custom::KIND];
const WIDGETS: &str = "count/widgets.example.com";
const NAMES: [&str; 3] = ["stays", "one", "two"];

pub const WORLD: World = World {
    controllers: &[
        "namespace-controller",
        "resourcequota-controller",
        "garbage-collector-controller",
        "serviceaccount-controller",
        "root-ca-certificate-publisher-controller",
    ],
    objects,
    happens,
    goes_on,
    invariant,
    at_rest,
    ..World::USUAL
};

fn objects(random: &mut Random) -> Vec<Value> {
    let mut all = vec![json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}})];
    all.extend(random.chance(70).then(custom::definition));
    for name in NAMES {
        all.push(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}));
        all.extend(quotas(name));
    }
    all
}

/// Returns one quota of all objects, and one of the terminating pods alone.
fn quotas(namespace: &str) -> [Value; 2] {
    let quota = |name: &str, spec: Value| json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"namespace": namespace, "name": name}, "spec": spec});
    let hard = json!({"pods": "9", "requests.cpu": "5", "count/configmaps": "20", "secrets": "20", WIDGETS: "9"});
    [
        quota("all", json!({ "hard": hard })),
        quota("ending", json!({"hard": {"pods": "3", "limits.memory": "1Gi"}, "scopes": ["Terminating"]})),
    ]
}

fn happens(server: &Server, random: &mut Random) {
    let namespace = NAMES[random.next(NAMES.len())];
    match random.next(22) {
        20 if random.chance(20) => custom::toggle_definition(server),
        21 => end_a_pod(server, random),
        0..9 => {
            let new = content(random, namespace);
            let _ = server.ask("user", Method::POST, &collection(&new), &new);
        }
        9 if namespace != "stays" => {
            let path = format!("/api/v1/namespaces/{namespace}");
            let _ = server.ask("user", Method::DELETE, &path, &json!({}));
        }
        10 | 11 => {
            let kind = KINDS[random.next(KINDS.len())];
            if let Some(object) = any(server, random, kind) {
                delete(server, &object, None);
            }
        }
        12 => {
            let Some(mut quota) = any(server, random, "ResourceQuota") else { return };
            quota["spec"]["hard"]["pods"] = json!(random.next(12).to_string());
            let _ = server.ask("user", Method::PUT, &path_of(&quota), &quota);
        }
        13 => {
            let new = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
            if server.ask("user", Method::POST, &collection(&new), &new).is_ok() {
                quotas(namespace).iter().for_each(|quota| put(server, quota));
            }
        }
        _ => {
            let kinds = ["ConfigMap", "Secret", "Pod", "Endpoints", "Namespace", "ResourceQuota"];
            let kind = kinds[random.next(kinds.len())];
            touch(server, random, kind);
        }
    }
}

fn content(random: &mut Random, namespace: &str) -> Value {
    let kind = if random.chance(20) { custom::KIND } else { KINDS[random.next(KINDS.len())] };
    let name = format!("o{}", random.next(8));
    let version = if kind == custom::KIND { custom::API_VERSION } else { "v1" };
    let mut object = json!({"apiVersion": version, "kind": kind, "metadata": {"namespace": namespace, "name": name}});
    if random.chance(25) {
        object["metadata"]["finalizers"] = json!(["example.com/held"]);
    }
    if kind == "Pod" {
        let resources = json!({"requests": {"cpu": format!("{}m", 100 * random.next(5))},
            "limits": {"cpu": "1", "memory": format!("{}Mi", 1 + random.next(9))}});
        object["spec"] = json!({"containers": [{"name": "c", "image": "i", "resources": resources}]});
        if random.chance(40) {
            object["spec"]["activeDeadlineSeconds"] = json!(1000);
        }
    }
    object
}

/// Terminates a pod by itself, so that it no longer counts.
fn end_a_pod(server: &Server, random: &mut Random) {
    let Some(pod) = any(server, random, "Pod").filter(|pod| pod["status"]["phase"] == "Running") else { return };
    let phase = ["Succeeded", "Failed"][random.next(2)];
    let ended = json!({"status": {"phase": phase}});
    let _ = server.ask("kubelet", Method::PATCH, &format!("{}/status", path_of(&pod)), &ended);
}

/// Runs the kubelets, and the owners of finalizers that remove them.
fn goes_on(server: &Server, random: &mut Random) {
    kubelet(server, random);
    custom::reconcile_crds(server);
    // Also after the last user action: a deletion is then the last event of a namespace.
    if random.chance(5) {
        end_a_pod(server, random);
    }
    let kind = KINDS[random.next(KINDS.len())];
    let leaving = |one: &Value| {
        !one["metadata"]["deletionTimestamp"].is_null()
            && one["metadata"]["finalizers"].as_array().is_some_and(|held| !held.is_empty())
    };
    if let Some(object) = any(server, random, kind).filter(leaving) {
        let _ = server.ask("holder", Method::PATCH, &path_of(&object), &json!({"metadata": {"finalizers": null}}));
    }
}

fn invariant() -> Invariant {
    Box::new(|write: &Write<'_>| match write.who {
        EMPTIER => check_emptier(write),
        COUNTER => check_counter(write),
        _ => Ok(()),
    })
}

fn check_emptier(write: &Write<'_>) -> Result<(), String> {
    let Some(old) = &write.old else { return Err("it made something".to_owned()) };
    let namespace = match write.kind {
        "Namespace" => Some(old.clone()),
        _ => write.after.find("Namespace", "", corten_meta::namespace(old)),
    };
    let leaves = |one: &Value| !one["metadata"]["deletionTimestamp"].is_null();
    if !namespace.as_ref().is_some_and(leaves) {
        return Err("its namespace is not on its way out".to_owned());
    }
    if write.kind == "Namespace" {
        let inside = |one: &str| {
            let keys = write.after.keys(one);
            keys.iter().filter(|key| key.namespace == corten_meta::name(old)).count()
        };
        let left: usize = KINDS.iter().map(|kind| inside(kind)).sum();
        return match write.new {
            None if left > 0 => Err(format!("{left} objects are left in it")),
            _ => Ok(()),
        };
    }
    let pods = write.after.keys("Pod");
    if write.kind != "Pod" && pods.iter().any(|key| key.namespace == corten_meta::namespace(old)) {
        return Err("it went before the pods".to_owned());
    }
    Ok(())
}

fn check_counter(write: &Write<'_>) -> Result<(), String> {
    let (Some(old), Some(new)) = (&write.old, &write.new) else { return Err("it made or took something".to_owned()) };
    let same = |field: &str| old["spec"][field] == new["spec"][field];
    match write.kind == "ResourceQuota" && same("hard") {
        true => Ok(()),
        false => Err("it wrote more than what is in use".to_owned()),
    }
}

fn at_rest(server: &Server) -> Result<(), String> {
    for namespace in all(server, "Namespace") {
        let name = corten_meta::name(&namespace);
        if !namespace["metadata"]["deletionTimestamp"].is_null() {
            return Err(format!("{name} does not go: {}", namespace["status"]));
        }
        let there = |kind: &str, wanted: &str| {
            all(server, kind).iter().any(|one| corten_meta::namespace(one) == name && corten_meta::name(one) == wanted)
        };
        if !there("ServiceAccount", "default") || !there("ConfigMap", "kube-root-ca.crt") {
            return Err(format!("{name} lacks what every namespace has"));
        }
    }
    for quota in all(server, "ResourceQuota") {
        let used = &quota["status"]["used"];
        let in_use = in_use(server, &quota);
        if *used != in_use || quota["status"]["hard"] != quota["spec"]["hard"] {
            return Err(format!("{used} is not in use, {in_use} is: {quota}"));
        }
    }
    Ok(())
}

/// Counts the usage from the objects.
fn in_use(server: &Server, quota: &Value) -> Value {
    let namespace = corten_meta::namespace(quota);
    let of = |kind: &str| -> Vec<Value> {
        all(server, kind).into_iter().filter(|one| corten_meta::namespace(one) == namespace).collect()
    };
    let ending = !quota["spec"]["scopes"].is_null();
    let counted = |pod: &Value| {
        !["Succeeded", "Failed"].iter().any(|phase| pod["status"]["phase"] == *phase)
            && (!ending || !pod["spec"]["activeDeadlineSeconds"].is_null())
    };
    let pods: Vec<Value> = of("Pod").into_iter().filter(counted).collect();
    let sum = |pointer: &str, unit: &str| -> i64 {
        let amount = |pod: &Value| {
            let text = pod.pointer(pointer).and_then(Value::as_str).unwrap_or("0").to_owned();
            text.strip_suffix(unit).and_then(|number| number.parse::<i64>().ok()).unwrap_or(0)
        };
        pods.iter().map(amount).sum()
    };
    if ending {
        let memory = sum("/spec/containers/0/resources/limits/memory", "Mi");
        let memory = if memory == 0 { "0".to_owned() } else { format!("{memory}Mi") };
        return json!({"pods": pods.len().to_string(), "limits.memory": memory});
    }
    let cpu = sum("/spec/containers/0/resources/requests/cpu", "m");
    let cpu = if cpu % 1000 == 0 { (cpu / 1000).to_string() } else { format!("{cpu}m") };
    json!({"pods": pods.len().to_string(), "requests.cpu": cpu, WIDGETS: of(custom::KIND).len().to_string(),
        "count/configmaps": of("ConfigMap").len().to_string(), "secrets": of("Secret").len().to_string()})
}

#[test]
fn namespaces_are_emptied_and_deleted_and_quotas_are_exact() {
    play(&WORLD);
}
