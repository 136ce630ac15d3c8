//! The state of a pod as workload controllers see it, and the order in which a scale-down deletes pods.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use corten_api::k8s_openapi::api::core::v1::{Pod, PodCondition};
use jiff::Timestamp;

use crate::runtime::PodRow;

/// The fields of a pod that workload controllers read, decoded or as a row.
pub trait PodState {
    /// Returns the phase; `Pending` if the status has none yet.
    fn phase(&self) -> &str;
    /// Returns the node name; empty before the pod is bound.
    fn node_name(&self) -> &str;
    fn is_terminating(&self) -> bool;
    /// Whether the pod is ready, with the transition time if the condition has one.
    fn ready(&self) -> Option<Option<Timestamp>>;
    fn created(&self) -> Option<Timestamp>;
    /// The restart count of the container that restarted most.
    fn restarts(&self) -> i32;
    fn deletion_cost(&self) -> i32;
    fn uid(&self) -> &str;
}

impl PodState for Pod {
    fn phase(&self) -> &str {
        let phase = self.status.as_ref().and_then(|status| status.phase.as_deref());
        phase.filter(|phase| !phase.is_empty()).unwrap_or("Pending")
    }

    fn node_name(&self) -> &str {
        self.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or("")
    }

    fn is_terminating(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    fn ready(&self) -> Option<Option<Timestamp>> {
        let ready = condition(self, "Ready").filter(|ready| ready.status == "True")?;
        Some(ready.last_transition_time.as_ref().map(|time| time.0))
    }

    fn created(&self) -> Option<Timestamp> {
        self.metadata.creation_timestamp.as_ref().map(|time| time.0)
    }

    fn restarts(&self) -> i32 {
        let statuses = self.status.as_ref().and_then(|status| status.container_statuses.as_ref());
        statuses.into_iter().flatten().map(|status| status.restart_count).max().unwrap_or(0)
    }

    fn deletion_cost(&self) -> i32 {
        let annotations = self.metadata.annotations.as_ref();
        let cost = annotations.and_then(|all| all.get("controller.kubernetes.io/pod-deletion-cost"));
        cost.and_then(|cost| cost.parse().ok()).unwrap_or(0)
    }

    fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }
}

impl PodState for PodRow {
    fn phase(&self) -> &str {
        if self.facts.phase.is_empty() { "Pending" } else { &self.facts.phase }
    }

    fn node_name(&self) -> &str {
        &self.facts.node
    }

    fn is_terminating(&self) -> bool {
        self.object.header.deletion_timestamp.is_some()
    }

    fn ready(&self) -> Option<Option<Timestamp>> {
        self.facts.ready
    }

    fn created(&self) -> Option<Timestamp> {
        self.object.header.creation_timestamp
    }

    fn restarts(&self) -> i32 {
        self.facts.restarts
    }

    fn deletion_cost(&self) -> i32 {
        self.facts.deletion_cost
    }

    fn uid(&self) -> &str {
        &self.object.header.uid
    }
}

/// Iterator filters have references to references.
impl<P: PodState> PodState for &P {
    fn phase(&self) -> &str {
        (**self).phase()
    }

    fn node_name(&self) -> &str {
        (**self).node_name()
    }

    fn is_terminating(&self) -> bool {
        (**self).is_terminating()
    }

    fn ready(&self) -> Option<Option<Timestamp>> {
        (**self).ready()
    }

    fn created(&self) -> Option<Timestamp> {
        (**self).created()
    }

    fn restarts(&self) -> i32 {
        (**self).restarts()
    }

    fn deletion_cost(&self) -> i32 {
        (**self).deletion_cost()
    }

    fn uid(&self) -> &str {
        (**self).uid()
    }
}

pub fn phase(pod: &impl PodState) -> &str {
    pod.phase()
}

pub fn node_name(pod: &impl PodState) -> &str {
    pod.node_name()
}

pub fn is_terminating(pod: &impl PodState) -> bool {
    pod.is_terminating()
}

/// Reports whether the pod succeeded or failed.
pub fn is_terminal(pod: &impl PodState) -> bool {
    matches!(pod.phase(), "Succeeded" | "Failed")
}

/// Reports whether the pod counts as a replica.
pub fn is_active(pod: &impl PodState) -> bool {
    !is_terminal(pod) && !pod.is_terminating()
}

pub fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
}

pub fn is_ready(pod: &impl PodState) -> bool {
    pod.ready().is_some()
}

/// Returns the time until the pod has been ready for `min_ready_seconds`: zero when it is available, none when it is
/// not ready.
pub fn available_in(pod: &impl PodState, min_ready_seconds: i32, now: Timestamp) -> Option<Duration> {
    let since = pod.ready()?;
    if min_ready_seconds <= 0 {
        return Some(Duration::ZERO);
    }
    let ready_for = now.duration_since(since?);
    let wanted = Duration::from_secs(min_ready_seconds.unsigned_abs().into());
    Some(wanted.saturating_sub(ready_for.try_into().unwrap_or(Duration::ZERO)))
}

