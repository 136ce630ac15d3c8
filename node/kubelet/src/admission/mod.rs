//! Pod admission by the node: the last check after the scheduler's, for pods that were bound by hand, by a DaemonSet,
//! or by stale data. Pure: the pod, the resources of other pods, and the node go in.
//!
//! It considers the pod's requests and the node's pressures, never the usage of containers. It never terminates another
//! pod; `preemption` chooses the pods that a critical one preempts.

pub mod allocation;
pub mod preemption;

use std::collections::{BTreeMap, BTreeSet};

use corten_api::k8s_openapi::api::core::v1::{Node, Pod, Taint};
use corten_api::placement;

use super::Services;
use crate::error::Error;
use crate::pod::resources::{self, QosClass, ResourceList};
use crate::pod::spec;
use crate::thresholds::Pressure;

/// The reason and message of a rejected pod's status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    pub reason: String,
    pub message: String,
}

impl Rejection {
    fn new(reason: impl Into<String>, message: impl Into<String>) -> Rejection {
        Rejection { reason: reason.into(), message: message.into() }
    }

    fn predicate(name: &str, why: &str) -> Rejection {
        Rejection::new(name, format!("Predicate {name} failed: {why}"))
    }

    /// Returns the rejection of a manager that could not allocate the resources that the scheduler counted.
    pub fn unexpected(error: &dyn std::fmt::Display) -> Rejection {
        Rejection::new("UnexpectedAdmissionError", format!("Allocate failed due to {error}, which is unexpected"))
    }

    /// Returns the rejection of an error, with the error's reason if it has one.
    pub fn of(error: Error) -> Rejection {
        match error {
            Error::Admission { reason, message } => Rejection::new(reason, message),
            other => Rejection::unexpected(&other),
        }
    }

    /// Returns the rejection of the topology manager: the resources cannot be aligned.
    pub fn topology() -> Rejection {
        Rejection::new("TopologyAffinityError", "Resources cannot be allocated with Topology locality")
    }

    /// Reports whether the node only lacks room, which preemption can make for a critical pod.
    pub fn is_shortage(&self) -> bool {
        self.reason.starts_with("OutOf")
    }

    /// Reports whether the node's labels are the only obstacle; they may have changed since they were read.
    pub fn is_node_affinity(&self) -> bool {
        self.reason == NODE_AFFINITY
    }
}

const NODE_AFFINITY: &str = "NodeAffinity";

/// A host port of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    pub protocol: String,
    pub address: String,
    pub port: i32,
}

/// The resources of a pod on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// The requests: CPU in thousandths, everything else in units.
    pub requests: BTreeMap<String, i64>,
    pub ports: Vec<HostPort>,
    pub class: QosClass,
    pub priority: i32,
    /// Whether the pod is critical, so that it is never preempted.
    pub critical: bool,
}

impl Holding {
    pub fn of(pod: &Pod) -> Holding {
        Holding {
            requests: resources::pod_requests(&resources::without_claimed(pod)),
            ports: host_ports(pod),
            class: resources::qos_class(pod),
            priority: spec::spec(pod).priority.unwrap_or(0),
            critical: spec::is_critical(pod),
        }
    }
}

/// The node's properties that admission needs.
#[derive(Clone, Debug, Default)]
pub struct NodeInfo {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    pub allocatable: ResourceList,
    /// The resources that the node is short of.
    pub pressures: BTreeSet<Pressure>,
    /// The unsafe sysctls that pods may set.
    pub unsafe_sysctls: Vec<String>,
    /// Whether the kernel supports AppArmor profiles.
    pub apparmor: bool,
    /// Whether the machine is about to shut down.
    pub shutting_down: bool,
}

