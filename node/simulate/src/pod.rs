//! The life of a simulated pod: pure decisions from the state in the API, and the statuses that follow from them.
//!
//! A pod is admitted, starts, and then runs, crashes or completes, as its restart policy and the rate of failures
//! determine. Level, not edge: [`next`] reads the object and nothing else, so a restarted simulation goes on where the
//! last one ended. Whether a start fails follows from the uid and the number of restarts, so that runs can be repeated.

use std::borrow::Cow;
use std::net::Ipv4Addr;
use std::time::Duration;

use corten_meta::{Object, Value};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::json;

use crate::PodTimes;

/// The first delay before a crashed container starts again, and the longest, as kubelets have them.
const FIRST_BACKOFF: Duration = Duration::from_secs(10);
const LONGEST_BACKOFF: Duration = Duration::from_secs(300);

/// The parts of a pod that its kubelet decides by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    pub uid: String,
    pub revision: u64,
    pub node: String,
    pub phase: Phase,
    /// Whether a kubelet has reported the pod.
    pub admitted: bool,
    pub ready: bool,
    /// The restarts of its first container.
    pub restarts: u32,
    pub restart_policy: RestartPolicy,
    /// The grace period in seconds, if the pod is deleted.
    pub deleted: Option<u64>,
    pub host_network: bool,
    pub containers: Vec<Container>,
}

/// A container of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    pub name: String,
    pub image: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Pending,
    Running,
    Succeeded,
    Failed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

/// An act of a kubelet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Reports the pod as accepted, with its containers being created.
    Admit,
    /// Reports all containers as running and ready.
    Start,
    /// Reports a container that exited and waits for its restart.
    Crash,
    /// Reports the pod as failed.
    Fail,
    /// Reports the pod as succeeded.
    Complete,
    /// Deletes the object, after all containers have stopped.
    Remove,
}

/// The next act of a kubelet, and the time until it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    pub action: Action,
    pub after: Duration,
}

/// Decides the next act; `None` if the pod rests until its object changes.
pub fn next(pod: &Pod, times: &PodTimes) -> Option<Due> {
    let due = |action, after| Some(Due { action, after });
    let ended = matches!(pod.phase, Phase::Succeeded | Phase::Failed);
    if let Some(grace) = pod.deleted {
        let runs = pod.admitted && !ended;
        let after = if runs { times.stop.min(Duration::from_secs(grace)) } else { Duration::ZERO };
        return due(Action::Remove, after);
    }
    if ended {
        return None;
    }
    if !pod.admitted {
        return due(Action::Admit, Duration::ZERO);
    }
    if pod.ready {
        return match pod.restart_policy {
            RestartPolicy::Always => None,
            RestartPolicy::OnFailure | RestartPolicy::Never => due(Action::Complete, times.run),
        };
    }
    let after = if pod.restarts == 0 { times.start } else { backoff(pod.restarts) };
    match (fails(pod, times.fail_rate), pod.restart_policy) {
        (false, _) => due(Action::Start, after),
        (true, RestartPolicy::Never) => due(Action::Fail, after),
        (true, _) => due(Action::Crash, after),
    }
}

/// Returns the delay before a container that has crashed so often starts again.
fn backoff(restarts: u32) -> Duration {
    let doublings = restarts.saturating_sub(1).min(5);
    (FIRST_BACKOFF * (1 << doublings)).min(LONGEST_BACKOFF)
}

