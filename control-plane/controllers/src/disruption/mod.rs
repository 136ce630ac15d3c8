//! The disruption controller: computes how many of the pods under a PodDisruptionBudget may be evicted now.
//!
//! The eviction subresource spends from the budget's status; if the controller cannot compute it, no disruption is
//! allowed. The controller writes no pod, except to clear a stale condition ([`stale`]).

mod scale;
mod stale;

pub use stale::StaleDisruptionController;

use std::collections::BTreeMap;
use std::time::Duration;

use corten_api::Typed;
use corten_api::k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use corten_api::k8s_openapi::api::core::v1::{Pod, ReplicationController};
use corten_api::k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use corten_api::k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use corten_client::Change;
use corten_meta::Key;
use jiff::Timestamp;

use crate::runtime::{Action, Controller, Plan, PodRow, ResourceType, ScaleQuestion, View, Watch, decode, key_of};
use crate::workload::condition::{StatusCondition, set_status};
use crate::workload::int_or_percent::scaled;
use crate::workload::owner::selector;
use crate::workload::pods;
use scale::{Scale, scale_of};

/// The time that the deletion of an evicted pod may take before the pod counts as healthy again.
const DELETION_TIMEOUT: Duration = Duration::from_secs(2 * 60);
const CONDITION: &str = "DisruptionAllowed";

pub struct DisruptionController;

pub struct Observed {
    budget: PodDisruptionBudget,
    /// The pods that the budget selects, by name.
    pods: Vec<PodRow>,
    /// The desired replicas of the pods' controllers, by the controller uid in the pods' owner references.
    scales: BTreeMap<String, Result<Scale, String>>,
}

impl Controller for DisruptionController {
    type Observed = Observed;

    const NAME: &'static str = "disruption-controller";
    const COMPONENT: &'static str = "controllermanager";

    fn watches(&self) -> Vec<Watch> {
        vec![
            Watch::own::<PodDisruptionBudget>(),
            Watch::mapped::<Pod>(of_pod),
            Watch::read::<ReplicaSet>(),
            Watch::read::<Deployment>(),
            Watch::read::<StatefulSet>(),
            Watch::read::<ReplicationController>(),
        ]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Observed> {
        let budget: PodDisruptionBudget = view.typed(key)?;
        let chosen = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        let mut pods = chosen.map(|s| view.select_rows(&key.namespace, &selector(s))).unwrap_or_default();
        pods.sort_unstable_by(|a, b| a.name().cmp(b.name()));
        let mut scales = BTreeMap::new();
        for owner in pods.iter().filter_map(|pod| pod.object.controller()) {
            scales.entry(owner.uid.clone()).or_insert_with(|| scale_of(view, &key.namespace, owner));
        }
        Some(Observed { budget, pods, scales })
    }

    fn reconcile(&self, observed: &Observed, now: Timestamp) -> Plan {
        let mut plan = Plan::nothing();
        let budget = &observed.budget;
        plan.actions.extend(unasked(observed).map(Action::AskScale));
        if !plan.is_empty() {
            return plan;
        }
        if observed.pods.is_empty() {
            plan.push(Action::normal(budget, "NoPods", "No matching pods found"));
        }
        let status = match expectation(observed, &mut plan) {
            Ok(expected) => status(observed, expected, &mut plan, now),
            Err(error) => {
                let message = format!("Failed to calculate the number of expected pods: {error}");
                plan.push(Action::warning(budget, "CalculateExpectedPodCountFailed", message));
                refuse_all(budget, error, now)
            }
        };
        if budget.status.as_ref() != Some(&status) {
            let updated = PodDisruptionBudget { status: Some(status), ..budget.clone() };
            plan.push(Action::update_status(&updated));
        }
        plan
    }
}

/// Returns the budgets that select the pod, before or after the change.
fn of_pod(view: &dyn View, change: &Change) -> Vec<Key> {
    let budgets = view.list(ResourceType::of::<PodDisruptionBudget>(), &change.key.namespace);
    let concerned = |budget: &PodDisruptionBudget| {
        let chosen = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref()).map(selector);
        let mut versions = [&change.old, &change.new].into_iter().flatten();
        chosen.is_some_and(|selector| versions.any(|pod| selector.matches(&pod.header.labels)))
    };
    budgets.iter().filter_map(decode).filter(concerned).map(|budget| key_of(&budget)).collect()
}

/// Returns the scales that must be read and have not been. A budget with a number of pods needs none.
fn unasked(observed: &Observed) -> impl Iterator<Item = ScaleQuestion> {
    let counts = observed.budget.spec.as_ref().is_some_and(|spec| {
        spec.max_unavailable.is_some() || matches!(spec.min_available, Some(IntOrString::String(_)))
    });
    observed.scales.values().filter(move |_| counts).filter_map(|scale| match scale {
        Ok(Scale::Unasked(question)) => Some(question.clone()),
        _ => None,
    })
}

