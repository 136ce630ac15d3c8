//! Attaching pods to the node's network, and detaching them.
//!
//! Invariant: after a failed or interrupted setup, `teardown` of the same sandbox id leaves nothing
//! behind; after a crash, `gc` with the sandboxes that live does the same for all others.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use corten_meta::Key;
use corten_nftables::{Family, Table};
use tracing::{info, warn};

use crate::allocation::{Allocator, Lease, PortMapping};
use crate::cidr::Cidr;
use crate::error::Error;
use crate::firewall::Firewall;
use crate::links::{Link, Links, Peer, mac_of};
use crate::namespace::enter_async;
use crate::policy::{Gate, LocalPod};
use crate::sysctl;

/// The name of the pod's end of its link, as every container network calls it.
const POD_LINK: &str = "eth0";

/// The pod network of a node.
#[derive(Clone, Debug)]
pub struct Config {
    /// The bridge the pods are attached to. Default `corten0`.
    pub bridge: String,
    /// The node's pod CIDR; its first host address is the gateway.
    pub pod_cidr: Cidr,
    /// Ranges that pods reach with their own address: the cluster's pod CIDR. What leaves them is
    /// masqueraded.
    pub cluster_cidrs: Vec<Cidr>,
    /// Where the leases of addresses are kept; must survive a reboot no more than the pods do.
    pub state_dir: PathBuf,
    /// The MTU of pod links; by default that of the link with the default route, less the overhead.
    pub mtu: Option<u32>,
    /// The bytes that the way between nodes takes from the MTU.
    pub overhead: u32,
    /// The nf_tables table. Default `corten-network`.
    pub table: String,
    /// Where new pods wait until their network policies hold; without it none are enforced.
    pub policies: Option<Gate>,
}

impl Config {
    /// The defaults for a node with this pod CIDR.
    pub fn new(pod_cidr: Cidr, cluster_cidr: Cidr, state_dir: impl Into<PathBuf>) -> Config {
        Config {
            bridge: "corten0".to_owned(),
            pod_cidr,
            cluster_cidrs: vec![cluster_cidr],
            state_dir: state_dir.into(),
            mtu: None,
            overhead: 0,
            table: "corten-network".to_owned(),
            policies: None,
        }
    }

    /// The address of the bridge: the pods' gateway, where node services for pods listen.
    pub fn gateway(&self) -> Result<Ipv4Addr, Error> {
        Ok(self.pod_cidr.hosts()?.gateway)
    }

    fn firewall(&self) -> Firewall {
        let mut inside = self.cluster_cidrs.clone();
        if !inside.iter().any(|cidr| cidr.contains(self.pod_cidr.address())) {
            inside.push(self.pod_cidr);
        }
        Firewall {
            table: Table::new(Family::Ipv4, &self.table),
            bridge: self.bridge.clone(),
            pod_cidr: self.pod_cidr,
            inside,
        }
    }

    fn leases_dir(&self) -> PathBuf {
        self.state_dir.join("addresses")
    }
}

/// A pod that wants a network.
#[derive(Clone, Debug)]
pub struct SetupRequest {
    pub sandbox_id: String,
    /// The pinned network namespace of the sandbox.
    pub netns_path: PathBuf,
    pub pod_namespace: String,
    pub pod_name: String,
    pub pod_uid: String,
    pub port_mappings: Vec<PortMapping>,
}

/// A pod on the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// The pod's addresses, one a family.
    pub ips: Vec<IpAddr>,
    pub gateway: IpAddr,
    /// The link's name in the pod.
    pub interface: String,
    /// The link's name on the node.
    pub host_interface: String,
    pub mtu: u32,
}

/// The pod network of one node. Cheap to clone.
#[derive(Clone)]
pub struct PodNetwork {
    inner: Arc<Inner>,
}

struct Inner {
    config: Config,
    gateway: Ipv4Addr,
    mtu: u32,
    bridge: Link,
    links: Links,
    firewall: Firewall,
    allocator: Allocator,
}

