//! Nodes that join, stop their heartbeats, are tainted and deleted, and the pods on them.
//!
//! No pod is evicted from a healthy node, no two nodes have one CIDR and none changes its own, and at the end no pod is
//! left on deleted nodes or on nodes whose taints it does not tolerate.

use std::collections::BTreeMap;

use corten_meta::Value;
use http::Method;
use jiff::Timestamp;
use serde_json::json;
use testkit_fixture as fixture;

use super::cluster::{World, collection, path_of, play};
use super::server::{Invariant, Server, Write};
use super::{Random, SETTLED, all, any, delete, kubelet, now, touch};

const NODES: &str = "node-controller";
pub const SILENT: &str = "silent";

pub const WORLD: World = World {
    controllers: &[
        "node-lifecycle-controller",
        "taint-eviction-controller",
        "pod-garbage-collector-controller",
        "node-ipam-controller",
        "ttl-controller",
    ],
    objects,
    happens,
    goes_on,
    invariant,
    at_rest,
    pace: std::time::Duration::from_secs(3),
    steps: 200,
    ..World::USUAL
};

fn node(name: &str) -> Value {
    fixture::object(&format!("node {name} zone={}", if name < "c" { "one" } else { "two" }))
}

fn objects(_: &mut Random) -> Vec<Value> {
    let mut all = fixture::objects("ns default\nns kube-node-lease");
    all.extend(["a", "b", "c", "d", "e"].map(node));
    all
}

fn happens(server: &Server, random: &mut Random) {
    let name = ["a", "b", "c", "d", "e"][random.next(5)];
    match random.next(12) {
        0 => drop(server.ask("user", Method::POST, "/api/v1/nodes", &node(name))),
        1 => {
            if let Some(node) = any(server, random, "Node") {
                delete(server, &node, None);
            }
        }
        // Only one node becomes silent at a time: `zones` covers whole zones.
        2 => {
            let silent = all(server, "Node").into_iter().find(|node| !node["metadata"]["labels"][SILENT].is_null());
            let (path, mark) = match silent {
                Some(node) => (path_of(&node), Value::Null),
                None => (format!("/api/v1/nodes/{name}"), json!("yes")),
            };
            let _ = server.ask("user", Method::PATCH, &path, &json!({"metadata": {"labels": {SILENT: mark}}}));
        }
        3 => {
            let Some(mut node) = any(server, random, "Node") else { return };
            let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
            let mut kept: Vec<Value> = taints.into_iter().filter(|taint| taint["key"] != "mine").collect();
            if random.chance(50) {
                kept.push(json!({"key": "mine", "effect": "NoExecute"}));
            }
            node["spec"]["taints"] = json!(kept);
            let _ = server.ask("user", Method::PUT, &path_of(&node), &node);
        }
        4..9 => {
            let tolerations = match random.next(3) {
                0 => json!([{"operator": "Exists"}]),
                1 => json!([{"key": "mine", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 20}]),
                _ => json!([]),
            };
            let new = json!({"apiVersion": "v1", "kind": "Pod",
                "metadata": {"namespace": "default", "name": format!("p{}", random.next(12))},
                "spec": {"tolerations": tolerations, "containers": [{"name": "c", "image": "i"}]}});
            let _ = server.ask("user", Method::POST, &collection(&new), &new);
        }
        _ => {
            let kind = ["Node", "Pod"][random.next(2)];
            touch(server, random, kind);
        }
    }
}

fn goes_on(server: &Server, random: &mut Random) {
    heartbeats(server);
    kubelet(server, random);
}

/// Writes the heartbeat of every node that is not silent.
pub fn heartbeats(server: &Server) {
    for node in all(server, "Node").iter().filter(|node| node["metadata"]["labels"][SILENT].is_null()) {
        let name = corten_meta::name(node);
        let spec = json!({"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": corten_meta::time::rfc3339_micro(now())});
        let path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"namespace": "kube-node-lease", "name": name}, "spec": spec});
        if server.ask("kubelet", Method::PATCH, &format!("{path}/{name}"), &json!({"spec": lease["spec"]})).is_err() {
            let _ = server.ask("kubelet", Method::POST, path, &lease);
        }
        let ready =
            node["status"]["conditions"].as_array().and_then(|all| all.iter().find(|one| one["type"] == "Ready"));
        if ready.is_none_or(|ready| ready["status"] != "True") {
            let at = corten_meta::time::rfc3339(now());
            let ready = json!([{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "", "lastHeartbeatTime": at, "lastTransitionTime": at}]);
            let _ = server.ask(
                "kubelet",
                Method::PATCH,
                &format!("{}/status", path_of(node)),
                &json!({"status": {"conditions": ready}}),
            );
        }
    }
}

