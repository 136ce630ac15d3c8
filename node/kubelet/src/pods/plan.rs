//! The decision of a pod worker: the next actions, from the pod, its state in the runtime, the worker's memory, and the
//! time. Pure and total: the same input gives the same plan, and a plan that was carried out leads to an empty plan. It
//! never calls the runtime or the API.

use std::collections::{HashMap, HashSet};

use corten_api::k8s_openapi::api::core::v1::{Container, Pod, Probe, ResourceRequirements};
use jiff::Timestamp;

use super::restart_all;
use crate::backoff::{Backoffs, go_seconds};
use crate::pod::labels;
use crate::pod::observed::{Instance, InstanceState, Observed, Sandbox};
use crate::pod::resources::{self, ResourceList};
use crate::pod::spec::{self, Role};
use crate::pod::verdict::Verdict;

/// The memory of the worker between two passes.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    pub backoffs: Backoffs,
    /// Probe results by container id.
    pub verdicts: HashMap<String, Verdict>,
    /// Containers that are being stopped.
    pub stopping: HashSet<String>,
    /// The requests and limits of running containers, by container id.
    pub applied: HashMap<String, Applied>,
    /// The requests and limits of the pod's cgroup; `None` if there is none yet.
    pub applied_to_pod: Option<ResourceRequirements>,
    /// The termination; once set, it stays set.
    pub termination: Option<Termination>,
    pub resize: Resize,
}

/// The resources of a running container.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Applied {
    /// The resources in the container's own spec.
    pub own: ResourceRequirements,
    /// The effective limits, some of them its pod's.
    pub limits: ResourceList,
}

impl Applied {
    /// Returns the resources that a container of the pod gets when it starts or is resized.
    pub fn new(pod: &Pod, container: &Container) -> Applied {
        let own = container.resources.clone().unwrap_or_default();
        let limits = resources::effective_limits(spec::spec(pod).resources.as_ref(), &own);
        Applied { own, limits }
    }

    /// Reports whether the request or limit of one resource differs.
    fn differs(&self, other: &Applied, resource: &str) -> bool {
        let request = |applied: &Applied| applied.own.requests.as_ref()?.get(resource).cloned();
        request(self) != request(other) || self.limits.get(resource) != other.limits.get(resource)
    }
}

/// The reasons why a resize is not complete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resize {
    /// The reason why the node does not allocate the new resources.
    pub pending: Option<Pending>,
    /// The runtime's error.
    pub error: Option<String>,
}

/// The reason why the node does not allocate new requests and limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pending {
    /// The node has no room for them yet.
    Deferred(String),
    /// The node never allocates them.
    Infeasible(String),
}

impl Pending {
    /// Returns the condition's reason.
    pub fn reason(&self) -> &'static str {
        match self {
            Pending::Deferred(_) => "Deferred",
            Pending::Infeasible(_) => "Infeasible",
        }
    }

    pub fn message(&self) -> &str {
        match self {
            Pending::Deferred(message) | Pending::Infeasible(message) => message,
        }
    }
}

/// The termination of the pod: since when, and its effect on the status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Termination {
    pub since: Timestamp,
    /// The grace period of its containers in seconds, counted from `since`.
    pub grace: i64,
    /// The reason and message of the phase Failed (deadline, rejection).
    pub failed: Option<(String, String)>,
    /// Whether the node rejected the pod: nothing of it was ever created here.
    pub rejected: bool,
    /// The message of the condition `DisruptionTarget`, if the node evicted the pod.
    pub disrupted: Option<String>,
}

/// The next actions. All of them may be done in one pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub stop: Vec<Stop>,
    pub sandbox: SandboxAction,
    pub start: Vec<Start>,
    /// Running containers whose requests or limits have changed, by id and name.
    pub resize: Vec<(String, String)>,
    /// Containers in their crash-loop back-off.
    pub backing_off: Vec<BackingOff>,
    /// Instances that are not needed any more, by id.
    pub remove: Vec<String>,
    /// Instances of containers that run again from the beginning, by id; their logs stay.
    pub reset: Vec<String>,
    /// The time of the next pass, if nothing happens before.
    pub wake_at: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SandboxAction {
    #[default]
    Keep,
    /// Creates a sandbox; the older ones are stopped first.
    Create { attempt: u32 },
    /// Stops the sandbox: nothing runs and nothing will, so the pod's network and namespaces are released.
    Stop,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stop {
    pub id: String,
    pub name: String,
    /// The message of the Killing event.
    pub message: String,
    pub grace: i64,
    /// Whether the container is started again as soon as it has exited.
    pub restart: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    pub name: String,
    pub role: Role,
    pub restart_count: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackingOff {
    pub name: String,
    pub message: String,
    pub until: Timestamp,
}

/// The shortest time between SIGTERM and SIGKILL.
const MINIMUM_GRACE_SECONDS: i64 = 2;

/// Returns the next actions for the pod.
pub fn plan(pod: &Pod, observed: &Observed, memory: &Memory, now: Timestamp) -> Plan {
    let mut planner = Planner { pod, observed, memory, now, plan: Plan::default() };
    if let Some(termination) = &memory.termination {
        planner.end_pod(termination);
    } else if let Some(sandbox) = usable_sandbox(pod, observed) {
        planner.run_in(sandbox);
    } else {
        planner.replace_sandbox();
    }
    planner.remove_old_instances();
    planner.plan
}

/// Returns the newest sandbox if containers can run in it.
pub fn usable_sandbox<'a>(pod: &Pod, observed: &'a Observed) -> Option<&'a Sandbox> {
    let sandbox = observed.sandbox()?;
    (sandbox.ready && (spec::host_network(pod) || !sandbox.ips.is_empty())).then_some(sandbox)
}

