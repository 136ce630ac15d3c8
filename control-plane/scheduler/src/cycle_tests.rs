//! Scheduling by table: feasible nodes, the reasons of the others, and victims.

use std::collections::BTreeMap;

use super::*;
use crate::rows::Budget;
use crate::rows::tests::{node, typed_pod};
use corten_api::k8s_openapi::api::core::v1::Node;
use corten_meta::{Key, Selector};
use proptest::prelude::*;
use serde_json::{Value, json};

/// A cluster to schedule pods on.
struct Cluster {
    snapshot: Snapshot,
    profile: Profile,
}

impl Cluster {
    fn new(nodes: Vec<Node>) -> Cluster {
        let mut snapshot = Snapshot::default();
        for node in nodes {
            snapshot.set_node(node);
        }
        Cluster { snapshot, profile: Profile::by_default() }
    }

    fn put(&mut self, name: &str, spec: Value, node: &str) {
        let mut row = self.snapshot.row(typed_pod(name, spec));
        row.node_name = node.to_owned();
        self.snapshot.add_pod(Arc::new(row));
    }

    fn try_place(&mut self, name: &str, spec: Value) -> Result<String, Box<Rejection>> {
        let row = self.snapshot.row(typed_pod(name, spec));
        let slot = schedule(&mut self.snapshot, &self.profile, &row, &mut Rotation::new(7))?;
        Ok(self.snapshot.node(slot).name.clone())
    }

    fn place(&mut self, name: &str, spec: Value) -> String {
        self.try_place(name, spec).expect("a node should fit")
    }

    fn message(&mut self, name: &str, spec: Value) -> String {
        self.try_place(name, spec).expect_err("no node should fit").message()
    }

    fn room(&mut self, spec: Value) -> (String, Vec<String>) {
        let room = preemption::best(self.try_place("p", spec).unwrap_err().candidates).expect("room can be made");
        (room.node.clone(), room.victims.iter().map(|victim| victim.name.clone()).collect())
    }
}

fn cpu(cpus: &str, extra: Value) -> Value {
    let mut spec = json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": cpus}}}]});
    corten_meta::patch::merge_patch(&mut spec, &extra);
    spec
}

fn zone(name: &str, zone: &str) -> Node {
    node(name, "4", json!({"metadata": {"labels": {"zone": zone}}}))
}

#[test]
fn a_cluster_without_nodes_says_so() {
    let message = Cluster::new(vec![]).message("p", cpu("1", json!({})));
    assert_eq!(message, "no nodes available to schedule pods");
}

#[test]
fn the_reasons_are_counted_in_upstreams_words() {
    let taint = json!({"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}});
    let nodes = vec![node("a", "1", json!({})), node("b", "4", taint.clone()), node("c", "4", taint)];
    assert_eq!(
        Cluster::new(nodes).message("p", cpu("2", json!({}))),
        "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint(s). \
         no new claims to deallocate, preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
    );
}

#[test]
fn a_full_node_without_lesser_pods_has_no_victims() {
    let mut cluster = Cluster::new(vec![node("a", "2", json!({}))]);
    cluster.put("q", cpu("2", json!({})), "a");
    assert_eq!(
        cluster.message("p", cpu("1", json!({}))),
        "0/1 nodes are available: 1 Insufficient cpu. \
         no new claims to deallocate, preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
    );
}

#[test]
fn each_filter_keeps_the_pod_from_where_it_must_not_go() {
    let hard = |key: &str| json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [{"key": key, "operator": "Exists"}]}]}}}});
    let gpus = json!({"containers": [{"name": "c", "resources": {"requests": {"example.com/gpu": "1"}}}]});
    let huge = json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": "9", "memory": "9Gi"}}}]});
    let cases = [
        (json!({"spec": {"unschedulable": true}}), json!({}), "1 node(s) were unschedulable"),
        (json!({}), json!({"nodeSelector": {"disk": "ssd"}}), "1 node(s) didn't match Pod's node affinity/selector"),
        (json!({}), hard("gpu"), "1 node(s) didn't match Pod's node affinity/selector"),
        (json!({}), gpus, "1 Insufficient example.com/gpu"),
        (json!({}), huge, "1 Insufficient cpu, 1 Insufficient memory"),
        (json!({"status": {"allocatable": {"pods": "0"}}}), json!({}), "1 Too many pods"),
    ];
    for (bad, spec, reason) in cases {
        let message = Cluster::new(vec![node("bad", "4", bad)]).message("p", cpu("100m", spec));
        assert!(message.starts_with(&format!("0/1 nodes are available: {reason}.")), "{message}");
    }
}