impl PodNetwork {
    /// Makes bridge, forwarding and firewall stand as configured, in the calling thread's network
    /// namespace. Pods of an earlier run keep their addresses, links and host ports.
    pub async fn start(config: Config) -> Result<PodNetwork, Error> {
        let gateway = config.gateway()?;
        let allocator = Allocator::open(&config.leases_dir(), config.pod_cidr)?;
        let links = Links::open()?;
        let mtu = match config.mtu {
            Some(mtu) => mtu,
            None => links.uplink_mtu().await?.saturating_sub(config.overhead),
        };
        let bridge = links.ensure_bridge(&config.bridge, gateway, config.pod_cidr.length(), Some(mtu)).await?;
        set_node_sysctls(&config.bridge)?;
        let firewall = config.firewall();
        firewall.replace(&allocator.leases())?;
        if let Some(gate) = &config.policies {
            for lease in allocator.leases() {
                gate.adopt(&lease.sandbox_id, local_pod(&lease, "")).await;
            }
        }
        info!(bridge = config.bridge, %gateway, cidr = %config.pod_cidr, mtu, "pod network is up");
        let inner = Inner { config, gateway, mtu, bridge, links, firewall, allocator };
        Ok(PodNetwork { inner: Arc::new(inner) })
    }

    /// The pods' gateway.
    pub fn gateway(&self) -> Ipv4Addr {
        self.inner.gateway
    }

    pub fn config(&self) -> &Config {
        &self.inner.config
    }

    /// Attaches a pod: address, link, routes, host ports. Repeating it gives the same address.
    pub async fn setup(&self, request: SetupRequest) -> Result<Attachment, Error> {
        let lease = self.allocate(&request).await?;
        match self.admit_and_attach(&request, &lease).await {
            Ok(attachment) => Ok(attachment),
            Err(error) => {
                if let Err(left) = self.teardown(&request.sandbox_id).await {
                    warn!(sandbox = request.sandbox_id, "cannot undo a failed setup: {left}");
                }
                Err(error)
            }
        }
    }

    /// Policies come first: without them there is no link that a packet could take.
    async fn admit_and_attach(&self, request: &SetupRequest, lease: &Lease) -> Result<Attachment, Error> {
        if let Some(gate) = &self.inner.config.policies {
            gate.attach(&request.sandbox_id, local_pod(lease, &request.pod_uid)).await?;
        }
        self.attach(request, lease).await
    }

    async fn attach(&self, request: &SetupRequest, lease: &Lease) -> Result<Attachment, Error> {
        let Inner { gateway, mtu, bridge, links, firewall, .. } = &*self.inner;
        let host_interface = host_interface(&request.sandbox_id);
        let namespace = open_namespace(&request.netns_path)?;

        links.delete(&host_interface).await?;
        let peer = Peer { name: POD_LINK, namespace: namespace.as_fd(), mac: mac_of(lease.address) };
        let port = links.add_veth(&host_interface, *mtu, peer).await?;
        links.attach(&port, bridge).await?;
        let (address, gateway) = (lease.address, *gateway);
        enter_async(&request.netns_path, move || configure_pod(address, gateway)).await?;
        links.await_carrier(&host_interface, &bridge.name).await?;
        if !lease.port_mappings.is_empty() {
            firewall.open_host_ports(lease)?;
        }
        Ok(Attachment {
            ips: vec![lease.address.into()],
            gateway: gateway.into(),
            interface: POD_LINK.to_owned(),
            host_interface,
            mtu: *mtu,
        })
    }

    /// Detaches a sandbox. Doing it twice, or for one that was never attached, is no error.
    pub async fn teardown(&self, sandbox_id: &str) -> Result<(), Error> {
        let Inner { links, firewall, allocator, .. } = &*self.inner;
        links.delete(&host_interface(sandbox_id)).await?;
        if let Some(gate) = &self.inner.config.policies {
            gate.detach(sandbox_id).await;
        }
        let Some(lease) = allocator.find(sandbox_id) else { return Ok(()) };
        if !lease.port_mappings.is_empty() {
            firewall.close_host_ports(lease.address)?;
        }
        self.blocking("releasing an address", move |inner| inner.allocator.release(lease.address)).await
    }

    /// Detaches every sandbox that is not live; says how many. Also puts the firewall table back if
    /// it was deleted, so calling it now and then keeps the network whole.
    pub async fn gc(&self, live: &BTreeSet<String>) -> Result<usize, Error> {
        self.inner.firewall.restore(&self.inner.allocator.leases())?;
        let orphans = self.inner.allocator.orphans(live);
        for orphan in &orphans {
            info!(sandbox = orphan.sandbox_id, address = %orphan.address, "collecting the address of a dead sandbox");
            self.teardown(&orphan.sandbox_id).await?;
        }
        Ok(orphans.len())
    }

