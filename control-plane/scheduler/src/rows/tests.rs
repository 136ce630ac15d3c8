//! Rows against plain counting: standing counts stay correct after any changes in any order.

use super::node_sets::NodeQuery;
use super::topology::{Inclusion, Query};
use super::*;
use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{Node, Pod, PodSpec};
use corten_meta::Selector;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;

pub fn pod_spec(spec: Value) -> PodSpec {
    Pod::from_value(json!({"apiVersion": "v1", "kind": "Pod", "spec": spec})).unwrap().spec.unwrap()
}

pub fn typed_pod(name: &str, spec: Value) -> Pod {
    let metadata = json!({"namespace": "default", "name": name, "uid": name, "labels": {"app": name}});
    Pod::from_value(json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})).unwrap()
}

pub fn node(name: &str, cpu: &str, extra: Value) -> Node {
    let mut node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"allocatable": {"cpu": cpu, "memory": "4Gi", "pods": "110"}},
    });
    corten_meta::patch::merge_patch(&mut node, &extra);
    Node::from_value(node).unwrap()
}

fn asking(snapshot: &mut Snapshot, name: &str, node: &str, cpu: &str) -> Arc<PodRow> {
    let containers = json!([{"name": "c", "resources": {"requests": {"cpu": cpu}}}]);
    Arc::new(snapshot.row(typed_pod(name, json!({"nodeName": node, "containers": containers}))))
}

#[test]
fn requested_is_the_sum_of_the_pods_in_any_order_of_events() {
    let mut snapshot = Snapshot::default();
    for (name, cpu) in [("early", "100m"), ("late", "200m"), ("late", "300m")] {
        let pod = asking(&mut snapshot, name, "n", cpu);
        snapshot.add_pod(pod);
        assert!(name == "late" || snapshot.find("n").is_none(), "only a pod is known");
        snapshot.set_node(node("n", "2", json!({})));
    }
    assert_eq!(snapshot.find("n").unwrap().requested.milli_cpu, 400);
    snapshot.remove_node("n");
    assert_eq!((snapshot.nodes().count(), snapshot.len()), (0, 0));
    snapshot.remove_pod("early");
    snapshot.remove_pod("late");
    snapshot.set_node(node("m", "2", json!({})));
    assert_eq!(snapshot.find("m").unwrap().slot, 0, "the place of the gone node is used again");
}

#[test]
fn the_search_takes_zones_in_turn() {
    let mut snapshot = Snapshot::default();
    for (name, zone) in [("a", "1"), ("b", "1"), ("c", "2"), ("d", "3"), ("e", "2")] {
        let labels = json!({"metadata": {"labels": {"topology.kubernetes.io/zone": zone}}});
        snapshot.set_node(node(name, "1", labels));
    }
    snapshot.begin();
    let names: Vec<&str> = snapshot.order().iter().map(|slot| snapshot.node(*slot).name.as_str()).collect();
    assert_eq!(names, ["a", "c", "d", "b", "e"]);
}

#[derive(Clone, Debug)]
enum Happening {
    Node { name: u8, zone: Option<u8>, tainted: bool },
    NodeGone { name: u8 },
    Pod { name: u8, node: u8, app: u8, namespace: u8, terminating: bool, repels: bool },
    PodGone { name: u8 },
    NamespaceLabelled { namespace: u8, team: u8 },
    Cycle,
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        (0u8..5, proptest::option::of(0u8..3), any::<bool>()).prop_map(|(name, zone, tainted)| Happening::Node {
            name,
            zone,
            tainted
        }),
        (0u8..5).prop_map(|name| Happening::NodeGone { name }),
        (0u8..8, 0u8..5, 0u8..3, 0u8..2, any::<bool>(), any::<bool>()).prop_map(
            |(name, node, app, namespace, terminating, repels)| Happening::Pod {
                name,
                node,
                app,
                namespace,
                terminating,
                repels
            }
        ),
        (0u8..8).prop_map(|name| Happening::PodGone { name }),
        (0u8..2, 0u8..2).prop_map(|(namespace, team)| Happening::NamespaceLabelled { namespace, team }),
        Just(Happening::Cycle),
    ]
}

fn pod_of(
    snapshot: &mut Snapshot,
    name: u8,
    node: u8,
    app: u8,
    namespace: u8,
    terminating: bool,
    repels: bool,
) -> PodRow {
    let mut metadata = json!({"namespace": format!("ns{namespace}"), "name": format!("p{name}"),
        "uid": format!("p{name}"), "labels": {"app": app.to_string()}});
    if terminating {
        metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    }
    let mut spec = json!({"nodeName": format!("n{node}"), "containers": []});
    if repels {
        spec["affinity"] = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "0"}}}]}});
    }
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
    snapshot.row(Pod::from_value(pod).unwrap())
}