#[test]
fn a_pod_meant_for_a_node_by_name_is_tried_there_alone() {
    let only = |name: &str| {
        cpu(
            "1",
            json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}]}}}}),
        )
    };
    let mut cluster =
        Cluster::new(vec![node("a", "4", json!({})), node("b", "4", json!({})), node("c", "0", json!({}))]);
    assert_eq!(cluster.place("p", only("b")), "b");
    assert_eq!(
        cluster.message("p", only("c")),
        "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) didn't satisfy plugin(s) [NodeAffinity]. \
         no new claims to deallocate, preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
    );
}

#[test]
fn a_host_port_is_taken_once() {
    let wants = json!({"containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}]});
    let mut cluster = Cluster::new(vec![node("a", "4", json!({}))]);
    cluster.put("first", wants.clone(), "a");
    let message = cluster.message("second", wants);
    assert!(message.contains("1 node(s) didn't have free ports for the requested pod ports"), "{message}");
}

#[test]
fn scores_attract() {
    let two = |first: Value, second: Value| Cluster::new(vec![node("a", "4", first), node("b", "4", second)]);
    let mut allocated = two(json!({}), json!({}));
    allocated.put("q", cpu("3", json!({})), "a");
    assert_eq!(allocated.place("p", cpu("500m", json!({}))), "b", "the least allocated node");
    let soft = json!({"spec": {"taints": [{"key": "k", "effect": "PreferNoSchedule"}]}});
    assert_eq!(two(soft, json!({})).place("p", cpu("500m", json!({}))), "b", "the one without a soft taint");
    let image = json!({"status": {"images": [{"names": ["web:1"], "sizeBytes": 1_000_000_000}]}});
    let web = json!({"containers": [{"name": "c", "image": "web:1"}]});
    assert_eq!(two(json!({}), image).place("p", web), "b", "the one that has the image");
    let prefers = json!({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 50, "preference": {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}},
    ]}}});
    let labelled = json!({"metadata": {"labels": {"disk": "ssd"}}});
    assert_eq!(two(json!({}), labelled).place("p", cpu("100m", prefers)), "b", "the preferred one");
}

#[test]
fn lesser_pods_make_room_and_the_cheapest_go() {
    let mut cluster = Cluster::new(vec![node("a", "2", json!({})), node("b", "2", json!({}))]);
    cluster.put("mid", cpu("2", json!({"priority": 5})), "a");
    cluster.put("low", cpu("1", json!({"priority": 1})), "b");
    cluster.put("lower", cpu("1", json!({"priority": 0})), "b");
    assert_eq!(cluster.room(cpu("1", json!({"priority": 10}))), ("b".to_owned(), vec!["lower".to_owned()]));
    let row = cluster.snapshot.find("b").unwrap();
    assert_eq!((row.pods.len(), row.requested.milli_cpu), (2, 2000), "the dry run restores what it took");
}

#[test]
fn a_budget_protects_its_pods_as_long_as_others_can_go() {
    let mut cluster = Cluster::new(vec![node("a", "2", json!({})), node("b", "2", json!({}))]);
    cluster.put("guarded", cpu("2", json!({"priority": 0})), "a");
    cluster.put("other", cpu("2", json!({"priority": 5})), "b");
    let budget = Budget {
        namespace: "default".to_owned(),
        selector: Selector::parse("app=guarded").unwrap(),
        allowed: 0,
        disrupted: Vec::new(),
    };
    let key = Key { namespace: "default".to_owned(), name: "budget".to_owned() };
    cluster.snapshot.budgets.insert(key.clone(), budget.clone());
    assert_eq!(cluster.room(cpu("1", json!({"priority": 10}))).0, "b");
    cluster.snapshot.budgets.insert(key, Budget { allowed: 1, ..budget });
    assert_eq!(cluster.room(cpu("1", json!({"priority": 10}))).0, "a");
}

#[test]
fn a_pod_that_never_preempts_says_so() {
    let mut cluster = Cluster::new(vec![node("a", "1", json!({}))]);
    cluster.put("low", cpu("1", json!({})), "a");
    assert_eq!(
        cluster.message("p", cpu("1", json!({"priority": 10, "preemptionPolicy": "Never"}))),
        "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: not eligible due to preemptionPolicy=Never."
    );
}

