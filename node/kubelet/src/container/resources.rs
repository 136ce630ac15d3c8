//! Requests and limits in the kernel's terms: the pod's QoS class, its cgroup, CPU shares and quota,
//! memory limits, out-of-memory scores. Pure arithmetic on the spec.

use std::collections::BTreeMap;

use corten_api::k8s_openapi::api::core::v1::{Container, Pod};
use corten_api::k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use corten_cri::v1 as cri;

use crate::pods::spec::{self, Role};

pub type ResourceList = BTreeMap<String, Quantity>;

const MIN_SHARES: i64 = 2;
const MAX_SHARES: i64 = 262_144;
const SHARES_PER_CPU: i64 = 1024;
const CPU_PERIOD_MICROSECONDS: i64 = 100_000;
const MIN_QUOTA_MICROSECONDS: i64 = 1000;

/// How hard the kernel holds on to a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QosClass {
    Guaranteed,
    Burstable,
    #[default]
    BestEffort,
}

impl std::fmt::Display for QosClass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(self, f)
    }
}

/// The quantity in thousandths, rounded up; 0 if it is not a quantity.
pub fn milli(quantity: &Quantity) -> i64 {
    parse(quantity).map_or(0, |quantity| i64::try_from(quantity.as_milli()).unwrap_or(i64::MAX))
}

/// The quantity in whole units, rounded up; 0 if it is not a quantity.
pub fn value(quantity: &Quantity) -> i64 {
    parse(quantity).map_or(0, |quantity| i64::try_from(quantity.as_value()).unwrap_or(i64::MAX))
}

fn parse(quantity: &Quantity) -> Option<corten_meta::Quantity> {
    corten_meta::Quantity::parse(&quantity.0).ok()
}

pub fn requests(container: &Container) -> Option<&ResourceList> {
    container.resources.as_ref()?.requests.as_ref()
}

pub fn limits(container: &Container) -> Option<&ResourceList> {
    container.resources.as_ref()?.limits.as_ref()
}

fn get(list: Option<&ResourceList>, name: &str) -> Option<Quantity> {
    list?.get(name).cloned()
}

/// The QoS class: the one that was reported, because it never changes; else by the pod's own resources if it
/// has some, else by all of its containers.
pub fn qos_class(pod: &Pod) -> QosClass {
    match spec::status(pod).qos_class.as_deref() {
        Some("Guaranteed") => return QosClass::Guaranteed,
        Some("Burstable") => return QosClass::Burstable,
        Some("BestEffort") => return QosClass::BestEffort,
        _ => {}
    }
    let lists: Vec<(Option<ResourceList>, Option<ResourceList>)> = match &spec::spec(pod).resources {
        Some(own) if own.requests.is_some() || own.limits.is_some() => vec![(own.requests.clone(), own.limits.clone())],
        _ => spec::containers(pod)
            .filter(|declared| declared.role != Role::Ephemeral)
            .map(|declared| (requests(&declared.container).cloned(), limits(&declared.container).cloned()))
            .collect(),
    };
    let mut any = false;
    let mut guaranteed = true;
    for (requests, limits) in &lists {
        for name in ["cpu", "memory"] {
            let request = get(requests.as_ref(), name).map_or(0, |quantity| milli(&quantity));
            let limit = get(limits.as_ref(), name).map_or(0, |quantity| milli(&quantity));
            any |= request > 0 || limit > 0;
            guaranteed &= limit > 0 && (request == limit || request == 0);
        }
    }
    match (any, guaranteed) {
        (false, _) => QosClass::BestEffort,
        (true, true) => QosClass::Guaranteed,
        (true, false) => QosClass::Burstable,
    }
}

/// The pod's cgroup below the cgroup root, as upstream's cgroupfs driver names it.
pub fn pod_cgroup(cgroup_root: &str, pod: &Pod) -> String {
    let uid = spec::uid(pod);
    let root = cgroup_root.trim_end_matches('/');
    match qos_class(pod) {
        QosClass::Guaranteed => format!("{root}/kubepods/pod{uid}"),
        QosClass::Burstable => format!("{root}/kubepods/burstable/pod{uid}"),
        QosClass::BestEffort => format!("{root}/kubepods/besteffort/pod{uid}"),
    }
}

/// CPU shares of a request.
pub fn shares(milli_cpu: i64) -> i64 {
    if milli_cpu == 0 { MIN_SHARES } else { (milli_cpu * SHARES_PER_CPU / 1000).clamp(MIN_SHARES, MAX_SHARES) }
}

/// CPU quota in microseconds of a limit, per period; 0 is none.
pub fn quota(milli_cpu: i64) -> i64 {
    if milli_cpu == 0 { 0 } else { (milli_cpu * CPU_PERIOD_MICROSECONDS / 1000).max(MIN_QUOTA_MICROSECONDS) }
}