    /// The addresses of a sandbox that is attached.
    pub fn addresses(&self, sandbox_id: &str) -> Vec<IpAddr> {
        self.inner.allocator.find(sandbox_id).map(|lease| lease.address.into()).into_iter().collect()
    }

    async fn allocate(&self, request: &SetupRequest) -> Result<Lease, Error> {
        let request = request.clone();
        let lease = move |address| Lease {
            address,
            sandbox_id: request.sandbox_id.clone(),
            namespace: request.pod_namespace.clone(),
            name: request.pod_name.clone(),
            port_mappings: request.port_mappings.clone(),
        };
        self.blocking("allocating an address", move |inner| inner.allocator.allocate(lease)).await
    }

    async fn blocking<T: Send + 'static>(
        &self,
        what: &'static str,
        work: impl FnOnce(&Inner) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let inner = self.inner.clone();
        tokio::task::spawn_blocking(move || work(&inner)).await.map_err(|_| Error::Cancelled(what))?
    }
}

/// Removes bridge, pod links, firewall table and leases of a node that is to be no more.
pub async fn cleanup(config: &Config) -> Result<(), Error> {
    let links = Links::open()?;
    if let Some(bridge) = links.find(&config.bridge).await? {
        for port in links.ports(&bridge).await? {
            links.delete(&port.name).await?;
        }
        links.delete(&config.bridge).await?;
    }
    config.firewall().delete()?;
    match fs::remove_dir_all(config.leases_dir()) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::file("remove", config.leases_dir())(error))
        }
        _ => Ok(()),
    }
}

/// Forwarding for the node; localhost host ports for the bridge.
///
/// `rp_filter` stays as the host has it: a pod's packets arrive by the link that leads to the pod,
/// so that even the strict mode passes them. Redirects are off because every packet between pods
/// of the node turns round at the bridge, which is on purpose.
fn set_node_sysctls(bridge: &str) -> Result<(), Error> {
    sysctl::set("net/ipv4/ip_forward", "1")?;
    sysctl::set(&format!("net/ipv4/conf/{bridge}/send_redirects"), "0")?;
    sysctl::set(&format!("net/ipv4/conf/{bridge}/route_localnet"), "1")
}

/// Runs inside the pod's network namespace.
async fn configure_pod(address: Ipv4Addr, gateway: Ipv4Addr) -> Result<(), Error> {
    for interface in ["all", POD_LINK] {
        sysctl::set(&format!("net/ipv4/conf/{interface}/accept_redirects"), "0")?;
    }
    let links = Links::open()?;
    links.set_up("lo").await?;
    let link = links.set_up(POD_LINK).await?;
    links.add_address(link.index, address, 32).await?;
    links.add_link_route(gateway, link.index).await?;
    links.add_default_route(gateway, link.index).await
}

fn local_pod(lease: &Lease, uid: &str) -> LocalPod {
    let key = Key::new(lease.namespace.clone(), lease.name.clone());
    LocalPod { key, uid: uid.to_owned(), addresses: vec![lease.address.into()] }
}

fn open_namespace(path: &Path) -> Result<File, Error> {
    File::open(path).map_err(|source| Error::Namespace { path: path.to_owned(), source })
}

/// A link name of at most fifteen bytes that follows from the sandbox id.
fn host_interface(sandbox_id: &str) -> String {
    const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const FNV_PRIME: u64 = 0x100_0000_01b3;
    let hash = sandbox_id.bytes().fold(FNV_OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME));
    format!("veth{:011x}", hash & 0xfff_ffff_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_interfaces_fit_and_differ() {
        let (one, other) = (host_interface("a"), host_interface("b"));
        assert_eq!(one.len(), 15);
        assert_ne!(one, other);
        assert_eq!(one, host_interface("a"));
    }

    #[test]
    fn the_own_range_is_always_inside() {
        let range = |text: &str| text.parse::<Cidr>().unwrap();
        let config = Config::new(range("10.244.1.0/24"), range("10.244.0.0/16"), "/nowhere");
        assert_eq!(config.firewall().inside, [range("10.244.0.0/16")]);
        let config = Config::new(range("10.1.1.0/24"), range("10.244.0.0/16"), "/nowhere");
        assert_eq!(config.firewall().inside, [range("10.244.0.0/16"), range("10.1.1.0/24")]);
    }
}
