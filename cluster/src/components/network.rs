//! The pod network of the container runtime.
//!
//! The network needs the node's pod CIDR, which the control plane assigns after the node has registered. Until then the
//! runtime reports that the network is not ready, and pods wait.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use arc_swap::ArcSwapOption;
use corten_api::k8s_openapi::api::core::v1::Node;
use corten_client::Caches;
use corten_meta::{Key, Value};
use corten_network::cni::{self, Chain};
use corten_network::policy::{self, Gate};
use corten_network::{Cidr, Limits, PodNetwork, PortMapping, Protocol, SetupRequest};
use corten_runtime::{PodNetworkRequest, PodNetworkResult};
use tokio::sync::Mutex;

use crate::config;
use crate::directories::Directories;

/// The annotation with which the kubelet names the source of a pod.
const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
/// The file with the node's bridge and its pod CIDR.
const NETWORK_FILE: &str = "pod-network";
/// The directory of the results of CNI plugins.
const PLUGINS: &str = "cni";

/// Parses one CIDR, or one per IP family.
pub fn cidrs(text: &str) -> Result<Vec<Cidr>> {
    text.split(',').map(|range| Ok(range.trim().parse()?)).collect()
}

/// Returns the gateways of a node's pod CIDRs: the first address of each, where the node itself answers.
pub fn gateways(ranges: &str) -> Vec<IpAddr> {
    cidrs(ranges).unwrap_or_default().iter().filter_map(|range| range.nth(1)).collect()
}

/// The implementation of the pod network.
enum Network {
    Own(PodNetwork),
    Plugins(Chain),
}

/// The runtime's pod network: none until the CIDR is known, then corten's own or that of CNI plugins.
#[derive(Default)]
pub struct Plugged {
    network: ArcSwapOption<Network>,
    /// The sandboxes that the runtime found at its start, until the network knows them. It is locked while either of
    /// them starts, so that the second one passes them on.
    live: Mutex<Option<BTreeSet<String>>>,
    /// The node of a runtime that runs alone and gets its CIDR from the kubelet.
    alone: Option<config::Node>,
}

impl Plugged {
    /// Returns the network of a runtime that runs alone.
    pub fn alone(node: config::Node) -> Plugged {
        Plugged { alone: Some(node), ..Plugged::default() }
    }

    /// Sets up the network of this CIDR and opens it for pods, which wait at the gate for their policies.
    pub async fn start(&self, node: &config::Node, range: &str, policies: Option<Gate>) -> Result<()> {
        let mut live = self.live.lock().await;
        if self.network.load().is_some() {
            return Ok(());
        }
        // The file is written first, so that everything below can be found and removed, also after a crash.
        let file = node.directories.data.join(NETWORK_FILE);
        corten_durable::write(&file, format!("{} {range}\n", node.bridge).as_bytes(), 0o644)?;
        let config = corten_network::Config { policies, ..network_config(node, range)? };
        let network = PodNetwork::start(config).await.context("the pod network cannot start")?;
        // This happens before the first pod is connected, or its address would count as left behind.
        if let Some(live) = live.take() {
            network.gc(&live).await.context("addresses of dead sandboxes cannot be collected")?;
        }
        self.network.store(Some(Arc::new(Network::Own(network))));
        Ok(())
    }

    /// Leaves pods to the CNI plugins of this machine.
    pub async fn start_plugins(&self, node: &config::Node) -> Result<()> {
        let mut live = self.live.lock().await;
        let chain = Chain::new(cni::Config::new(node.directories.data.join(PLUGINS)))?;
        if let Some(live) = live.take() {
            chain.gc(&live).await.context("networks of dead sandboxes cannot be collected")?;
        }
        self.network.store(Some(Arc::new(Network::Plugins(chain))));
        Ok(())
    }

    /// Sets up the network of this CIDR, in place of one that this machine had in another cluster.
    async fn move_to(&self, node: &config::Node, range: &str) -> Result<()> {
        if known_range(node).is_some_and(|known| known != range) {
            self.network.store(None);
            cleanup(&node.directories).await.context("the network of the range before cannot be taken down")?;
        }
        self.start(node, range, None).await
    }

    fn get(&self) -> Result<Arc<Network>, String> {
        self.network.load_full().ok_or_else(|| "the node has no pod range yet".to_owned())
    }
}