/// What the runtime is asked to enforce for a container.
pub fn container_resources(pod: &Pod, container: &Container, memory_capacity: i64) -> cri::LinuxContainerResources {
    let milli_of = |list, name| get(list, name).map_or(0, |quantity| milli(&quantity));
    let cpu_limit = milli_of(limits(container), "cpu");
    let cpu_request = match requests(container).and_then(|list| list.get("cpu")) {
        Some(request) => milli(request),
        None => cpu_limit,
    };
    cri::LinuxContainerResources {
        cpu_period: CPU_PERIOD_MICROSECONDS,
        cpu_quota: quota(cpu_limit),
        cpu_shares: shares(cpu_request),
        memory_limit_in_bytes: get(limits(container), "memory").map_or(0, |quantity| value(&quantity)),
        oom_score_adj: oom_score_adj(pod, container, memory_capacity),
        ..cri::LinuxContainerResources::default()
    }
}

/// Who the kernel kills first when memory is out: 1000 first, -997 last.
pub fn oom_score_adj(pod: &Pod, container: &Container, memory_capacity: i64) -> i64 {
    const CRITICAL_PRIORITY: i32 = 2_000_000_000;
    if spec::spec(pod).priority.is_some_and(|priority| priority >= CRITICAL_PRIORITY) {
        return -997;
    }
    match qos_class(pod) {
        QosClass::Guaranteed => -997,
        QosClass::BestEffort => 1000,
        QosClass::Burstable => {
            let request = get(requests(container), "memory").map_or(0, |quantity| value(&quantity));
            let score =
                1000 - i64::try_from(i128::from(request) * 1000 / i128::from(memory_capacity.max(1))).unwrap_or(0);
            score.clamp(3, 999)
        }
    }
}

/// The sum that the pod's cgroup is limited to: shares, quota and memory. A limit holds only if every
/// container has one.
pub fn pod_resources(pod: &Pod) -> cri::LinuxContainerResources {
    let main: Vec<&Container> = spec::spec(pod).containers.iter().collect();
    let sidecars: Vec<&Container> =
        spec::init_containers(pod).filter(|(role, _)| *role == Role::Sidecar).map(|(_, container)| container).collect();
    let together: Vec<&Container> = main.into_iter().chain(sidecars).collect();
    let init: Vec<&Container> =
        spec::init_containers(pod).filter(|(role, _)| *role == Role::Init).map(|(_, container)| container).collect();
    let overhead = spec::spec(pod).overhead.as_ref();
    let own = spec::spec(pod).resources.as_ref();
    let total =
        |of: fn(&Container) -> Option<&ResourceList>, name: &str, measure: fn(&Quantity) -> i64| -> Option<i64> {
            let each: Vec<Option<i64>> =
                together.iter().map(|c| of(c).and_then(|list| list.get(name)).map(measure)).collect();
            let largest_init = init.iter().filter_map(|c| of(c).and_then(|list| list.get(name)).map(measure)).max();
            let sum: i64 = each.iter().flatten().sum::<i64>().max(largest_init.unwrap_or(0));
            let extra = overhead.and_then(|list| list.get(name)).map_or(0, measure);
            each.iter().all(Option::is_some).then_some(sum + extra)
        };
    let own_limit = |name: &str| own.and_then(|own| own.limits.as_ref()).and_then(|list| list.get(name));
    let own_request = |name: &str| own.and_then(|own| own.requests.as_ref()).and_then(|list| list.get(name));
    let cpu_limit = own_limit("cpu").map(milli).or_else(|| total(limits, "cpu", milli));
    let memory_limit = own_limit("memory").map(value).or_else(|| total(limits, "memory", value));
    let cpu_request: i64 = own_request("cpu").map(milli).unwrap_or_else(|| {
        together.iter().filter_map(|c| requests(c).and_then(|list| list.get("cpu")).map(milli)).sum()
    });
    cri::LinuxContainerResources {
        cpu_period: CPU_PERIOD_MICROSECONDS,
        cpu_shares: shares(cpu_request),
        cpu_quota: cpu_limit.map_or(0, quota),
        memory_limit_in_bytes: memory_limit.unwrap_or(0),
        ..cri::LinuxContainerResources::default()
    }
}

/// A quantity as it is counted: CPU in thousandths, everything else in units.
pub fn amount(name: &str, quantity: &Quantity) -> i64 {
    if name == "cpu" { milli(quantity) } else { value(quantity) }
}

/// What the pod asks of its node, all its containers and its overhead together. Init containers run before the
/// main ones but beside the sidecars that were started before them, so the larger of the two times counts.
pub fn pod_requests(pod: &Pod) -> BTreeMap<String, i64> {
    let whole = spec::spec(pod).resources.as_ref().and_then(|resources| resources.requests.as_ref());
    let mut total = totals(pod, requests, whole);
    combine(&mut total, &amounts(spec::spec(pod).overhead.as_ref()), |a, b| a + b);
    total
}

