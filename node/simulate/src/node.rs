//! The objects of a simulated node: its Node with capacity, conditions and addresses, and its Lease. Pure.

use std::net::Ipv4Addr;
use std::time::Duration;

use corten_meta::Value;
use jiff::Timestamp;
use serde_json::json;

use crate::Config;

/// The label of every simulated object, and the key of the taint of simulated nodes.
pub const SIMULATED: &str = "corten.dev/simulated";
/// The label with the prefix of the simulation that made a node.
pub const SIMULATION: &str = "corten.dev/simulation";
/// The namespace of the Leases of nodes.
pub const LEASES: &str = "kube-node-lease";
/// The first address of nodes: 198.18.0.0/15 is reserved for benchmarks, and no machine has one of them.
const FIRST_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// The version of simulated kubelets, that of the Kubernetes whose behaviour is simulated.
const KUBELET_VERSION: &str = "v1.36.0";
const LEASE_SECONDS: u32 = 40;

/// Returns the name of the node with this index.
pub fn name(config: &Config, index: u32) -> String {
    format!("{}-{index:05}", config.prefix)
}

/// Returns the address of the node with this index.
pub fn address(index: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(FIRST_ADDRESS) + index)
}

/// Returns the pod CIDR of a node that no controller gave one.
pub fn own_pod_cidr(index: u32) -> String {
    let first = u32::from(Ipv4Addr::new(100, 64, 0, 0)) + (index % 16_384) * 256;
    format!("{}/24", Ipv4Addr::from(first))
}

/// Returns the time of a node's first heartbeat after the start: heartbeats of all nodes are spread evenly over a period.
pub fn first_heartbeat(config: &Config, index: u32, period: Duration) -> Duration {
    period.mul_f64(f64::from(index) / f64::from(config.nodes))
}

/// Returns the object to register.
pub fn object(config: &Config, index: u32, now: Timestamp) -> Value {
    let name = name(config, index);
    let taint = json!([{"key": SIMULATED, "value": "true", "effect": "NoSchedule"}]);
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "beta.kubernetes.io/os": "linux",
                "beta.kubernetes.io/arch": "amd64",
                SIMULATED: "true",
                SIMULATION: config.prefix,
            },
            "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
        },
        "spec": {"taints": if config.taint { taint } else { json!([]) }},
        "status": status(config, index, now, now),
    })
}

/// Returns the complete status; conditions hold `since`.
pub fn status(config: &Config, index: u32, now: Timestamp, since: Timestamp) -> Value {
    let resources = json!({
        "cpu": config.node_cpu,
        "memory": config.node_memory,
        "ephemeral-storage": "1Ti",
        "pods": config.max_pods.to_string(),
    });
    json!({
        "addresses": [
            {"type": "InternalIP", "address": address(index).to_string()},
            {"type": "Hostname", "address": name(config, index)},
        ],
        "capacity": resources,
        "allocatable": resources,
        "conditions": conditions(now, since),
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        "nodeInfo": {
            "architecture": "amd64",
            "bootID": format!("00000000-0000-4000-8000-{index:012x}"),
            "containerRuntimeVersion": "simulated://1",
            "kernelVersion": "0.0.0-simulated",
            "kubeProxyVersion": "",
            "kubeletVersion": KUBELET_VERSION,
            "machineID": format!("{index:032x}"),
            "operatingSystem": "linux",
            "osImage": "Simulated",
            "systemUUID": format!("00000000-0000-4000-8000-{index:012x}"),
        },
    })
}

/// Returns the report of a node whose state has not changed: its conditions with the time of the heartbeat.
pub fn heartbeat(now: Timestamp, since: Timestamp) -> Value {
    json!({"status": {"conditions": conditions(now, since)}})
}

fn conditions(now: Timestamp, since: Timestamp) -> Value {
    let now = corten_meta::time::rfc3339(now);
    let since = corten_meta::time::rfc3339(since);
    let states = [
        ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
    ];
    let condition = |(kind, status, reason, message): (&str, &str, &str, &str)| {
        json!({"type": kind, "status": status, "reason": reason, "message": message,
            "lastHeartbeatTime": now, "lastTransitionTime": since})
    };
    states.map(condition).to_vec().into()
}

/// Reports whether the object says that the node is not ready, as the node lifecycle controller does for a silent node.
pub fn is_doubted(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|condition| condition["type"] == "Ready" && condition["status"] != "True")
}

/// Returns the Lease of a node, of which the Node is the owner. A renewal names the resourceVersion of the last answer.
pub fn lease(config: &Config, index: u32, node_uid: &str, resource_version: Option<&str>, now: Timestamp) -> Value {
    let name = name(config, index);
    let mut lease = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": name,
            "namespace": LEASES,
            "labels": {SIMULATED: "true", SIMULATION: config.prefix},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": node_uid}],
        },
        "spec": {
            "holderIdentity": name,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": corten_meta::time::rfc3339_micro(now),
        },
    });
    if let Some(version) = resource_version {
        lease["metadata"]["resourceVersion"] = json!(version);
    }
    lease
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_node_is_ready_with_capacity_and_taint() {
        let config = Config { nodes: 3, ..Config::default() };
        let node = object(&config, 2, at(0));
        assert_eq!(node["metadata"]["name"], "simulated-00002");
        assert_eq!(node["status"]["addresses"][0]["address"], "198.18.0.3");
        assert_eq!(node["status"]["capacity"]["pods"], "110");
        assert_eq!(node["spec"]["taints"][0]["effect"], "NoSchedule");
        assert!(!is_doubted(&node));
        let plain = object(&Config { taint: false, ..config }, 2, at(0));
        assert_eq!(plain["spec"]["taints"], json!([]));
    }

    #[test]
    fn a_heartbeat_changes_times_alone() {
        let mut node = object(&Config::default(), 0, at(0));
        let before = node.clone();
        corten_meta::patch::merge_patch(&mut node, &heartbeat(at(300), at(0)));
        assert_ne!(node, before);
        for condition in node["status"]["conditions"].as_array_mut().unwrap() {
            condition["lastHeartbeatTime"] = json!("1970-01-01T00:00:00Z");
        }
        assert_eq!(node, before);
        node["status"]["conditions"][3]["status"] = json!("Unknown");
        assert!(is_doubted(&node));
    }

    #[test]
    fn a_lease_belongs_to_its_node() {
        let lease = lease(&Config::default(), 3, "u", Some("7"), at(5));
        assert_eq!(lease["spec"]["holderIdentity"], "simulated-00003");
        assert_eq!(lease["metadata"]["ownerReferences"][0]["uid"], "u");
        assert_eq!(lease["metadata"]["resourceVersion"], "7");
        assert_eq!(lease["spec"]["renewTime"], "1970-01-01T00:00:05.000000Z");
    }

    proptest! {
        /// Names and addresses are unique, and heartbeats lie within the period in the order of the nodes.
        #[test]
        fn nodes_differ_and_heartbeats_are_spread(nodes in 2..100_000u32, index in 0..99_999u32) {
            let index = index % (nodes - 1);
            let config = Config { nodes, ..Config::default() };
            prop_assert_ne!(name(&config, index), name(&config, index + 1));
            prop_assert_ne!(address(index), address(index + 1));
            prop_assert!(address(index).octets()[0] == 198 && (18..20).contains(&address(index).octets()[1]));
            let period = Duration::from_secs(10);
            let this = first_heartbeat(&config, index, period);
            let following = first_heartbeat(&config, index + 1, period);
            prop_assert!(this < following && following < period);
        }
    }
}
