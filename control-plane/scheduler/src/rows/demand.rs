//! The demand of a pod on a node, without its identity: compiled once, and shared by all pods with the same demand. The
//! required nodes are shared separately: pods of a DaemonSet differ only in those.
//!
//! Hashes are coarse where an API type has none; equality decides. Nothing here changes after it was made.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use corten_api::k8s_openapi::api::core::v1::{
    Affinity, Container, NodeSelectorTerm, Pod, PodAffinityTerm, PodSpec, PreferredSchedulingTerm, Toleration,
    TopologySpreadConstraint, Volume,
};
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use corten_api::placement::{selects_node, tolerates_all};
use corten_meta::labels::{Operator, Requirement};
use corten_meta::{Selector, Value};
use serde_json::json;

use super::extended::{self, ExtendedUse};
use super::node::NodeRow;
use crate::resources::{self, Demands, Resources};

/// A host port: protocol, address, number.
pub type HostPort = (String, String, i32);

/// The demand of a pod, except for the nodes it requires.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Demand {
    pub scheduler_name: String,
    pub never_preempts: bool,
    pub requests: Resources,
    pub scoring: Resources,
    pub placed_scoring: Resources,
    pub host_ports: Vec<HostPort>,
    pub tolerations: Tolerations,
    pub preferred_nodes: Vec<PreferredSchedulingTerm>,
    pub terms: Terms,
    pub spread: Vec<Spread>,
    /// The images of containers and image volumes, with `latest` if they have no tag.
    pub images: Vec<String>,
    pub containers: usize,
    pub volumes: Vec<VolumeUse>,
    pub claims: Vec<ClaimUse>,
    pub gates: Vec<String>,
    /// Containers that request extended resources which a DeviceClass may provide.
    pub extended: Vec<ExtendedUse>,
    /// The features that the kubelet must declare.
    pub features: Vec<&'static str>,
    /// The controller, by kind and name.
    pub owner: Option<(String, String)>,
}

impl Eq for Demand {}

impl Hash for Demand {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.requests.hash(state);
        self.images.hash(state);
        self.spread.len().hash(state);
        self.owner.hash(state);
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tolerations(pub Arc<[Toleration]>);

impl Eq for Tolerations {}

impl Hash for Tolerations {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.iter().for_each(|toleration| toleration.key.hash(state));
    }
}

impl Tolerations {
    /// Reports whether the pod tolerates the node's taints.
    pub fn admit(&self, node: &NodeRow) -> bool {
        tolerates_all(&self.0, &node.taints, &["NoSchedule", "NoExecute"])
    }
}

/// The nodes that a pod requires by label or name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeDemand {
    pub selector: BTreeMap<String, String>,
    pub required: Option<Vec<NodeSelectorTerm>>,
}

impl Eq for NodeDemand {}

impl Hash for NodeDemand {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.selector.hash(state);
        for term in self.required.iter().flatten() {
            let requirements = term.match_fields.iter().chain(&term.match_expressions).flatten();
            requirements.for_each(|one| (&one.key, &one.values).hash(state));
        }
    }
}

impl NodeDemand {
    pub fn is_empty(&self) -> bool {
        self.selector.is_empty() && self.required.is_none()
    }

    pub fn selects(&self, node: &NodeRow) -> bool {
        selects_node(&self.selector, None, &node.name, &node.labels)
            && self.required.as_ref().is_none_or(|terms| {
                terms.iter().any(|term| corten_api::placement::node_term_matches(term, &node.name, &node.labels))
            })
    }

    /// Returns the only nodes that can match, if every term names some.
    pub fn names(&self) -> Option<Vec<&str>> {
        let mut names: Vec<&str> = Vec::new();
        for term in self.required.as_ref().filter(|terms| !terms.is_empty())? {
            let mut of_term: Option<Vec<&str>> = None;
            for field in term.match_fields.iter().flatten() {
                if field.key != "metadata.name" || field.operator != "In" {
                    continue;
                }
                let values: Vec<&str> = field.values.iter().flatten().map(String::as_str).collect();
                of_term = Some(match of_term {
                    None => values,
                    Some(known) => known.into_iter().filter(|name| values.contains(name)).collect(),
                });
            }
            names.extend(of_term?);
        }
        names.sort_unstable();
        names.dedup();
        Some(names)
    }
}

/// Matches pods by namespace and label.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PodMatcher {
    pub namespaces: Vec<String>,
    pub namespace_selector: Option<Selector>,
    pub selector: Selector,
}

