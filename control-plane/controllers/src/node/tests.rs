//! Nodes that join, stop their heartbeats and are deleted, on a model.

use super::ipam::NodeIpamController;
use super::lifecycle::NodeLifecycleController;
use super::pod_gc::PodGcController;
use super::taint_eviction::TaintEvictionController;
use crate::cidr::Cidr;
use crate::tests::model::{Model, NOW, converges, decide, pod};
use corten_meta::Value;
use serde_json::json;
use std::time::Duration;

fn ago(seconds: i64) -> String {
    corten_meta::time::rfc3339(NOW.checked_sub(jiff::SignedDuration::from_secs(seconds)).unwrap())
}

fn node(name: &str, ready: &str, heard: i64) -> Value {
    let condition = |kind: &str, status: &str| json!({"type": kind, "status": status, "lastHeartbeatTime": ago(heard), "lastTransitionTime": ago(900)});
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "creationTimestamp": ago(1000)}, "spec": {},
        "status": {"conditions": [condition("Ready", ready), condition("MemoryPressure", "False"), condition("DiskPressure", "False"), condition("PIDPressure", "False")]},
    })
}

fn lifecycle() -> NodeLifecycleController {
    let started = NOW.checked_sub(jiff::SignedDuration::from_secs(3600)).unwrap();
    NodeLifecycleController {
        grace_period: Duration::from_secs(50),
        startup_grace_period: Duration::from_secs(60),
        started,
        clock: || *NOW,
        heartbeats: super::Heartbeats::default(),
    }
}

fn taints(model: &Model, node: &str) -> Vec<String> {
    let value = model.value("Node", "", node);
    let text = |taint: &Value| {
        format!(
            "{}:{}",
            taint["key"].as_str().unwrap().trim_start_matches("node.kubernetes.io/"),
            taint["effect"].as_str().unwrap()
        )
    };
    value["spec"]["taints"].as_array().into_iter().flatten().map(text).collect()
}

#[test]
fn a_healthy_node_is_left_alone_until_it_could_fall_silent() {
    let mut model = Model::default();
    model.put(node("a", "True", 10));
    assert_eq!(converges(&lifecycle(), &mut model, "", "a"), 0);
    let plan = decide(&lifecycle(), &model, "", "a");
    assert_eq!(plan.requeue_after.map(|after| after.as_secs()), Some(40));
}

#[test]
fn a_silent_node_becomes_unknown_is_tainted_and_its_pods_are_not_ready() {
    let mut model = Model::default();
    model.put(node("a", "True", 60));
    model.put(node("other", "True", 0));
    model.put(pod("p").phase("Running").on("a").ready(100).value());
    converges(&lifecycle(), &mut model, "", "a");
    let conditions = model.value("Node", "", "a")["status"]["conditions"].take();
    assert!(conditions.as_array().unwrap().iter().all(|c| c["status"] == "Unknown"
        && c["reason"] == "NodeStatusUnknown"
        && c["message"] == "Kubelet stopped posting node status."));
    assert_eq!(taints(&model, "a"), ["unreachable:NoSchedule", "unreachable:NoExecute"]);
    assert_eq!(model.value("Pod", "default", "p")["status"]["conditions"][0]["status"], "False");
    assert!(model.events.contains(&"Normal NodeNotReady Node a status is now: NodeNotReady".to_owned()));
}

#[test]
fn a_renewed_lease_is_a_sign_of_life() {
    let mut model = Model::default();
    model.put(node("a", "True", 600));
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"namespace": "kube-node-lease", "name": "a"}, "spec": {"renewTime": ago(5).replace('Z', ".000000Z")}});
    model.put(lease);
    assert_eq!(converges(&lifecycle(), &mut model, "", "a"), 0);
}

#[test]
fn with_no_node_heard_of_nothing_is_tainted_for_eviction() {
    let mut model = Model::default();
    model.put(node("a", "True", 600));
    converges(&lifecycle(), &mut model, "", "a");
    assert_eq!(taints(&model, "a"), ["unreachable:NoSchedule"]);
}

#[test]
fn silence_before_this_process_began_says_nothing() {
    let mut model = Model::default();
    model.put(node("a", "True", 600));
    let controller = NodeLifecycleController { started: *NOW, ..lifecycle() };
    assert_eq!(converges(&controller, &mut model, "", "a"), 0);
}

