//! `status.containerStatuses`, `initContainerStatuses` and `ephemeralContainerStatuses`: each container's state, its
//! last state, and whether it is started and ready.

use corten_api::k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
    ContainerUser, LinuxContainerUser, VolumeMountStatus,
};
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use jiff::Timestamp;

use super::Facts;
use crate::pod::observed::{Instance, InstanceState};
use crate::pod::spec::{self, Role};
use crate::pods::plan::usable_sandbox;
use crate::pods::restart_all;

/// The reason of a container that ran and that the runtime does not know any more.
const STATUS_UNKNOWN: &str = "ContainerStatusUnknown";

pub fn main(facts: &Facts<'_>) -> Vec<ContainerStatus> {
    let old = spec::status(facts.pod).container_statuses.as_deref().unwrap_or_default();
    spec::spec(facts.pod)
        .containers
        .iter()
        .map(|container| container_status(facts, Role::Main, container, old))
        .collect()
}

pub fn init(facts: &Facts<'_>) -> Vec<ContainerStatus> {
    let old = spec::status(facts.pod).init_container_statuses.as_deref().unwrap_or_default();
    spec::init_containers(facts.pod).map(|(role, container)| container_status(facts, role, container, old)).collect()
}

pub fn ephemeral(facts: &Facts<'_>) -> Vec<ContainerStatus> {
    let old = spec::status(facts.pod).ephemeral_container_statuses.as_deref().unwrap_or_default();
    spec::ephemeral_containers(facts.pod)
        .map(|declared| container_status(facts, Role::Ephemeral, &declared.container, old))
        .collect()
}

fn container_status(facts: &Facts<'_>, role: Role, container: &Container, old: &[ContainerStatus]) -> ContainerStatus {
    let old = old.iter().find(|status| status.name == container.name);
    let mut attempts = facts.observed.attempts(&container.name);
    let mut status = match attempts.next() {
        Some(instance) => from_instance(facts, container, instance, attempts.next(), old),
        None => without_instance(facts, container, old),
    };
    if role != Role::Ephemeral && waits_for_restart_of_all(facts, &status) {
        restart_all::show(&mut status);
    }
    if let Some(waiting) = facts.waiting.get(&container.name)
        && will_start(facts, role, container)
    {
        show_waiting(&mut status, &waiting.reason, &waiting.message);
    }
    set_started_and_ready(facts, role, container, &mut status);
    if role == Role::Main {
        status.allocated_resources_status = facts.device_health.get(&container.name).cloned();
    }
    status
}

/// Reports whether the container has exited, or was removed, because all containers are being restarted.
fn waits_for_restart_of_all(facts: &Facts<'_>, status: &ContainerStatus) -> bool {
    let ended = status.state.as_ref().is_some_and(|state| state.terminated.is_some());
    if facts.memory.termination.is_some() || !restart_all::is_possible(facts.pod) {
        return false;
    }
    let removed = facts.observed.newest(&status.name).is_none() && usable_sandbox(facts.pod, facts.observed).is_some();
    let ran = ended || status.last_state.as_ref().is_some_and(|state| state.terminated.is_some());
    (ended && restart_all::is_due(facts.pod, facts.observed)) || (removed && ran)
}

fn from_instance(
    facts: &Facts<'_>,
    container: &Container,
    instance: &Instance,
    previous: Option<&Instance>,
    old: Option<&ContainerStatus>,
) -> ContainerStatus {
    let last_state = match previous {
        Some(previous) => Some(state(facts, previous)),
        None => old.and_then(|old| {
            let same = old.container_id.as_deref() == Some(&container_id(facts, instance));
            // The earlier instances were removed when all containers were restarted.
            let removed = instance.restart_count > 0 && restart_all::is_possible(facts.pod);
            if same || removed { old.last_state.clone() } else { None }
        }),
    };
    let user = instance.user.as_ref().map(|user| ContainerUser {
        linux: Some(LinuxContainerUser {
            uid: user.uid,
            gid: user.gid,
            supplemental_groups: Some(user.supplemental_groups.clone()).filter(|groups| !groups.is_empty()),
        }),
    });
    let applied = facts.memory.applied.get(&instance.id).map(|applied| applied.own.clone());
    let image = if instance.image.is_empty() { container.image.clone() } else { Some(instance.image.clone()) };
    ContainerStatus {
        restart_count: i32::try_from(instance.restart_count).unwrap_or(i32::MAX),
        container_id: Some(container_id(facts, instance)),
        image: image.unwrap_or_default(),
        image_id: instance.image_id.clone(),
        state: Some(state(facts, instance)),
        last_state: Some(last_state.unwrap_or_default()),
        user,
        resources: Some(applied.or_else(|| container.resources.clone()).unwrap_or_default()),
        ..declared(container)
    }
}

fn container_id(facts: &Facts<'_>, instance: &Instance) -> String {
    format!("{}://{}", facts.runtime_name, instance.id)
}