/// The limits of the pod, all its containers together; a resource that nobody limits is not among them.
pub fn pod_limits(pod: &Pod) -> BTreeMap<String, i64> {
    let whole = spec::spec(pod).resources.as_ref().and_then(|resources| resources.limits.as_ref());
    let mut total = totals(pod, limits, whole);
    let mut overhead = amounts(spec::spec(pod).overhead.as_ref());
    overhead.retain(|name, _| total.contains_key(name));
    combine(&mut total, &overhead, |a, b| a + b);
    total
}

fn amounts(list: Option<&ResourceList>) -> BTreeMap<String, i64> {
    list.into_iter().flatten().map(|(name, quantity)| (name.clone(), amount(name, quantity))).collect()
}

fn totals(
    pod: &Pod,
    of: fn(&Container) -> Option<&ResourceList>,
    whole: Option<&ResourceList>,
) -> BTreeMap<String, i64> {
    let mut sidecars = BTreeMap::new();
    let mut peak = BTreeMap::new();
    for (role, container) in spec::init_containers(pod) {
        let own = amounts(of(container));
        if role == Role::Sidecar {
            combine(&mut sidecars, &own, |a, b| a + b);
            combine(&mut peak, &sidecars, i64::max);
        } else {
            let mut together = sidecars.clone();
            combine(&mut together, &own, |a, b| a + b);
            combine(&mut peak, &together, i64::max);
        }
    }
    let mut total = sidecars;
    for container in &spec::spec(pod).containers {
        combine(&mut total, &amounts(of(container)), |a, b| a + b);
    }
    combine(&mut total, &peak, i64::max);
    // What the pod asks for as a whole stands in place of the sum.
    total.extend(amounts(whole));
    total
}

fn combine(into: &mut BTreeMap<String, i64>, other: &BTreeMap<String, i64>, how: fn(i64, i64) -> i64) {
    for (name, amount) in other {
        let entry = into.entry(name.clone()).or_default();
        *entry = how(*entry, *amount);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    #[test]
    fn qos_class_follows_requests_and_limits() {
        for (resources, class) in [
            ("{}", QosClass::BestEffort),
            (r#"{"requests":{"cpu":"100m"}}"#, QosClass::Burstable),
            (r#"{"limits":{"cpu":"1"}}"#, QosClass::Burstable),
            (r#"{"limits":{"cpu":"1","memory":"1Gi"}}"#, QosClass::Guaranteed),
            (
                r#"{"limits":{"cpu":"1","memory":"1Gi"},"requests":{"cpu":"1000m","memory":"1024Mi"}}"#,
                QosClass::Guaranteed,
            ),
            (r#"{"limits":{"cpu":"1","memory":"1Gi"},"requests":{"cpu":"500m"}}"#, QosClass::Burstable),
        ] {
            let pod = fixtures::pod(&format!(r#"{{"containers":[{{"name":"c","resources":{resources}}}]}}"#));
            assert_eq!(qos_class(&pod), class, "{resources}");
        }
    }

    #[test]
    fn cpu_and_memory_become_kernel_numbers() {
        assert_eq!([shares(0), shares(1), shares(100), shares(2000)], [2, 2, 102, 2048]);
        assert_eq!([quota(0), quota(5), quota(500)], [0, 1000, 50_000]);
        let pod = fixtures::pod(
            r#"{"containers":[{"name":"c","resources":{"limits":{"cpu":"250m","memory":"64Mi"},"requests":{"memory":"32Mi"}}}]}"#,
        );
        let container = &spec::spec(&pod).containers[0];
        let resources = container_resources(&pod, container, 64 << 20);
        assert_eq!(resources.cpu_shares, 256, "the request defaults to the limit");
        assert_eq!((resources.cpu_quota, resources.memory_limit_in_bytes), (25_000, 64 << 20));
        assert_eq!(resources.oom_score_adj, 500);
        assert_eq!(pod_cgroup("", &pod), "/kubepods/burstable/podpod-uid");
    }

    #[test]
    fn a_pod_asks_for_the_largest_moment_of_its_life() {
        let container = |name: &str, cpu: &str, more: &str| {
            format!(r#"{{"name":"{name}","resources":{{"requests":{{"cpu":"{cpu}"}}}}{more}}}"#)
        };
        let sidecar = container("s", "100m", r#","restartPolicy":"Always""#);
        let (small, large) = (container("i", "1", ""), container("i", "3", ""));
        let main = container("c", "2", "");
        for (init, more, expected) in [
            ("", "", 2000),
            (small.as_str(), "", 2000),
            (large.as_str(), "", 3000),
            (&format!("{sidecar},{large}"), "", 3100),
            (&format!("{large},{sidecar}"), "", 3000),
            (&sidecar, "", 2100),
            ("", r#","resources":{"requests":{"cpu":"5"}},"overhead":{"cpu":"1m"}"#, 5001),
        ] {
            let pod = fixtures::pod(&format!(r#"{{"initContainers":[{init}],"containers":[{main}]{more}}}"#));
            assert_eq!(pod_requests(&pod)["cpu"], expected, "{init} {more}");
        }
    }
}