#[test]
fn room_made_for_a_pod_is_kept_for_it() {
    let mut cluster = Cluster::new(vec![node("a", "1", json!({}))]);
    let mut waiting = cluster.snapshot.row(typed_pod("waiting", cpu("1", json!({"priority": 10}))));
    waiting.nominated = "a".to_owned();
    cluster.snapshot.nominate(Arc::new(waiting));
    assert!(cluster.try_place("p", cpu("1", json!({}))).is_err());
    assert_eq!(cluster.place("p", cpu("1", json!({"priority": 20}))), "a");
}

#[test]
fn hard_constraints_spread_pods() {
    let spread = |min_domains: u32| {
        json!({"containers": [], "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone",
            "whenUnsatisfiable": "DoNotSchedule", "minDomains": min_domains,
            "labelSelector": {"matchLabels": {"app": "p"}}}]})
    };
    let mut cluster = Cluster::new(vec![zone("a", "one"), zone("b", "two")]);
    cluster.put("p", json!({"containers": []}), "a");
    let mut second = cluster.snapshot.row(typed_pod("p", spread(1)));
    second.uid = "second".into();
    let slot = schedule(&mut cluster.snapshot, &cluster.profile, &second, &mut Rotation::new(7)).unwrap();
    assert_eq!(cluster.snapshot.node(slot).name, "b");
    let mut lonely = Cluster::new(vec![zone("a", "one")]);
    lonely.put("p", json!({"containers": []}), "a");
    assert_eq!(lonely.place("p", spread(1)), "a");
    let message = lonely.message("p", spread(2));
    assert!(message.contains("1 node(s) didn't match pod topology spread constraints."), "{message}");
    let unlabelled = Cluster::new(vec![node("a", "4", json!({}))]).message("p", spread(1));
    let missing = "1 node(s) didn't match pod topology spread constraints (missing required label)";
    assert!(unlabelled.contains(missing), "{unlabelled}");
}

#[test]
fn pods_of_a_service_spread_without_being_asked_to() {
    let mut cluster = Cluster::new(vec![node("a", "4", json!({})), node("b", "4", json!({}))]);
    let key = Key { namespace: "default".to_owned(), name: "s".to_owned() };
    cluster.snapshot.selectors.set_service(&key, Some([("app".to_owned(), "p".to_owned())].into()));
    cluster.put("p", json!({"containers": []}), "a");
    // More is requested on the other node, which would make this one the better choice.
    cluster.put("q", cpu("1", json!({})), "b");
    let mut second = cluster.snapshot.row(typed_pod("p", json!({"containers": []})));
    second.uid = "second".into();
    let slot = schedule(&mut cluster.snapshot, &cluster.profile, &second, &mut Rotation::new(7)).unwrap();
    assert_eq!(cluster.snapshot.node(slot).name, "b");
}

#[test]
fn repelling_pods_keep_apart() {
    let anti = json!({"containers": [], "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "p"}}}]}}});
    let mut cluster = Cluster::new(vec![zone("a", "one"), zone("b", "two")]);
    cluster.put("p", json!({"containers": []}), "a");
    assert_eq!(cluster.place("other", anti.clone()), "b");
    let mut one_zone = Cluster::new(vec![zone("a", "one")]);
    one_zone.put("p", anti.clone(), "a");
    let message = one_zone.message("p", json!({"containers": []}));
    assert!(message.contains("1 node(s) didn't satisfy existing pods anti-affinity rules"), "{message}");
    let message = one_zone.message("q", anti);
    assert!(message.contains("1 node(s) didn't match pod anti-affinity rules"), "{message}");
}

#[test]
fn a_namespace_selector_reaches_pods_elsewhere() {
    let anti = json!({"containers": [], "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone", "namespaceSelector": {"matchLabels": {"team": "x"}}, "labelSelector": {"matchLabels": {"app": "p"}}}]}}});
    let mut cluster = Cluster::new(vec![zone("a", "one"), zone("b", "two")]);
    cluster.put("p", json!({"containers": []}), "a");
    for (team, expected) in [("x", vec!["b"]), ("y", vec!["a", "b"])] {
        cluster.snapshot.set_namespace("default", Some([("team".to_owned(), team.to_owned())].into()));
        let row = cluster.snapshot.row(typed_pod("q", anti.clone()));
        let found = search(&mut cluster.snapshot, &cluster.profile, &row, &mut Rotation::new(7));
        let mut names: Vec<&str> = found.feasible.iter().map(|slot| &*cluster.snapshot.node(*slot).name).collect();
        names.sort_unstable();
        assert_eq!(names, expected, "team {team}");
    }
}

