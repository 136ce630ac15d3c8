//! Quantities of resources, and the requests of a pod by the rules of init containers, sidecars and overhead.

use std::collections::BTreeMap;

use corten_api::k8s_openapi::api::core::v1::{Container, ContainerStatus, PodSpec, PodStatus};
use corten_api::k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// The CPU request that is assumed for a container without one, in scoring only.
const DEFAULT_MILLI_CPU: i64 = 100;
/// The memory request that is assumed for a container without one, in scoring only.
const DEFAULT_MEMORY: i64 = 200 * 1024 * 1024;

pub type ResourceList = BTreeMap<String, Quantity>;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Resources {
    pub milli_cpu: i64,
    pub memory: i64,
    pub ephemeral_storage: i64,
    pub pods: i64,
    /// Extended resources, huge pages and attachable volumes by name.
    pub scalar: BTreeMap<String, i64>,
}

impl Resources {
    pub fn from_list(list: Option<&ResourceList>) -> Resources {
        let mut total = Resources::default();
        for (name, quantity) in list.into_iter().flatten() {
            total.set(name, counted_value(name, quantity));
        }
        total
    }

    pub fn get(&self, name: &str) -> i64 {
        match name {
            "cpu" => self.milli_cpu,
            "memory" => self.memory,
            "ephemeral-storage" => self.ephemeral_storage,
            "pods" => self.pods,
            _ => self.scalar.get(name).copied().unwrap_or(0),
        }
    }

    fn set(&mut self, name: &str, value: i64) {
        match name {
            "cpu" => self.milli_cpu = value,
            "memory" => self.memory = value,
            "ephemeral-storage" => self.ephemeral_storage = value,
            "pods" => self.pods = value,
            _ => {
                self.scalar.insert(name.to_owned(), value);
            }
        }
    }

    pub fn add(&mut self, other: &Resources) {
        self.combine(other, |a, b| a.saturating_add(b));
    }

    pub fn subtract(&mut self, other: &Resources) {
        self.combine(other, |a, b| a.saturating_sub(b));
    }

    fn max(&mut self, other: &Resources) {
        self.combine(other, i64::max);
    }

    fn combine(&mut self, other: &Resources, with: impl Fn(i64, i64) -> i64) {
        self.milli_cpu = with(self.milli_cpu, other.milli_cpu);
        self.memory = with(self.memory, other.memory);
        self.ephemeral_storage = with(self.ephemeral_storage, other.ephemeral_storage);
        self.pods = with(self.pods, other.pods);
        for (name, value) in &other.scalar {
            match self.scalar.get_mut(name) {
                Some(entry) => *entry = with(*entry, *value),
                None => drop(self.scalar.insert(name.clone(), with(0, *value))),
            }
        }
    }
}

/// Converts a quantity: CPU to thousandths, everything else to whole units, rounded up.
fn counted_value(name: &str, quantity: &Quantity) -> i64 {
    let Ok(parsed) = corten_meta::Quantity::parse(&quantity.0) else { return 0 };
    let milli = parsed.as_milli();
    let value = if name == "cpu" { milli } else { milli.div_euclid(1000) + i128::from(milli.rem_euclid(1000) > 0) };
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// The resources that a pod requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Demands {
    /// The requests that the node must satisfy.
    pub requests: Resources,
    /// The requests for scoring, with defaults for containers that have none, so that they too spread over nodes.
    /// Pod-level requests do not count here, as upstream.
    pub scoring: Resources,
    /// The same for a scheduled pod: pod-level requests count, and then there are no defaults.
    pub placed_scoring: Resources,
}

pub fn of_pod(spec: &PodSpec, status: Option<&PodStatus>) -> Demands {
    let held = |container: &Container, is_init: bool| held(container, is_init, status);
    let scored = |container: &Container, is_init: bool, defaults: [bool; 2]| {
        let mut resources = held(container, is_init);
        let asks = container.resources.as_ref().and_then(|resources| resources.requests.as_ref());
        let missing = |name: &str| asks.is_none_or(|list| !list.contains_key(name));
        if defaults[0] && missing("cpu") {
            resources.milli_cpu = resources.milli_cpu.max(DEFAULT_MILLI_CPU);
        }
        if defaults[1] && missing("memory") {
            resources.memory = resources.memory.max(DEFAULT_MEMORY);
        }
        resources
    };
    let scoring = total(spec, PodLevel::Skipped, |container, is_init| scored(container, is_init, [true; 2]));
    let has_pod_level_requests =
        pod_level_requests(spec).any(|list| list.keys().any(|name| is_pod_level_resource(name)));
    let placed_scoring = match has_pod_level_requests {
        false => scoring.clone(),
        true => {
            let defaults = ["cpu", "memory"].map(|name| !mentions(spec, name));
            total(spec, PodLevel::Counted(status), |container, is_init| scored(container, is_init, defaults))
        }
    };
    Demands { requests: total(spec, PodLevel::Counted(status), held), scoring, placed_scoring }
}