impl NodeInfo {
    pub fn new(node: &Node, services: &Services) -> NodeInfo {
        NodeInfo {
            pressures: services.signals.pressure.borrow().clone(),
            unsafe_sysctls: services.config.allowed_unsafe_sysctls.clone(),
            apparmor: services.runtime.apparmor,
            shutting_down: *services.signals.shutting_down.borrow(),
            allocatable: services.resources.allocatable(),
            ..NodeInfo::of(node)
        }
    }

    fn of(node: &Node) -> NodeInfo {
        NodeInfo {
            name: node.metadata.name.clone().unwrap_or_default(),
            labels: node.metadata.labels.clone().unwrap_or_default(),
            taints: node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default(),
            ..NodeInfo::default()
        }
    }
}

/// Admits the pod, or returns the first reason not to.
pub fn admit(pod: &Pod, others: &[&Holding], node_info: &NodeInfo) -> Result<(), Rejection> {
    if node_info.shutting_down {
        return Err(Rejection::new("NodeShutdown", "Pod was rejected as the node is shutting down."));
    }
    pressures(pod, node_info)?;
    sysctls(pod, node_info)?;
    apparmor(pod, node_info)?;
    operating_system(pod)?;
    let wanted = Holding::of(pod);
    room(&wanted, others, node_info)?;
    node_affinity(pod, node_info)?;
    ports(&wanted, others)?;
    taints(pod, node_info)
}

/// Rejects pods on a node under pressure, except critical ones, and under memory pressure alone those that have
/// requests or tolerate it.
fn pressures(pod: &Pod, node_info: &NodeInfo) -> Result<(), Rejection> {
    let pressures = &node_info.pressures;
    if pressures.is_empty() || spec::is_critical(pod) {
        return Ok(());
    }
    if pressures.iter().eq([&Pressure::Memory]) {
        let taint =
            Taint { key: "node.kubernetes.io/memory-pressure".into(), effect: "NoSchedule".into(), ..Taint::default() };
        let tolerations = spec::spec(pod).tolerations.as_deref().unwrap_or_default();
        let tolerates = placement::tolerates_all(tolerations, &[taint], &["NoSchedule"]);
        if tolerates || resources::qos_class(pod) != QosClass::BestEffort {
            return Ok(());
        }
    }
    let names: Vec<&str> = pressures.iter().map(|pressure| pressure.condition()).collect();
    Err(Rejection::new("Evicted", format!("The node had condition: [{}]. ", names.join(" "))))
}

/// The safe sysctls: they belong to a namespace of the pod and affect no other pod.
const SAFE_IPC_SYSCTLS: [&str; 1] = ["kernel.shm_rmid_forced"];
const SAFE_NETWORK_SYSCTLS: [&str; 13] = [
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    "net.ipv4.tcp_slow_start_after_idle",
    "net.ipv4.tcp_notsent_lowat",
];

fn sysctls(pod: &Pod, node_info: &NodeInfo) -> Result<(), Rejection> {
    let security = spec::spec(pod).security_context.as_ref();
    for sysctl in security.and_then(|security| security.sysctls.as_ref()).into_iter().flatten() {
        let name = sysctl.name.replace('/', ".");
        let forbidden =
            |why: String| Err(Rejection::new("SysctlForbidden", format!("forbidden sysctl: {name:?} {why}")));
        let with_host = |namespace: &str| forbidden(format!("not allowed with host {namespace} enabled"));
        match name.as_str() {
            ipc if SAFE_IPC_SYSCTLS.contains(&ipc) => {
                if spec::spec(pod).host_ipc == Some(true) {
                    return with_host("IPC");
                }
            }
            network if SAFE_NETWORK_SYSCTLS.contains(&network) => {
                if spec::host_network(pod) {
                    return with_host("network");
                }
            }
            other if node_info.unsafe_sysctls.iter().any(|pattern| fits(pattern, other)) => {}
            _ => return forbidden("not allowlisted".into()),
        }
    }
    Ok(())
}

/// Reports whether a name matches a pattern that may end with `*`.
fn fits(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => pattern == name,
    }
}

