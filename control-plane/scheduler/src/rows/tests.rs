//! Rows against plain counting: standing counts stay correct after any changes in any order.

use super::node_sets::NodeQuery;
use super::topology::{Inclusion, Query};
use super::*;
use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{Node, Pod};
use corten_meta::Selector;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;

pub fn pod(line: &str) -> Pod {
    testkit_fixture::typed(line)
}

/// Returns the node of a line, with a host name and room for pods.
pub fn node(line: &str) -> Node {
    Node::from_value(completed(testkit_fixture::object(line))).expect("a node")
}

/// Gives a node 4 CPUs, 4Gi, 110 pods and its host name, unless it has others.
pub fn completed(node: Value) -> Value {
    let mut completed = testkit_fixture::object("node n cpu=4 memory=4Gi pods=110");
    completed["metadata"]["labels"] = json!({"kubernetes.io/hostname": node["metadata"]["name"]});
    corten_meta::patch::merge_patch(&mut completed, &node);
    completed
}

#[test]
fn the_search_takes_zones_in_turn() {
    let mut snapshot = Snapshot::default();
    for line in ["node a zone=1", "node b zone=1", "node c zone=2", "node d zone=3", "node e zone=2"] {
        snapshot.set_node(node(line));
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
    let deleting = if terminating { "deleting" } else { "" };
    let repels = match repels {
        true => {
            "affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution=[{topologyKey: zone, \
             labelSelector: {matchLabels: {app: \"0\"}}}]"
        }
        false => "",
    };
    snapshot.row(pod(&format!("pod ns{namespace}/p{name} label.app={app} node=n{node} {deleting} {repels}")))
}

fn happen(snapshot: &mut Snapshot, happening: &Happening) {
    match happening.clone() {
        Happening::Node { name, zone, tainted } => {
            let taint = if tainted { "taint=k:NoSchedule" } else { "" };
            let zone = zone.map_or(String::new(), |zone| format!("label.zone={zone}"));
            snapshot.set_node(node(&format!("node n{name} {zone} {taint}")));
        }
        Happening::NodeGone { name } => snapshot.remove_node(&format!("n{name}")),
        Happening::Pod { name, node, app, namespace, terminating, repels } => {
            let pod = pod_of(snapshot, name, node, app, namespace, terminating, repels);
            snapshot.add_pod(Arc::new(pod));
        }
        Happening::PodGone { name } => drop(snapshot.remove_pod(&format!("pod-p{name}"))),
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