/// Reports whether any instance of the pod still runs or is about to.
pub fn is_active(observed: &Observed) -> bool {
    observed.running().next().is_some()
}

struct Planner<'a> {
    pod: &'a Pod,
    observed: &'a Observed,
    memory: &'a Memory,
    now: Timestamp,
    plan: Plan,
}

impl<'a> Planner<'a> {
    /// Stops the main containers, then the sidecars from the last to the first, then the sandbox.
    fn end_pod(&mut self, termination: &Termination) {
        let elapsed = self.now.duration_since(termination.since).as_secs();
        let grace = termination.grace.saturating_sub(elapsed).max(MINIMUM_GRACE_SECONDS.min(termination.grace.max(1)));
        self.stop_in_order(grace);
    }

    fn stop_in_order(&mut self, grace: i64) {
        let sidecars: Vec<&str> = spec::init_containers(self.pod)
            .filter(|(role, _)| *role == Role::Sidecar)
            .map(|(_, container)| container.name.as_str())
            .collect();
        let rank = |instance: &Instance| sidecars.iter().position(|name| *name == instance.name);
        // `None` ranks last and is therefore stopped first, together with all its peers.
        let next = self.observed.running().map(|instance| rank(instance).map_or(usize::MAX, |at| at)).max();
        let Some(next) = next else {
            if self.observed.sandboxes.iter().any(|sandbox| sandbox.ready) {
                self.plan.sandbox = SandboxAction::Stop;
            }
            return;
        };
        let now_ending: Vec<&Instance> =
            self.observed.running().filter(|instance| rank(instance).unwrap_or(usize::MAX) == next).collect();
        for instance in now_ending {
            self.stop(instance, format!("Stopping container {}", instance.name), grace);
        }
    }

    fn stop(&mut self, instance: &Instance, message: String, grace: i64) {
        self.push_stop(instance, message, grace, false);
    }

    fn stop_to_restart(&mut self, instance: &Instance, message: String, grace: i64) {
        self.push_stop(instance, message, grace, true);
    }

    fn push_stop(&mut self, instance: &Instance, message: String, grace: i64, restart: bool) {
        if !self.memory.stopping.contains(&instance.id) {
            let id = instance.id.clone();
            let name = instance.name.clone();
            self.plan.stop.push(Stop { id, name, message, grace, restart });
        }
    }

    /// Handles a pod without a usable sandbox: stops containers in dead ones, then creates a new one if the pod still
    /// runs.
    fn replace_sandbox(&mut self) {
        let stranded: Vec<&Instance> = self.observed.running().collect();
        if !stranded.is_empty() {
            for instance in stranded {
                self.stop(
                    instance,
                    format!("Stopping container {}", instance.name),
                    spec::grace_period_seconds(self.pod),
                );
            }
            return;
        }
        if self.is_over() {
            return;
        }
        let attempt = self.observed.sandbox().map_or(0, |sandbox| sandbox.attempt + 1);
        self.plan.sandbox = SandboxAction::Create { attempt };
    }

    /// Reports whether the pod is complete: its main containers have exited for good, or it can never be initialized.
    /// Such a pod gets no new sandbox, and its sidecars are not restarted.
    fn is_over(&self) -> bool {
        let ended_for_good = |role: Role, container: &Container| {
            self.observed.newest(&container.name).is_some_and(|instance| {
                instance.state == InstanceState::Exited
                    && !spec::should_restart(self.pod, role, container, instance.exit_code)
            })
        };
        let failed = |container: &Container| {
            self.observed.newest(&container.name).is_some_and(|instance| instance.exit_code != 0)
        };
        let init_failed = spec::init_containers(self.pod)
            .any(|(role, container)| role == Role::Init && failed(container) && ended_for_good(role, container));
        let main = &spec::spec(self.pod).containers;
        init_failed || (!main.is_empty() && main.iter().all(|container| ended_for_good(Role::Main, container)))
    }

