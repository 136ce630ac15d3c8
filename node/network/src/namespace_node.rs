//! Network namespaces that act as further nodes of this machine.
//!
//! A node in a namespace has its own links, routes and firewall, and is attached by a veth to a bridge of the host,
//! which is its gateway. `corten up --nodes 3` and tests of broken links use these. The namespace is pinned by a bind
//! mount, as `ip netns` does, so that it outlives the process that made it; [`delete`] and [`cleanup`] remove
//! everything again.

use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use corten_nftables::{
    Batch, Chain, ChainType, Element, Field, Hook, InterfaceName, IpFamily, Rule, Set, Socket, priority,
};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

use crate::cidr::{Cidr, Hosts};
use crate::error::Error;
use crate::links::{Link, Links, Peer, mac_of};
use crate::namespace::enter_async;
use crate::sysctl;

/// The name of a node's uplink inside its namespace.
const UPLINK: &str = "eth0";

/// The settings of the nodes in namespaces of this machine.
#[derive(Clone, Debug)]
pub struct Config {
    /// The host bridge they are attached to. Default `corten-nodes`.
    pub bridge: String,
    /// The nodes' subnets, one per IP family of the cluster, in its order; the first host address of each is the
    /// host's. Default 10.89.0.0/24 and fd89::/64.
    pub subnets: Vec<Cidr>,
    /// The ranges that nodes reach with their own address: the cluster's pod CIDRs. The host masquerades packets that
    /// leave these and the subnets.
    pub cluster_cidrs: Vec<Cidr>,
    /// Further addresses by which nodes find the host on the bridge: its IPv6 addresses on other links, because a
    /// kernel answers for them only on their own link.
    pub host_addresses: Vec<IpAddr>,
    /// The directory of pins: the namespaces are files below its `netns`.
    pub run_dir: PathBuf,
}

impl Config {
    pub fn new(run_dir: impl Into<PathBuf>, cluster_cidrs: &[Cidr]) -> Config {
        let subnet = |cluster: &Cidr| {
            let range = match IpFamily::of(cluster.address()) {
                IpFamily::V4 => Cidr::new(IpAddr::from([10, 89, 0, 0]), 24),
                IpFamily::V6 => Cidr::new(IpAddr::from([0xfd89, 0, 0, 0, 0, 0, 0, 0]), 64),
            };
            range.expect("these are prefix lengths")
        };
        Config {
            bridge: "corten-nodes".to_owned(),
            subnets: cluster_cidrs.iter().map(subnet).collect(),
            cluster_cidrs: cluster_cidrs.to_vec(),
            host_addresses: Vec::new(),
            run_dir: run_dir.into(),
        }
    }

    /// Returns the host's addresses among the nodes: their gateways.
    pub fn gateways(&self) -> Result<Vec<IpAddr>, Error> {
        Ok(Hosts::of(&self.subnets)?.gateways())
    }

    /// Returns the addresses of the n-th node in a namespace, from zero.
    pub fn addresses(&self, index: usize) -> Result<Vec<IpAddr>, Error> {
        let hosts = Hosts::of(&self.subnets)?;
        let number = hosts.after(None).nth(index);
        number.map(|number| hosts.addresses(number)).ok_or_else(|| Error::AddressesExhausted(hosts.to_string()))
    }

    /// Returns the addresses, each with the prefix length of its subnet.
    fn with_lengths(&self, addresses: &[IpAddr]) -> Vec<(IpAddr, u8)> {
        addresses.iter().copied().zip(self.subnets.iter().map(Cidr::length)).collect()
    }

    fn pin(&self, name: &str) -> PathBuf {
        self.run_dir.join("netns").join(name)
    }
}

/// A node's namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeNamespace {
    pub name: String,
    /// The path of its pin; [`crate::enter`] takes it.
    pub path: PathBuf,
    /// Its addresses, one per IP family.
    pub addresses: Vec<IpAddr>,
}

/// Makes the host's side: the bridge with the host's addresses, and masquerading.
pub async fn ensure_host(config: &Config) -> Result<(), Error> {
    host_side(config, &Links::open()?).await.map(drop)
}

async fn host_side(config: &Config, links: &Links) -> Result<Link, Error> {
    let gateways = config.gateways()?;
    let mut own = config.with_lengths(&gateways);
    own.extend(config.host_addresses.iter().filter(|address| address.is_ipv6()).map(|address| (*address, 128)));
    let bridge = links.ensure_bridge(&config.bridge, &own, None).await?;
    forward(&gateways)?;
    // Node ports of the machine serve localhost also where the endpoint is on a node in a namespace.
    sysctl::set(&format!("net/ipv4/conf/{}/route_localnet", config.bridge), "1")?;
    replace_table(config)?;
    Ok(bridge)
}

/// Makes the host's side, then the namespace, then the link between them. Keeps a complete namespace of the name: its
/// pods may be running.
pub async fn create(config: &Config, name: &str, addresses: &[IpAddr]) -> Result<NodeNamespace, Error> {
    let links = Links::open()?;
    let bridge = host_side(config, &links).await?;
    let gateways = config.gateways()?;
    let path = config.pin(name);
    let link = host_link(addresses);
    let own = config.with_lengths(addresses);
    let configure = move || configure_node(own.clone(), gateways.clone());
    let is_complete = links.find(&link).await?.is_some() && enter_async(&path, configure.clone()).await.is_ok();
    if !is_complete {
        delete(config, name, addresses).await?;
        pin_new_namespace(&path)?;
        let namespace = File::open(&path).map_err(Error::file("open", &path))?;
        let mtu = links.uplink_mtu().await?;
        let peer = Peer { name: UPLINK, namespace: namespace.as_fd(), mac: mac_of(first(addresses)) };
        let port = links.add_veth(&link, mtu, peer).await?;
        links.attach(&port, &bridge).await?;
        enter_async(&path, configure).await?;
    }
    links.await_carrier(&link, &bridge.name).await?;
    Ok(NodeNamespace { name: name.to_owned(), path, addresses: addresses.to_vec() })
}