fn has_no_execute(node: &Value) -> bool {
    node["spec"]["taints"].as_array().is_some_and(|all| all.iter().any(|taint| taint["effect"] == "NoExecute"))
}

fn invariant() -> Invariant {
    // The time since which each node has no evicting taint.
    let mut well: BTreeMap<String, Timestamp> = BTreeMap::new();
    Box::new(move |write: &Write<'_>| {
        let Some(object) = write.new.as_ref().or(write.old.as_ref()) else { return Ok(()) };
        if write.kind == "Node" {
            let name = corten_meta::name(object).to_owned();
            match &write.new {
                Some(new) if !has_no_execute(new) => drop(well.entry(name).or_insert_with(now)),
                _ => drop(well.remove(&name)),
            }
            return check_range(write);
        }
        let begins = write.kind == "Pod"
            && write.old.as_ref().is_some_and(|old| old["metadata"]["deletionTimestamp"].is_null())
            && write.new.as_ref().is_none_or(|new| !new["metadata"]["deletionTimestamp"].is_null());
        if !begins || write.who != NODES && write.who != "pod-garbage-collector" {
            return Ok(());
        }
        let node = object["spec"]["nodeName"].as_str().unwrap_or_default();
        match well.get(node) {
            Some(since) if now().duration_since(*since) > SETTLED => Err(format!("{node} is well since {since}")),
            _ => Ok(()),
        }
    })
}

fn check_range(write: &Write<'_>) -> Result<(), String> {
    let (Some(old), Some(new)) = (&write.old, &write.new) else { return Ok(()) };
    let (before, after) = (&old["spec"]["podCIDR"], &new["spec"]["podCIDR"]);
    if before == after {
        return Ok(());
    }
    let nodes = write.after.objects().filter(|(kind, _)| *kind == "Node").map(|(_, node)| node.value());
    let sharing = nodes.filter(|node| node["spec"]["podCIDR"] == *after).count();
    match !before.is_null() || sharing > 1 {
        true => Err(format!("its range {before} became {after}, which {sharing} have")),
        false => Ok(()),
    }
}

fn at_rest(server: &Server) -> Result<(), String> {
    let nodes = all(server, "Node");
    for node in &nodes {
        let name = corten_meta::name(node);
        if node["spec"]["podCIDR"].is_null() {
            return Err(format!("{name} has no range"));
        }
        let unreachable = node["spec"]["taints"].as_array().is_some_and(|all| {
            all.iter().any(|taint| taint["key"] == "node.kubernetes.io/unreachable" && taint["effect"] == "NoExecute")
        });
        // When no node at all sends heartbeats, none is tainted.
        let silent = |node: &Value| !node["metadata"]["labels"][SILENT].is_null();
        if unreachable != (silent(node) && !nodes.iter().all(silent)) {
            return Err(format!("{name} is tainted or not, wrongly: {node}"));
        }
    }
    for pod in all(server, "Pod") {
        let place = pod["spec"]["nodeName"].as_str().unwrap_or_default();
        let node = nodes.iter().find(|node| corten_meta::name(node) == place);
        let Some(node) = node else { return Err(format!("{} is on a node that is gone", corten_meta::name(&pod))) };
        let stays = pod["spec"]["tolerations"]
            .as_array()
            .is_some_and(|all| all.iter().any(|one| one["operator"] == "Exists" && one["key"].is_null()));
        let mine = node["spec"]["taints"].as_array().is_some_and(|all| all.iter().any(|taint| taint["key"] == "mine"));
        let ended = ["Succeeded", "Failed"].iter().any(|phase| pod["status"]["phase"] == *phase);
        if mine && !stays && !ended && pod["metadata"]["deletionTimestamp"].is_null() {
            return Err(format!("{} does not tolerate {place} and is there", corten_meta::name(&pod)));
        }
    }
    Ok(())
}

#[test]
fn pods_are_evicted_from_no_node_that_is_well() {
    play(&WORLD);
}