/// Returns the CIDR that this node's network had last. A kubelet sends its CIDR once, and not again when the runtime
/// restarts.
pub fn known_range(node: &config::Node) -> Option<String> {
    let text = std::fs::read_to_string(node.directories.data.join(NETWORK_FILE)).ok()?;
    let (bridge, range) = text.trim().split_once(' ')?;
    (bridge == node.bridge).then(|| range.to_owned())
}

/// Returns the settings of the pod network of a node with this CIDR.
pub fn network_config(node: &config::Node, range: &str) -> Result<corten_network::Config> {
    let pods = cidrs(range).context("the node's pod range")?;
    let cluster = cidrs(&node.cluster_cidr).context("the cluster's pod range")?;
    let mut config = corten_network::Config::new(&pods, &cluster, node.directories.data.join("network"));
    config.bridge.clone_from(&node.bridge);
    config.overhead = node.network_backend.own().map_or(0, |backend| backend.overhead());
    Ok(config)
}

/// Removes the pod network of a node. Its names come from the file that the node wrote at its start.
pub async fn cleanup(directories: &Directories) -> Result<()> {
    let plugins = directories.data.join(PLUGINS);
    if plugins.exists() {
        // There are no pods any more, so the plugins' records of them are removed too.
        Chain::new(cni::Config::new(plugins))?.gc(&BTreeSet::new()).await?;
    }
    let Ok(text) = std::fs::read_to_string(directories.data.join(NETWORK_FILE)) else { return Ok(()) };
    let (bridge, range) = text.trim().split_once(' ').with_context(|| format!("{NETWORK_FILE} is damaged"))?;
    let ranges = cidrs(range).with_context(|| format!("{NETWORK_FILE} is damaged"))?;
    let mut config = corten_network::Config::new(&ranges, &ranges, directories.data.join("network"));
    config.bridge = bridge.to_owned();
    policy::cleanup(&policy::Config::new(Vec::new()))?;
    Ok(corten_network::cleanup(&config).await?)
}

/// Waits until the control plane has assigned the node's pod CIDR, or one per IP family separated by a comma. A CIDR
/// outside of `within` is ignored: a bridge with it would receive the packets of other networks.
pub async fn pod_range(caches: &Caches, node: &str, within: &[Cidr]) -> String {
    let nodes = caches.of::<Node>();
    nodes.synced().await;
    let mut changes = nodes.subscribe();
    let key = Key { namespace: String::new(), name: node.to_owned() };
    let mut refused = None;
    loop {
        let assigned = nodes.get(&key).and_then(|node| assigned_ranges(&node.value()));
        match assigned {
            Some(range) if is_within(&range, within) => return range,
            Some(range) if refused.as_ref() != Some(&range) => {
                tracing::warn!(range, "the node's pod range is not within --cluster-cidr; waiting for another");
                refused = Some(range);
            }
            _ => {}
        }
        changes.next().await;
    }
}

/// Reports whether every CIDR of a string is within one of these.
fn is_within(ranges: &str, within: &[Cidr]) -> bool {
    let part = |range: &Cidr| within.iter().any(|all| all.length() <= range.length() && all.contains(range.address()));
    cidrs(ranges).is_ok_and(|ranges| ranges.iter().all(part))
}

/// Returns the pod CIDRs of a node, separated by a comma.
pub fn assigned_ranges(node: &Value) -> Option<String> {
    let all = node.pointer("/spec/podCIDRs").and_then(Value::as_array).into_iter().flatten();
    let all: Vec<&str> = all.filter_map(Value::as_str).collect();
    match all.is_empty() {
        false => Some(all.join(",")),
        true => node.pointer("/spec/podCIDR").and_then(Value::as_str).map(str::to_owned),
    }
}

#[tonic::async_trait]
impl corten_runtime::PodNetwork for Plugged {
    async fn setup(&self, request: PodNetworkRequest) -> Result<PodNetworkResult, String> {
        let wanted = SetupRequest {
            sandbox_id: request.sandbox_id,
            netns_path: request.netns_path,
            pod_namespace: request.namespace,
            pod_name: request.name,
            pod_uid: request.uid,
            static_pod: request.annotations.get(CONFIG_SOURCE).is_some_and(|source| source != "api"),
            pod_labels: request.labels,
            port_mappings: request.port_mappings.iter().map(mapping).collect::<Result<_, _>>()?,
            limits: Limits::of(&request.annotations).map_err(|error| error.to_string())?,
        };
        let attachment = match &*self.get()? {
            Network::Own(network) => network.setup(wanted).await,
            Network::Plugins(chain) => chain.setup(wanted).await,
        };
        let attachment = attachment.map_err(|error| error.to_string())?;
        Ok(PodNetworkResult { ips: attachment.ips })
    }