#[test]
fn conditions_and_a_cordon_become_taints_and_foreign_taints_stay() {
    let mut model = Model::default();
    let mut sick = node("a", "False", 1);
    sick["status"]["conditions"][1]["status"] = json!("True");
    sick["spec"] = json!({"unschedulable": true, "taints": [{"key": "mine", "effect": "NoSchedule"}]});
    model.put(sick);
    model.put(node("other", "True", 0));
    converges(&lifecycle(), &mut model, "", "a");
    assert_eq!(
        taints(&model, "a"),
        [
            "mine:NoSchedule",
            "not-ready:NoSchedule",
            "memory-pressure:NoSchedule",
            "unschedulable:NoSchedule",
            "not-ready:NoExecute"
        ]
    );
    let mut well = model.value("Node", "", "a");
    well["status"]["conditions"] = node("a", "True", 1)["status"]["conditions"].take();
    well["spec"]["unschedulable"] = json!(false);
    model.put(well);
    converges(&lifecycle(), &mut model, "", "a");
    assert_eq!(taints(&model, "a"), ["mine:NoSchedule"]);
}

fn ipam(clusters: &str) -> NodeIpamController {
    NodeIpamController { clusters: Cidr::parse_list(clusters).unwrap(), node_prefix_v4: 24, node_prefix_v6: 64 }
}

#[test]
fn a_node_gets_a_range_of_either_family() {
    let controller = ipam("10.244.0.0/16,fd00::/48");
    let mut model = Model::default();
    for (name, expected) in
        [("a", json!(["10.244.0.0/24", "fd00::/64"])), ("b", json!(["10.244.1.0/24", "fd00:0:0:1::/64"]))]
    {
        model.put(node(name, "True", 1));
        converges(&controller, &mut model, "", name);
        assert_eq!(model.value("Node", "", name)["spec"]["podCIDRs"], expected);
    }
}

#[test]
fn every_node_gets_a_range_of_its_own() {
    let controller = ipam("10.244.0.0/16");
    let mut model = Model::default();
    for name in ["a", "b", "c"] {
        model.put(node(name, "True", 1));
        converges(&controller, &mut model, "", name);
    }
    model.remove("Node", "", "b");
    model.put(node("d", "True", 1));
    converges(&controller, &mut model, "", "d");
    let range = |name: &str| model.value("Node", "", name)["spec"]["podCIDR"].clone();
    assert_eq!(
        [range("a"), range("c"), range("d")],
        [json!("10.244.0.0/24"), json!("10.244.2.0/24"), json!("10.244.1.0/24")]
    );
    assert_eq!(model.value("Node", "", "a")["spec"]["podCIDRs"], json!(["10.244.0.0/24"]));
}

/// For any pod CIDRs that another writer set: a node gets no address of another, and none is refused its own.
#[test]
fn ranges_that_were_not_cut_here_are_told_and_kept_clear_of() {
    let controller = ipam("10.244.0.0/16");
    let mut model = Model::default();
    for (name, range) in [("a", "10.9.9.9/32"), ("b", "10.244.0.0/23"), ("c", "0.0.0.0/0"), ("d", "10.244.2.7/32")] {
        let mut node = node(name, "True", 1);
        node["spec"]["podCIDRs"] = json!([range]);
        model.put(node);
        converges(&controller, &mut model, "", name);
        let told = format!("Warning PodCIDROutsideCluster The pod range {range} of node {name}");
        assert!(model.events.last().is_some_and(|event| event.starts_with(&told)), "{:?}", model.events);
    }
    model.put(node("e", "True", 1));
    converges(&controller, &mut model, "", "e");
    assert_eq!(model.value("Node", "", "e")["spec"]["podCIDR"], "10.244.3.0/24");
}

#[test]
fn a_network_that_is_used_up_is_told() {
    let controller = ipam("10.0.0.0/24");
    let mut model = Model::default();
    for name in ["a", "b"] {
        model.put(node(name, "True", 1));
        let plan = decide(&controller, &model, "", name);
        model.apply(&plan);
    }
    assert_eq!(model.events, ["Normal CIDRNotAvailable Node b status is now: CIDRNotAvailable"]);
}