/// Deletes a namespace with its link. A missing one is no error. Processes that still run in it keep it alive, without
/// its uplink, until they exit.
pub async fn delete(config: &Config, name: &str, addresses: &[IpAddr]) -> Result<(), Error> {
    Links::open()?.delete(&host_link(addresses)).await?;
    unpin(&config.pin(name))
}

/// Deletes every namespace below the run directory, the bridge with its links, and the table.
pub async fn cleanup(config: &Config) -> Result<(), Error> {
    let directory = config.run_dir.join("netns");
    if let Ok(entries) = fs::read_dir(&directory) {
        for entry in entries.flatten() {
            unpin(&entry.path())?;
        }
    }
    let links = Links::open()?;
    if let Some(bridge) = links.find(&config.bridge).await? {
        for port in links.ports(&bridge).await? {
            links.delete(&port.name).await?;
        }
        links.delete(&config.bridge).await?;
    }
    let mut batch = Batch::new();
    for ip in IpFamily::ALL {
        batch.destroy_table(&ip.table(&config.bridge));
    }
    Ok(Socket::open()?.apply(batch)?)
}

fn first(addresses: &[IpAddr]) -> IpAddr {
    addresses.first().copied().unwrap_or(IpFamily::V4.unspecified())
}

/// Returns the name of the host's end of a node's link: `cn-` and eight hexadecimal digits of its address.
fn host_link(addresses: &[IpAddr]) -> String {
    let [_, _, a, b, c, d] = mac_of(first(addresses));
    format!("cn-{:08x}", u32::from_be_bytes([a, b, c, d]))
}

fn forward(addresses: &[IpAddr]) -> Result<(), Error> {
    if addresses.iter().any(IpAddr::is_ipv6) {
        sysctl::forward_ipv6()?;
    }
    if addresses.iter().any(IpAddr::is_ipv4) {
        sysctl::set("net/ipv4/ip_forward", "1")?;
    }
    Ok(())
}

/// Replaces the table: packets of nodes that leave the cluster are masqueraded; no packet of a node may be for the
/// host's loopback.
fn replace_table(config: &Config) -> Result<(), Error> {
    let mut batch = Batch::new();
    for subnet in &config.subnets {
        put_table(config, subnet, &mut batch);
    }
    Ok(Socket::open()?.apply(batch)?)
}

fn put_table(config: &Config, subnet: &Cidr, batch: &mut Batch) {
    let ip = IpFamily::of(subnet.address());
    let table = ip.table(&config.bridge);
    let inside = Set::new("inside", &[ip.address()]).intervals();
    let ranges: Vec<Element> = std::iter::once(subnet)
        .chain(config.cluster_cidrs.iter().filter(|cidr| ip.holds(cidr.address())))
        .map(|cidr| Element::prefix(cidr.address(), cidr.length()))
        .collect();
    batch.replace_table(&table);
    batch.add_set(&table, &inside);
    batch.add_elements(&table, &inside, &ranges);
    batch.add_chain(&table, &Chain::base("postrouting", ChainType::Nat, Hook::Postrouting, priority::SRCNAT));
    let out = Rule::new()
        .in_prefix(ip.source(), subnet.address(), subnet.length())
        .not_in_set(&[ip.destination()], inside.name())
        .masquerade();
    batch.add_rule(&table, "postrouting", &out);
    batch.add_chain(&table, &Chain::base("guard", ChainType::Filter, Hook::Prerouting, priority::RAW));
    let bridge = InterfaceName(config.bridge.clone());
    let (loopback, length) = ip.loopback();
    let guard = Rule::new().eq(Field::Iifname, bridge).in_prefix(ip.destination(), loopback, length).drop();
    batch.add_rule(&table, "guard", &guard);
}

/// Configures the node; runs inside its namespace.
async fn configure_node(addresses: Vec<(IpAddr, u8)>, gateways: Vec<IpAddr>) -> Result<(), Error> {
    forward(&gateways)?;
    let links = Links::open()?;
    links.set_up("lo").await?;
    sysctl::trust_addresses(UPLINK)?;
    let uplink = links.set_up(UPLINK).await?;
    for (address, length) in addresses {
        links.add_address(uplink.index, address, length).await?;
    }
    for gateway in gateways {
        links.add_default_route(gateway, uplink.index).await?;
    }
    Ok(())
}

/// Makes a network namespace and bind-mounts it onto a file, which keeps it alive.
pub fn pin_new_namespace(path: &Path) -> Result<(), Error> {
    let at = |source: io::Error| Error::Namespace { path: path.to_owned(), source };
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).map_err(Error::file("create", directory))?;
    }
    File::create(path).map_err(Error::file("create", path))?;
    let pin = || -> io::Result<()> {
        unshare(CloneFlags::CLONE_NEWNET)?;
        mount(Some("/proc/thread-self/ns/net"), path, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
        Ok(())
    };
    let joined = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("netns".to_owned()).spawn_scoped(scope, pin)?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    joined.map_err(at)
}

/// Removes the pin; a missing one is no error.
pub fn unpin(path: &Path) -> Result<(), Error> {
    // A path that is no mount point returns EINVAL, a missing one ENOENT; both only need the removal.
    let _ = umount2(path, MntFlags::MNT_DETACH);
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::file("remove", path)(error)),
        _ => Ok(()),
    }
}