    async fn teardown(&self, request: PodNetworkRequest) -> Result<(), String> {
        let done = match &*self.get()? {
            Network::Own(network) => network.teardown(&request.sandbox_id).await,
            Network::Plugins(chain) => chain.teardown(&request.sandbox_id).await,
        };
        done.map_err(|error| error.to_string())
    }

    async fn reconcile(&self, live: BTreeSet<String>) -> Result<(), String> {
        let mut waiting = self.live.lock().await;
        match self.network.load_full().as_deref() {
            Some(Network::Own(network)) => network.gc(&live).await.map(drop).map_err(|error| error.to_string()),
            Some(Network::Plugins(chain)) => chain.gc(&live).await.map(drop).map_err(|error| error.to_string()),
            None => {
                *waiting = Some(live);
                Ok(())
            }
        }
    }

    async fn pod_range(&self, range: &str) -> Result<(), String> {
        match &self.alone {
            Some(node) => self.move_to(node, range).await.map_err(|error| format!("{error:#}")),
            None => Ok(()),
        }
    }

    async fn unfiltered(&self) -> Option<String> {
        match &*self.get().ok()? {
            Network::Own(network) => network.unguarded().map(str::to_owned),
            Network::Plugins(_) => None,
        }
    }

    async fn not_ready(&self) -> Option<String> {
        match self.get() {
            Ok(network) => match &*network {
                Network::Own(_) => None,
                Network::Plugins(chain) => chain.not_ready().await,
            },
            Err(reason) => Some(reason),
        }
    }
}

fn mapping(mapping: &corten_runtime::PortMapping) -> Result<PortMapping, String> {
    let protocol = match mapping.protocol.as_str() {
        "TCP" => Protocol::Tcp,
        "UDP" => Protocol::Udp,
        "SCTP" => Protocol::Sctp,
        other => return Err(format!("host ports of protocol {other:?} are not known")),
    };
    let host_ip = match mapping.host_ip.as_str() {
        "" | "0.0.0.0" | "::" => None,
        text => Some(text.parse().map_err(|_| format!("host port on {text:?}, which is not an address"))?),
    };
    Ok(PortMapping { protocol, host_ip, host_port: mapping.host_port, container_port: mapping.container_port })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_alone_finds_its_pod_cidr_again() {
        use clap::Parser;
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().to_str().unwrap();
        let words = ["corten", "runtime", "--data-dir", data];
        let crate::cli::Command::Runtime(flags) = crate::cli::Cli::parse_from(words).command else { panic!() };
        let mut node = config::Node::of_runtime(Directories::of(&flags.directories), &flags).unwrap();
        assert_eq!(known_range(&node), None);
        std::fs::write(folder.path().join(NETWORK_FILE), "corten0 10.244.3.0/24,fd00::/64\n").unwrap();
        assert_eq!(known_range(&node).as_deref(), Some("10.244.3.0/24,fd00::/64"));
        node.bridge = "other0".into();
        assert_eq!(known_range(&node), None, "of another bridge");
    }

    #[test]
    fn a_pod_cidr_outside_of_the_cluster_cidr_is_ignored() {
        let within = cidrs("10.244.0.0/16,fd00:10:244::/56").unwrap();
        for good in ["10.244.3.0/24", "10.244.3.0/24,fd00:10:244:3::/64"] {
            assert!(is_within(good, &within), "{good}");
        }
        for bad in ["10.0.0.0/8", "192.0.2.0/24", "10.244.3.0/24,2001:db8::/64", "0.0.0.0/0", "nonsense", ""] {
            assert!(!is_within(bad, &within), "{bad}");
        }
    }

    #[test]
    fn the_gateway_is_the_first_address() {
        let shown = |ranges: &str| gateways(ranges).iter().map(IpAddr::to_string).collect::<Vec<_>>();
        assert_eq!(shown("10.244.3.0/24"), ["10.244.3.1"]);
        assert_eq!(shown("10.244.3.0/24,fd00:10:244:3::/64"), ["10.244.3.1", "fd00:10:244:3::1"]);
        assert_eq!(shown("nonsense"), [] as [String; 0]);
    }
}
