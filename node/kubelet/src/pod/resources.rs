//! Requests and limits in the kernel's terms: the pod's QoS class, its cgroup, CPU shares and quota, memory limits, OOM
//! scores. Pure arithmetic on the spec.

use std::borrow::Cow;
use std::collections::BTreeMap;

use corten_api::k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use corten_api::k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use corten_cri::v1 as cri;

use super::spec::{self, Role};

pub type ResourceList = BTreeMap<String, Quantity>;

const MIN_SHARES: i64 = 2;
const MAX_SHARES: i64 = 262_144;
const SHARES_PER_CPU: i64 = 1024;
const CPU_PERIOD_MICROSECONDS: i64 = 100_000;
const MIN_QUOTA_MICROSECONDS: i64 = 1000;

/// The QoS class of a pod.
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

/// Returns the quantity in thousandths, rounded up; 0 if it is invalid.
pub fn milli(quantity: &Quantity) -> i64 {
    parse(quantity).map_or(0, |quantity| i64::try_from(quantity.as_milli()).unwrap_or(i64::MAX))
}

/// Returns the quantity in whole units, rounded up; 0 if it is invalid.
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

/// Returns the QoS class: the reported one, because it never changes; else that of the pod-level resources if there are
/// some, else that of all containers.
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

/// Returns the pod's cgroup below the cgroup root, with the names of upstream's cgroupfs driver.
pub fn pod_cgroup(cgroup_root: &str, pod: &Pod) -> String {
    let uid = spec::uid(pod);
    let root = cgroup_root.trim_end_matches('/');
    match qos_class(pod) {
        QosClass::Guaranteed => format!("{root}/kubepods/pod{uid}"),
        QosClass::Burstable => format!("{root}/kubepods/burstable/pod{uid}"),
        QosClass::BestEffort => format!("{root}/kubepods/besteffort/pod{uid}"),
    }
}

/// Returns the CPU shares of a request.
pub fn shares(milli_cpu: i64) -> i64 {
    if milli_cpu == 0 { MIN_SHARES } else { (milli_cpu * SHARES_PER_CPU / 1000).clamp(MIN_SHARES, MAX_SHARES) }
}

/// Returns the CPU quota of a limit in microseconds per period; 0 is none.
pub fn quota(milli_cpu: i64) -> i64 {
    if milli_cpu == 0 { 0 } else { (milli_cpu * CPU_PERIOD_MICROSECONDS / 1000).max(MIN_QUOTA_MICROSECONDS) }
}

/// Returns the limits of a container; those of its pod where it has no own limit of CPU or memory.
pub fn effective_limits(pod_level: Option<&ResourceRequirements>, own: &ResourceRequirements) -> ResourceList {
    let mut effective = own.limits.clone().unwrap_or_default();
    for name in ["cpu", "memory"] {
        let of_pod = get(pod_level.and_then(|pod_level| pod_level.limits.as_ref()), name);
        let is_limited = effective.get(name).is_some_and(|limit| milli(limit) > 0);
        if let Some(limit) = of_pod.filter(|limit| !is_limited && milli(limit) > 0) {
            effective.insert(name.to_owned(), limit);
        }
    }
    effective
}

/// Returns the limits that the runtime enforces for a container.
pub fn container_resources(pod: &Pod, container: &Container, memory_capacity: i64) -> cri::LinuxContainerResources {
    let own = container.resources.clone().unwrap_or_default();
    let limits = effective_limits(spec::spec(pod).resources.as_ref(), &own);
    let cpu_limit = limits.get("cpu").map_or(0, milli);
    let cpu_request = match requests(container).and_then(|list| list.get("cpu")) {
        Some(request) => milli(request),
        None => cpu_limit,
    };
    cri::LinuxContainerResources {
        cpu_period: CPU_PERIOD_MICROSECONDS,
        cpu_quota: quota(cpu_limit),
        cpu_shares: shares(cpu_request),
        memory_limit_in_bytes: limits.get("memory").map_or(0, value),
        oom_score_adj: oom_score_adj(pod, container, memory_capacity),
        ..cri::LinuxContainerResources::default()
    }
}

