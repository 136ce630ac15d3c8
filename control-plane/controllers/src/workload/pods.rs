//! The questions every workload controller asks of a pod, and the order in which pods are given up.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use corten_api::k8s_openapi::api::core::v1::{Pod, PodCondition};
use jiff::Timestamp;

pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending")
}

pub fn node_name(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or("")
}

pub fn is_terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Ran to its end, for better or worse.
pub fn is_terminal(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// Counts as a replica.
pub fn is_active(pod: &Pod) -> bool {
    !is_terminal(pod) && !is_terminating(pod)
}

pub fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
}

pub fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|ready| ready.status == "True")
}

/// Since when the pod has been ready, if it is.
pub fn ready_since(pod: &Pod) -> Option<Timestamp> {
    let ready = condition(pod, "Ready").filter(|ready| ready.status == "True")?;
    ready.last_transition_time.as_ref().map(|time| time.0)
}

/// How long until the pod has been ready for `min_ready_seconds`; zero when it is available, none when not ready.
pub fn available_in(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> Option<Duration> {
    if !is_ready(pod) {
        return None;
    }
    if min_ready_seconds <= 0 {
        return Some(Duration::ZERO);
    }
    let ready_for = now.duration_since(ready_since(pod)?);
    let wanted = Duration::from_secs(min_ready_seconds.unsigned_abs().into());
    Some(wanted.saturating_sub(ready_for.try_into().unwrap_or(Duration::ZERO)))
}

pub fn is_available(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> bool {
    available_in(pod, min_ready_seconds, now) == Some(Duration::ZERO)
}

/// The pods in the order in which a scale-down deletes them.
///
/// Not scheduled, then earlier phase, not ready, cheaper to delete, more of the same owner on its node, ready for a
/// shorter time, restarted more, created later; the uid settles the rest, so that the order of a list never matters.
pub fn rank_for_deletion(pods: &mut [Pod], related: &[Pod], now: Timestamp) {
    let mut on_node: BTreeMap<String, usize> = BTreeMap::new();
    for pod in related.iter().filter(|pod| is_active(pod)) {
        *on_node.entry(node_name(pod).to_owned()).or_default() += 1;
    }
    let rank = |pod: &Pod| on_node.get(node_name(pod)).copied().unwrap_or(0);
    pods.sort_by(|a, b| before(a, b, rank(a), rank(b), now));
}

fn before(a: &Pod, b: &Pod, rank_a: usize, rank_b: usize, now: Timestamp) -> Ordering {
    let unscheduled_first = node_name(b).is_empty().cmp(&node_name(a).is_empty());
    let by_age =
        |time: fn(&Pod) -> Option<Timestamp>| logarithmic_age(time(a), now).cmp(&logarithmic_age(time(b), now));
    unscheduled_first
        .then_with(|| phase_ordinal(a).cmp(&phase_ordinal(b)))
        .then_with(|| is_ready(a).cmp(&is_ready(b)))
        .then_with(|| deletion_cost(a).cmp(&deletion_cost(b)))
        .then_with(|| rank_b.cmp(&rank_a))
        .then_with(|| by_age(ready_since))
        .then_with(|| max_restarts(b).cmp(&max_restarts(a)))
        .then_with(|| by_age(created))
        .then_with(|| a.metadata.uid.cmp(&b.metadata.uid))
}

fn created(pod: &Pod) -> Option<Timestamp> {
    pod.metadata.creation_timestamp.as_ref().map(|time| time.0)
}

/// Ages are compared by magnitude only: of pods of about the same age, which one goes is deliberately arbitrary.
fn logarithmic_age(time: Option<Timestamp>, now: Timestamp) -> u32 {
    let nanos = time.map_or(0, |time| now.duration_since(time).as_nanos().max(0));
    u128::try_from(nanos).unwrap_or(0).checked_ilog2().map_or(0, |log| log + 1)
}

fn phase_ordinal(pod: &Pod) -> u8 {
    match phase(pod) {
        "Pending" => 0,
        "Unknown" => 1,
        "Running" => 2,
        _ => 3,
    }
}

fn deletion_cost(pod: &Pod) -> i32 {
    let annotation =
        pod.metadata.annotations.as_ref().and_then(|all| all.get("controller.kubernetes.io/pod-deletion-cost"));
    annotation.and_then(|cost| cost.parse().ok()).unwrap_or(0)
}

fn max_restarts(pod: &Pod) -> i32 {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    statuses.into_iter().flatten().map(|status| status.restart_count).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{NOW, pod};

    #[test]
    fn pods_are_given_up_in_upstreams_order() {
        let mut old = pod("old").phase("Running").ready(3600).on("a").build();
        old.metadata.uid = Some("old".into());
        let fresh = pod("fresh").phase("Running").ready(2).on("a").build();
        let pending = pod("pending").phase("Pending").on("a").build();
        let unscheduled = pod("unscheduled").phase("Pending").build();
        let cheap = pod("cheap")
            .phase("Running")
            .ready(3600)
            .on("a")
            .annotation("controller.kubernetes.io/pod-deletion-cost", "-5")
            .build();
        let all = vec![old, fresh, pending, unscheduled, cheap];
        let names = |mut pods: Vec<Pod>| {
            let related = pods.clone();
            rank_for_deletion(&mut pods, &related, *NOW);
            pods.into_iter().filter_map(|pod| pod.metadata.name).collect::<Vec<_>>()
        };
        assert_eq!(names(all.clone()), ["unscheduled", "pending", "cheap", "fresh", "old"]);
        assert_eq!(names(all.into_iter().rev().collect()), ["unscheduled", "pending", "cheap", "fresh", "old"]);
    }

    #[test]
    fn a_node_with_more_replicas_gives_one_up_first() {
        let crowded = pod("x").phase("Running").ready(60).on("a").build();
        let lonely = pod("y").phase("Running").ready(60).on("b").build();
        let related = vec![crowded.clone(), lonely.clone(), pod("z").phase("Running").on("a").build()];
        let mut pods = vec![lonely, crowded];
        rank_for_deletion(&mut pods, &related, *NOW);
        assert_eq!(pods[0].metadata.name.as_deref(), Some("x"));
    }

    #[test]
    fn availability_waits_for_min_ready_seconds() {
        let ready = pod("p").phase("Running").ready(4).build();
        assert_eq!(available_in(&ready, 10, *NOW), Some(Duration::from_secs(6)));
        assert!(is_available(&ready, 4, *NOW));
        assert_eq!(available_in(&pod("p").phase("Running").build(), 0, *NOW), None);
    }
}
