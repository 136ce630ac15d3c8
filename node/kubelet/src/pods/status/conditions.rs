//! `status.conditions`: the conditions of the kubelet are computed anew; those of other writers are kept.

use corten_api::k8s_openapi::api::core::v1::{ContainerStatus, PodCondition, PodStatus};
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::Facts;
use crate::pod::spec::{self, Role};
use crate::pods::plan::{is_resizing, usable_sandbox};
use crate::pods::restart_all;

/// The conditions that only the kubelet writes, on every pod.
const ALWAYS: [&str; 5] = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];
/// The conditions that exist only while they are true.
const RESIZE_PENDING: &str = "PodResizePending";
const RESIZE_IN_PROGRESS: &str = "PodResizeInProgress";
/// The condition of pods whose rules may restart all containers.
const ALL_RESTARTING: &str = "AllContainersRestarting";
/// A condition that the kubelet and other writers add.
const DISRUPTION_TARGET: &str = "DisruptionTarget";

/// Reports whether only the kubelet writes conditions of this type.
pub fn is_owned(type_: &str) -> bool {
    ALWAYS.contains(&type_) || [RESIZE_PENDING, RESIZE_IN_PROGRESS, ALL_RESTARTING].contains(&type_)
}

/// The status, reason and message of a condition.
type Verdict = (bool, &'static str, String);

const GOOD: fn() -> Verdict = || (true, "", String::new());

pub fn conditions(facts: &Facts<'_>, new: &PodStatus) -> Vec<PodCondition> {
    let old = spec::status(facts.pod).conditions.as_deref().unwrap_or_default();
    let mut all: Vec<PodCondition> = old.iter().filter(|condition| !is_owned(&condition.type_)).cloned().collect();
    let containers_ready = containers_ready(facts, new);
    let ready = if containers_ready.0 { readiness_gates(facts, &all) } else { containers_ready.clone() };
    let verdicts = [ready_to_start(facts), initialized(facts, new), ready, containers_ready, GOOD()];
    for (type_, verdict) in ALWAYS.into_iter().zip(verdicts) {
        all.push(condition(facts, old, type_, verdict));
    }
    if restart_all::is_possible(facts.pod) {
        all.push(condition(facts, old, ALL_RESTARTING, all_restarting(facts, new)));
    }
    if let Some(message) = facts.memory.termination.as_ref().and_then(|termination| termination.disrupted.clone()) {
        all.retain(|condition| condition.type_ != DISRUPTION_TARGET);
        all.push(condition(facts, old, DISRUPTION_TARGET, (true, "TerminationByKubelet", message)));
    }
    all.extend(resize(facts).into_iter().map(|(type_, verdict)| condition(facts, old, type_, verdict)));
    all
}

fn all_restarting(facts: &Facts<'_>, new: &PodStatus) -> Verdict {
    match new.phase.as_deref() {
        Some("Succeeded") => (false, "PodCompleted", String::new()),
        Some("Failed") => (false, "PodFailed", String::new()),
        _ if facts.memory.termination.is_none() && restart_all::is_due(facts.pod, facts.observed) => {
            (true, "RestartAllContainersStarted", "container exited with restart policy rule".to_owned())
        }
        _ => (false, "", String::new()),
    }
}

/// Returns the conditions of a resize that is not complete.
fn resize(facts: &Facts<'_>) -> Vec<(&'static str, Verdict)> {
    let mut conditions = Vec::new();
    if facts.memory.termination.is_some() {
        return conditions;
    }
    if let Some(pending) = &facts.memory.resize.pending {
        conditions.push((RESIZE_PENDING, (true, pending.reason(), pending.message().to_owned())));
    }
    if is_resizing(facts.pod, facts.observed, facts.memory) {
        let verdict = match &facts.memory.resize.error {
            Some(error) => (true, "Error", error.clone()),
            None => GOOD(),
        };
        conditions.push((RESIZE_IN_PROGRESS, verdict));
    }
    conditions
}

fn condition(facts: &Facts<'_>, old: &[PodCondition], type_: &str, verdict: Verdict) -> PodCondition {
    let (good, reason, message) = verdict;
    let status = if good { "True" } else { "False" };
    let since = old
        .iter()
        .find(|condition| condition.type_ == type_ && condition.status == status)
        .and_then(|condition| condition.last_transition_time.clone());
    PodCondition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()).filter(|reason| !reason.is_empty()),
        message: Some(message).filter(|message| !message.is_empty()),
        observed_generation: facts.pod.metadata.generation,
        last_transition_time: since.or(Some(Time(facts.now))),
        last_probe_time: None,
    }
}