impl PodMatcher {
    pub fn matches(
        &self,
        namespace: &str,
        labels: &BTreeMap<String, String>,
        namespace_labels: Option<&BTreeMap<String, String>>,
    ) -> bool {
        let none = BTreeMap::new();
        let here = self.namespaces.iter().any(|name| name == namespace)
            || self.namespace_selector.as_ref().is_some_and(|s| s.matches(namespace_labels.unwrap_or(&none)));
        here && self.selector.matches(labels)
    }
}

/// A term of pod affinity or anti-affinity.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Term {
    pub pods: PodMatcher,
    pub topology_key: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    pub affinity: Vec<Term>,
    pub anti_affinity: Vec<Term>,
    /// Terms with weights, negative for anti-affinity.
    pub preferred: Vec<(i64, Term)>,
}

impl Terms {
    pub fn is_empty(&self) -> bool {
        self.affinity.is_empty() && self.anti_affinity.is_empty() && self.preferred.is_empty()
    }
}

/// A topology spread constraint.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Spread {
    pub hard: bool,
    pub max_skew: i32,
    pub min_domains: usize,
    pub topology_key: String,
    pub selector: Selector,
    pub honor_affinity: bool,
    pub honor_taints: bool,
}

/// A volume that constrains the nodes of its pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum VolumeUse {
    /// A PersistentVolumeClaim; the pod must own it if `ephemeral`.
    Claim {
        name: String,
        ephemeral: bool,
    },
    GcePersistentDisk {
        name: String,
        read_only: bool,
    },
    AwsElasticBlockStore {
        id: String,
    },
    Iscsi {
        iqn: String,
        read_only: bool,
    },
    Rbd {
        monitors: Vec<String>,
        pool: String,
        image: String,
        read_only: bool,
    },
}

/// A ResourceClaim that the pod uses: by name, or by a template whose claim the status names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClaimUse {
    pub pod_claim_name: String,
    pub claim_name: Option<String>,
    pub from_template: bool,
}

impl Demand {
    pub fn of(pod: &Pod, labels: &BTreeMap<String, String>) -> Demand {
        let Some(spec) = &pod.spec else { return Demand::default() };
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let Demands { requests, scoring, placed_scoring } = resources::of_pod(spec, pod.status.as_ref());
        let affinity = spec.affinity.as_ref();
        Demand {
            scheduler_name: spec.scheduler_name.clone().unwrap_or_else(|| "default-scheduler".to_owned()),
            never_preempts: spec.preemption_policy.as_deref() == Some("Never"),
            requests,
            scoring,
            placed_scoring,
            host_ports: spec.containers.iter().chain(sidecars(spec)).flat_map(host_ports).collect(),
            tolerations: Tolerations(spec.tolerations.clone().unwrap_or_default().into()),
            preferred_nodes: preferred_nodes(affinity),
            terms: terms(affinity, namespace, labels),
            spread: spec.topology_spread_constraints.iter().flatten().map(|c| spread(c, labels)).collect(),
            images: images(spec),
            containers: containers(spec).count(),
            volumes: spec.volumes.iter().flatten().filter_map(|volume| volume_use(volume, name)).collect(),
            claims: claims(pod, spec),
            gates: spec.scheduling_gates.iter().flatten().map(|gate| gate.name.clone()).collect(),
            extended: extended::uses(spec),
            features: features(spec),
            owner: owner(pod),
        }
    }
}

fn containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.init_containers.iter().flatten().chain(&spec.containers)
}

/// Returns the features that a kubelet must declare to run the pod. Others matter only for updates of running pods.
fn features(spec: &PodSpec) -> Vec<&'static str> {
    let mut rules = containers(spec).flat_map(|container| container.restart_policy_rules.iter().flatten());
    let restarts_all = rules.any(|rule| rule.action == "RestartAllContainers");
    let shares_network = spec.host_network == Some(true) && spec.host_users == Some(false);
    let needed =
        [(restarts_all, "RestartAllContainersOnContainerExits"), (shares_network, "UserNamespacesHostNetworkSupport")];
    needed.into_iter().filter(|(is_needed, _)| *is_needed).map(|(_, feature)| feature).collect()
}

/// Returns the init containers that keep running.
fn sidecars(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    let stays = |container: &&Container| container.restart_policy.as_deref() == Some("Always");
    spec.init_containers.iter().flatten().filter(stays)
}

fn host_ports(container: &Container) -> impl Iterator<Item = HostPort> {
    container.ports.iter().flatten().filter_map(|port| {
        let number = port.host_port.filter(|number| *number > 0)?;
        let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
        let address = port.host_ip.clone().filter(|ip| !ip.is_empty()).unwrap_or_else(|| "0.0.0.0".to_owned());
        Some((protocol, address, number))
    })
}

pub fn node_demand(spec: &PodSpec) -> NodeDemand {
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    NodeDemand {
        selector: spec.node_selector.clone().unwrap_or_default(),
        required: required.map(|selector| selector.node_selector_terms.clone()),
    }
}

