//! The pod network, plugged into the container runtime.
//!
//! The network needs the node's pod range, which the control plane assigns after the node has registered. Until then
//! the runtime says that the network is not ready, and pods wait.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::OnceLock;

use anyhow::{Context, Result};
use corten_api::k8s_openapi::api::core::v1::Node;
use corten_client::Caches;
use corten_meta::Key;
use corten_network::policy::{self, Gate};
use corten_network::routes::Backend;
use corten_network::{Cidr, PodNetwork, PortMapping, Protocol, SetupRequest};
use corten_runtime::{PodNetworkRequest, PodNetworkResult};
use tokio::sync::Mutex;

use crate::config;

/// Where a node notes its bridge and its pod range.
const NETWORK_FILE: &str = "pod-network";

/// The gateway of a node's pod range: its first address, where the node itself answers.
pub fn gateway(range: &str) -> Option<IpAddr> {
    let (network, _) = range.split_once('/')?;
    let network: Ipv4Addr = network.parse().ok()?;
    Some(IpAddr::V4(Ipv4Addr::from(u32::from(network).checked_add(1)?)))
}

/// The runtime's pod network: nothing until the range is known, then corten's own.
#[derive(Default)]
pub struct Plugged {
    network: OnceLock<PodNetwork>,
    /// The sandboxes that the runtime found at its start, until the network has been told. Held while either of
    /// them starts, so that whoever is second does the telling.
    live: Mutex<Option<BTreeSet<String>>>,
    /// The node of a runtime that runs alone, which learns its range from the kubelet.
    alone: Option<config::Node>,
}

impl Plugged {
    /// The network of a runtime that runs alone.
    pub fn alone(node: config::Node) -> Plugged {
        Plugged { alone: Some(node), ..Plugged::default() }
    }

    /// Makes the network of this range stand, and opens it for pods, which wait for their policies at the gate.
    pub async fn start(&self, node: &config::Node, range: &str, policies: Option<Gate>) -> Result<()> {
        let mut live = self.live.lock().await;
        if self.network.get().is_some() {
            return Ok(());
        }
        // Written first: whatever is made below can then be found and taken down, also after a crash.
        std::fs::write(node.place.data.join(NETWORK_FILE), format!("{} {range}\n", node.bridge))?;
        let config = corten_network::Config { policies, ..network_config(node, range)? };
        let network = PodNetwork::start(config).await.context("the pod network cannot start")?;
        // Before the first pod is connected, or its address would count as left behind.
        if let Some(live) = live.take() {
            network.gc(&live).await.context("addresses of dead sandboxes cannot be collected")?;
        }
        let _ = self.network.set(network);
        Ok(())
    }

    fn get(&self) -> Result<&PodNetwork, String> {
        self.network.get().ok_or_else(|| "the node has no pod range yet".to_owned())
    }
}

/// The settings of the pod network of a node with this range.
pub fn network_config(node: &config::Node, range: &str) -> Result<corten_network::Config> {
    let pods: Cidr = range.parse().context("the node's pod range")?;
    let cluster: Cidr = node.cluster_cidr.parse().context("the cluster's pod range")?;
    let mut config = corten_network::Config::new(pods, cluster, node.place.data.join("network"));
    config.bridge.clone_from(&node.bridge);
    config.overhead = Backend::from(node.network_backend).overhead();
    Ok(config)
}

/// Takes the pod network of a node down. What it is named is read from where the node wrote it when it came up.
pub async fn cleanup(place: &config::Place) -> Result<()> {
    let Ok(text) = std::fs::read_to_string(place.data.join(NETWORK_FILE)) else { return Ok(()) };
    let (bridge, range) = text.trim().split_once(' ').with_context(|| format!("{NETWORK_FILE} is damaged"))?;
    let range: Cidr = range.parse().with_context(|| format!("{NETWORK_FILE} is damaged"))?;
    let mut config = corten_network::Config::new(range, range, place.data.join("network"));
    config.bridge = bridge.to_owned();
    policy::cleanup(&policy::Config::new(Vec::new()))?;
    Ok(corten_network::cleanup(&config).await?)
}

/// Waits until the control plane has given the node its pod range.
pub async fn pod_range(caches: &Caches, node: &str) -> String {
    let nodes = caches.of::<Node>();
    nodes.synced().await;
    let mut changes = nodes.subscribe();
    let key = Key { namespace: String::new(), name: node.to_owned() };
    loop {
        let range = nodes.get(&key).and_then(|node| Some(node.value().pointer("/spec/podCIDR")?.as_str()?.to_owned()));
        match range {
            Some(range) => return range,
            None => {
                changes.next().await;
            }
        }
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
            port_mappings: request.port_mappings.iter().map(mapping).collect::<Result<_, _>>()?,
        };
        let attachment = self.get()?.setup(wanted).await.map_err(|error| error.to_string())?;
        Ok(PodNetworkResult { ips: attachment.ips })
    }

    async fn teardown(&self, request: PodNetworkRequest) -> Result<(), String> {
        self.get()?.teardown(&request.sandbox_id).await.map_err(|error| error.to_string())
    }

    async fn reconcile(&self, live: BTreeSet<String>) -> Result<(), String> {
        let mut waiting = self.live.lock().await;
        match self.network.get() {
            Some(network) => network.gc(&live).await.map(drop).map_err(|error| error.to_string()),
            None => {
                *waiting = Some(live);
                Ok(())
            }
        }
    }

    async fn pod_range(&self, range: &str) -> Result<(), String> {
        match &self.alone {
            Some(node) => self.start(node, range, None).await.map_err(|error| format!("{error:#}")),
            None => Ok(()),
        }
    }

    async fn not_ready(&self) -> Option<String> {
        self.get().err()
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
        "" | "0.0.0.0" => None,
        text => Some(text.parse().map_err(|_| format!("host port on {text:?}, which is not an IPv4 address"))?),
    };
    Ok(PortMapping { protocol, host_ip, host_port: mapping.host_port, container_port: mapping.container_port })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gateway_is_the_first_address() {
        assert_eq!(gateway("10.244.3.0/24").unwrap().to_string(), "10.244.3.1");
        assert_eq!(gateway("nonsense"), None);
    }
}