/// Returns the OOM score: the kernel kills processes with 1000 first and -997 last.
pub fn oom_score_adj(pod: &Pod, container: &Container, memory_capacity: i64) -> i64 {
    const CRITICAL_PRIORITY: i32 = 2_000_000_000;
    if spec::spec(pod).priority.is_some_and(|priority| priority >= CRITICAL_PRIORITY) {
        return -997;
    }
    match qos_class(pod) {
        QosClass::Guaranteed => -997,
        QosClass::BestEffort => 1000,
        QosClass::Burstable => burstable_score(pod, container, memory_capacity.max(1)),
    }
}

/// Returns the OOM score of a burstable container: the larger its memory request, the smaller the score. The pod-level
/// request beyond its containers is divided among them; the score of a sidecar is not larger than that of any main
/// container.
fn burstable_score(pod: &Pod, container: &Container, memory_capacity: i64) -> i64 {
    let memory_request =
        |container: &Container| get(requests(container), "memory").map_or(0, |quantity| value(&quantity));
    let mut request = memory_request(container);
    if spec::init_containers(pod).any(|(role, init)| role == Role::Sidecar && init.name == container.name) {
        let least = spec::spec(pod).containers.iter().map(memory_request).min();
        request = request.max(least.unwrap_or(0));
    }
    request = request.saturating_add(unclaimed_memory(pod));
    let score = 1000 - i64::try_from(i128::from(request) * 1000 / i128::from(memory_capacity)).unwrap_or(0);
    score.clamp(3, 999)
}

/// Returns each container's part of the pod-level memory request that no container has.
fn unclaimed_memory(pod: &Pod) -> i64 {
    let pod_level = spec::spec(pod).resources.as_ref().and_then(|resources| resources.requests.as_ref());
    let Some(pod_level) = get(pod_level, "memory").map(|quantity| value(&quantity)).filter(|pod_level| *pod_level > 0)
    else {
        return 0;
    };
    let requested = totals(pod, requests, None).get("memory").map_or(0, corten_meta::Quantity::value);
    let containers = spec::spec(pod).containers.len() + spec::init_containers(pod).count();
    (pod_level - requested) / i64::try_from(containers).unwrap_or(1).max(1)
}

/// Returns the resources of the pod's cgroup: shares, quota and memory.
pub fn pod_resources(pod: &Pod) -> cri::LinuxContainerResources {
    cgroup_resources(&pod_level(pod))
}

/// Returns pod-level requests and limits in the kernel's terms.
pub fn cgroup_resources(pod_level: &ResourceRequirements) -> cri::LinuxContainerResources {
    let request = get(pod_level.requests.as_ref(), "cpu").map_or(0, |quantity| milli(&quantity));
    let limit = get(pod_level.limits.as_ref(), "cpu").map_or(0, |quantity| milli(&quantity));
    cri::LinuxContainerResources {
        cpu_period: CPU_PERIOD_MICROSECONDS,
        cpu_shares: shares(request),
        cpu_quota: quota(limit),
        memory_limit_in_bytes: get(pod_level.limits.as_ref(), "memory").map_or(0, |quantity| value(&quantity)),
        ..cri::LinuxContainerResources::default()
    }
}

/// Returns the requests and limits of CPU and memory of the pod's cgroup. There is a limit only if the pod itself has
/// one, or every container.
pub fn pod_level(pod: &Pod) -> ResourceRequirements {
    let mut requests = request_quantities(pod);
    requests.retain(|name, _| is_compute(name));
    let mut limits = limit_quantities(pod);
    limits.retain(|name, limit| is_compute(name) && milli(limit) > 0 && is_limited(pod, name));
    let listed = |list: ResourceList| Some(list).filter(|list| !list.is_empty());
    ResourceRequirements { requests: listed(requests), limits: listed(limits), claims: None }
}

/// Reports whether a cgroup has the resource.
pub fn is_compute(name: &str) -> bool {
    matches!(name, "cpu" | "memory")
}

/// Reports whether the pod is limited: by itself, or because every container has a limit. An init container runs beside
/// the sidecars before it, whose limits count for it.
fn is_limited(pod: &Pod, name: &str) -> bool {
    let has = |list: Option<&ResourceList>| get(list, name).is_some_and(|limit| milli(&limit) > 0);
    let pod_level = spec::spec(pod).resources.as_ref();
    if has(pod_level.and_then(|pod_level| pod_level.limits.as_ref())) {
        return true;
    }
    let mut sidecar_has = false;
    let init = spec::init_containers(pod).all(|(role, container)| {
        let limited = has(limits(container));
        sidecar_has |= role == Role::Sidecar && limited;
        limited || (role == Role::Init && sidecar_has)
    });
    init && spec::spec(pod).containers.iter().all(|container| has(limits(container)))
}