/// Rejects a pod with an AppArmor profile if the kernel does not support them.
fn apparmor(pod: &Pod, node_info: &NodeInfo) -> Result<(), Rejection> {
    let shared = spec::spec(pod).security_context.as_ref().and_then(|context| context.app_armor_profile.as_ref());
    let containers: Vec<_> = spec::containers(pod).collect();
    let own = containers.iter().filter_map(|declared| {
        declared.container.security_context.as_ref().and_then(|context| context.app_armor_profile.as_ref())
    });
    let wants_apparmor = own.chain(shared).any(|profile| profile.type_ != "Unconfined");
    if node_info.apparmor || !wants_apparmor {
        return Ok(());
    }
    Err(Rejection::new("AppArmor", "Cannot enforce AppArmor: AppArmor is not enabled on the host"))
}

fn operating_system(pod: &Pod) -> Result<(), Rejection> {
    match spec::spec(pod).os.as_ref().map(|os| os.name.as_str()) {
        None | Some("linux") => Ok(()),
        Some(_) => {
            Err(Rejection::new("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS"))
        }
    }
}

pub fn room(wanted: &Holding, others: &[&Holding], node_info: &NodeInfo) -> Result<(), Rejection> {
    let capacity =
        |name: &str| node_info.allocatable.get(name).map(|quantity| resources::counted_value(name, quantity));
    let lacks = |name: &str, requested: i64, used: i64, capacity: i64| {
        let message = format!(
            "Node didn't have enough resource: {name}, requested: {requested}, used: {used}, capacity: {capacity}"
        );
        Err(Rejection::new(format!("OutOf{name}"), message))
    };
    let pods = i64::try_from(others.len()).unwrap_or(i64::MAX);
    if let Some(most) = capacity("pods").filter(|most| pods >= *most) {
        return lacks("pods", 1, pods, most);
    }
    for (name, requested) in wanted.requests.iter().filter(|(_, requested)| **requested > 0) {
        // A resource that the node does not have is counted for the cluster, not here.
        let Some(capacity) = capacity(name) else { continue };
        let used: i64 = others.iter().filter_map(|other| other.requests.get(name)).sum();
        if *requested > capacity - used {
            return lacks(name, *requested, used, capacity);
        }
    }
    Ok(())
}

fn node_affinity(pod: &Pod, node_info: &NodeInfo) -> Result<(), Rejection> {
    let nothing = BTreeMap::new();
    let selector = spec::spec(pod).node_selector.as_ref().unwrap_or(&nothing);
    if placement::selects_node(selector, spec::spec(pod).affinity.as_ref(), &node_info.name, &node_info.labels) {
        return Ok(());
    }
    Err(Rejection::predicate(NODE_AFFINITY, "node(s) didn't match Pod's node affinity/selector"))
}

fn ports(wanted: &Holding, others: &[&Holding]) -> Result<(), Rejection> {
    let any = |address: &str| address.is_empty() || address == "0.0.0.0";
    let clash = |a: &HostPort, b: &HostPort| {
        a.port == b.port && a.protocol == b.protocol && (any(&a.address) || any(&b.address) || a.address == b.address)
    };
    let taken = others.iter().flat_map(|other| &other.ports);
    if taken.into_iter().any(|taken| wanted.ports.iter().any(|wanted| clash(wanted, taken))) {
        return Err(Rejection::predicate("NodePorts", "node(s) didn't have free ports for the requested pod ports"));
    }
    Ok(())
}

fn taints(pod: &Pod, node_info: &NodeInfo) -> Result<(), Rejection> {
    let tolerations = spec::spec(pod).tolerations.as_deref().unwrap_or_default();
    if placement::tolerates_all(tolerations, &node_info.taints, &["NoExecute"]) {
        return Ok(());
    }
    Err(Rejection::predicate("TaintToleration", "node(s) had taints that the pod didn't tolerate"))
}

