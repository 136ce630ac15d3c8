//! Explains why a pod is on its node, or unschedulable: every plugin's verdict on every node, and possible remedies.
//!
//! It decides by the same code as the scheduler itself, on a state of its own; it writes nothing.

use std::fmt::Write as _;
use std::sync::Arc;

use corten_api::decode_object;
use corten_api::k8s_openapi::api::core::v1::Pod;
use corten_client::{Caches, Client};
use corten_meta::Key;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::config::Config;
use crate::cycle::{self, Rotation};
use crate::filtering;
use crate::framework::{Point, Verdict};
use crate::preemption;
use crate::profile::Profile;
use crate::rows::{NodeRow, PodRow, Snapshot};
use crate::scheduler::Scheduler;
use crate::task::watches::{self, Watched, Watches};

/// The explanation of a pod's placement.
#[derive(Debug, Default)]
pub struct Explanation {
    /// One sentence.
    pub summary: String,
    pub nodes: Vec<NodeReport>,
    /// Changes that would make the pod schedulable, the easiest first.
    pub advice: Vec<String>,
}

/// The verdicts of the plugins on one node.
#[derive(Debug)]
pub struct NodeReport {
    pub name: String,
    /// Plugin and reason of each rejection; empty for a feasible node.
    pub refused: Vec<(&'static str, String)>,
    /// Plugin and weighted score, for a feasible node.
    pub scores: Vec<(&'static str, i64)>,
}

/// Explains the placement of a pod.
pub async fn explain(config: &Config, client: Client, key: &Key) -> Result<Explanation, Error> {
    let ending = CancellationToken::new();
    // The watches end also when no client waits for the explanation any more.
    let _ended = ending.clone().drop_guard();
    watches::check_readable(&client).await?;
    let caches = Caches::new(client, ending.clone());
    let mut known = Watches::start(&caches).await;
    let now = corten_meta::time::now();
    let mut scheduler = Scheduler::new(config);
    let mut found = None;
    while let Some((kind, change)) = known.try_next() {
        if kind != Watched::Pod {
            watches::hear(&mut scheduler, kind, &change, now);
            continue;
        }
        let Some(Ok(pod)) = change.new.as_ref().map(|object| decode_object::<Pod>(object)) else { continue };
        if change.key == *key {
            found = Some(pod.clone());
        }
        let row = scheduler.snapshot.row(pod);
        scheduler.pod_changed(row, now);
    }
    ending.cancel();
    caches.ended().await;
    let pod = found.ok_or_else(|| Error::NoPod(key.to_string()))?;
    let row = Arc::new(scheduler.snapshot.row(pod));
    let profile = scheduler.profile(&row);
    Ok(of_pod(&mut scheduler.snapshot, profile.as_deref(), &row))
}

pub(crate) fn of_pod(snapshot: &mut Snapshot, profile: Option<&Profile>, pod: &PodRow) -> Explanation {
    let summarized = |summary: String| Explanation { summary, ..Explanation::default() };
    if !pod.node_name.is_empty() {
        return summarized(format!("It runs on {}.", pod.node_name));
    }
    let Some(profile) = profile else {
        let name = &pod.demand.scheduler_name;
        let mut explanation = summarized(format!("It waits for the scheduler {name:?}, which is not this one."));
        explanation
            .advice
            .push(format!("start a scheduler named {name:?}, or make the pod with another schedulerName"));
        return explanation;
    };
    for plugin in profile.at(Point::PreEnqueue) {
        if let Some(reasons) = plugin.pre_enqueue(pod).reasons() {
            let mut explanation = summarized(format!("{}: {}.", plugin.name, reasons.text()));
            explanation.advice.push(format!("remove the scheduling gates: {}", pod.demand.gates.join(", ")));
            return explanation;
        }
    }
    if snapshot.len() == 0 {
        let mut explanation = summarized("no nodes available to schedule pods".to_owned());
        explanation.advice.push("add a node".to_owned());
        return explanation;
    }
    let mut rotation = Rotation::new(1);
    let search = cycle::search(snapshot, profile, pod, &mut rotation);
    let nodes = reports(snapshot, profile, pod);
    let mut advice: Vec<String> = Vec::new();
    let summary = match search.feasible.is_empty() {
        false => "It fits now, and is about to be placed.".to_owned(),
        true => {
            let rejection = cycle::post_filter(snapshot, profile, pod, &search, &mut rotation);
            let message = rejection.message();
            if let Some(room) = preemption::best(rejection.candidates) {
                let victims: Vec<String> = room.victims.iter().map(|victim| victim.key().to_string()).collect();
                advice.push(format!("preemption makes room on {} once {} are gone", room.node, victims.join(", ")));
            }
            advice.extend(what_would_help(snapshot, pod, &nodes));
            message
        }
    };
    Explanation { summary, nodes, advice }
}

fn reports(snapshot: &mut Snapshot, profile: &Profile, pod: &PodRow) -> Vec<NodeReport> {
    let slots: Vec<usize> = snapshot.nodes().map(|node| node.slot).collect();
    let filters = match filtering::pre_filter(snapshot, profile, pod) {
        Ok(filters) => filters,
        Err((plugin, verdict)) => return refused_everywhere(snapshot, plugin, &verdict),
    };
    let mut reports = Vec::new();
    let mut fitting = Vec::new();
    for slot in slots {
        let rejection = |(plugin, verdict): (&'static str, Verdict)| {
            let why = verdict.reasons()?.text();
            Some((plugin, detail(plugin, why, pod, snapshot.node(slot))))
        };
        let refused: Vec<_> =
            filtering::verdicts(&filters, pod, slot, snapshot).into_iter().filter_map(rejection).collect();
        if refused.is_empty() {
            fitting.push((slot, reports.len()));
        }
        reports.push(NodeReport { name: snapshot.node(slot).name.clone(), refused, scores: Vec::new() });
    }
    let slots: Vec<usize> = fitting.iter().map(|(slot, _)| *slot).collect();
    for (plugin, weight) in profile.scorers() {
        let scores = cycle::plugin_scores(snapshot, plugin, pod, &slots).unwrap_or_default();
        for ((_, report), score) in fitting.iter().zip(scores) {
            reports[*report].scores.push((plugin.name, score * weight));
        }
    }
    reports
}

fn refused_everywhere(snapshot: &Snapshot, plugin: &'static str, verdict: &Verdict) -> Vec<NodeReport> {
    let why = verdict.reasons().map(|reasons| reasons.text()).unwrap_or_default();
    let report = |node: &NodeRow| NodeReport {
        name: node.name.clone(),
        refused: vec![(plugin, why.clone())],
        scores: Vec::new(),
    };
    snapshot.nodes().map(report).collect()
}

/// Returns the reason with the numbers or names behind it.
fn detail(plugin: &str, why: String, pod: &PodRow, node: &NodeRow) -> String {
    match plugin {
        "NodeResourcesFit" => {
            let mut advice = why;
            for (name, requested) in requests_of(pod) {
                let left = node.allocatable.get(&name) - node.requested.get(&name);
                if requested > left {
                    let total = node.allocatable.get(&name);
                    let _ = write!(
                        advice,
                        " ({name}: asks {}, {} of {} left)",
                        unit(&name, requested),
                        unit(&name, left),
                        unit(&name, total)
                    );
                }
            }
            advice
        }
        "TaintToleration" => {
            let hard = node.taints.iter().filter(|taint| taint.effect != "PreferNoSchedule");
            let untolerated = hard.filter(|taint| {
                !pod.demand.tolerations.0.iter().any(|one| corten_api::placement::tolerates(one, taint))
            });
            let taints: Vec<String> = untolerated
                .map(|taint| format!("{}={}:{}", taint.key, taint.value.as_deref().unwrap_or_default(), taint.effect))
                .collect();
            format!("{why}: {}", taints.join(", "))
        }
        _ => why,
    }
}

fn requests_of(pod: &PodRow) -> Vec<(String, i64)> {
    let requests = &pod.demand.requests;
    let common = ["cpu", "memory", "ephemeral-storage"].into_iter().map(|name| (name.to_owned(), requests.get(name)));
    let scalar = requests.scalar.iter().map(|(name, value)| (name.clone(), *value));
    common.chain(scalar).filter(|(_, value)| *value > 0).collect()
}

fn unit(name: &str, value: i64) -> String {
    match name {
        "cpu" if value % 1000 == 0 => (value / 1000).to_string(),
        "cpu" => format!("{value}m"),
        "memory" | "ephemeral-storage" => format!("{}Mi", value / (1024 * 1024)),
        _ => value.to_string(),
    }
}

/// Returns a remedy for each node that only one plugin rejects; nodes that several plugins reject are far from
/// feasible.
fn what_would_help(snapshot: &Snapshot, pod: &PodRow, nodes: &[NodeReport]) -> Vec<String> {
    let mut advice: Vec<String> = Vec::new();
    for report in nodes.iter().filter(|report| report.refused.len() == 1) {
        let Some((plugin, why)) = report.refused.first() else { continue };
        let Some(node) = snapshot.find(&report.name) else { continue };
        let help = match why.strip_suffix(" not found") {
            Some(missing) => format!("create the {missing}"),
            None => help(plugin, pod, node),
        };
        if !help.is_empty() && !advice.contains(&help) {
            advice.push(help);
        }
    }
    if advice.is_empty() {
        advice.push("each node is refused for more than one reason; see them above".to_owned());
    }
    advice
}

fn help(plugin: &str, pod: &PodRow, node: &NodeRow) -> String {
    let name = &node.name;
    match plugin {
        "NodeResourcesFit" => {
            let larger =
                requests_of(pod).into_iter().find(|(resource, requested)| *requested > node.allocatable.get(resource));
            if let Some((resource, requested)) = larger {
                return format!("add a node with {} of {resource}, or ask for less", unit(&resource, requested));
            }
            let missing: Vec<String> = requests_of(pod)
                .into_iter()
                .filter_map(|(resource, requested)| {
                    let short = requested - (node.allocatable.get(&resource) - node.requested.get(&resource));
                    (short > 0).then(|| format!("{} of {resource}", unit(&resource, short)))
                })
                .collect();
            match missing.is_empty() {
                true => format!("remove a pod from {name}: it takes no more than {}", node.allocatable.pods),
                false => format!("free {} on {name}, or ask for less", missing.join(" and ")),
            }
        }
        "TaintToleration" => format!("tolerate the taints of {name}, or remove them"),
        "NodeUnschedulable" => format!("kubectl uncordon {name}"),
        "NodeDeclaredFeatures" => format!("upgrade {name}: its kubelet does not declare all that the pod needs"),
        "NodeAffinity" | "NodeName" => format!("label {name} as the pod's nodeSelector or affinity asks"),
        "NodePorts" => format!("use another hostPort, or remove the pod on {name} that has it"),
        "PodTopologySpread" => {
            let keys = pod.demand.spread.iter().filter(|one| one.hard).map(|one| one.topology_key.as_str());
            let missing: Vec<&str> = keys.filter(|key| !node.labels.contains_key(*key)).collect();
            match missing.is_empty() {
                true => format!("raise maxSkew, or place fewer pods in the domain of {name}"),
                false => format!("label {name} with {}", missing.join(", ")),
            }
        }
        "InterPodAffinity" => {
            format!("place the pods that the affinity asks for, or remove those it avoids, near {name}")
        }
        "DynamicResources" => "see to the pod's ResourceClaims: kubectl describe resourceclaim".to_owned(),
        "VolumeBinding" | "VolumeZone" | "VolumeRestrictions" | "NodeVolumeLimits" => {
            "see to the pod's PersistentVolumeClaims: kubectl describe pvc".to_owned()
        }
        _ => String::new(),
    }
}

impl std::fmt::Display for Explanation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{}", self.summary)?;
        let width = self.nodes.iter().map(|node| node.name.len()).max().unwrap_or(0);
        for node in &self.nodes {
            let mut lines: Vec<String> = node.refused.iter().map(|(plugin, why)| format!("{plugin}: {why}")).collect();
            if lines.is_empty() {
                let total: i64 = node.scores.iter().map(|(_, score)| score).sum();
                let scores: Vec<String> =
                    node.scores.iter().map(|(plugin, score)| format!("{plugin} {score}")).collect();
                lines.push(format!("fits, score {total}: {}", scores.join(", ")));
            }
            for (number, line) in lines.iter().enumerate() {
                let name = if number == 0 { node.name.as_str() } else { "" };
                writeln!(f, "  {name:width$}  {line}")?;
            }
        }
        if !self.advice.is_empty() {
            writeln!(f, "What would help:")?;
        }
        self.advice.iter().try_for_each(|advice| writeln!(f, "  - {advice}"))
    }
}