pub fn is_available(pod: &impl PodState, min_ready_seconds: i32, now: Timestamp) -> bool {
    available_in(pod, min_ready_seconds, now) == Some(Duration::ZERO)
}

/// Sorts pods in the order in which a scale-down deletes them.
///
/// Not scheduled first, then earlier phase, not ready, lower deletion cost, more pods of the same owner on its node,
/// ready for a shorter time, more restarts, created later. The uid decides ties, so that the order of a list never
/// matters.
pub fn rank_for_deletion<P: PodState>(pods: &mut [P], related: &[P], now: Timestamp) {
    let mut on_node: BTreeMap<String, usize> = BTreeMap::new();
    for pod in related.iter().filter(|pod| is_active(*pod)) {
        *on_node.entry(pod.node_name().to_owned()).or_default() += 1;
    }
    let rank = |pod: &P| on_node.get(pod.node_name()).copied().unwrap_or(0);
    pods.sort_by(|a, b| before(a, b, rank(a), rank(b), now));
}

fn before(a: &impl PodState, b: &impl PodState, rank_a: usize, rank_b: usize, now: Timestamp) -> Ordering {
    let unscheduled_first = b.node_name().is_empty().cmp(&a.node_name().is_empty());
    let by_age = |a: Option<Timestamp>, b: Option<Timestamp>| logarithmic_age(a, now).cmp(&logarithmic_age(b, now));
    unscheduled_first
        .then_with(|| phase_ordinal(a.phase()).cmp(&phase_ordinal(b.phase())))
        .then_with(|| is_ready(a).cmp(&is_ready(b)))
        .then_with(|| a.deletion_cost().cmp(&b.deletion_cost()))
        .then_with(|| rank_b.cmp(&rank_a))
        .then_with(|| by_age(a.ready().flatten(), b.ready().flatten()))
        .then_with(|| b.restarts().cmp(&a.restarts()))
        .then_with(|| by_age(a.created(), b.created()))
        .then_with(|| a.uid().cmp(b.uid()))
}

/// Returns the magnitude of an age: among pods of about the same age, the choice is deliberately arbitrary.
fn logarithmic_age(time: Option<Timestamp>, now: Timestamp) -> u32 {
    let nanos = time.map_or(0, |time| now.duration_since(time).as_nanos().max(0));
    u128::try_from(nanos).unwrap_or(0).checked_ilog2().map_or(0, |log| log + 1)
}

fn phase_ordinal(phase: &str) -> u8 {
    match phase {
        "Pending" => 0,
        "Unknown" => 1,
        "Running" => 2,
        _ => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::model::NOW;

    /// Returns the names in the order of deletion.
    fn ranked(lines: &str, related: &[&str]) -> Vec<String> {
        let mut pods: Vec<Pod> = lines.lines().map(testkit_fixture::typed).collect();
        let related: Vec<Pod> =
            pods.iter().cloned().chain(related.iter().map(|line| testkit_fixture::typed(line))).collect();
        let mut reversed: Vec<Pod> = pods.iter().rev().cloned().collect();
        let names = |pods: &mut Vec<Pod>| {
            rank_for_deletion(pods, &related, *NOW);
            pods.iter().filter_map(|pod| pod.metadata.name.clone()).collect::<Vec<_>>()
        };
        let order = names(&mut pods);
        assert_eq!(names(&mut reversed), order, "the order of lists does not matter");
        order
    }

    #[test]
    fn pods_are_deleted_in_upstreams_order() {
        let order = ranked(
            "pod old uid=old Running ready=3600 node=a\npod fresh Running ready=2 node=a\npod pending Pending node=a\n\
             pod unscheduled Pending\n\
             pod cheap Running ready=3600 node=a annotation.controller.kubernetes.io/pod-deletion-cost=-5",
            &[],
        );
        assert_eq!(order, ["unscheduled", "pending", "cheap", "fresh", "old"]);
    }

    #[test]
    fn a_node_with_more_replicas_loses_one_first() {
        let pods = "pod y Running ready=60 node=b\npod x Running ready=60 node=a";
        assert_eq!(ranked(pods, &["pod z Running node=a"]), ["x", "y"]);
    }

    #[test]
    fn availability_waits_for_min_ready_seconds() {
        let ready: Pod = testkit_fixture::typed("pod p Running ready=4");
        assert_eq!(available_in(&ready, 10, *NOW), Some(Duration::from_secs(6)));
        assert!(is_available(&ready, 4, *NOW));
        let unready: Pod = testkit_fixture::typed("pod p Running");
        assert_eq!(available_in(&unready, 0, *NOW), None);
    }
}