/// Whether pod-level requests count, and the pod's status.
#[derive(Clone, Copy)]
enum PodLevel<'a> {
    Counted(Option<&'a PodStatus>),
    Skipped,
}

fn pod_level_requests(spec: &PodSpec) -> impl Iterator<Item = &ResourceList> {
    spec.resources.iter().filter_map(|resources| resources.requests.as_ref())
}

fn is_pod_level_resource(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || name.starts_with("hugepages-")
}

/// Reports whether the pod or a container requests a resource.
fn mentions(spec: &PodSpec, name: &str) -> bool {
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let lists = containers.filter_map(|container| container.resources.as_ref()?.requests.as_ref());
    lists.chain(pod_level_requests(spec)).chain(&spec.overhead).any(|list| list.contains_key(name))
}

/// Returns the requests of a container; during a resize, the maximum of its requests and of the resources that it still
/// has. An init container that runs to completion is not resized while it runs.
fn held(container: &Container, is_init: bool, status: Option<&PodStatus>) -> Resources {
    let asks = Resources::from_list(container.resources.as_ref().and_then(|r| r.requests.as_ref()));
    let runs_on = !is_init || container.restart_policy.as_deref() == Some("Always");
    let Some(status) = status.filter(|_| runs_on) else { return asks };
    let statuses = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    let of_container = |one: &&ContainerStatus| one.name == container.name;
    let Some(actual) = statuses.into_iter().find(of_container) else { return asks };
    let Some(resources) = &actual.resources else { return asks };
    effective(asks, resources.requests.as_ref(), actual.allocated_resources.as_ref(), status)
}

/// Returns the pod-level requests; during a resize, the maximum of them and those it still has.
fn held_pod_level(asks: &ResourceList, status: Option<&PodStatus>) -> Resources {
    let asks = Resources::from_list(Some(asks));
    let Some((status, resources)) = status.and_then(|status| Some((status, status.resources.as_ref()?))) else {
        return asks;
    };
    effective(asks, resources.requests.as_ref(), status.allocated_resources.as_ref(), status)
}

/// Returns the maximum of the desired, the actual and the allocated resources. An infeasible resize does not count.
fn effective(
    asks: Resources,
    actual: Option<&ResourceList>,
    allocated: Option<&ResourceList>,
    status: &PodStatus,
) -> Resources {
    let infeasible =
        status.conditions.iter().flatten().any(|condition| {
            condition.type_ == "PodResizePending" && condition.reason.as_deref() == Some("Infeasible")
        });
    let mut most = if infeasible { Resources::default() } else { asks };
    most.max(&Resources::from_list(actual));
    most.max(&Resources::from_list(allocated));
    most
}

/// Returns the total requests. Containers and sidecars run together; before that init containers run one by one beside
/// the sidecars started so far. The pod needs the larger of both, and its overhead. Pod-level requests replace those of
/// the containers, if they count.
fn total(spec: &PodSpec, pod_level: PodLevel<'_>, of: impl Fn(&Container, bool) -> Resources) -> Resources {
    let mut running = Resources::default();
    spec.containers.iter().for_each(|container| running.add(&of(container, false)));
    let (mut sidecars, mut starting) = (Resources::default(), Resources::default());
    for container in spec.init_containers.iter().flatten() {
        let mut peak = of(container, true);
        if container.restart_policy.as_deref() == Some("Always") {
            running.add(&peak);
            sidecars.add(&peak);
            peak = sidecars.clone();
        } else {
            peak.add(&sidecars);
        }
        starting.max(&peak);
    }
    running.max(&starting);
    if let PodLevel::Counted(status) = pod_level {
        for asks in pod_level_requests(spec) {
            let held = held_pod_level(asks, status);
            asks.keys().filter(|name| is_pod_level_resource(name)).for_each(|name| running.set(name, held.get(name)));
        }
    }
    running.add(&Resources::from_list(spec.overhead.as_ref()));
    running
}