#[test]
fn affinity_follows_its_kind_and_lets_the_first_start() {
    let near = |app: &str| json!({"containers": [], "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": app}}}]}}});
    let mut cluster = Cluster::new(vec![zone("a", "one"), zone("b", "two")]);
    cluster.place("self", near("self"));
    assert!(cluster.message("p", near("absent")).contains("2 node(s) didn't match pod affinity rules"));
    cluster.put("q", json!({"containers": []}), "b");
    assert_eq!(cluster.place("p", near("q")), "b");
}

proptest! {
    /// A node is never over-committed, whatever pods arrive in whatever order.
    #[test]
    fn no_node_is_overcommitted(demands in proptest::collection::vec(1i64..2000, 1..40)) {
        let mut cluster = Cluster::new(vec![node("a", "2", json!({})), node("b", "3", json!({}))]);
        for (number, demand) in demands.iter().enumerate() {
            let (name, spec) = (format!("p{number}"), cpu(&format!("{demand}m"), json!({})));
            if let Ok(chosen) = cluster.try_place(&name, spec.clone()) {
                cluster.put(&name, spec, &chosen);
            }
        }
        for row in cluster.snapshot.nodes() {
            prop_assert!(row.requested.milli_cpu <= row.allocatable.milli_cpu);
        }
    }
}

proptest! {
    #[test]
    fn dry_runs_that_are_remembered_find_what_new_ones_find(
        steps in prop::collection::vec((0usize..3, 1u8..4, 0i32..3, prop::bool::weighted(0.3)), 1..40),
    ) {
        let mut cluster = Cluster::new(["a", "b", "c"].map(|name| node(name, "4", json!({}))).into());
        let mut rotation = Rotation::new(7);
        for (number, (at, cpus, priority, goes)) in steps.into_iter().enumerate() {
            match goes {
                true => drop(cluster.snapshot.remove_pod(&format!("q{}", number / 2))),
                false => {
                    let spec = cpu(&cpus.to_string(), json!({"priority": priority}));
                    cluster.put(&format!("q{number}"), spec, ["a", "b", "c"][at]);
                }
            }
            let mut made = |rotation: &mut Rotation| {
                let row = cluster.snapshot.row(typed_pod("p", cpu("3", json!({"priority": 10}))));
                let rejection = schedule(&mut cluster.snapshot, &cluster.profile, &row, rotation).err()?;
                let room = preemption::best(rejection.candidates)?;
                Some((room.node.clone(), room.victims.iter().map(|victim| victim.name.clone()).collect::<Vec<_>>()))
            };
            prop_assert_eq!(made(&mut rotation), made(&mut Rotation::new(7)));
            let row = cluster.snapshot.row(typed_pod("r", cpu("1", json!({}))));
            let slots: Vec<usize> = cluster.snapshot.nodes().map(|node| node.slot).collect();
            let mut given =
                |rotation: &mut Rotation| scores(&mut cluster.snapshot, &cluster.profile, &row, &slots, rotation);
            prop_assert_eq!(given(&mut rotation), given(&mut Rotation::new(7)));
        }
    }
}

proptest! {
    #[test]
    fn a_search_that_is_kept_is_what_a_new_one_finds(
        steps in prop::collection::vec((0usize..3, 1u8..4, 0i32..20, 0u8..6), 1..40),
    ) {
        let names = ["a", "b", "c"];
        let mut cluster = Cluster::new(names.map(|name| node(name, "2", json!({}))).into());
        let mut rotation = Rotation::new(7);
        let result_of = |search: Search| {
            let mut all: Vec<_> =
                search.rejected.into_iter().map(|one| (one.slot, one.plugin, format!("{:?}", one.verdict))).collect();
            all.sort_unstable();
            (search.feasible.is_empty(), all)
        };
        for (number, (at, cpus, priority, step)) in steps.into_iter().enumerate() {
            let spec = cpu(&cpus.to_string(), json!({"priority": priority}));
            let name = format!("q{}", number / 2);
            match step {
                0 => drop(cluster.snapshot.remove_pod(&name)),
                1 | 2 => cluster.put(&name, spec, names[at]),
                3 => {
                    let mut row = cluster.snapshot.row(typed_pod(&name, spec));
                    row.nominated = names[at].to_owned();
                    cluster.snapshot.nominate(Arc::new(row));
                }
                4 => cluster.snapshot.end_nomination(&name),
                _ => {
                    let unschedulable = json!({"spec": {"unschedulable": cpus == 1}});
                    cluster.snapshot.set_node(node(names[at], &cpus.to_string(), unschedulable));
                }
            }
            let mut row = cluster.snapshot.row(typed_pod("p", cpu("3", json!({"priority": 10}))));
            row.nominated = if priority % 3 == 0 { names[at].to_owned() } else { String::new() };
            let (snapshot, profile) = (&mut cluster.snapshot, &cluster.profile);
            let kept = searched(snapshot, profile, &row, &mut rotation, false);
            let new = search(snapshot, profile, &row, &mut Rotation::new(7));
            match new.feasible.is_empty() {
                true => prop_assert_eq!(result_of(kept), result_of(new)),
                false => prop_assert!(!result_of(kept).0),
            }
            let _ = schedule(snapshot, profile, &row, &mut rotation);
        }
    }
}

