//! The Node object and its status, from the facts about the machine and the runtime. Pure, except for the calls to the
//! runtime in `RuntimeFacts::of`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use corten_api::k8s_openapi::api::core::v1::{
    ContainerImage, DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeRuntimeHandler,
    NodeRuntimeHandlerFeatures, NodeSpec, NodeStatus, NodeSystemInfo, Taint,
};
use corten_api::k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use corten_cri::v1 as cri;
use jiff::Timestamp;

use super::host::Host;
use crate::config::Config;
use crate::cri::Runtime;
use crate::devices::Counts;
use crate::eviction::{Pressure, Signal};
use crate::pod::resources::{self, ResourceList};

const MAX_IMAGE_NAMES: usize = 5;

/// The runtime's answers about itself; empty if it does not answer.
#[derive(Clone, Debug, Default)]
pub struct RuntimeFacts {
    pub version: Option<cri::VersionResponse>,
    pub status: Option<cri::StatusResponse>,
    pub images: Vec<cri::Image>,
    pub error: Option<String>,
}

impl RuntimeFacts {
    pub async fn of(runtime: &Runtime) -> RuntimeFacts {
        let (version, status, images) = tokio::join!(runtime.version(), runtime.status(), runtime.list_images());
        RuntimeFacts {
            error: status.as_ref().err().map(ToString::to_string),
            version: version.ok(),
            status: status.ok(),
            images: images.unwrap_or_default(),
        }
    }
}

pub struct Facts<'a> {
    pub config: &'a Config,
    pub host: &'a Host,
    pub runtime: &'a RuntimeFacts,
    /// Whether the machine is about to shut down.
    pub shutting_down: bool,
    pub pressures: BTreeSet<Pressure>,
    /// The attachable volumes that the node's pods use.
    pub volumes_in_use: BTreeSet<String>,
    /// The devices that plugins manage.
    pub devices: Counts,
    pub node: Option<&'a Node>,
    pub now: Timestamp,
}

/// The annotation with the directory of the cluster's own provisioner, for that provisioner.
const LOCAL_VOLUMES: &str = "corten/local-volumes";

/// Returns the object to register.
pub fn initial_node(facts: &Facts<'_>) -> Node {
    let config = facts.config;
    let mut labels: BTreeMap<String, String> = config.labels.clone();
    for (name, value) in [
        ("kubernetes.io/hostname", config.node_name.as_str()),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", facts.host.architecture.as_str()),
        ("beta.kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/arch", facts.host.architecture.as_str()),
    ] {
        labels.insert(name.to_owned(), value.to_owned());
    }
    let attach = ("volumes.kubernetes.io/controller-managed-attach-detach".to_owned(), "true".to_owned());
    let local = (LOCAL_VOLUMES.to_owned(), config.local_volumes().to_string_lossy().into_owned());
    let mut annotations = BTreeMap::from([attach, local]);
    let mut taints = config.taints.clone();
    if let Some(provided) = &config.external_cloud {
        let uninitialized = "node.cloudprovider.kubernetes.io/uninitialized".to_owned();
        let value = Some("true".to_owned());
        taints.push(Taint { key: uninitialized, value, effect: "NoSchedule".to_owned(), time_added: None });
        let ips: Vec<String> = provided.0.iter().map(IpAddr::to_string).collect();
        if !ips.is_empty() {
            annotations.insert("alpha.kubernetes.io/provided-node-ip".to_owned(), ips.join(","));
        }
    }
    Node {
        metadata: ObjectMeta {
            name: Some(config.node_name.clone()),
            labels: Some(labels),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            taints: Some(taints).filter(|taints| !taints.is_empty()),
            provider_id: config.provider_id.clone(),
            ..NodeSpec::default()
        }),
        status: Some(status(facts, None)),
    }
}

/// The features that this kubelet declares: it resizes pod-level resources and init containers that have not run yet,
/// and restarts all containers of a pod when one exits.
const FEATURES: [&str; 3] = [
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScalingInitContainers",
    "RestartAllContainersOnContainerExits",
];