/// Returns a quantity as it is counted: CPU in thousandths, everything else in units.
pub fn counted_value(name: &str, quantity: &Quantity) -> i64 {
    if name == "cpu" { milli(quantity) } else { value(quantity) }
}

/// Returns the requests of the pod: all its containers and its overhead together.
pub fn pod_requests(pod: &Pod) -> BTreeMap<String, i64> {
    counted(&request_quantities(pod))
}

/// Reports whether the pod's ResourceClaim satisfies an extended resource of a container, and not a device plugin.
pub fn is_claimed(pod: &Pod, container: &str, resource: &str) -> bool {
    let claim = spec::status(pod).extended_resource_claim_status.as_ref();
    claim.is_some_and(|claim| {
        let mut mappings = claim.request_mappings.iter();
        mappings.any(|mapping| mapping.container_name == container && mapping.resource_name == resource)
    })
}

/// Returns the pod without the requests that its ResourceClaim satisfies: the node's device plugins need not.
pub fn without_claimed(pod: &Pod) -> Cow<'_, Pod> {
    if spec::status(pod).extended_resource_claim_status.is_none() {
        return Cow::Borrowed(pod);
    }
    let mut rest = pod.clone();
    let containers = rest.spec.iter_mut().flat_map(|spec| {
        let main = spec.containers.iter_mut();
        main.chain(spec.init_containers.iter_mut().flatten())
    });
    for container in containers {
        if let Some(requests) = container.resources.as_mut().and_then(|resources| resources.requests.as_mut()) {
            requests.retain(|resource, _| !is_claimed(pod, &container.name, resource));
        }
    }
    Cow::Owned(rest)
}

/// Returns the limits of the pod, all its containers together; a resource without a limit is absent.
pub fn pod_limits(pod: &Pod) -> BTreeMap<String, i64> {
    counted(&limit_quantities(pod))
}

fn counted(list: &ResourceList) -> BTreeMap<String, i64> {
    list.iter().map(|(name, quantity)| (name.clone(), counted_value(name, quantity))).collect()
}

/// Returns the requests of the pod, for `status.allocatedResources`.
pub fn request_quantities(pod: &Pod) -> ResourceList {
    let pod_level = spec::spec(pod).resources.as_ref().and_then(|resources| resources.requests.as_ref());
    let mut total = totals(pod, requests, pod_level);
    combine(&mut total, &quantities(spec::spec(pod).overhead.as_ref()), add);
    printed(total)
}

pub fn limit_quantities(pod: &Pod) -> ResourceList {
    let pod_level = spec::spec(pod).resources.as_ref().and_then(|resources| resources.limits.as_ref());
    let mut total = totals(pod, limits, pod_level);
    let mut overhead = quantities(spec::spec(pod).overhead.as_ref());
    overhead.retain(|name, _| total.get(name).is_some_and(|limit| !limit.is_zero()));
    combine(&mut total, &overhead, add);
    printed(total)
}

/// Exact quantities of resources, which keep their format.
type Quantities = BTreeMap<String, corten_meta::Quantity>;

fn quantities(list: Option<&ResourceList>) -> Quantities {
    list.into_iter().flatten().filter_map(|(name, quantity)| Some((name.clone(), parse(quantity)?))).collect()
}

fn printed(quantities: Quantities) -> ResourceList {
    quantities.into_iter().map(|(name, quantity)| (name, Quantity(quantity.to_string()))).collect()
}

/// Returns the requests or limits of the pod. Init containers run before the main ones but beside the sidecars that
/// were started before them, so the larger of the two phases counts.
fn totals(pod: &Pod, of: fn(&Container) -> Option<&ResourceList>, pod_level: Option<&ResourceList>) -> Quantities {
    let mut sidecars = Quantities::new();
    let mut peak = Quantities::new();
    for (role, container) in spec::init_containers(pod) {
        let own = quantities(of(container));
        if role == Role::Sidecar {
            combine(&mut sidecars, &own, add);
            combine(&mut peak, &sidecars, corten_meta::Quantity::max);
        } else {
            let mut together = own;
            combine(&mut together, &sidecars, add);
            combine(&mut peak, &together, corten_meta::Quantity::max);
        }
    }
    let mut total = Quantities::new();
    for container in &spec::spec(pod).containers {
        combine(&mut total, &quantities(of(container)), add);
    }
    combine(&mut total, &sidecars, add);
    combine(&mut total, &peak, corten_meta::Quantity::max);
    // Pod-level resources replace the sum.
    total.extend(quantities(pod_level));
    total
}

