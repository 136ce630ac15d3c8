//! Placement by table: what fits where, in which words it does not, and what must go.

use super::*;
use crate::rows::tests::{node, pod};
use corten_api::k8s_openapi::api::core::v1::Node;
use proptest::prelude::*;
use serde_json::{Value, json};

fn cluster(nodes: Vec<Node>) -> Snapshot {
    let mut snapshot = Snapshot::default();
    for node in nodes {
        snapshot.set_node(node);
    }
    snapshot
}

fn asking(name: &str, cpu: &str, extra: Value) -> PodRow {
    let mut spec = json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]});
    corten_meta::patch::merge_patch(&mut spec, &extra);
    pod(name, spec)
}

fn place(snapshot: &mut Snapshot, pod: &PodRow) -> Result<String, Rejection> {
    schedule(snapshot, pod, &Nominated::default(), &mut Rotation::new(7))
}

fn put(snapshot: &mut Snapshot, mut pod: PodRow, node: &str) {
    pod.node_name = node.to_owned();
    snapshot.add_pod(Arc::new(pod));
}

fn message(snapshot: &mut Snapshot, pod: &PodRow) -> String {
    place(snapshot, pod).expect_err("no node should fit").message
}

#[test]
fn a_cluster_without_nodes_says_so() {
    assert_eq!(message(&mut cluster(vec![]), &asking("p", "1", json!({}))), "no nodes available to schedule pods");
}

#[test]
fn the_reasons_are_counted_in_upstreams_words() {
    let taint = json!({"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}});
    let mut snapshot = cluster(vec![node("a", "1", json!({})), node("b", "4", taint.clone()), node("c", "4", taint)]);
    assert_eq!(
        message(&mut snapshot, &asking("p", "2", json!({}))),
        "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint(s). \
         preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
    );
}

#[test]
fn a_full_node_without_lesser_pods_has_no_victims() {
    let mut snapshot = cluster(vec![node("a", "2", json!({}))]);
    put(&mut snapshot, asking("q", "2", json!({})), "a");
    assert_eq!(
        message(&mut snapshot, &asking("p", "1", json!({}))),
        "0/1 nodes are available: 1 Insufficient cpu. \
         preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
    );
}

#[test]
fn each_filter_keeps_the_pod_from_where_it_must_not_go() {
    let hard = |key: &str| json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [{"key": key, "operator": "Exists"}]}]}}}});
    let cases = [
        ("cordoned", json!({"spec": {"unschedulable": true}}), json!({}), "node(s) were unschedulable"),
        (
            "selector",
            json!({}),
            json!({"nodeSelector": {"disk": "ssd"}}),
            "node(s) didn't match Pod's node affinity/selector",
        ),
        ("affinity", json!({}), hard("gpu"), "node(s) didn't match Pod's node affinity/selector"),
        (
            "extended",
            json!({}),
            json!({"containers": [{"name": "c", "resources": {"requests": {"example.com/gpu": "1"}}}]}),
            "Insufficient example.com/gpu",
        ),
        ("full", json!({"status": {"allocatable": {"pods": "0"}}}), json!({}), "Too many pods"),
    ];
    for (name, bad, spec, reason) in cases {
        let mut snapshot = cluster(vec![node("bad", "4", bad)]);
        let told = message(&mut snapshot, &asking("p", "100m", spec));
        assert!(told.starts_with(&format!("0/1 nodes are available: 1 {reason}.")), "{name}: {told}");
    }
}

#[test]
fn a_host_port_is_taken_once() {
    let wants = |name: &str| {
        pod(name, json!({"containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}]}))
    };
    let mut snapshot = cluster(vec![node("a", "4", json!({}))]);
    put(&mut snapshot, wants("first"), "a");
    assert!(
        message(&mut snapshot, &wants("second"))
            .contains("1 node(s) didn't have free ports for the requested pod ports")
    );
}

#[test]
fn the_least_allocated_node_wins() {
    let mut snapshot = cluster(vec![node("a", "4", json!({})), node("b", "4", json!({}))]);
    put(&mut snapshot, asking("q", "3", json!({})), "a");
    assert_eq!(place(&mut snapshot, &asking("p", "500m", json!({}))).unwrap(), "b");
}

#[test]
fn a_soft_taint_is_second_choice() {
    let soft = json!({"spec": {"taints": [{"key": "k", "effect": "PreferNoSchedule"}]}});
    let mut snapshot = cluster(vec![node("a", "4", soft), node("b", "4", json!({}))]);
    assert_eq!(place(&mut snapshot, &asking("p", "500m", json!({}))).unwrap(), "b");
}

#[test]
fn preferred_affinity_attracts() {
    let prefers = json!({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 50, "preference": {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}},
    ]}}});
    let mut snapshot =
        cluster(vec![node("a", "4", json!({})), node("b", "4", json!({"metadata": {"labels": {"disk": "ssd"}}}))]);
    assert_eq!(place(&mut snapshot, &asking("p", "100m", prefers)).unwrap(), "b");
}