#[test]
fn eviction_waits_as_long_as_the_pod_tolerates() {
    let taint =
        |added: i64| json!({"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "timeAdded": ago(added)});
    let toleration = |seconds: Value| json!([{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}]);
    for (name, tolerations, added, expected) in [
        ("not tolerated", json!([]), 1, Some(0)),
        ("tolerated for good", toleration(Value::Null), 1000, None),
        ("tolerated for a while", toleration(json!(300)), 100, Some(200)),
        ("tolerated no longer", toleration(json!(300)), 301, Some(0)),
        ("not at all", toleration(json!(0)), 0, Some(0)),
    ] {
        let mut model = Model::default();
        let mut tainted = node("a", "Unknown", 1);
        tainted["spec"]["taints"] = json!([taint(added)]);
        model.put(tainted);
        model.put(pod("p").phase("Running").on("a").set("/spec/tolerations", tolerations).value());
        let controller = TaintEvictionController::default();
        let plan = decide(&controller, &model, "default", "p");
        let waits = plan.requeue_after.map(|after| after.as_secs()).or((!plan.is_empty()).then_some(0));
        assert_eq!(waits, expected, "{name}");
        if expected == Some(0) {
            model.apply(&plan);
            assert_eq!(model.events, ["Normal TaintManagerEviction Marking for deletion Pod default/p"]);
            assert!(model.names("Pod").is_empty());
        }
    }
}

#[test]
fn pods_of_missing_nodes_go_after_a_quarantine() {
    let controller = PodGcController { terminated_threshold: 100 };
    let mut model = Model::default();
    model.put(pod("old").phase("Running").on("gone").value());
    model.put(pod("new").phase("Running").on("gone").set("/metadata/creationTimestamp", json!(ago(10))).value());
    model.put(pod("unscheduled").deleting().value());
    for name in ["old", "new", "unscheduled"] {
        converges(&controller, &mut model, "default", name);
    }
    assert_eq!(model.names("Pod"), ["new"]);
    assert_eq!(decide(&controller, &model, "default", "new").requeue_after, Some(Duration::from_secs(30)));
}

#[test]
fn the_oldest_ended_pods_beyond_the_threshold_go() {
    let controller = PodGcController { terminated_threshold: 2 };
    let mut model = Model::default();
    for (name, age, phase) in [("a", 30, "Failed"), ("b", 40, "Succeeded"), ("c", 10, "Failed"), ("d", 50, "Running")] {
        model.put(pod(name).phase(phase).on("n").set("/metadata/creationTimestamp", json!(ago(age))).value());
    }
    converges(&controller, &mut model, "", "terminated");
    assert_eq!(model.names("Pod"), ["a", "c", "d"]);
}

#[test]
fn nodes_of_a_zone_are_emptied_one_after_the_other() {
    let mut model = Model::default();
    for name in ["a", "b"] {
        model.put(node(name, "Unknown", 600));
    }
    ["c", "d", "e"].into_iter().for_each(|name| model.put(node(name, "True", 0)));
    converges(&lifecycle(), &mut model, "", "a");
    converges(&lifecycle(), &mut model, "", "b");
    assert_eq!(taints(&model, "a"), ["unreachable:NoSchedule", "unreachable:NoExecute"]);
    assert_eq!(taints(&model, "b"), ["unreachable:NoSchedule"]);
    assert_eq!(decide(&lifecycle(), &model, "", "b").requeue_after, Some(Duration::from_secs(10)));
    // In a zone of its own it need not wait.
    let mut elsewhere = model.value("Node", "", "b");
    elsewhere["metadata"]["labels"] = json!({"topology.kubernetes.io/zone": "z"});
    model.put(elsewhere);
    converges(&lifecycle(), &mut model, "", "b");
    assert_eq!(taints(&model, "b"), ["unreachable:NoSchedule", "unreachable:NoExecute"]);
}

#[test]
fn a_pod_is_taken_for_lost_only_if_the_server_knows_no_node() {
    let mut model = Model::default();
    model.put(pod("p").phase("Running").on("gone").value());
    let plan = decide(&PodGcController { terminated_threshold: 0 }, &model, "default", "p");
    let first = plan.actions.first().expect("a plan");
    assert!(matches!(first, crate::runtime::Action::Absent { key, .. } if key.name == "gone"), "{first:?}");
}