/// Decides whether the next start fails: by a hash of the uid and the restarts, evenly spread over `rate`.
fn fails(pod: &Pod, rate: f64) -> bool {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in pod.uid.bytes().chain(pod.restarts.to_le_bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    // The last bytes reach the high bits only by this.
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    ((hash >> 11) as f64 / (1u64 << 53) as f64) < rate
}

/// The addresses and the time of a status.
#[derive(Debug, Clone, Copy)]
pub struct Facts {
    pub host: Ipv4Addr,
    pub pod: Option<Ipv4Addr>,
    pub now: Timestamp,
}

/// Returns the status that an act reports, as a strategic merge patch; `None` for a removal.
pub fn status(pod: &Pod, action: Action, facts: &Facts) -> Option<Value> {
    let now = corten_meta::time::rfc3339(facts.now);
    let phase = match action {
        Action::Admit => "Pending",
        Action::Start | Action::Crash => "Running",
        Action::Fail => "Failed",
        Action::Complete => "Succeeded",
        Action::Remove => return None,
    };
    let ready = action == Action::Start;
    let reason = match action {
        Action::Complete => Some("PodCompleted"),
        Action::Fail => Some("PodFailed"),
        Action::Start => None,
        _ => Some("ContainersNotReady"),
    };
    let condition = |kind: &str, is_true: bool, reason: Option<&str>| {
        let status = if is_true { "True" } else { "False" };
        let mut condition = json!({"type": kind, "status": status, "lastProbeTime": null, "lastTransitionTime": now});
        if let Some(reason) = reason.filter(|_| !is_true) {
            condition["reason"] = json!(reason);
        }
        condition
    };
    let runs = matches!(action, Action::Start | Action::Crash);
    let mut status = json!({
        "phase": phase,
        "hostIP": facts.host.to_string(),
        "hostIPs": [{"ip": facts.host.to_string()}],
        "conditions": [
            condition("PodReadyToStartContainers", runs, None),
            condition("Initialized", true, None),
            condition("Ready", ready, reason),
            condition("ContainersReady", ready, reason),
        ],
        "containerStatuses": pod.containers.iter().map(|one| container_status(pod, one, action, &now)).collect::<Vec<_>>(),
    });
    if action == Action::Admit {
        status["startTime"] = json!(now);
    } else if let Some(address) = pod_address(pod, facts) {
        status["podIP"] = json!(address);
        status["podIPs"] = json!([{"ip": address}]);
    }
    Some(json!({"metadata": {"uid": pod.uid}, "status": status}))
}

/// Returns the address of the pod, which is the node's for a pod of the host's network.
fn pod_address(pod: &Pod, facts: &Facts) -> Option<String> {
    let address = if pod.host_network { Some(facts.host) } else { facts.pod };
    address.map(|address| address.to_string())
}

fn container_status(pod: &Pod, container: &Container, action: Action, now: &str) -> Value {
    let Container { name, image } = container;
    let exited = |code: i32, reason: &str| json!({"exitCode": code, "reason": reason, "startedAt": now, "finishedAt": now, "containerID": id(pod, name)});
    let state = match action {
        Action::Admit | Action::Remove => json!({"waiting": {"reason": "ContainerCreating"}}),
        Action::Start => json!({"running": {"startedAt": now}}),
        Action::Crash => json!({"waiting": {"reason": "CrashLoopBackOff"}}),
        Action::Fail => json!({"terminated": exited(1, "Error")}),
        Action::Complete => json!({"terminated": exited(0, "Completed")}),
    };
    let is_crash = action == Action::Crash;
    let mut status = json!({
        "name": name,
        "image": image,
        "imageID": if action == Action::Admit { String::new() } else { image.clone() },
        "ready": action == Action::Start,
        "started": action == Action::Start,
        "restartCount": pod.restarts + u32::from(is_crash),
        "state": state,
        "lastState": if is_crash { json!({"terminated": exited(1, "Error")}) } else { json!({}) },
    });
    if action != Action::Admit {
        status["containerID"] = json!(id(pod, name));
    }
    status
}

fn id(pod: &Pod, container: &str) -> String {
    format!("simulated://{}/{container}", pod.uid)
}

impl Pod {
    /// Reads the parts of a pod; `None` if it is no pod or is bound to no node.
    pub fn read(object: &Object) -> Option<Pod> {
        let raw: RawPod<'_> = serde_json::from_slice(&object.bytes).ok()?;
        if raw.spec.node_name.is_empty() {
            return None;
        }
        let is_ready = |condition: &RawCondition<'_>| condition.kind == "Ready" && condition.status == "True";
        let grace = raw.metadata.deletion_grace_period_seconds.unwrap_or(0).max(0).unsigned_abs();
        Some(Pod {
            uid: object.header.uid.clone(),
            revision: object.revision,
            node: raw.spec.node_name.into_owned(),
            phase: match &*raw.status.phase {
                "Running" => Phase::Running,
                "Succeeded" => Phase::Succeeded,
                "Failed" => Phase::Failed,
                _ => Phase::Pending,
            },
            admitted: raw.status.start_time.is_some(),
            ready: raw.status.conditions.iter().flatten().any(is_ready),
            restarts: raw.status.container_statuses.iter().flatten().next().map_or(0, |first| first.restart_count),
            restart_policy: match &*raw.spec.restart_policy {
                "Never" => RestartPolicy::Never,
                "OnFailure" => RestartPolicy::OnFailure,
                _ => RestartPolicy::Always,
            },
            deleted: object.header.deletion_timestamp.map(|_| grace),
            host_network: raw.spec.host_network,
            containers: raw
                .spec
                .containers
                .into_iter()
                .map(|one| Container { name: one.name.into_owned(), image: one.image.into_owned() })
                .collect(),
        })
    }
}

#[derive(Deserialize)]
struct RawPod<'a> {
    #[serde(default)]
    metadata: RawMetadata,
    #[serde(borrow)]
    spec: RawSpec<'a>,
    #[serde(borrow, default)]
    status: RawStatus<'a>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct RawMetadata {
    deletion_grace_period_seconds: Option<i64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawSpec<'a> {
    #[serde(borrow, default)]
    node_name: Cow<'a, str>,
    #[serde(borrow, default)]
    restart_policy: Cow<'a, str>,
    #[serde(default)]
    host_network: bool,
    #[serde(borrow, default)]
    containers: Vec<RawContainer<'a>>,
}

#[derive(Deserialize)]
struct RawContainer<'a> {
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    image: Cow<'a, str>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct RawStatus<'a> {
    #[serde(borrow, default)]
    phase: Cow<'a, str>,
    #[serde(borrow)]
    start_time: Option<Cow<'a, str>>,
    #[serde(borrow)]
    conditions: Option<Vec<RawCondition<'a>>>,
    container_statuses: Option<Vec<RawContainerStatus>>,
}

#[derive(Deserialize)]
struct RawCondition<'a> {
    #[serde(rename = "type", borrow, default)]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    status: Cow<'a, str>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawContainerStatus {
    #[serde(default)]
    restart_count: u32,
}

#[cfg(test)]
mod tests;