    fn run_in(&mut self, sandbox: &Sandbox) {
        if restart_all::is_due(self.pod, self.observed) {
            self.restart_all();
            return;
        }
        if self.is_over() {
            self.stop_in_order(spec::grace_period_seconds(self.pod));
            return;
        }
        if self.initialize(sandbox) == Initialization::Done {
            self.run_main_containers(sandbox);
        }
        self.start_ephemeral_containers();
    }

    /// Stops all containers at once; when none runs any more, removes them, so that the pod starts from the beginning.
    fn restart_all(&mut self) {
        let (running, reset) = restart_all::steps(self.pod, self.observed);
        for instance in running {
            self.stop(instance, format!("Stopping container {}", instance.name), 0);
        }
        self.plan.reset = reset;
    }

    /// Walks the init containers in order and stops at the first that is not complete.
    fn initialize(&mut self, sandbox: &Sandbox) -> Initialization {
        let pod = self.pod;
        let initialized =
            spec::spec(pod).containers.iter().any(|container| self.instance_in(sandbox, &container.name).is_some());
        for (role, container) in spec::init_containers(pod) {
            let state = match role {
                Role::Sidecar => self.keep_sidecar(sandbox, container),
                _ if initialized => continue,
                _ => self.run_init_container(sandbox, container),
            };
            if state == Initialization::Going && !initialized {
                return state;
            }
        }
        Initialization::Done
    }

    fn run_init_container(&mut self, sandbox: &Sandbox, container: &Container) -> Initialization {
        let Some(instance) = self.instance_in(sandbox, &container.name) else {
            self.start(Role::Init, container);
            return Initialization::Going;
        };
        match instance.state {
            InstanceState::Running => {
                self.resize_if_changed(container, instance);
                Initialization::Going
            }
            InstanceState::Created | InstanceState::Unknown => {
                self.start(Role::Init, container);
                Initialization::Going
            }
            InstanceState::Exited if instance.exit_code == 0 => Initialization::Done,
            InstanceState::Exited => {
                self.restart(Role::Init, container, instance);
                Initialization::Going
            }
        }
    }

    /// Runs a sidecar. It is initialized when it runs and its startup probe, if any, has succeeded.
    fn keep_sidecar(&mut self, sandbox: &Sandbox, container: &Container) -> Initialization {
        let Some(instance) = self.instance_in(sandbox, &container.name) else {
            self.start(Role::Sidecar, container);
            return Initialization::Going;
        };
        match instance.state {
            InstanceState::Running => {
                if self.stop_if_unhealthy(container, instance) {
                    return Initialization::Going;
                }
                self.resize_if_changed(container, instance);
                let started = container.startup_probe.is_none() || self.verdict(instance).startup == Some(true);
                if started { Initialization::Done } else { Initialization::Going }
            }
            InstanceState::Created | InstanceState::Unknown => {
                self.start(Role::Sidecar, container);
                Initialization::Going
            }
            InstanceState::Exited => {
                self.restart(Role::Sidecar, container, instance);
                Initialization::Going
            }
        }
    }

    fn run_main_containers(&mut self, sandbox: &Sandbox) {
        let pod = self.pod;
        for container in &spec::spec(pod).containers {
            let Some(instance) = self.observed.newest(&container.name) else {
                self.start(Role::Main, container);
                continue;
            };
            match instance.state {
                InstanceState::Running if instance.sandbox_id == sandbox.id => {
                    if !self.stop_if_unhealthy(container, instance) {
                        self.resize_if_changed(container, instance);
                    }
                }
                InstanceState::Running => {
                    let message = format!("Stopping container {}", instance.name);
                    self.stop(instance, message, spec::grace_period_seconds(pod));
                }
                InstanceState::Created | InstanceState::Unknown => self.start(Role::Main, container),
                InstanceState::Exited if spec::should_restart(pod, Role::Main, container, instance.exit_code) => {
                    self.restart(Role::Main, container, instance);
                }
                InstanceState::Exited => {}
            }
        }
    }

    fn start_ephemeral_containers(&mut self) {
        let pod = self.pod;
        for declared in spec::ephemeral_containers(pod) {
            if self.observed.newest(&declared.container.name).is_none() {
                self.start(Role::Ephemeral, &declared.container);
            }
        }
    }