fn preferred_nodes(affinity: Option<&Affinity>) -> Vec<PreferredSchedulingTerm> {
    let node = affinity.and_then(|affinity| affinity.node_affinity.as_ref());
    node.and_then(|node| node.preferred_during_scheduling_ignored_during_execution.clone()).unwrap_or_default()
}

fn terms(affinity: Option<&Affinity>, namespace: &str, labels: &BTreeMap<String, String>) -> Terms {
    let Some(affinity) = affinity else { return Terms::default() };
    let compile = |term: &PodAffinityTerm| term_of(term, namespace, labels);
    let mut terms = Terms::default();
    if let Some(near) = &affinity.pod_affinity {
        let required = near.required_during_scheduling_ignored_during_execution.iter().flatten();
        terms.affinity.extend(required.map(compile));
        let wished = near.preferred_during_scheduling_ignored_during_execution.iter().flatten();
        terms.preferred.extend(wished.map(|term| (i64::from(term.weight), compile(&term.pod_affinity_term))));
    }
    if let Some(far) = &affinity.pod_anti_affinity {
        let required = far.required_during_scheduling_ignored_during_execution.iter().flatten();
        terms.anti_affinity.extend(required.map(compile));
        let wished = far.preferred_during_scheduling_ignored_during_execution.iter().flatten();
        terms.preferred.extend(wished.map(|term| (-i64::from(term.weight), compile(&term.pod_affinity_term))));
    }
    terms
}

/// Compiles a term; without namespaces it applies to the namespace of its pod.
fn term_of(term: &PodAffinityTerm, namespace: &str, labels: &BTreeMap<String, String>) -> Term {
    let mut namespaces = term.namespaces.clone().unwrap_or_default();
    if namespaces.is_empty() && term.namespace_selector.is_none() {
        namespaces.push(namespace.to_owned());
    }
    let mut selected = term.label_selector.as_ref().map_or_else(Selector::nothing, selector);
    let keys = |list: &Option<Vec<String>>, operator: Operator| -> Vec<Requirement> {
        let of = |key: &String| Requirement::new(key, operator, vec![labels.get(key)?.clone()]).ok();
        list.iter().flatten().filter_map(of).collect()
    };
    let narrowing = keys(&term.match_label_keys, Operator::In);
    for requirement in narrowing.into_iter().chain(keys(&term.mismatch_label_keys, Operator::NotIn)) {
        selected = selected.and(requirement);
    }
    Term {
        pods: PodMatcher {
            namespaces,
            namespace_selector: term.namespace_selector.as_ref().map(selector),
            selector: selected,
        },
        topology_key: term.topology_key.clone(),
    }
}

/// Compiles a constraint, with its selector narrowed to the pod's own values of `matchLabelKeys`.
pub fn spread(constraint: &TopologySpreadConstraint, labels: &BTreeMap<String, String>) -> Spread {
    let mut selected = constraint.label_selector.as_ref().map_or_else(Selector::nothing, selector);
    for key in constraint.match_label_keys.iter().flatten() {
        let own = labels.get(key).map(|value| Requirement::new(key, Operator::In, vec![value.clone()]));
        if let Some(Ok(requirement)) = own {
            selected = selected.and(requirement);
        }
    }
    Spread {
        hard: constraint.when_unsatisfiable == "DoNotSchedule",
        max_skew: constraint.max_skew,
        min_domains: usize::try_from(constraint.min_domains.unwrap_or(1)).unwrap_or(1),
        topology_key: constraint.topology_key.clone(),
        selector: selected,
        honor_affinity: constraint.node_affinity_policy.as_deref() != Some("Ignore"),
        honor_taints: constraint.node_taints_policy.as_deref() == Some("Honor"),
    }
}

/// Converts a label selector; one that does not parse selects nothing.
pub fn selector(selector: &LabelSelector) -> Selector {
    let requirement = |r: &corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelectorRequirement| json!({"key": r.key, "operator": r.operator, "values": r.values});
    let requirements: Vec<Value> = selector.match_expressions.iter().flatten().map(requirement).collect();
    let value = json!({"matchLabels": selector.match_labels, "matchExpressions": requirements});
    Selector::from_label_selector(&value).unwrap_or_else(|_| Selector::nothing())
}

fn images(spec: &PodSpec) -> Vec<String> {
    let of_containers = containers(spec).filter_map(|container| container.image.as_deref());
    let of_volumes = spec.volumes.iter().flatten().filter_map(|volume| volume.image.as_ref()?.reference.as_deref());
    of_containers.chain(of_volumes).map(normalized_image).collect()
}

