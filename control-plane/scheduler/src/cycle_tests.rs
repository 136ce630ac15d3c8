//! Properties of the scheduling cycle: no node is over-committed, and results that are kept are those of a new search.

use super::*;
use crate::rows::tests::{node, pod};
use proptest::prelude::*;

/// A cluster to schedule pods on.
struct Cluster {
    snapshot: Snapshot,
    profile: Profile,
}

impl Cluster {
    fn new(nodes: impl IntoIterator<Item = String>) -> Cluster {
        let mut snapshot = Snapshot::default();
        for line in nodes {
            snapshot.set_node(node(&line));
        }
        Cluster { snapshot, profile: Profile::by_default() }
    }

    /// Adds a pod that is on a node.
    fn put(&mut self, line: &str) {
        let row = self.snapshot.row(pod(line));
        self.snapshot.add_pod(Arc::new(row));
    }
}

proptest! {
    /// A node is never over-committed, whatever pods arrive in whatever order.
    #[test]
    fn no_node_is_overcommitted(demands in proptest::collection::vec(1i64..2000, 1..40)) {
        let mut cluster = Cluster::new(["node a cpu=2", "node b cpu=3"].map(str::to_owned));
        for (number, demand) in demands.iter().enumerate() {
            let line = format!("pod p{number} request.cpu={demand}m");
            let row = cluster.snapshot.row(pod(&line));
            if let Ok(slot) = schedule(&mut cluster.snapshot, &cluster.profile, &row, &mut Rotation::new(7)) {
                let chosen = cluster.snapshot.node(slot).name.clone();
                cluster.put(&format!("{line} node={chosen}"));
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
        let mut cluster = Cluster::new(["a", "b", "c"].map(|name| format!("node {name}")));
        let mut rotation = Rotation::new(7);
        for (number, (at, amount, priority, goes)) in steps.into_iter().enumerate() {
            match goes {
                true => drop(cluster.snapshot.remove_pod(&format!("pod-q{}", number / 2))),
                false => {
                    let node = ["a", "b", "c"][at];
                    cluster.put(&format!("pod q{number} node={node} request.cpu={amount} priority={priority}"));
                }
            }
            let mut made = |rotation: &mut Rotation| {
                let row = cluster.snapshot.row(pod("pod p request.cpu=3 priority=10"));
                let rejection = schedule(&mut cluster.snapshot, &cluster.profile, &row, rotation).err()?;
                let room = preemption::best(rejection.candidates)?;
                Some((room.node.clone(), room.victims.iter().map(|victim| victim.name.clone()).collect::<Vec<_>>()))
            };
            prop_assert_eq!(made(&mut rotation), made(&mut Rotation::new(7)));
            let row = cluster.snapshot.row(pod("pod r request.cpu=1"));
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
        let mut cluster = Cluster::new(names.map(|name| format!("node {name} cpu=2")));
        let mut rotation = Rotation::new(7);
        let said = |search: Search| {
            let mut all: Vec<_> =
                search.rejected.into_iter().map(|one| (one.slot, one.plugin, format!("{:?}", one.verdict))).collect();
            all.sort_unstable();
            (search.feasible.is_empty(), all)
        };
        for (number, (at, amount, priority, step)) in steps.into_iter().enumerate() {
            let line = format!("pod q{} request.cpu={amount} priority={priority}", number / 2);
            let (uid, node_name) = (format!("pod-q{}", number / 2), names[at]);
            match step {
                0 => drop(cluster.snapshot.remove_pod(&uid)),
                1 | 2 => cluster.put(&format!("{line} node={node_name}")),
                3 => {
                    let row = cluster.snapshot.row(pod(&format!("{line} status.nominatedNodeName={node_name}")));
                    cluster.snapshot.nominate(Arc::new(row));
                }
                4 => cluster.snapshot.end_nomination(&uid),
                _ => {
                    let line = format!("node {node_name} cpu={amount} unschedulable={}", amount == 1);
                    cluster.snapshot.set_node(node(&line));
                }
            }
            let mut row = cluster.snapshot.row(pod("pod p request.cpu=3 priority=10"));
            row.nominated = if priority % 3 == 0 { names[at].to_owned() } else { String::new() };
            let (snapshot, profile) = (&mut cluster.snapshot, &cluster.profile);
            let kept = searched(snapshot, profile, &row, &mut rotation, false);
            let new = search(snapshot, profile, &row, &mut Rotation::new(7));
            match new.feasible.is_empty() {
                true => prop_assert_eq!(said(kept), said(new)),
                false => prop_assert!(!said(kept).0),
            }
            let _ = schedule(snapshot, profile, &row, &mut rotation);
        }
    }
}

/// Returns a pod with demands that can shorten the list of nodes: a zone, affinity, anti-affinity, topology spread,
/// tolerations.
fn asking(asks: u8) -> String {
    let demands = [
        "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution={nodeSelectorTerms: [{matchExpressions: \
         [{key: zone, operator: In, values: [\"0\", \"1\"]}]}]}",
        "affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution=[{topologyKey: zone, \
         labelSelector: {matchLabels: {app: blue}}}]",
        "affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution=[{topologyKey: kubernetes.io/hostname, \
         labelSelector: {matchLabels: {app: blue}}}]",
        "topologySpreadConstraints=[{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule, \
         labelSelector: {matchLabels: {app: blue}}}]",
        "toleration=*",
    ];
    let chosen = demands.iter().enumerate().filter(|(number, _)| asks & 1 << number != 0).map(|(_, demand)| *demand);
    format!("pod blue label.app=blue request.cpu=1 {}", chosen.collect::<Vec<_>>().join(" "))
}

proptest! {
    #[test]
    fn a_short_list_hides_no_node_that_would_do(
        nodes in proptest::collection::vec((proptest::option::of(0u8..4), 0u8..4), 1..12),
        pods in proptest::collection::vec((0usize..12, any::<bool>()), 0..16),
        (asks, start) in (0u8..32, 0usize..12),
    ) {
        let made = nodes.iter().enumerate().map(|(number, (zone, kind))| {
            let zone = zone.map_or(String::new(), |zone| format!("label.zone={zone}"));
            let taint = if *kind == 0 { "" } else { "taint=k:NoSchedule" };
            format!("node n{number} cpu=3 {zone} {taint}")
        });
        let mut cluster = Cluster::new(made);
        for (number, (at, blue)) in pods.iter().enumerate() {
            let app = if *blue { "blue" } else { "red" };
            cluster.put(&format!("pod p{number} label.app={app} request.cpu=1 node=n{}", at % nodes.len()));
        }
        let row = cluster.snapshot.row(pod(&asking(asks)));
        let mut look = |thorough: bool| {
            let mut rotation = Rotation { next_start: start % nodes.len(), ..Rotation::new(7) };
            let search = searched(&mut cluster.snapshot, &cluster.profile, &row, &mut rotation, thorough);
            let refused: Vec<(usize, &str)> = search.rejected.iter().map(|one| (one.slot, one.plugin)).collect();
            let told = if search.feasible.is_empty() { refused } else { Vec::new() };
            (search.feasible, told, rotation.next_start)
        };
        prop_assert_eq!(look(true), look(false));
    }
}