#[test]
fn lesser_pods_make_room_and_the_cheapest_go() {
    let mut snapshot = cluster(vec![node("a", "2", json!({})), node("b", "2", json!({}))]);
    put(&mut snapshot, asking("mid", "2", json!({"priority": 5})), "a");
    put(&mut snapshot, asking("low", "1", json!({"priority": 1})), "b");
    put(&mut snapshot, asking("lower", "1", json!({"priority": 0})), "b");
    let rejection = place(&mut snapshot, &asking("p", "1", json!({"priority": 10}))).unwrap_err();
    let room = rejection.preemption.expect("room can be made");
    let victims: Vec<&str> = room.victims.iter().map(|victim| victim.uid.as_str()).collect();
    assert_eq!((room.node.as_str(), victims), ("b", vec!["lower"]));
    assert_eq!(snapshot.node("b").unwrap().pods.len(), 2, "the dry run restores what it took");
}

#[test]
fn a_pod_that_never_preempts_says_so() {
    let mut snapshot = cluster(vec![node("a", "1", json!({}))]);
    put(&mut snapshot, asking("low", "1", json!({})), "a");
    let told = message(&mut snapshot, &asking("p", "1", json!({"priority": 10, "preemptionPolicy": "Never"})));
    assert_eq!(
        told,
        "0/1 nodes are available: 1 Insufficient cpu. preemption: not eligible due to preemptionPolicy=Never."
    );
}

#[test]
fn room_made_for_a_pod_is_kept_for_it() {
    let mut snapshot = cluster(vec![node("a", "1", json!({}))]);
    let nominated =
        Nominated::from([("a".to_owned(), vec![Arc::new(asking("waiting", "1", json!({"priority": 10})))])]);
    let lesser = schedule(&mut snapshot, &asking("p", "1", json!({})), &nominated, &mut Rotation::new(7));
    assert!(lesser.is_err());
    let greater =
        schedule(&mut snapshot, &asking("p", "1", json!({"priority": 20})), &nominated, &mut Rotation::new(7));
    assert_eq!(greater.unwrap(), "a");
}

#[test]
fn spreading_and_repelling_pods_keep_apart() {
    let zone = |name: &str, zone: &str| node(name, "4", json!({"metadata": {"labels": {"zone": zone}}}));
    let spread = json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "p"}}}]});
    let mut snapshot = cluster(vec![zone("a", "one"), zone("b", "two")]);
    put(&mut snapshot, pod("p", json!({"containers": []})), "a");
    let mut second = pod("p", {
        let mut spec = json!({"containers": []});
        corten_meta::patch::merge_patch(&mut spec, &spread);
        spec
    });
    second.uid = "second".to_owned();
    assert_eq!(place(&mut snapshot, &second).unwrap(), "b");

    let anti = json!({"containers": [], "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "p"}}}]}}});
    assert_eq!(place(&mut snapshot, &pod("other", anti.clone())).unwrap(), "b");
    let mut one_zone = cluster(vec![zone("a", "one")]);
    put(&mut one_zone, pod("p", anti), "a");
    assert!(
        message(&mut one_zone, &pod("p", json!({"containers": []})))
            .contains("1 node(s) didn't satisfy existing pods anti-affinity rules")
    );
}

#[test]
fn affinity_follows_its_kind_and_lets_the_first_start() {
    let zone = |name: &str, zone: &str| node(name, "4", json!({"metadata": {"labels": {"zone": zone}}}));
    let near = |app: &str| json!({"containers": [], "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": app}}}]}}});
    let mut snapshot = cluster(vec![zone("a", "one"), zone("b", "two")]);
    assert!(place(&mut snapshot, &pod("self", near("self"))).is_ok(), "the first of its kind");
    assert!(message(&mut snapshot, &pod("p", near("absent"))).contains("2 node(s) didn't match pod affinity rules"));
    put(&mut snapshot, pod("q", json!({"containers": []})), "b");
    assert_eq!(place(&mut snapshot, &pod("p", near("q"))).unwrap(), "b");
}

#[test]
fn in_large_clusters_a_share_of_the_nodes_is_enough() {
    for (nodes, expected) in [(50, 50), (100, 100), (1000, 420), (5000, 500), (10_000, 500)] {
        assert_eq!(feasible_to_find(nodes), expected, "{nodes} nodes");
    }
}

proptest! {
    /// A node is never given more than it has, whatever comes in whatever order.
    #[test]
    fn no_node_is_overcommitted(demands in proptest::collection::vec(1i64..2000, 1..40)) {
        let mut snapshot = cluster(vec![node("a", "2", json!({})), node("b", "3", json!({}))]);
        for (number, demand) in demands.iter().enumerate() {
            let pod = asking(&format!("p{number}"), &format!("{demand}m"), json!({}));
            if let Ok(chosen) = place(&mut snapshot, &pod) {
                put(&mut snapshot, pod, &chosen);
            }
        }
        for row in snapshot.nodes() {
            prop_assert!(row.requested.milli_cpu <= row.allocatable.milli_cpu);
        }
    }
}
