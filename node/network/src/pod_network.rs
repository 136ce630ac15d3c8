//! Attaches pods to the node's network, and detaches them.
//!
//! Invariant: after a failed or interrupted setup, `teardown` of the same sandbox id leaves nothing behind; after a
//! crash, `gc` with the live sandboxes does the same for all others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use corten_meta::{Key, Labels};
use corten_nftables::IpFamily;
use tracing::{info, warn};

use crate::allocation::{Allocator, Lease, PortMapping};
use crate::bandwidth::Limits;
use crate::cidr::{Cidr, Hosts};
use crate::error::Error;
use crate::firewall::Firewall;
use crate::guard::{Guard, GuardedPort};
use crate::links::{Link, Links, Neighbour, Peer, mac_of};
use crate::namespace::enter_async;
use crate::policy::{Gate, LocalPod, Sandbox};
use crate::sysctl;

/// The name of the pod's end of its link, as in every container network.
const POD_LINK: &str = "eth0";

/// The settings of a node's pod network.
#[derive(Clone, Debug)]
pub struct Config {
    /// The bridge the pods are attached to. Default `corten0`.
    pub bridge: String,
    /// The node's pod CIDRs, one per IP family; the first host address of each is a gateway.
    pub pod_cidrs: Vec<Cidr>,
    /// The ranges that pods reach with their own address: the cluster's pod CIDRs. Packets that leave them are
    /// masqueraded.
    pub cluster_cidrs: Vec<Cidr>,
    /// The directory of leases; it need not survive a reboot, as the pods do not.
    pub state_dir: PathBuf,
    /// The MTU of pod links; by default that of the link with the default route, less the overhead.
    pub mtu: Option<u32>,
    /// The bytes of the MTU that the overlay between nodes takes.
    pub overhead: u32,
    /// The name of the nf_tables tables, one per IP family. Default `corten-network`.
    pub table: String,
    /// The gate where new pods wait until their network policies are in the kernel; without it none are enforced.
    pub policies: Option<Gate>,
}

impl Config {
    /// Returns the defaults for a node with these pod CIDRs.
    pub fn new(pod_cidrs: &[Cidr], cluster_cidrs: &[Cidr], state_dir: impl Into<PathBuf>) -> Config {
        Config {
            bridge: "corten0".to_owned(),
            pod_cidrs: pod_cidrs.to_vec(),
            cluster_cidrs: cluster_cidrs.to_vec(),
            state_dir: state_dir.into(),
            mtu: None,
            overhead: 0,
            table: "corten-network".to_owned(),
            policies: None,
        }
    }

    /// Returns the addresses of the bridge: the pods' gateways, where node services for pods listen.
    pub fn gateways(&self) -> Result<Vec<IpAddr>, Error> {
        Ok(Hosts::of(&self.pod_cidrs)?.gateways())
    }

    /// Returns the tables of the pods' IP families.
    fn firewalls(&self) -> Vec<Firewall> {
        self.pod_cidrs.iter().map(|pod_cidr| self.firewall(*pod_cidr)).collect()
    }

    fn firewall(&self, pod_cidr: Cidr) -> Firewall {
        let ip = IpFamily::of(pod_cidr.address());
        let mut inside: Vec<Cidr> =
            self.cluster_cidrs.iter().copied().filter(|cidr| ip.holds(cidr.address())).collect();
        if !inside.iter().any(|cidr| cidr.contains(pod_cidr.address())) {
            inside.push(pod_cidr);
        }
        Firewall { ip, table: ip.table(&self.table), bridge: self.bridge.clone(), pod_cidr, inside }
    }

    fn leases_dir(&self) -> PathBuf {
        self.state_dir.join("addresses")
    }
}

/// A request to attach a pod.
#[derive(Clone, Debug)]
pub struct SetupRequest {
    pub sandbox_id: String,
    /// The pinned network namespace of the sandbox.
    pub netns_path: PathBuf,
    pub pod_namespace: String,
    pub pod_name: String,
    pub pod_uid: String,
    /// The labels that the kubelet has of the pod.
    pub pod_labels: BTreeMap<String, String>,
    /// Whether the pod is a static pod: the API may never have an object of it.
    pub static_pod: bool,
    pub port_mappings: Vec<PortMapping>,
    pub limits: Limits,
}

