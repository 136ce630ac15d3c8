//! The interface of the pod network that the runtime uses.
//!
//! The runtime owns this trait and the binary plugs in an implementation, so neither package knows the other. The
//! runtime makes and pins the network namespace; the network configures it.

use std::collections::BTreeSet;
use std::path::PathBuf;

/// A pod whose network namespace exists, with only a loopback device that is up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodNetworkRequest {
    /// The sandbox, unique on this node and over time.
    pub sandbox_id: String,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// The path where the network namespace is pinned; open it and `setns`.
    pub netns_path: PathBuf,
    /// The pod's host name.
    pub hostname: String,
    /// The pod's host ports.
    pub port_mappings: Vec<PortMapping>,
    /// The pod's annotations, which hold its bandwidth limits.
    pub annotations: std::collections::BTreeMap<String, String>,
    /// The pod's labels, which network policies select by.
    pub labels: std::collections::BTreeMap<String, String>,
}

/// A host port of the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortMapping {
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// The port in the pod.
    pub container_port: u16,
    /// The port on the node.
    pub host_port: u16,
    /// The node's address that is bound; empty for all.
    pub host_ip: String,
}

/// The addresses of a connected pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodNetworkResult {
    /// The pod's addresses, primary first.
    pub ips: Vec<std::net::IpAddr>,
}

/// The pod network of this node.
#[tonic::async_trait]
pub trait PodNetwork: Send + Sync + 'static {
    /// Connects a pod. Called once for a sandbox; an error makes RunPodSandbox fail after a teardown.
    async fn setup(&self, request: PodNetworkRequest) -> Result<PodNetworkResult, String>;

    /// Disconnects a pod and frees its addresses. Must succeed when there is nothing left to undo,
    /// because it is repeated until it succeeds.
    async fn teardown(&self, request: PodNetworkRequest) -> Result<(), String>;

    /// Releases the resources of all sandboxes except `_live`, the connected ones: a crash left them. Called once when
    /// the runtime starts, before the first `setup`.
    async fn reconcile(&self, _live: BTreeSet<String>) -> Result<(), String> {
        Ok(())
    }

    /// Takes the pod CIDRs of this node from the kubelet. A network that learns them elsewhere may ignore this.
    async fn pod_range(&self, _range: &str) -> Result<(), String> {
        Ok(())
    }

    /// Returns the reason why the frames of pods are not filtered; `None` if they are. Becomes a condition of the node.
    async fn unfiltered(&self) -> Option<String> {
        None
    }

    /// Returns the reason why pods cannot be connected now; `None` if they can. Becomes the NetworkReady condition.
    async fn not_ready(&self) -> Option<String> {
        None
    }
}

/// A network that gives pods only their loopback device.
#[derive(Debug, Default)]
pub struct LoopbackNetwork;

#[tonic::async_trait]
impl PodNetwork for LoopbackNetwork {
    async fn setup(&self, _: PodNetworkRequest) -> Result<PodNetworkResult, String> {
        Ok(PodNetworkResult::default())
    }

    async fn teardown(&self, _: PodNetworkRequest) -> Result<(), String> {
        Ok(())
    }
}
