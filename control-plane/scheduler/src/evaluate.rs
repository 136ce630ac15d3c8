//! The verdicts and scores of the plugins for a given cluster and pod, and the rows they use: for programs that compare
//! decisions or measure, and nothing else.

use std::collections::BTreeMap;
use std::sync::Arc;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{Namespace, Node, Pod, Service};
use corten_meta::Key;

use crate::config::ProfileSpec;
use crate::cycle;
use crate::filtering;
use crate::framework::Verdict;
use crate::profile::Profile;
use crate::rows::Snapshot;

/// The objects of a cluster at one moment.
#[derive(Default)]
pub struct Cluster {
    pub nodes: Vec<Node>,
    pub pods: Vec<Pod>,
    pub services: Vec<Service>,
    pub namespaces: Vec<Namespace>,
}

/// The result for a node.
#[derive(Debug, PartialEq, Eq)]
pub enum Evaluation {
    /// The weighted scores, by plugin.
    Scores(BTreeMap<&'static str, i64>),
    Rejected {
        plugin: &'static str,
        unresolvable: bool,
        reasons: Vec<String>,
    },
}

/// The rows that the scheduler keeps of a cluster.
#[derive(Default)]
pub struct Rows(Snapshot);

impl Rows {
    pub fn add(&mut self, cluster: Cluster) {
        let snapshot = &mut self.0;
        for namespace in cluster.namespaces {
            snapshot.set_namespace(namespace.name(), Some(namespace.metadata.labels.clone().unwrap_or_default()));
        }
        for service in cluster.services {
            let key = Key { namespace: service.namespace().to_owned(), name: service.name().to_owned() };
            snapshot.selectors.set_service(&key, service.spec.and_then(|spec| spec.selector));
        }
        for node in cluster.nodes {
            snapshot.set_node(node);
        }
        for pod in cluster.pods {
            let row = snapshot.row(pod);
            snapshot.add_pod(Arc::new(row));
        }
    }
}

/// Evaluates every node for a pod with the default profile.
pub fn evaluate(cluster: Cluster, pod: Pod) -> BTreeMap<String, Evaluation> {
    let mut rows = Rows::default();
    rows.add(cluster);
    let mut snapshot = rows.0;
    let row = snapshot.row(pod);
    let profile = Profile::new(&ProfileSpec::default(), &Arc::default());
    let mut evaluations = BTreeMap::new();
    let slots: Vec<usize> = snapshot.nodes().map(|node| node.slot).collect();
    let filters = match filtering::pre_filter(&mut snapshot, &profile, &row) {
        Ok(filters) => filters,
        Err((plugin, verdict)) => {
            let all = snapshot.nodes().map(|node| (node.name.clone(), rejected(plugin, &verdict)));
            return all.collect();
        }
    };
    let mut feasible = Vec::new();
    for slot in slots {
        match filtering::filter(&filters, &row, slot, &snapshot) {
            None => feasible.push(slot),
            Some((plugin, verdict)) => {
                evaluations.insert(snapshot.node(slot).name.clone(), rejected(plugin, &verdict));
            }
        }
    }
    let mut scores: Vec<BTreeMap<&'static str, i64>> = vec![BTreeMap::new(); feasible.len()];
    for (plugin, weight) in profile.scorers() {
        let given = cycle::plugin_scores(&mut snapshot, plugin, &row, &feasible).unwrap_or_default();
        for (node, score) in scores.iter_mut().zip(given) {
            node.insert(plugin.name, score * weight);
        }
    }
    let named = feasible.into_iter().map(|slot| snapshot.node(slot).name.clone());
    evaluations.extend(named.zip(scores.into_iter().map(Evaluation::Scores)));
    evaluations
}

fn rejected(plugin: &'static str, verdict: &Verdict) -> Evaluation {
    let reasons = verdict.reasons().into_iter().flat_map(|reasons| reasons.iter()).map(str::to_owned).collect();
    Evaluation::Rejected { plugin, unresolvable: matches!(verdict, Verdict::Unresolvable(_)), reasons }
}