fn host_ports(pod: &Pod) -> Vec<HostPort> {
    let containers = spec::containers(pod);
    let ports = containers.flat_map(|declared| declared.container.ports.clone().unwrap_or_default());
    ports
        .filter_map(|port| {
            Some(HostPort {
                protocol: port.protocol.unwrap_or_else(|| "TCP".into()),
                address: port.host_ip.unwrap_or_default(),
                port: port.host_port.filter(|number| *number > 0)?,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use corten_api::Typed;
    use corten_api::k8s_openapi::apimachinery::pkg::api::resource::Quantity;
    use serde_json::json;

    use super::*;
    use crate::fixtures;

    fn node_info() -> NodeInfo {
        let node = Node::from_value(json!({
            "metadata": {"name": "n", "labels": {"disk": "ssd"}},
            "spec": {"taints": [{"key": "gone", "effect": "NoExecute"}, {"key": "full", "effect": "NoSchedule"}]},
        }));
        let allocatable = [("cpu", "2"), ("memory", "1Gi"), ("pods", "2")];
        let allocatable = allocatable.map(|(name, quantity)| (name.to_owned(), Quantity(quantity.to_owned())));
        NodeInfo {
            allocatable: allocatable.into(),
            unsafe_sysctls: vec!["kernel.msg*".into(), "net.core.somaxconn".into()],
            ..NodeInfo::of(&node.unwrap())
        }
    }

    #[test]
    fn what_a_claim_satisfies_is_not_requested_of_the_node() {
        let requests = r#"{"requests":{"cpu":"1","example.com/gpu":"1"}}"#;
        let container = |name: &str| format!(r#"{{"name":"{name}","resources":{requests}}}"#);
        let mut pod = fixtures::pod(&format!(
            r#"{{"containers":[{}],"initContainers":[{}]}}"#,
            container("main"),
            container("first")
        ));
        let requested = |pod: &Pod| Holding::of(pod).requests.get("example.com/gpu").copied();
        assert_eq!(requested(&pod), Some(1));
        let mapping =
            |name: &str| json!({"containerName": name, "resourceName": "example.com/gpu", "requestName": "r"});
        for (names, expected) in [(vec!["main"], Some(1)), (vec!["main", "first"], None)] {
            let mappings: Vec<_> = names.into_iter().map(mapping).collect();
            let claim = json!({"resourceClaimName": "c", "requestMappings": mappings});
            let status = json!({"metadata": {}, "status": {"extendedResourceClaimStatus": claim}});
            pod.status = Pod::from_value(status).unwrap().status;
            assert_eq!(requested(&pod), expected);
            assert_eq!(Holding::of(&pod).requests["cpu"], 1000);
        }
    }

    const TOLERANT: &str = r#""tolerations":[{"operator":"Exists"}]"#;

    fn verdict(fields: &str, others: &[&str]) -> String {
        let others: Vec<Holding> = others.iter().map(|fields| Holding::of(&fixtures::pod(fields))).collect();
        let pod = fixtures::pod(&format!("{{{fields}}}"));
        match admit(&pod, &others.iter().collect::<Vec<_>>(), &node_info()) {
            Ok(()) => "admitted".into(),
            Err(rejection) => format!("{}: {}", rejection.reason, rejection.message),
        }
    }

    #[test]
    fn pods_are_admitted_or_rejected_with_upstreams_messages() {
        let one_cpu = r#"{"containers":[{"name":"c","resources":{"requests":{"cpu":"1500m"}}}]}"#;
        let with_port = r#"{"containers":[{"name":"c","ports":[{"containerPort":80,"hostPort":8080}]}]}"#;
        let large = r#""containers":[{"name":"c","resources":{"requests":{"cpu":"1"}}}]"#;
        let port = r#""containers":[{"name":"c","ports":[{"containerPort":1,"hostPort":8080,"hostIP":"10.0.0.1"}]}]"#;
        let sysctl =
            |name: &str| format!(r#"{TOLERANT},"securityContext":{{"sysctls":[{{"name":"{name}","value":"1"}}]}}"#);
        for (fields, others, expected) in [
            (TOLERANT.to_owned(), &[][..], "admitted"),
            (format!("{TOLERANT},{large}"), &[], "admitted"),
            (
                format!("{TOLERANT},{large}"),
                &[one_cpu],
                "OutOfcpu: Node didn't have enough resource: cpu, requested: 1000, used: 1500, capacity: 2000",
            ),
            (
                TOLERANT.to_owned(),
                &["{}", "{}"],
                "OutOfpods: Node didn't have enough resource: pods, requested: 1, used: 2, capacity: 2",
            ),
            (format!(r#"{TOLERANT},"nodeSelector":{{"disk":"ssd"}}"#), &[], "admitted"),
            (
                format!(r#"{TOLERANT},"nodeSelector":{{"disk":"tape"}}"#),
                &[],
                "NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
            ),
            (
                format!("{TOLERANT},{port}"),
                &[with_port],
                "NodePorts: Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports",
            ),
            (
                String::new(),
                &[],
                "TaintToleration: Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate",
            ),
            (
                format!(r#"{TOLERANT},"os":{{"name":"windows"}}"#),
                &[],
                "PodOSNotSupported: Failed to admit pod as the OS field doesn't match node OS",
            ),
            (sysctl("kernel.shm_rmid_forced"), &[], "admitted"),
            (format!(r#"{TOLERANT},"securityContext":{{"appArmorProfile":{{"type":"Unconfined"}}}}"#), &[], "admitted"),
            (
                format!(r#"{TOLERANT},"securityContext":{{"appArmorProfile":{{"type":"RuntimeDefault"}}}}"#),
                &[],
                "AppArmor: Cannot enforce AppArmor: AppArmor is not enabled on the host",
            ),
            (sysctl("kernel.msgmax"), &[], "admitted"),
            (sysctl("kernel.sem"), &[], "SysctlForbidden: forbidden sysctl: \"kernel.sem\" not allowlisted"),
            (
                sysctl("net.ipv4.tcp_syncookies") + r#","hostNetwork":true"#,
                &[],
                "SysctlForbidden: forbidden sysctl: \"net.ipv4.tcp_syncookies\" not allowed with host network enabled",
            ),
        ] {
            assert_eq!(verdict(&fields, others), expected, "{fields}");
        }
    }

    #[test]
    fn a_node_under_pressure_admits_only_critical_pods_and_those_with_requests() {
        let best_effort =
            format!("{{{TOLERANT}}}").replace("\"operator\":\"Exists\"", "\"key\":\"gone\",\"operator\":\"Exists\"");
        let burstable = r#"{"tolerations":[{"key":"gone","operator":"Exists"}],"containers":[{"name":"c","resources":{"requests":{"cpu":"1m"}}}]}"#;
        let tolerant = format!("{{{TOLERANT}}}");
        let critical = r#"{"tolerations":[{"key":"gone","operator":"Exists"}],"priority":2000000000}"#;
        for (pressures, fields, expected) in [
            (vec![Pressure::Memory], best_effort.as_str(), "The node had condition: [MemoryPressure]. "),
            (vec![Pressure::Memory], burstable, ""),
            (vec![Pressure::Memory], &tolerant, ""),
            (vec![Pressure::Disk], &tolerant, "The node had condition: [DiskPressure]. "),
            (
                vec![Pressure::Disk, Pressure::Memory],
                burstable,
                "The node had condition: [MemoryPressure DiskPressure]. ",
            ),
            (vec![Pressure::Disk], critical, ""),
        ] {
            let node_info = NodeInfo { pressures: pressures.into_iter().collect(), ..node_info() };
            let verdict = admit(&fixtures::pod(fields), &[], &node_info);
            assert_eq!(verdict.err().map(|rejection| rejection.message).unwrap_or_default(), expected, "{fields}");
        }
    }
}