/// Returns the status to report; `last` has the transition times of unchanged conditions.
pub fn status(facts: &Facts<'_>, last: Option<&NodeStatus>) -> NodeStatus {
    let config = facts.config;
    NodeStatus {
        addresses: addresses(config, facts.node),
        capacity: Some(with_devices(capacity(config, facts.host), &facts.devices.capacity)),
        allocatable: Some(with_devices(
            with_foreign(allocatable(config, facts.host), facts, last),
            &facts.devices.allocatable,
        )),
        conditions: Some(conditions(facts, last)),
        daemon_endpoints: Some(NodeDaemonEndpoints {
            kubelet_endpoint: Some(DaemonEndpoint { port: i32::from(config.listen.port()) }),
        }),
        images: Some(images(&facts.runtime.images, config.max_images)).filter(|images| !images.is_empty()),
        node_info: Some(node_info(facts)),
        runtime_handlers: runtime_handlers(facts.runtime),
        declared_features: Some(FEATURES.map(str::to_owned).to_vec()),
        volumes_in_use: volumes_in_use(facts, last),
        ..NodeStatus::default()
    }
}

/// Returns the addresses to report. Those that a cloud controller manager wrote are not touched.
fn addresses(config: &Config, node: Option<&Node>) -> Option<Vec<NodeAddress>> {
    let ips = match &config.external_cloud {
        None => config.host_ips(),
        Some(provided) => {
            let status = node.and_then(|node| node.status.as_ref());
            let is_written = status.is_some_and(|status| status.addresses.iter().flatten().next().is_some());
            if is_written {
                return None;
            }
            provided.0.clone()
        }
    };
    let internal = ips.iter().map(|ip| NodeAddress { type_: "InternalIP".into(), address: ip.to_string() });
    let hostname = NodeAddress { type_: "Hostname".into(), address: config.node_name.clone() };
    Some(internal.chain([hostname]).collect())
}

fn with_devices(mut list: ResourceList, counts: &BTreeMap<String, i64>) -> ResourceList {
    list.extend(counts.iter().map(|(name, count)| (name.clone(), Quantity(count.to_string()))));
    list
}

/// Adds the extended resources that an administrator wrote into the capacity, and nothing into the allocatable resources:
/// all of them are allocatable. The kubelet's own resources are in both.
fn with_foreign(mut list: ResourceList, facts: &Facts<'_>, last: Option<&NodeStatus>) -> ResourceList {
    let Some(reported) = facts.node.and_then(|node| node.status.as_ref()) else { return list };
    let has = |list: Option<&ResourceList>, name: &String| list.is_some_and(|list| list.contains_key(name));
    for (name, quantity) in reported.capacity.iter().flatten().filter(|(name, _)| name.contains('/')) {
        let is_added = last.is_some_and(|last| is_foreign(last, name));
        let is_new = !has(reported.allocatable.as_ref(), name);
        if is_added || is_new {
            list.insert(name.clone(), quantity.clone());
        }
    }
    list
}

/// Reports whether a resource is allocatable only because another client wrote it into the capacity.
fn is_foreign(status: &NodeStatus, name: &str) -> bool {
    let has = |list: &Option<ResourceList>| list.as_ref().is_some_and(|list| list.contains_key(name));
    has(&status.allocatable) && !has(&status.capacity)
}

/// Returns the resources that were allocatable as long as another client had them in the capacity.
pub fn withdrawn<'a>(last: Option<&'a NodeStatus>, new: &'a NodeStatus) -> impl Iterator<Item = &'a String> {
    let names = last.into_iter().flat_map(|last| {
        let names = last.allocatable.iter().flat_map(ResourceList::keys);
        names.filter(move |name| is_foreign(last, name))
    });
    names.filter(|name| new.allocatable.as_ref().is_none_or(|list| !list.contains_key(*name)))
}

/// Returns the volumes in use; an empty list is reported only to replace a longer one.
fn volumes_in_use(facts: &Facts<'_>, last: Option<&NodeStatus>) -> Option<Vec<String>> {
    let was_reported = last.is_some_and(|last| last.volumes_in_use.is_some());
    let names: Vec<String> = facts.volumes_in_use.iter().cloned().collect();
    Some(names).filter(|names| was_reported || !names.is_empty())
}