/// An attached pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// The pod's addresses, one per IP family.
    pub ips: Vec<IpAddr>,
    pub gateways: Vec<IpAddr>,
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
    gateways: Vec<IpAddr>,
    mtu: u32,
    bridge: Link,
    links: Links,
    firewalls: Vec<Firewall>,
    /// The frame filter; `None` if the kernel does not support one.
    guard: Option<Guard>,
    /// The reason why there is no guard.
    unguarded: Option<String>,
    allocator: Allocator,
}

impl PodNetwork {
    /// Makes bridge, forwarding and firewall as configured, in the calling thread's network namespace. Pods of an
    /// earlier run keep their addresses, links and host ports.
    pub async fn start(config: Config) -> Result<PodNetwork, Error> {
        let hosts = Hosts::of(&config.pod_cidrs)?;
        let gateways = hosts.gateways();
        let allocator = Allocator::open(&config.leases_dir(), hosts)?;
        let links = Links::open()?;
        let mtu = match config.mtu {
            Some(mtu) => mtu,
            None => links.uplink_mtu().await?.saturating_sub(config.overhead),
        };
        let lengths = config.pod_cidrs.iter().map(Cidr::length);
        let addresses: Vec<(IpAddr, u8)> = gateways.iter().copied().zip(lengths).collect();
        let bridge = links.ensure_bridge(&config.bridge, &addresses, Some(mtu)).await?;
        set_node_sysctls(&config.bridge, &gateways)?;
        let firewalls = config.firewalls();
        for firewall in &firewalls {
            firewall.replace(&allocator.leases())?;
        }
        let started = start_guard(&config, &gateways, &allocator.leases());
        let unguarded = started.as_ref().err().map(ToString::to_string);
        let guard = started.ok().flatten();
        for lease in allocator.leases() {
            add_neighbours(&links, &bridge, &lease).await?;
        }
        if let Some(gate) = &config.policies {
            gate.adopt(allocator.leases().iter().map(sandbox).collect()).await;
        }
        info!(bridge = config.bridge, ?gateways, mtu, "pod network is up");
        let inner = Inner { config, gateways, mtu, bridge, links, firewalls, guard, unguarded, allocator };
        Ok(PodNetwork { inner: Arc::new(inner) })
    }

    /// Returns the pods' gateways, one per IP family.
    pub fn gateways(&self) -> &[IpAddr] {
        &self.inner.gateways
    }

    pub fn config(&self) -> &Config {
        &self.inner.config
    }

    /// Returns the reason why the frames of pods are not guarded; `None` if they are.
    pub fn unguarded(&self) -> Option<&str> {
        self.inner.unguarded.as_deref()
    }

    /// Attaches a pod: address, link, routes, host ports. Repeating it returns the same address.
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

    /// Waits for the policies, then attaches the pod: before them there is no link that a packet could take.
    async fn admit_and_attach(&self, request: &SetupRequest, lease: &Lease) -> Result<Attachment, Error> {
        if let Some(gate) = &self.inner.config.policies {
            gate.attach(sandbox(lease)).await?;
        }
        self.attach(request, lease).await
    }

    async fn attach(&self, request: &SetupRequest, lease: &Lease) -> Result<Attachment, Error> {
        let Inner { gateways, mtu, bridge, links, firewalls, guard, .. } = &*self.inner;
        let host_interface = host_interface(&request.sandbox_id);
        let namespace = open_namespace(&request.netns_path)?;

        links.delete(&host_interface).await?;
        let peer = Peer { name: POD_LINK, namespace: namespace.as_fd(), mac: mac_of(lease.address) };
        let port = links.add_veth(&host_interface, *mtu, peer).await?;
        if let Some(guard) = guard {
            guard.add(&guarded(lease))?;
        }
        add_neighbours(links, bridge, lease).await?;
        links.attach(&port, bridge).await?;
        let Limits { ingress, egress } = request.limits;
        if let Some(bits) = ingress {
            links.limit(port.index, bits).await?;
        }
        let addresses = lease.addresses();
        let pod_gateways = gateways.clone();
        enter_async(&request.netns_path, move || configure_pod(addresses, pod_gateways, egress)).await?;
        links.await_carrier(&host_interface, &bridge.name).await?;
        for firewall in firewalls {
            firewall.open_host_ports(lease)?;
        }
        Ok(Attachment {
            ips: lease.addresses(),
            gateways: gateways.clone(),
            interface: POD_LINK.to_owned(),
            host_interface,
            mtu: *mtu,
        })
    }