/// Returns a pod spec with demands that can shorten the list of nodes: a zone, tolerations, affinity, anti-affinity,
/// topology spread.
fn asking(asks: u8) -> Value {
    let blue = json!({"matchLabels": {"app": "blue"}});
    let term = |key: &str| json!([{"topologyKey": key, "labelSelector": blue}]);
    let zones = json!({"nodeSelectorTerms": [{"matchExpressions": [
        {"key": "zone", "operator": "In", "values": ["0", "1"]}]}]});
    let mut affinity = json!({});
    if asks & 1 != 0 {
        affinity["nodeAffinity"] = json!({"requiredDuringSchedulingIgnoredDuringExecution": zones});
    }
    if asks & 2 != 0 {
        affinity["podAffinity"] = json!({"requiredDuringSchedulingIgnoredDuringExecution": term("zone")});
    }
    if asks & 4 != 0 {
        let anti_affinity = term("kubernetes.io/hostname");
        affinity["podAntiAffinity"] = json!({"requiredDuringSchedulingIgnoredDuringExecution": anti_affinity});
    }
    let mut extra = json!({"affinity": affinity});
    if asks & 8 != 0 {
        extra["topologySpreadConstraints"] = json!([{"maxSkew": 1, "topologyKey": "zone",
            "whenUnsatisfiable": "DoNotSchedule", "labelSelector": blue}]);
    }
    if asks & 16 != 0 {
        extra["tolerations"] = json!([{"operator": "Exists"}]);
    }
    cpu("1", extra)
}

proptest! {
    #[test]
    fn a_short_list_hides_no_node_that_would_do(
        nodes in proptest::collection::vec((proptest::option::of(0u8..4), 0u8..4), 1..12),
        pods in proptest::collection::vec((0usize..12, any::<bool>()), 0..16),
        (asks, start) in (0u8..32, 0usize..12),
    ) {
        let made = nodes.iter().enumerate().map(|(number, (zone, kind))| {
            let labels = zone.map_or(json!({}), |zone| json!({"zone": zone.to_string()}));
            let taints = match kind {
                0 => json!([]),
                _ => json!([{"key": "k", "effect": "NoSchedule"}]),
            };
            node(&format!("n{number}"), "3", json!({"metadata": {"labels": labels}, "spec": {"taints": taints}}))
        });
        let mut cluster = Cluster::new(made.collect());
        for (number, (at, blue)) in pods.iter().enumerate() {
            let mut pod = typed_pod(&format!("p{number}"), cpu("1", json!({})));
            let app = if *blue { "blue" } else { "red" };
            pod.metadata.labels = Some(BTreeMap::from([("app".to_owned(), app.to_owned())]));
            let mut row = cluster.snapshot.row(pod);
            row.node_name = format!("n{}", at % nodes.len());
            cluster.snapshot.add_pod(Arc::new(row));
        }
        let row = cluster.snapshot.row(typed_pod("blue", asking(asks)));
        let mut look = |thorough: bool| {
            let mut rotation = Rotation { next_start: start % nodes.len(), ..Rotation::new(7) };
            let search = searched(&mut cluster.snapshot, &cluster.profile, &row, &mut rotation, thorough);
            let refused: Vec<(usize, &str)> = search.rejected.iter().map(|one| (one.slot, one.plugin)).collect();
            let reasons = if search.feasible.is_empty() { refused } else { Vec::new() };
            (search.feasible, reasons, rotation.next_start)
        };
        prop_assert_eq!(look(true), look(false));
    }
}