fn add(a: corten_meta::Quantity, b: corten_meta::Quantity) -> corten_meta::Quantity {
    a + b
}

fn combine(
    into: &mut Quantities,
    other: &Quantities,
    how: fn(corten_meta::Quantity, corten_meta::Quantity) -> corten_meta::Quantity,
) {
    for (name, quantity) in other {
        let sum = match into.remove(name) {
            Some(present) => how(present, quantity.clone()),
            None => quantity.clone(),
        };
        into.insert(name.clone(), sum);
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
    fn pod_requests_are_those_of_the_largest_phase() {
        let container = |name: &str, cpu: &str, more: &str| {
            format!(r#"{{"name":"{name}","resources":{{"requests":{{"cpu":"{cpu}"}}}}{more}}}"#)
        };
        let sidecar = container("s", "100m", r#","restartPolicy":"Always""#);
        let small = container("i", "1", "");
        let large = container("i", "3", "");
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

    #[test]
    fn a_container_without_limits_has_the_pod_level_limits() {
        let pod = fixtures::pod(
            r#"{"resources":{"requests":{"memory":"48Mi"},"limits":{"cpu":"100m","memory":"64Mi"}},
                "containers":[{"name":"bare"},{"name":"own","resources":{"limits":{"cpu":"50m","memory":"0"},"requests":{"memory":"16Mi"}}}]}"#,
        );
        let given = |at: usize| container_resources(&pod, &spec::spec(&pod).containers[at], 64 << 20);
        assert_eq!((given(0).cpu_quota, given(0).cpu_shares), (10_000, 102));
        assert_eq!(given(0).memory_limit_in_bytes, 64 << 20);
        assert_eq!((given(1).cpu_quota, given(1).memory_limit_in_bytes), (5000, 64 << 20));
        assert_eq!((given(0).oom_score_adj, given(1).oom_score_adj), (750, 500), "32Mi are shared out");
    }

    #[test]
    fn a_cgroup_is_limited_by_its_pod_or_by_all_containers() {
        let limited = r#"{"name":"a","resources":{"requests":{"cpu":"10m"},"limits":{"cpu":"20m","memory":"1Mi"}}}"#;
        let sidecar = r#"{"name":"s","restartPolicy":"Always","resources":{"limits":{"cpu":"5m"}}}"#;
        let bare = r#"{"name":"b"}"#;
        for (init, containers, more, expected) in [
            ("", limited.to_owned(), "", (10, 2000, 1 << 20)),
            ("", format!("{limited},{bare}"), "", (10, 0, 0)),
            (bare, limited.to_owned(), "", (10, 0, 0)),
            (sidecar, limited.to_owned(), "", (10, 2500, 0)),
            (&format!("{sidecar},{bare}"), limited.to_owned(), "", (10, 2500, 0)),
            ("", bare.to_owned(), r#","resources":{"limits":{"cpu":"30m"}},"overhead":{"cpu":"10m"}"#, (10, 4000, 0)),
            ("", bare.to_owned(), "", (2, 0, 0)),
        ] {
            let pod = fixtures::pod(&format!(r#"{{"initContainers":[{init}],"containers":[{containers}]{more}}}"#));
            let given = pod_resources(&pod);
            let given = (given.cpu_shares, given.cpu_quota, given.memory_limit_in_bytes);
            assert_eq!(given, expected, "{init} {containers} {more}");
        }
    }

    #[test]
    fn quantities_of_a_pod_keep_their_format() {
        let pod = fixtures::pod(
            r#"{"resources":{"requests":{"cpu":"4m","memory":"10m"}},"containers":[{"name":"a","resources":{"requests":{"cpu":"1","ephemeral-storage":"1Gi"}}},{"name":"b","resources":{"requests":{"ephemeral-storage":"1024Mi"}}}]}"#,
        );
        let requests = request_quantities(&pod);
        let texts: Vec<&str> = requests.values().map(|quantity| quantity.0.as_str()).collect();
        assert_eq!(texts, ["4m", "2Gi", "10m"]);
    }
}