pub fn is_ready(status: &NodeStatus) -> bool {
    status.conditions.iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Reports whether the node was ready before the kubelet started, and the machine has run since then.
pub fn was_ready(reported: Option<&NodeStatus>, now: &NodeStatus) -> bool {
    let boot = |status: &NodeStatus| status.node_info.as_ref().map(|info| info.boot_id.clone());
    reported.is_some_and(|reported| is_ready(reported) && boot(reported) == boot(now))
}

/// Reports whether anything but the heartbeat times differs.
pub fn changed(last: &NodeStatus, new: &NodeStatus) -> bool {
    let timeless = |status: &NodeStatus| {
        let mut status = status.clone();
        for condition in status.conditions.iter_mut().flatten() {
            condition.last_heartbeat_time = None;
        }
        status
    };
    timeless(last) != timeless(new)
}

/// Reports whether a condition in the API differs from the kubelet's: the node controller sets the conditions of a
/// silent node to Unknown, and only the kubelet can correct them.
pub fn contradicts(reported: Option<&NodeStatus>, new: &NodeStatus) -> bool {
    let reported: Vec<_> = reported.iter().flat_map(|status| status.conditions.iter().flatten()).collect();
    new.conditions.iter().flatten().any(|condition| {
        reported.iter().any(|other| other.type_ == condition.type_ && other.status != condition.status)
    })
}

fn capacity(config: &Config, host: &Host) -> ResourceList {
    let mut capacity = ResourceList::from([
        ("cpu".to_owned(), Quantity(host.cpus.to_string())),
        ("memory".to_owned(), Quantity(format!("{}Ki", host.memory_bytes / 1024))),
        ("ephemeral-storage".to_owned(), Quantity(format!("{}Ki", host.disk_bytes / 1024))),
        ("pods".to_owned(), Quantity(config.max_pods.to_string())),
    ]);
    for (size, count) in &host.huge_pages {
        let name = corten_meta::Quantity::from_bytes(i64::try_from(*size).unwrap_or(0)).to_string();
        let total = corten_meta::Quantity::from_bytes(i64::try_from(size * count).unwrap_or(0)).to_string();
        capacity.insert(format!("hugepages-{name}"), Quantity(total));
    }
    capacity
}

/// Returns the node's allocatable resources: its capacity less the reserved resources and the hard thresholds.
pub fn allocatable(config: &Config, host: &Host) -> ResourceList {
    let mut allocatable = capacity(config, host);
    for (name, left) in &mut allocatable {
        let kept = reserved(config, name) + kept_free(config, host, name);
        if kept == 0 {
            continue;
        }
        *left = match name.as_str() {
            "cpu" => Quantity(format!("{}m", (resources::milli(left) - kept).max(0))),
            _ => {
                let left = (resources::value(left) - kept).max(0);
                Quantity(corten_meta::Quantity::from_bytes(left).to_string())
            }
        };
    }
    allocatable
}

/// Returns the reserved value of a resource, as it is counted.
fn reserved(config: &Config, name: &str) -> i64 {
    let lists = [&config.system_reserved, &config.kube_reserved];
    lists
        .iter()
        .filter_map(|list| list.get(name))
        .map(|text| resources::counted_value(name, &Quantity(text.clone())))
        .sum()
}

/// Returns the memory that is not allocatable: the reserved memory and the hard threshold.
pub fn kept_back(config: &Config, host: &Host) -> i64 {
    reserved(config, "memory") + kept_free(config, host, "memory")
}

/// Returns the hard threshold of a resource: pods are evicted before they use it.
fn kept_free(config: &Config, host: &Host, name: &str) -> i64 {
    let (signal, capacity) = match name {
        "memory" => (Signal::MemoryAvailable, host.memory_bytes),
        "ephemeral-storage" => (Signal::NodeFsAvailable, host.disk_bytes),
        _ => return 0,
    };
    config.eviction.reserved(signal, i64::try_from(capacity).unwrap_or(i64::MAX))
}

/// Returns the limits of the cgroup of all pods: the capacity less the reserved resources.
pub fn limits(config: &Config, host: &Host) -> cri::LinuxContainerResources {
    let cpu = i64::try_from(host.cpus).unwrap_or(0) * 1000 - reserved(config, "cpu");
    let memory = i64::try_from(host.memory_bytes).unwrap_or(i64::MAX) - reserved(config, "memory");
    cri::LinuxContainerResources {
        cpu_shares: resources::shares(cpu.max(0)),
        memory_limit_in_bytes: memory.max(0),
        ..cri::LinuxContainerResources::default()
    }
}

fn conditions(facts: &Facts<'_>, last: Option<&NodeStatus>) -> Vec<NodeCondition> {
    let problems = problems(facts);
    let ready = if problems.is_empty() {
        ("True", "KubeletReady", "kubelet is posting ready status".to_owned())
    } else {
        ("False", "KubeletNotReady", problems)
    };
    let mut found = vec![
        ("MemoryPressure", pressure(facts, Pressure::Memory)),
        ("DiskPressure", pressure(facts, Pressure::Disk)),
        ("PIDPressure", pressure(facts, Pressure::Pid)),
    ];
    found.extend(MISSING_FILTERS.iter().filter_map(|missing| Some((missing.condition, missing.state(facts)?))));
    found.push(("Ready", ready));
    found
        .into_iter()
        .map(|(type_, (status, reason, message))| {
            let since = last
                .and_then(|last| {
                    last.conditions.iter().flatten().find(|old| old.type_ == type_ && old.status == status)
                })
                .and_then(|old| old.last_transition_time.clone());
            NodeCondition {
                type_: type_.to_owned(),
                status: status.to_owned(),
                reason: Some(reason.to_owned()),
                message: Some(message),
                last_heartbeat_time: Some(Time(facts.now)),
                last_transition_time: since.or(Some(Time(facts.now))),
            }
        })
        .collect()
}

/// A kernel filter that isolates containers, and the condition of a node without it.
struct MissingFilter {
    /// The type of the runtime's condition.
    runtime: &'static str,
    condition: &'static str,
    reason_of_false: &'static str,
    message_of_false: &'static str,
}

const MISSING_FILTERS: [MissingFilter; 2] = [
    MissingFilter {
        runtime: "DeviceFilterReady",
        condition: "DeviceCgroupUnavailable",
        reason_of_false: "DeviceCgroupIsAvailable",
        message_of_false: "the devices of containers are filtered",
    },
    MissingFilter {
        runtime: "BridgeFilterReady",
        condition: "BridgeFilterUnavailable",
        reason_of_false: "BridgeFilterIsAvailable",
        message_of_false: "the frames of pods are filtered",
    },
];

impl MissingFilter {
    /// Returns status, reason and message of the condition; `None` if the runtime does not report the filter.
    fn state(&self, facts: &Facts<'_>) -> Option<(&'static str, &'static str, String)> {
        let status = facts.runtime.status.as_ref()?.status.as_ref()?;
        let condition = status.conditions.iter().find(|condition| condition.r#type == self.runtime)?;
        Some(match condition.status {
            true => ("False", self.reason_of_false, self.message_of_false.to_owned()),
            false => ("True", self.condition, condition.message.clone()),
        })
    }
}

/// Returns status, reason and message of a pressure condition.
fn pressure(facts: &Facts<'_>, pressure: Pressure) -> (&'static str, &'static str, String) {
    let pressed = facts.pressures.contains(&pressure);
    let (reason, message) = match (pressure, pressed) {
        (Pressure::Memory, false) => ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        (Pressure::Memory, true) => ("KubeletHasInsufficientMemory", "kubelet has insufficient memory available"),
        (Pressure::Disk, false) => ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        (Pressure::Disk, true) => ("KubeletHasDiskPressure", "kubelet has disk pressure"),
        (Pressure::Pid, false) => ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        (Pressure::Pid, true) => ("KubeletHasInsufficientPID", "kubelet has insufficient PID available"),
    };
    (if pressed { "True" } else { "False" }, reason, message.to_owned())
}

/// Returns the reasons why the node is not ready, in upstream's words; empty if it is ready.
fn problems(facts: &Facts<'_>) -> String {
    let mut problems = Vec::new();
    match facts.runtime.status.as_ref().and_then(|status| status.status.as_ref()) {
        None => problems.push(match &facts.runtime.error {
            Some(error) => format!("container runtime status check may not have completed yet: {error}"),
            None => "container runtime status check may not have completed yet".to_owned(),
        }),
        Some(status) => {
            for (type_, prefix) in [
                ("RuntimeReady", "container runtime not ready"),
                ("NetworkReady", "container runtime network not ready"),
            ] {
                match status.conditions.iter().find(|condition| condition.r#type == type_) {
                    Some(condition) if condition.status => {}
                    Some(condition) => problems.push(format!(
                        "{prefix}: {type_}=false reason:{} message:{}",
                        condition.reason, condition.message
                    )),
                    None => problems.push(format!("{prefix}: {type_} is not reported")),
                }
            }
        }
    }
    if facts.shutting_down {
        problems.push("node is shutting down".to_owned());
    }
    let cidr = facts.node.and_then(|node| node.spec.as_ref()?.pod_cidr.as_deref()).unwrap_or_default();
    if facts.config.require_pod_cidr && cidr.is_empty() {
        problems.push(format!("node {:?} has no podCIDR assigned yet", facts.config.node_name));
    }
    match problems.len() {
        0 => String::new(),
        1 => problems.remove(0),
        _ => format!("[{}]", problems.join(", ")),
    }
}

/// Returns the largest images, for the scheduler.
fn images(images: &[cri::Image], most: Option<usize>) -> Vec<ContainerImage> {
    let mut images: Vec<&cri::Image> = images.iter().collect();
    images.sort_unstable_by_key(|image| (std::cmp::Reverse(image.size), image.id.clone()));
    images
        .into_iter()
        .take(most.unwrap_or(usize::MAX))
        .map(|image| ContainerImage {
            names: Some(image.repo_digests.iter().chain(&image.repo_tags).take(MAX_IMAGE_NAMES).cloned().collect()),
            size_bytes: i64::try_from(image.size).ok(),
        })
        .collect()
}

fn node_info(facts: &Facts<'_>) -> NodeSystemInfo {
    let host = facts.host;
    let runtime = facts.runtime.version.as_ref();
    NodeSystemInfo {
        architecture: host.architecture.clone(),
        boot_id: host.boot_id.clone(),
        container_runtime_version: runtime
            .map(|version| format!("{}://{}", version.runtime_name, version.runtime_version))
            .unwrap_or_default(),
        kernel_version: host.kernel_version.clone(),
        kube_proxy_version: String::new(),
        kubelet_version: facts.config.version.clone(),
        machine_id: host.machine_id.clone(),
        operating_system: "linux".into(),
        os_image: host.os_image.clone(),
        system_uuid: host.system_uuid.clone(),
        swap: None,
    }
}

fn runtime_handlers(runtime: &RuntimeFacts) -> Option<Vec<NodeRuntimeHandler>> {
    let handlers = &runtime.status.as_ref()?.runtime_handlers;
    let handlers: Vec<NodeRuntimeHandler> = handlers
        .iter()
        .map(|handler| NodeRuntimeHandler {
            name: Some(handler.name.clone()),
            features: handler.features.as_ref().map(|features| NodeRuntimeHandlerFeatures {
                recursive_read_only_mounts: Some(features.recursive_read_only_mounts),
                user_namespaces: Some(features.user_namespaces),
            }),
        })
        .collect();
    Some(handlers).filter(|handlers| !handlers.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime(network: bool) -> RuntimeFacts {
        let condition = |type_: &str, status| cri::RuntimeCondition {
            r#type: type_.into(),
            status,
            reason: if status { String::new() } else { "NetworkPluginNotReady".into() },
            message: if status { String::new() } else { "no bridge".into() },
        };
        let conditions = vec![condition("RuntimeReady", true), condition("NetworkReady", network)];
        RuntimeFacts {
            status: Some(cri::StatusResponse {
                status: Some(cri::RuntimeStatus { conditions }),
                ..cri::StatusResponse::default()
            }),
            ..RuntimeFacts::default()
        }
    }

    #[test]
    fn resources_that_others_add_to_the_capacity_are_allocatable() {
        let config = Config::default();
        let host = Host::default();
        let runtime = runtime(true);
        let list = |names: &[(&str, &str)]| -> ResourceList {
            names.iter().map(|(name, count)| ((*name).to_owned(), Quantity((*count).to_owned()))).collect()
        };
        let node = |capacity: &[(&str, &str)], allocatable: &[(&str, &str)]| Node {
            status: Some(NodeStatus {
                capacity: Some(list(capacity)),
                allocatable: Some(list(allocatable)),
                ..NodeStatus::default()
            }),
            ..Node::default()
        };
        let report = |node: &Node, last: Option<&NodeStatus>| {
            let facts = Facts {
                config: &config,
                host: &host,
                runtime: &runtime,
                pressures: BTreeSet::new(),
                shutting_down: false,
                volumes_in_use: BTreeSet::new(),
                devices: Counts::default(),
                node: Some(node),
                now: Timestamp::from_second(0).unwrap(),
            };
            status(&facts, last)
        };
        let count = |status: &NodeStatus| status.allocatable.as_ref().unwrap().get("x.io/y").map(|q| q.0.clone());
        let first = report(&node(&[("x.io/y", "7"), ("cpu", "9")], &[]), None);
        assert_eq!(count(&first).as_deref(), Some("7"));
        assert!(!first.capacity.as_ref().unwrap().contains_key("x.io/y"), "it stays the other client's");
        let second = report(&node(&[("x.io/y", "8")], &[("x.io/y", "7")]), Some(&first));
        assert_eq!(count(&second).as_deref(), Some("8"));
        let third = report(&node(&[], &[("x.io/y", "8")]), Some(&second));
        assert_eq!(count(&third), None);
        assert_eq!(withdrawn(Some(&second), &third).collect::<Vec<_>>(), ["x.io/y"]);
        let own = report(&node(&[("x.io/y", "7")], &[("x.io/y", "2")]), None);
        assert_eq!(count(&own), None, "another client says how much is allocatable");
    }

    #[test]
    fn a_node_of_an_external_cloud_waits_for_its_initialization_and_keeps_the_clouds_addresses() {
        let provided = crate::config::ProvidedAddresses(vec![IpAddr::from([192, 0, 2, 1])]);
        let mut config = Config { node_name: "n".to_owned(), external_cloud: Some(provided), ..Config::default() };
        let shown = |config: &Config, node: Option<&Node>| {
            let all = addresses(config, node)?;
            Some(all.into_iter().map(|one| format!("{} {}", one.type_, one.address)).collect::<Vec<_>>())
        };
        assert_eq!(shown(&config, None).unwrap(), ["InternalIP 192.0.2.1", "Hostname n"]);
        let facts = Facts {
            config: &config,
            host: &Host::default(),
            runtime: &runtime(true),
            pressures: BTreeSet::new(),
            shutting_down: false,
            volumes_in_use: BTreeSet::new(),
            devices: Counts::default(),
            node: None,
            now: Timestamp::from_second(0).unwrap(),
        };
        let registered = initial_node(&facts);
        let taints = registered.spec.unwrap().taints.unwrap();
        assert_eq!(taints[0].key, "node.cloudprovider.kubernetes.io/uninitialized");
        let annotations = registered.metadata.annotations.unwrap();
        assert_eq!(annotations["alpha.kubernetes.io/provided-node-ip"], "192.0.2.1");
        let written = Node { status: registered.status, ..Node::default() };
        assert_eq!(shown(&config, Some(&written)), None, "the cloud's addresses stay");
        config.external_cloud = None;
        config.node_ips = vec![IpAddr::from([192, 0, 2, 7])];
        assert_eq!(shown(&config, Some(&written)).unwrap()[0], "InternalIP 192.0.2.7");
    }

    fn ready(config: &Config, runtime: &RuntimeFacts, pod_cidr: Option<&str>) -> (String, String) {
        let node = Node {
            spec: Some(NodeSpec { pod_cidr: pod_cidr.map(str::to_owned), ..NodeSpec::default() }),
            ..Node::default()
        };
        let now = Timestamp::from_second(0).unwrap();
        let pressures = BTreeSet::new();
        let facts = Facts {
            config,
            host: &Host::default(),
            runtime,
            pressures,
            shutting_down: config.node_name == "going",
            volumes_in_use: BTreeSet::new(),
            devices: Counts::default(),
            node: Some(&node),
            now,
        };
        let status = status(&facts, None);
        let condition = status.conditions.unwrap().into_iter().find(|condition| condition.type_ == "Ready").unwrap();
        (condition.status, condition.message.unwrap())
    }

    #[test]
    fn ready_needs_runtime_network_and_pod_cidr() {
        let going = Config { node_name: "going".into(), ..Config::default() };
        assert_eq!(
            ready(&going, &runtime(true), Some("10.244.0.0/24")),
            ("False".into(), "node is shutting down".into())
        );
        let config = Config { node_name: "n1".into(), ..Config::default() };
        assert_eq!(
            ready(&config, &runtime(true), Some("10.244.0.0/24")),
            ("True".into(), "kubelet is posting ready status".into())
        );
        assert_eq!(
            ready(&config, &runtime(false), Some("10.244.0.0/24")),
            (
                "False".into(),
                "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:no bridge".into()
            )
        );
        assert!(ready(&config, &runtime(true), None).1.contains("no podCIDR assigned"));
        assert!(ready(&config, &RuntimeFacts::default(), Some("x")).1.contains("status check"));
    }

    #[test]
    fn missing_filters_of_the_runtime_are_conditions_of_the_node() {
        let mut runtime = runtime(true);
        let config = Config::default();
        let reported = |runtime: &RuntimeFacts| {
            let facts = Facts {
                config: &config,
                host: &Host::default(),
                runtime,
                pressures: BTreeSet::new(),
                shutting_down: false,
                volumes_in_use: BTreeSet::new(),
                devices: Counts::default(),
                node: None,
                now: Timestamp::UNIX_EPOCH,
            };
            let conditions = status(&facts, None).conditions.unwrap().into_iter();
            let about = conditions.filter(|condition| condition.type_.ends_with("Unavailable"));
            about.map(|condition| format!("{}={}", condition.type_, condition.status)).collect::<Vec<_>>()
        };
        assert!(reported(&runtime).is_empty(), "a runtime that tells nothing");
        let conditions = &mut runtime.status.as_mut().unwrap().status.as_mut().unwrap().conditions;
        for (name, status) in [("DeviceFilterReady", false), ("BridgeFilterReady", true)] {
            let condition = cri::RuntimeCondition { r#type: name.into(), status, ..cri::RuntimeCondition::default() };
            conditions.push(condition);
        }
        assert_eq!(reported(&runtime), ["DeviceCgroupUnavailable=True", "BridgeFilterUnavailable=False"]);
    }

    #[test]
    fn reserved_quantities_are_not_allocatable() {
        let host = Host { cpus: 4, memory_bytes: 8 << 30, disk_bytes: 100 << 30, ..Host::default() };
        let reserved = [("cpu", "100m"), ("memory", "1Gi")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        let kube = [("cpu".to_owned(), "50m".to_owned())];
        let config = Config { system_reserved: reserved.into(), kube_reserved: kube.into(), ..Config::default() };
        let list = allocatable(&config, &host);
        assert_eq!(list["cpu"].0, "3850m");
        assert_eq!(list["memory"].0, "7068Mi", "the eviction threshold of 100Mi is kept free too");
        assert_eq!(list["ephemeral-storage"].0, "90Gi");
        assert_eq!(list["pods"].0, "110");
        assert_eq!(
            limits(&config, &host).memory_limit_in_bytes,
            7 << 30,
            "pods may use what is kept free, and are ended"
        );
    }

    #[test]
    fn heartbeats_alone_are_no_change() {
        let config = Config::default();
        let at = |second| {
            let now = Timestamp::from_second(second).unwrap();
            let host = Host::default();
            let runtime = runtime(true);
            let facts = |now| Facts {
                config: &config,
                host: &host,
                runtime: &runtime,
                pressures: BTreeSet::new(),
                shutting_down: false,
                volumes_in_use: BTreeSet::new(),
                devices: Counts::default(),
                node: None,
                now,
            };
            let first = status(&facts(Timestamp::from_second(0).unwrap()), None);
            status(&facts(now), Some(&first))
        };
        assert!(!changed(&at(0), &at(60)));
    }
}