    /// Detaches a sandbox. Repeating it, or a sandbox that was never attached, is no error.
    pub async fn teardown(&self, sandbox_id: &str) -> Result<(), Error> {
        let Inner { links, bridge, firewalls, guard, allocator, .. } = &*self.inner;
        links.delete(&host_interface(sandbox_id)).await?;
        if let Some(gate) = &self.inner.config.policies {
            gate.detach(sandbox_id).await;
        }
        let Some(lease) = allocator.find(sandbox_id) else { return Ok(()) };
        if let Some(guard) = guard {
            guard.remove(&guarded(&lease))?;
        }
        for neighbour in neighbours(&lease) {
            links.delete_neighbour(bridge.index, &neighbour).await?;
        }
        for firewall in firewalls {
            firewall.close_host_ports(&lease)?;
        }
        self.blocking("releasing an address", move |inner| inner.allocator.release(lease.address)).await
    }

    /// Detaches every sandbox that is not live; returns how many. Also restores the firewall table if it was deleted,
    /// so calling it now and then keeps the network complete.
    pub async fn gc(&self, live: &BTreeSet<String>) -> Result<usize, Error> {
        for firewall in &self.inner.firewalls {
            firewall.restore(&self.inner.allocator.leases())?;
        }
        if let Some(guard) = &self.inner.guard
            && !guard.exists()?
        {
            guard.replace(&self.inner.allocator.leases().iter().map(guarded).collect::<Vec<_>>())?;
        }
        let orphans = self.inner.allocator.orphans(live);
        for orphan in &orphans {
            info!(sandbox = orphan.sandbox_id, address = %orphan.address, "collecting the address of a dead sandbox");
            self.teardown(&orphan.sandbox_id).await?;
        }
        Ok(orphans.len())
    }

    /// Returns the addresses of an attached sandbox.
    pub fn addresses(&self, sandbox_id: &str) -> Vec<IpAddr> {
        self.inner.allocator.find(sandbox_id).map(|lease| lease.addresses()).unwrap_or_default()
    }

    /// Reports whether a sandbox has its addresses and its link.
    pub async fn is_attached(&self, sandbox_id: &str) -> Result<bool, Error> {
        let leased = self.inner.allocator.find(sandbox_id).is_some();
        Ok(leased && self.inner.links.find(&host_interface(sandbox_id)).await?.is_some())
    }

    async fn allocate(&self, request: &SetupRequest) -> Result<Lease, Error> {
        let request = request.clone();
        let lease = Lease {
            address: IpAddr::from([0; 4]),
            second: None,
            sandbox_id: request.sandbox_id.clone(),
            namespace: request.pod_namespace.clone(),
            name: request.pod_name.clone(),
            uid: request.pod_uid.clone(),
            labels: request.pod_labels.clone(),
            static_pod: request.static_pod,
            port_mappings: request.port_mappings.clone(),
        };
        self.blocking("allocating an address", move |inner| inner.allocator.allocate(lease)).await
    }

    async fn blocking<T: Send + 'static>(
        &self,
        action: &'static str,
        work: impl FnOnce(&Inner) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let inner = self.inner.clone();
        tokio::task::spawn_blocking(move || work(&inner)).await.map_err(|_| Error::Cancelled(action))?
    }
}

/// Removes bridge, pod links, firewall table and leases of a removed node.
pub async fn cleanup(config: &Config) -> Result<(), Error> {
    let links = Links::open()?;
    if let Some(bridge) = links.find(&config.bridge).await? {
        for port in links.ports(&bridge).await? {
            links.delete(&port.name).await?;
        }
        links.delete(&config.bridge).await?;
    }
    for firewall in config.firewalls() {
        firewall.delete()?;
    }
    if let Err(error) = Guard::new(&config.table, [0; 6]).delete() {
        warn!("cannot delete the guard of the pods' frames: {error}");
    }
    match fs::remove_dir_all(config.leases_dir()) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::file("remove", config.leases_dir())(error))
        }
        _ => Ok(()),
    }
}

/// Sets forwarding for the node, and localhost host ports for the bridge.
///
/// `rp_filter` stays as the host has it: a pod's packets arrive by the link that leads to the pod, so that even the
/// strict mode passes them. Redirects are off because every packet between pods of the node leaves the bridge on which
/// it arrived, on purpose.
fn set_node_sysctls(bridge: &str, gateways: &[IpAddr]) -> Result<(), Error> {
    if gateways.iter().any(IpAddr::is_ipv6) {
        sysctl::forward_ipv6()?;
    }
    if gateways.iter().any(IpAddr::is_ipv4) {
        sysctl::set("net/ipv4/ip_forward", "1")?;
    }
    sysctl::set(&format!("net/ipv4/conf/{bridge}/send_redirects"), "0")?;
    sysctl::set(&format!("net/ipv4/conf/{bridge}/route_localnet"), "1")
}