/// Adds the tag `latest` to an image name without a tag.
pub fn normalized_image(name: &str) -> String {
    let tag = name.rfind(':').map_or(0, |at| at + 1);
    let path = name.rfind('/').map_or(0, |at| at + 1);
    if tag <= path { format!("{name}:latest") } else { name.to_owned() }
}

fn volume_use(volume: &Volume, pod: &str) -> Option<VolumeUse> {
    if let Some(claim) = &volume.persistent_volume_claim {
        return Some(VolumeUse::Claim { name: claim.claim_name.clone(), ephemeral: false });
    }
    if volume.ephemeral.is_some() {
        return Some(VolumeUse::Claim { name: format!("{pod}-{}", volume.name), ephemeral: true });
    }
    if let Some(disk) = &volume.gce_persistent_disk {
        let read_only = disk.read_only.unwrap_or(false);
        return Some(VolumeUse::GcePersistentDisk { name: disk.pd_name.clone(), read_only });
    }
    if let Some(store) = &volume.aws_elastic_block_store {
        return Some(VolumeUse::AwsElasticBlockStore { id: store.volume_id.clone() });
    }
    if let Some(iscsi) = &volume.iscsi {
        return Some(VolumeUse::Iscsi { iqn: iscsi.iqn.clone(), read_only: iscsi.read_only.unwrap_or(false) });
    }
    let rbd = volume.rbd.as_ref()?;
    Some(VolumeUse::Rbd {
        monitors: rbd.monitors.clone(),
        pool: rbd.pool.clone().unwrap_or_else(|| "rbd".to_owned()),
        image: rbd.image.clone(),
        read_only: rbd.read_only.unwrap_or(false),
    })
}

fn claims(pod: &Pod, spec: &PodSpec) -> Vec<ClaimUse> {
    let statuses = pod.status.as_ref().and_then(|status| status.resource_claim_statuses.as_deref()).unwrap_or_default();
    let of = |claim: &corten_api::k8s_openapi::api::core::v1::PodResourceClaim| {
        let made = statuses.iter().find(|status| status.name == claim.name);
        let named = claim.resource_claim_name.clone();
        // If the status has an entry without a name, the pod does not need the claim.
        let not_needed = named.is_none() && made.is_some_and(|status| status.resource_claim_name.is_none());
        (!not_needed).then(|| ClaimUse {
            pod_claim_name: claim.name.clone(),
            from_template: named.is_none(),
            claim_name: named.or_else(|| made.and_then(|status| status.resource_claim_name.clone())),
        })
    };
    spec.resource_claims.iter().flatten().filter_map(of).collect()
}

fn owner(pod: &Pod) -> Option<(String, String)> {
    let owners = pod.metadata.owner_references.as_deref().unwrap_or_default();
    let owner = owners.iter().find(|owner| owner.controller == Some(true))?;
    Some((owner.kind.clone(), owner.name.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use corten_api::Typed;

    fn demand(spec: Value) -> Demand {
        let metadata = json!({"namespace": "ns", "name": "p", "labels": {"app": "a", "rev": "1"}});
        let pod =
            Pod::from_value(json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})).unwrap();
        let labels = pod.metadata.labels.clone().unwrap();
        Demand::of(&pod, &labels)
    }

    #[test]
    fn an_image_without_a_tag_is_latest() {
        assert_eq!(normalized_image("nginx"), "nginx:latest");
        assert_eq!(normalized_image("host:5000/nginx"), "host:5000/nginx:latest");
        assert_eq!(normalized_image("host:5000/nginx:1"), "host:5000/nginx:1");
    }

    #[test]
    fn a_term_is_narrowed_by_label_keys_of_the_pod() {
        let term = json!({"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "a"}},
            "matchLabelKeys": ["rev", "absent"], "mismatchLabelKeys": ["tenant"]});
        let spec = json!({"containers": [], "affinity": {"podAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [term]}}});
        let demand = demand(spec);
        let pods = &demand.terms.affinity[0].pods;
        assert_eq!(pods.selector.to_string(), "app=a,rev in (1)");
        assert_eq!(pods.namespaces, ["ns"]);
    }

    #[test]
    fn terms_that_all_name_nodes_name_the_only_candidates() {
        let term =
            |names: &[&str]| json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": names}]});
        let of = |terms: Vec<Value>| {
            let spec = json!({"containers": [], "affinity": {"nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}});
            let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec});
            node_demand(&Pod::from_value(pod).unwrap().spec.unwrap())
        };
        assert_eq!(of(vec![term(&["b"]), term(&["a"])]).names(), Some(vec!["a", "b"]));
        let label = json!({"matchExpressions": [{"key": "x", "operator": "Exists"}]});
        assert_eq!(of(vec![term(&["b"]), label]).names(), None);
    }
}
