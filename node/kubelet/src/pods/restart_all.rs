//! The action `RestartAllContainers`: an exit that matches such a rule stops, removes and restarts every container of
//! the pod, from the first init container on. The instance of that exit is removed last: as long as it exists, it shows
//! that the restart is not complete. Pure.

use corten_api::k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus, Pod,
};

use super::plan::usable_sandbox;
use crate::pod::observed::{Instance, InstanceState, Observed};
use crate::pod::spec;

/// The reason of a removed container that waits, and of its termination.
pub const REASON: &str = "RestartingAllContainers";
const MESSAGE: &str = "The container is removed because RestartAllContainers in place";
const ACTION: &str = "RestartAllContainers";

fn containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    spec::init_containers(pod).map(|(_, container)| container).chain(&spec::spec(pod).containers)
}

/// Reports whether any exit of the pod's containers may restart all of them.
pub fn is_possible(pod: &Pod) -> bool {
    containers(pod).any(|container| container.restart_policy_rules.iter().flatten().any(|rule| rule.action == ACTION))
}

/// Reports whether the exit of a container restarts all of them.
pub fn is_due(pod: &Pod, observed: &Observed) -> bool {
    instances(pod, observed).any(|instance| is_source(pod, instance))
}

/// Returns the containers that exist in the pod's sandbox.
fn instances<'a>(pod: &'a Pod, observed: &'a Observed) -> impl Iterator<Item = &'a Instance> {
    let sandbox = usable_sandbox(pod, observed).map(|sandbox| sandbox.id.as_str());
    let all = observed.instances.iter().filter(move |instance| Some(instance.sandbox_id.as_str()) == sandbox);
    all.filter(|instance| containers(pod).any(|container| container.name == instance.name))
}

fn is_source(pod: &Pod, instance: &Instance) -> bool {
    let container = containers(pod).find(|container| container.name == instance.name);
    let rule = container.and_then(|container| spec::matching_rule(container, instance.exit_code));
    instance.state == InstanceState::Exited && rule.is_some_and(|rule| rule.action == ACTION)
}

/// Returns the running containers to stop, and those to remove once none runs, in this order.
pub fn steps<'a>(pod: &'a Pod, observed: &'a Observed) -> (Vec<&'a Instance>, Vec<String>) {
    let running: Vec<&Instance> =
        instances(pod, observed).filter(|instance| instance.state == InstanceState::Running).collect();
    if !running.is_empty() {
        return (running, Vec::new());
    }
    let mut all: Vec<&Instance> = instances(pod, observed).collect();
    all.sort_by_key(|instance| is_source(pod, instance));
    (running, all.into_iter().map(|instance| instance.id.clone()).collect())
}

/// Shows an exited or removed container as one that waits to run again.
pub fn show(status: &mut ContainerStatus) {
    let ended = status.state.as_ref().and_then(|state| state.terminated.clone());
    let last = status.last_state.as_ref().and_then(|state| state.terminated.clone());
    let was_running = status.state.as_ref().is_some_and(|state| state.running.is_some());
    if let Some(mut end) = ended.or(last).or(was_running.then(killed)) {
        end.reason = Some(REASON.to_owned());
        end.message = Some(MESSAGE.to_owned());
        status.last_state = Some(ContainerState { terminated: Some(end), ..ContainerState::default() });
    }
    let waiting = ContainerStateWaiting { reason: Some(REASON.to_owned()), message: Some(MESSAGE.to_owned()) };
    status.state = Some(ContainerState { waiting: Some(waiting), ..ContainerState::default() });
}

fn killed() -> ContainerStateTerminated {
    ContainerStateTerminated { exit_code: 137, ..ContainerStateTerminated::default() }
}