/// Returns the part of a container's status that the spec determines.
fn declared(container: &Container) -> ContainerStatus {
    let mounts: Vec<VolumeMountStatus> = container
        .volume_mounts
        .iter()
        .flatten()
        .map(|mount| VolumeMountStatus {
            name: mount.name.clone(),
            mount_path: mount.mount_path.clone(),
            read_only: mount.read_only,
            recursive_read_only: (mount.read_only == Some(true)).then(|| "Disabled".to_owned()),
            volume_status: None,
        })
        .collect();
    ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        resources: Some(container.resources.clone().unwrap_or_default()),
        allocated_resources: container.resources.as_ref().and_then(|resources| resources.requests.clone()),
        volume_mounts: Some(mounts).filter(|mounts| !mounts.is_empty()),
        ..ContainerStatus::default()
    }
}

/// Returns the status of a container without an instance: it was never started, or its record was removed.
fn without_instance(facts: &Facts<'_>, container: &Container, old: Option<&ContainerStatus>) -> ContainerStatus {
    if let Some(old) = old.filter(|old| old.state.as_ref().is_some_and(|state| state.terminated.is_some())) {
        return old.clone();
    }
    let has_init = spec::init_containers(facts.pod).next().is_some();
    let reason = if has_init { "PodInitializing" } else { "ContainerCreating" };
    let mut status = ContainerStatus {
        restart_count: old.map_or(0, |old| old.restart_count),
        last_state: Some(old.and_then(|old| old.last_state.clone()).unwrap_or_default()),
        state: Some(waiting_state(reason, "")),
        ..declared(container)
    };
    let ran = old.is_some_and(|old| old.state.as_ref().is_some_and(|state| state.running.is_some()));
    let known = status.last_state.as_ref().is_some_and(|state| state.terminated.is_some());
    if ran && !known {
        status.last_state = Some(ContainerState { terminated: Some(vanished()), ..ContainerState::default() });
        if facts.pod.metadata.deletion_timestamp.is_none() {
            status.restart_count += 1;
        }
    }
    if ran && facts.ended {
        status.state = status.last_state.take();
        status.last_state = Some(ContainerState::default());
    }
    status
}

fn vanished() -> ContainerStateTerminated {
    ContainerStateTerminated {
        exit_code: 137,
        reason: Some(STATUS_UNKNOWN.into()),
        message: Some(
            "The container could not be located when the pod was deleted.  The container used to be Running".into(),
        ),
        ..ContainerStateTerminated::default()
    }
}

fn state(facts: &Facts<'_>, instance: &Instance) -> ContainerState {
    match instance.state {
        InstanceState::Running => ContainerState {
            running: Some(ContainerStateRunning { started_at: time(instance.started_at) }),
            ..ContainerState::default()
        },
        InstanceState::Exited => ContainerState {
            terminated: Some(ContainerStateTerminated {
                container_id: Some(container_id(facts, instance)),
                exit_code: instance.exit_code,
                started_at: time(instance.started_at),
                finished_at: time(instance.finished_at),
                reason: Some(exit_reason(instance)),
                message: Some(instance.message.clone()).filter(|message| !message.is_empty()),
                signal: None,
            }),
            ..ContainerState::default()
        },
        InstanceState::Created | InstanceState::Unknown => waiting_state("ContainerCreating", ""),
    }
}

fn exit_reason(instance: &Instance) -> String {
    match (instance.reason.as_str(), instance.exit_code) {
        ("", 0) => "Completed".into(),
        ("", _) => "Error".into(),
        (reason, _) => reason.into(),
    }
}

fn time(nanoseconds: i64) -> Option<Time> {
    Timestamp::from_second(nanoseconds.div_euclid(1_000_000_000)).ok().map(Time)
}

fn waiting_state(reason: &str, message: &str) -> ContainerState {
    ContainerState {
        waiting: Some(ContainerStateWaiting {
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()).filter(|message| !message.is_empty()),
        }),
        ..ContainerState::default()
    }
}

/// Reports whether the container will be started (again), so that a waiting reason applies to it.
fn will_start(facts: &Facts<'_>, role: Role, container: &Container) -> bool {
    if facts.memory.termination.is_some() {
        return false;
    }
    match facts.observed.newest(&container.name) {
        None => true,
        Some(instance) => match instance.state {
            InstanceState::Running => false,
            InstanceState::Created | InstanceState::Unknown => true,
            InstanceState::Exited => spec::should_restart(facts.pod, role, container, instance.exit_code),
        },
    }
}

fn show_waiting(status: &mut ContainerStatus, reason: &str, message: &str) {
    if status.state.as_ref().is_some_and(|state| state.terminated.is_some()) {
        status.last_state = status.state.take();
    }
    status.state = Some(waiting_state(reason, message));
}

fn set_started_and_ready(facts: &Facts<'_>, role: Role, container: &Container, status: &mut ContainerStatus) {
    let state = status.state.clone().unwrap_or_default();
    let verdict = facts
        .observed
        .newest(&container.name)
        .and_then(|instance| facts.memory.verdicts.get(&instance.id).copied())
        .unwrap_or_default();
    let running = state.running.is_some();
    let started = running && (container.startup_probe.is_none() || verdict.startup == Some(true));
    let ready = match role {
        Role::Init => state.terminated.as_ref().is_some_and(|terminated| terminated.exit_code == 0),
        Role::Ephemeral => false,
        Role::Main | Role::Sidecar => {
            started && (container.readiness_probe.is_none() || verdict.readiness == Some(true))
        }
    };
    status.ready = ready;
    status.started = (role != Role::Ephemeral).then_some(started);
}