/// Returns the expected number of pods, and how many of them must be healthy.
fn expectation(observed: &Observed, plan: &mut Plan) -> Result<(i32, i32), String> {
    let Some(spec) = &observed.budget.spec else { return Ok((0, 0)) };
    match (&spec.max_unavailable, &spec.min_available) {
        (Some(most), _) => {
            let expected = expected_scale(observed, plan)?;
            Ok((expected, (expected - scaled(Some(most), expected, true)).max(0)))
        }
        (None, Some(IntOrString::Int(least))) => Ok((i32::try_from(observed.pods.len()).unwrap_or(i32::MAX), *least)),
        (None, Some(least)) => {
            let expected = expected_scale(observed, plan)?;
            Ok((expected, scaled(Some(least), expected, true)))
        }
        (None, None) => Ok((0, 0)),
    }
}

/// Returns the sum of the desired replicas of the pods' controllers.
fn expected_scale(observed: &Observed, plan: &mut Plan) -> Result<i32, String> {
    let mut scales: BTreeMap<&str, i32> = BTreeMap::new();
    let mut unmanaged = false;
    for pod in &observed.pods {
        match pod.object.controller().and_then(|owner| observed.scales.get(&owner.uid)) {
            None => unmanaged = true,
            Some(Ok(Scale::Of { uid, replicas })) => {
                scales.insert(uid, *replicas);
            }
            Some(Ok(Scale::Unknown | Scale::Unasked(_))) => {
                return Err(format!("found no controllers for pod {:?}", pod.name()));
            }
            Some(Err(error)) => return Err(error.clone()),
        }
    }
    if unmanaged {
        let selector = observed.budget.to_value()["spec"]["selector"].take();
        let message = format!(
            "Pods selected by this PodDisruptionBudget (selector: {selector}) were found to be unmanaged. As a result, the status of the PDB cannot be calculated correctly, which may result in undefined behavior. To account for these pods please set \".spec.minAvailable\" field of the PDB to an integer value."
        );
        plan.push(Action::warning(&observed.budget, "UnmanagedPods", message));
    }
    Ok(scales.values().copied().fold(0, i32::saturating_add))
}

fn status(
    observed: &Observed,
    (expected, desired): (i32, i32),
    plan: &mut Plan,
    now: Timestamp,
) -> PodDisruptionBudgetStatus {
    let budget = &observed.budget;
    let disrupted = still_disrupted(observed, plan, now);
    let healthy =
        |pod: &&PodRow| !pods::is_terminating(*pod) && !disrupted.contains_key(pod.name()) && pods::is_ready(*pod);
    let current = i32::try_from(observed.pods.iter().filter(healthy).count()).unwrap_or(i32::MAX);
    let allowed = if expected > 0 { (current - desired).max(0) } else { 0 };
    let mut status = PodDisruptionBudgetStatus {
        current_healthy: Some(current),
        desired_healthy: Some(desired),
        expected_pods: Some(expected),
        disruptions_allowed: Some(allowed),
        disrupted_pods: Some(disrupted).filter(|pods| !pods.is_empty()),
        observed_generation: budget.metadata.generation,
        conditions: budget.status.as_ref().and_then(|status| status.conditions.clone()),
    };
    let (state, reason) = if allowed > 0 { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
    let condition = StatusCondition { kind: CONDITION, status: state, reason, message: "" };
    set_status(&mut status.conditions, &condition, budget.metadata.generation, now);
    status
}

/// Returns the evicted pods that still exist and may yet be deleted; the others are reported by an event and removed
/// from the list.
fn still_disrupted(observed: &Observed, plan: &mut Plan, now: Timestamp) -> BTreeMap<String, Time> {
    let budget = &observed.budget;
    let none = BTreeMap::new();
    let evicted = budget.status.as_ref().and_then(|status| status.disrupted_pods.as_ref()).unwrap_or(&none);
    let mut disrupted = BTreeMap::new();
    for pod in observed.pods.iter().filter(|pod| !pods::is_terminating(*pod)) {
        let Some(time) = evicted.get(pod.name()) else { continue };
        let passed: Duration = now.duration_since(time.0).try_into().unwrap_or(Duration::ZERO);
        match DELETION_TIMEOUT.checked_sub(passed) {
            Some(left) => {
                plan.requeue(left + Duration::from_millis(1));
                disrupted.insert(pod.name().to_owned(), time.clone());
            }
            None => {
                let of = format!("{}/{}", budget.namespace(), budget.name());
                let message = format!("Pod was expected by PDB {of} to be deleted but it wasn't");
                plan.push(Action::warning_of_pod(pod, "NotDeleted", message));
            }
        }
    }
    disrupted
}

/// Allows no disruption, because the pods could not be counted.
fn refuse_all(budget: &PodDisruptionBudget, error: String, now: Timestamp) -> PodDisruptionBudgetStatus {
    let mut status = budget.status.clone().unwrap_or_default();
    status.disruptions_allowed = Some(0);
    let condition = StatusCondition { kind: CONDITION, status: "False", reason: "SyncFailed", message: &error };
    set_status(&mut status.conditions, &condition, status.observed_generation, now);
    status
}