fn ready_to_start(facts: &Facts<'_>) -> Verdict {
    if usable_sandbox(facts.pod, facts.observed).is_some() {
        return GOOD();
    }
    let message = match facts.observed.sandbox() {
        None => "no pod sandbox exists",
        Some(sandbox) if sandbox.ready => "pod sandbox has no IP address",
        Some(_) => "pod sandbox is not ready",
    };
    (false, "PodSandboxNotReady", message.to_owned())
}

fn find<'a>(statuses: Option<&'a Vec<ContainerStatus>>, name: &str) -> Option<&'a ContainerStatus> {
    statuses?.iter().find(|status| status.name == name)
}

fn initialized(facts: &Facts<'_>, new: &PodStatus) -> Verdict {
    if new.phase.as_deref() == Some("Succeeded") {
        return (true, "PodCompleted", String::new());
    }
    let main_ran = new.container_statuses.iter().flatten().any(|status| {
        let ran = |state: &corten_api::k8s_openapi::api::core::v1::ContainerState| {
            state.running.is_some() || state.terminated.is_some()
        };
        status.state.as_ref().is_some_and(ran) || status.last_state.as_ref().is_some_and(ran)
    });
    let was_initialized = |condition: &PodCondition| condition.type_ == "Initialized" && condition.status == "True";
    let before = spec::status(facts.pod).conditions.iter().flatten().any(was_initialized);
    // A pod that starts from the beginning stays initialized.
    if main_ran || (before && restart_all::is_possible(facts.pod)) {
        return GOOD();
    }
    let incomplete: Vec<&str> = spec::init_containers(facts.pod)
        .filter(|(role, container)| {
            let status = find(new.init_container_statuses.as_ref(), &container.name);
            !status.is_some_and(|status| match role {
                Role::Sidecar => status.started == Some(true),
                _ => status.ready,
            })
        })
        .map(|(_, container)| container.name.as_str())
        .collect();
    if incomplete.is_empty() {
        return GOOD();
    }
    let message = format!("containers with incomplete status: [{}]", incomplete.join(" "));
    (false, "ContainersNotInitialized", message)
}

fn containers_ready(facts: &Facts<'_>, new: &PodStatus) -> Verdict {
    match new.phase.as_deref() {
        Some("Succeeded") => return (false, "PodCompleted", String::new()),
        Some("Failed") => return (false, "PodFailed", String::new()),
        _ => {}
    }
    let sidecars = spec::init_containers(facts.pod)
        .filter(|(role, _)| *role == Role::Sidecar)
        .map(|(_, container)| (new.init_container_statuses.as_ref(), container.name.as_str()));
    let main = spec::spec(facts.pod)
        .containers
        .iter()
        .map(|container| (new.container_statuses.as_ref(), container.name.as_str()));
    let unready: Vec<&str> = sidecars
        .chain(main)
        .filter(|(statuses, name)| !find(*statuses, name).is_some_and(|status| status.ready))
        .map(|(_, name)| name)
        .collect();
    if unready.is_empty() {
        return GOOD();
    }
    (false, "ContainersNotReady", format!("containers with unready status: [{}]", unready.join(" ")))
}

fn readiness_gates(facts: &Facts<'_>, others: &[PodCondition]) -> Verdict {
    let missing: Vec<String> = spec::spec(facts.pod)
        .readiness_gates
        .iter()
        .flatten()
        .filter_map(|gate| {
            let wanted = &gate.condition_type;
            match others.iter().find(|condition| condition.type_ == *wanted) {
                None => Some(format!("corresponding condition of pod readiness gate {wanted:?} does not exist.")),
                Some(condition) if condition.status != "True" => Some(format!(
                    "the status of pod readiness gate {wanted:?} is not \"True\", but {}",
                    condition.status
                )),
                Some(_) => None,
            }
        })
        .collect();
    if missing.is_empty() { GOOD() } else { (false, "ReadinessGatesNotReady", missing.join(", ")) }
}
