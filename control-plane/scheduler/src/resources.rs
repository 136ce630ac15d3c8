//! Amounts of compute resources, and what a pod asks for by the rules of init containers, sidecars and overhead.

use std::collections::BTreeMap;

use corten_api::k8s_openapi::api::core::v1::{Container, PodSpec};
use corten_api::k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// What a container that asks for no processor time is taken to need, in scoring only.
const DEFAULT_MILLI_CPU: i64 = 100;
/// What a container that asks for no memory is taken to need, in scoring only.
const DEFAULT_MEMORY: i64 = 200 * 1024 * 1024;

pub type ResourceList = BTreeMap<String, Quantity>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
            total.set(name, amount(name, quantity));
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
            let entry = self.scalar.entry(name.clone()).or_default();
            *entry = with(*entry, *value);
        }
    }
}

/// Processor time in thousandths, everything else in whole units, rounded up.
fn amount(name: &str, quantity: &Quantity) -> i64 {
    let Ok(parsed) = corten_meta::Quantity::parse(&quantity.0) else { return 0 };
    let milli = parsed.as_milli();
    let value = if name == "cpu" { milli } else { milli.div_euclid(1000) + i128::from(milli.rem_euclid(1000) > 0) };
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// What the node must have left for the pod.
pub fn requests(spec: &PodSpec) -> Resources {
    total(spec, |container| Resources::from_list(container.resources.as_ref().and_then(|r| r.requests.as_ref())))
}

/// The same with a share for containers that ask for nothing, so that they too spread over nodes.
pub fn scoring_requests(spec: &PodSpec) -> Resources {
    let pod_level = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    let missing = |list: Option<&ResourceList>, name: &str| {
        list.is_none_or(|list| !list.contains_key(name)) && pod_level.is_none_or(|list| !list.contains_key(name))
    };
    total(spec, |container| {
        let list = container.resources.as_ref().and_then(|resources| resources.requests.as_ref());
        let mut amount = Resources::from_list(list);
        if missing(list, "cpu") {
            amount.milli_cpu = DEFAULT_MILLI_CPU;
        }
        if missing(list, "memory") {
            amount.memory = DEFAULT_MEMORY;
        }
        amount
    })
}

/// Containers and sidecars run together; before that init containers run one by one beside the sidecars started so
/// far. The pod needs the larger of both, and its overhead. Requests of the pod itself stand for those of its parts.
fn total(spec: &PodSpec, of: impl Fn(&Container) -> Resources) -> Resources {
    let mut running = Resources::default();
    spec.containers.iter().for_each(|container| running.add(&of(container)));
    let (mut sidecars, mut starting) = (Resources::default(), Resources::default());
    for container in spec.init_containers.iter().flatten() {
        let mut peak = of(container);
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
    for (name, quantity) in spec.resources.iter().filter_map(|resources| resources.requests.as_ref()).flatten() {
        running.set(name, amount(name, quantity));
    }
    running.add(&Resources::from_list(spec.overhead.as_ref()));
    running
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::tests::pod_spec;
    use serde_json::json;

    fn cpu(spec: serde_json::Value) -> i64 {
        requests(&pod_spec(spec)).milli_cpu
    }

    fn container(name: &str, cpu: &str) -> serde_json::Value {
        json!({"name": name, "resources": {"requests": {"cpu": cpu}}})
    }

    #[test]
    fn containers_add_up() {
        assert_eq!(cpu(json!({"containers": [container("a", "100m"), container("b", "1")]})), 1100);
    }

    #[test]
    fn an_init_container_counts_when_it_needs_more() {
        assert_eq!(
            cpu(json!({"containers": [container("a", "100m")], "initContainers": [container("i", "300m")]})),
            300
        );
        assert_eq!(
            cpu(json!({"containers": [container("a", "500m")], "initContainers": [container("i", "300m")]})),
            500
        );
    }

    #[test]
    fn a_sidecar_runs_beside_everything_after_it() {
        let mut sidecar = container("s", "200m");
        sidecar["restartPolicy"] = json!("Always");
        let spec = json!({"containers": [container("a", "100m")], "initContainers": [sidecar, container("i", "300m")]});
        assert_eq!(cpu(spec), 500);
    }

    #[test]
    fn overhead_and_pod_level_requests_apply_last() {
        let spec = json!({"containers": [container("a", "100m")], "overhead": {"cpu": "50m"}, "resources": {"requests": {"cpu": "2"}}});
        assert_eq!(cpu(spec), 2050);
    }

    #[test]
    fn memory_is_rounded_up_and_scalars_are_kept() {
        let spec = json!({"containers": [{"name": "a", "resources": {"requests": {"memory": "100m", "example.com/gpu": "2"}}}]});
        let requests = requests(&pod_spec(spec));
        assert_eq!((requests.memory, requests.get("example.com/gpu")), (1, 2));
    }
}