fn happen(snapshot: &mut Snapshot, happening: &Happening) {
    match happening.clone() {
        Happening::Node { name, zone, tainted } => {
            let taints = if tainted { json!([{"key": "k", "effect": "NoSchedule"}]) } else { json!([]) };
            let labels = zone.map_or(json!({}), |zone| json!({"zone": zone.to_string()}));
            let extra = json!({"metadata": {"labels": labels}, "spec": {"taints": taints}});
            snapshot.set_node(node(&format!("n{name}"), "4", extra));
        }
        Happening::NodeGone { name } => snapshot.remove_node(&format!("n{name}")),
        Happening::Pod { name, node, app, namespace, terminating, repels } => {
            let pod = pod_of(snapshot, name, node, app, namespace, terminating, repels);
            snapshot.add_pod(Arc::new(pod));
        }
        Happening::PodGone { name } => drop(snapshot.remove_pod(&format!("p{name}"))),
        Happening::NamespaceLabelled { namespace, team } => {
            let labels = [("team".to_owned(), team.to_string())].into();
            snapshot.set_namespace(&format!("ns{namespace}"), Some(labels));
        }
        Happening::Cycle => snapshot.begin(),
    }
}

fn queries() -> Vec<Query> {
    let matcher = |namespace: Option<&str>| PodMatcher {
        namespaces: namespace.map(str::to_owned).into_iter().collect(),
        namespace_selector: namespace.is_none().then(|| Selector::parse("team=1").unwrap()),
        selector: Selector::parse("app in (0,1)").unwrap(),
    };
    let of = |key: &str, namespace, staying, nodes| Query {
        topology_key: key.to_owned(),
        pods: vec![matcher(namespace)],
        staying,
        nodes,
    };
    let strict = Inclusion {
        with_labels: vec!["zone".to_owned()],
        selected: None,
        tolerated: Some(demand::Tolerations::default()),
    };
    vec![
        of("zone", Some("ns0"), false, Inclusion::default()),
        of("zone", None, true, strict),
        of(topology::EVERY_NODE, Some("ns1"), true, Inclusion::default()),
    ]
}

/// Counts everything anew.
fn counted(snapshot: &Snapshot, query: &Query) -> (i64, Option<i64>, usize) {
    let mut domains: HashMap<String, i64> = HashMap::new();
    for node in snapshot.nodes() {
        let labelled = query.nodes.with_labels.iter().all(|key| node.labels.contains_key(key));
        let tolerated = query.nodes.tolerated.is_none() || node.taints.is_empty();
        let domain = match query.topology_key.as_str() {
            topology::EVERY_NODE => Some(node.name.clone()),
            key => node.labels.get(key).cloned(),
        };
        let Some(domain) = domain.filter(|_| labelled && tolerated) else { continue };
        let wanted = |pod: &&Arc<PodRow>| {
            let labels = snapshot.namespaces.get(pod.namespace());
            !(query.staying && pod.terminating)
                && query.pods.iter().all(|matcher| matcher.matches(pod.namespace(), pod.labels(), labels))
        };
        *domains.entry(domain).or_default() += node.pods.iter().filter(wanted).count() as i64;
    }
    (domains.values().sum(), domains.values().min().copied(), domains.len())
}

proptest! {
    #[test]
    fn standing_counts_equal_counting_everything(happenings in proptest::collection::vec(happening(), 1..60)) {
        let mut snapshot = Snapshot::default();
        snapshot.begin();
        for happening in &happenings {
            happen(&mut snapshot, happening);
            for query in queries() {
                let number = snapshot.tally(query.clone());
                let (tally, _) = snapshot.topology().counted(number).unwrap();
                let (total, least, domains) = counted(&snapshot, &query);
                prop_assert_eq!((tally.total(), tally.minimum(), tally.domains()), (total, least.unwrap_or(0), domains));
            }
            let set = snapshot.node_set(NodeQuery::Tolerated(demand::Tolerations::default()));
            let untainted = snapshot.nodes().filter(|node| node.taints.is_empty()).count();
            prop_assert_eq!(snapshot.sets().len(set), untainted);
        }
    }

    #[test]
    fn carried_terms_are_where_their_pods_are(happenings in proptest::collection::vec(happening(), 1..60)) {
        let mut snapshot = Snapshot::default();
        for happening in &happenings {
            happen(&mut snapshot, happening);
        }
        snapshot.begin();
        let asker = pod_of(&mut snapshot, 9, 0, 0, 0, false, false);
        let mut expected: HashMap<usize, i64> = HashMap::new();
        for node in snapshot.nodes().filter(|node| node.labels.contains_key("zone")) {
            let repelling = node.pods.iter().filter(|pod| !pod.demand.terms.is_empty() && pod.namespace() == "ns0");
            *expected.entry(node.slot).or_default() += repelling.count() as i64;
        }
        let mut seen = 0;
        for number in snapshot.terms_meaning(&asker) {
            let (carrier, division) = snapshot.topology().carrier(number);
            let mut domains: Vec<usize> = snapshot.nodes().filter_map(|n| snapshot.topology().domain(division, n.slot)).collect();
            domains.sort_unstable();
            domains.dedup();
            seen += domains.into_iter().map(|domain| carrier.in_domain(domain)).sum::<i64>();
        }
        prop_assert_eq!(seen, expected.values().sum::<i64>());
    }
}