/// Configures the pod's link; runs inside its network namespace.
async fn configure_pod(addresses: Vec<IpAddr>, gateways: Vec<IpAddr>, egress: Option<u64>) -> Result<(), Error> {
    for interface in ["all", POD_LINK] {
        sysctl::set(&format!("net/ipv4/conf/{interface}/accept_redirects"), "0")?;
    }
    if addresses.iter().any(IpAddr::is_ipv6) {
        // Only this node configures a pod's routes: no router of another pod does.
        for name in ["accept_ra", "accept_redirects"] {
            sysctl::set(&format!("net/ipv6/conf/{POD_LINK}/{name}"), "0")?;
        }
        sysctl::trust_addresses(POD_LINK)?;
    }
    let links = Links::open()?;
    links.set_up("lo").await?;
    let link = links.set_up(POD_LINK).await?;
    if let Some(bits) = egress {
        links.limit(link.index, bits).await?;
    }
    for address in addresses {
        links.add_address(link.index, address, IpFamily::of(address).bits()).await?;
    }
    for gateway in gateways {
        links.add_link_route(gateway, link.index).await?;
        links.add_default_route(gateway, link.index).await?;
    }
    Ok(())
}

/// Guards the pods of an earlier run and new ones. An unsupported guard is a condition of the node: its pods that may
/// write raw frames can reach each other past policies.
fn start_guard(config: &Config, gateways: &[IpAddr], leases: &[Lease]) -> Result<Option<Guard>, Error> {
    let Some(gateway) = gateways.first() else { return Ok(None) };
    let guard = Guard::new(&config.table, mac_of(*gateway));
    let ports: Vec<GuardedPort> = leases.iter().map(guarded).collect();
    guard.replace(&ports)?;
    Ok(Some(guard))
}

fn guarded(lease: &Lease) -> GuardedPort {
    GuardedPort { name: host_interface(&lease.sandbox_id), mac: mac_of(lease.address), addresses: lease.addresses() }
}

/// Returns the hardware address of each address of a pod. The node never solicits it, so that no pod can claim another
/// pod's address.
fn neighbours(lease: &Lease) -> impl Iterator<Item = Neighbour> {
    let mac = mac_of(lease.address);
    lease.addresses().into_iter().map(move |address| Neighbour { address, mac })
}

async fn add_neighbours(links: &Links, bridge: &Link, lease: &Lease) -> Result<(), Error> {
    for neighbour in neighbours(lease) {
        links.add_neighbour(bridge.index, &neighbour).await?;
    }
    Ok(())
}

/// Returns the sandbox of a lease, for enforcement.
fn sandbox(lease: &Lease) -> Sandbox {
    let pod = LocalPod {
        key: Key::new(lease.namespace.clone(), lease.name.clone()),
        uid: lease.uid.clone(),
        labels: Labels::new(lease.labels.clone()),
        static_pod: lease.static_pod,
        addresses: lease.addresses(),
    };
    Sandbox { id: lease.sandbox_id.clone(), pod }
}

fn open_namespace(path: &Path) -> Result<File, Error> {
    File::open(path).map_err(|source| Error::Namespace { path: path.to_owned(), source })
}

/// Returns a link name of at most fifteen bytes that follows from the sandbox id.
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
        let one = host_interface("a");
        let other = host_interface("b");
        assert_eq!(one.len(), 15);
        assert_ne!(one, other);
        assert_eq!(one, host_interface("a"));
    }

    #[test]
    fn the_nodes_own_range_is_always_inside() {
        let range = |cidr: &str| cidr.parse::<Cidr>().unwrap();
        let cluster = [range("10.244.0.0/16"), range("fd00::/48")];
        let inside = |own: &str| Config::new(&[range(own)], &cluster, "/nowhere").firewalls().remove(0).inside;
        assert_eq!(inside("10.244.1.0/24"), [range("10.244.0.0/16")]);
        assert_eq!(inside("10.1.1.0/24"), [range("10.244.0.0/16"), range("10.1.1.0/24")]);
        assert_eq!(inside("fd00:0:0:1::/64"), [range("fd00::/48")]);
    }
}