    /// Stops a running container whose spec changed or whose liveness or startup probe failed.
    fn stop_if_unhealthy(&mut self, container: &Container, instance: &Instance) -> bool {
        let verdict = self.verdict(instance);
        let name = &container.name;
        let (message, probe) = if !instance.hash.is_empty() && instance.hash != labels::hash(container) {
            (format!("Container {name} definition changed, will be restarted"), None)
        } else if verdict.liveness == Some(false) {
            (format!("Container {name} failed liveness probe, will be restarted"), container.liveness_probe.as_ref())
        } else if verdict.startup == Some(false) {
            (format!("Container {name} failed startup probe, will be restarted"), container.startup_probe.as_ref())
        } else {
            return false;
        };
        let own = probe.and_then(|probe: &Probe| probe.termination_grace_period_seconds);
        self.stop_to_restart(instance, message, own.unwrap_or_else(|| spec::grace_period_seconds(self.pod)));
        true
    }

    /// Resizes a running container, or restarts it if its resize policy requires that.
    fn resize_if_changed(&mut self, container: &Container, instance: &Instance) {
        let wanted = Applied::new(self.pod, container);
        let Some(applied) = self.memory.applied.get(&instance.id).filter(|applied| **applied != wanted) else {
            return;
        };
        let restart = container.resize_policy.iter().flatten().any(|policy| {
            policy.restart_policy == "RestartContainer" && applied.differs(&wanted, &policy.resource_name)
        });
        if restart {
            let message = format!("Container {} resize requires restart", container.name);
            self.stop_to_restart(instance, message, spec::grace_period_seconds(self.pod));
        } else {
            self.plan.resize.push((instance.id.clone(), container.name.clone()));
        }
    }

    fn start(&mut self, role: Role, container: &Container) {
        let restart_count = self.observed.newest(&container.name).map_or(0, |instance| instance.restart_count + 1);
        self.plan.start.push(Start { name: container.name.clone(), role, restart_count });
    }

    /// Restarts an exited container, now or after its back-off.
    fn restart(&mut self, role: Role, container: &Container, ended: &Instance) {
        let finished = Timestamp::from_nanosecond(i128::from(ended.finished_at)).unwrap_or(self.now);
        let key = backoff_key(container);
        match self.memory.backoffs.until(&key, finished, self.now) {
            None => self.start(role, container),
            Some(until) => {
                let message = format!(
                    "back-off {} restarting failed container={} pod={}",
                    go_seconds(self.memory.backoffs.delay(&key)),
                    container.name,
                    spec::describe(self.pod)
                );
                self.plan.backing_off.push(BackingOff { name: container.name.clone(), message, until });
                self.plan.wake_at = Some(self.plan.wake_at.map_or(until, |at| at.min(until)));
            }
        }
    }

    /// Keeps the newest instance and the one before it, whose logs `--previous` shows.
    fn remove_old_instances(&mut self) {
        let mut kept: HashMap<&str, usize> = HashMap::new();
        for instance in &self.observed.instances {
            let seen = kept.entry(&instance.name).or_default();
            let unstarted = instance.state == InstanceState::Created
                && self.plan.start.iter().any(|start| start.name == instance.name);
            *seen += 1;
            let reset = self.plan.reset.contains(&instance.id);
            if !reset && (unstarted || (*seen > 2 && instance.state != InstanceState::Running)) {
                self.plan.remove.push(instance.id.clone());
            }
        }
    }

    fn instance_in(&self, sandbox: &Sandbox, name: &str) -> Option<&'a Instance> {
        self.observed.newest(name).filter(|instance| instance.sandbox_id == sandbox.id)
    }

    fn verdict(&self, instance: &Instance) -> Verdict {
        self.memory.verdicts.get(&instance.id).copied().unwrap_or_default()
    }
}

/// Returns the key of a container's back-off: with another image it is another container, which may run better.
pub fn backoff_key(container: &Container) -> String {
    format!("{} {}", container.name, container.image.as_deref().unwrap_or_default())
}

/// Reports whether the pod's cgroup or a running container does not have the allocated requests and limits yet.
pub fn is_resizing(pod: &Pod, observed: &Observed, memory: &Memory) -> bool {
    is_pod_resizing(pod, memory) || are_containers_resizing(pod, observed, memory)
}

pub fn is_pod_resizing(pod: &Pod, memory: &Memory) -> bool {
    memory.applied_to_pod.as_ref().is_some_and(|applied| *applied != resources::pod_level(pod))
}

pub fn are_containers_resizing(pod: &Pod, observed: &Observed, memory: &Memory) -> bool {
    observed.running().any(|instance| {
        let Some(declared) = spec::container(pod, &instance.name) else { return false };
        let resizable = declared.role != Role::Ephemeral;
        let applied = memory.applied.get(&instance.id);
        resizable && applied.is_some_and(|applied| *applied != Applied::new(pod, &declared.container))
    })
}

/// The progress of the init containers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Initialization {
    Done,
    Going,
}
