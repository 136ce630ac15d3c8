//! Network namespaces that act as further nodes of this machine.
//!
//! A node in a namespace has its own links, routes and firewall, and is attached by a veth to a
//! bridge of the host, which is its gateway. `corten up --nodes 3` and tests that cut cables are
//! made of these. The namespace is pinned by a bind mount, as `ip netns` does, so that it outlives
//! the process that made it; [`delete`] and [`cleanup`] take everything away again.

use std::fs::{self, File};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use corten_nftables::{
    Batch, Chain, ChainType, DataType, Element, Family, Field, Hook, InterfaceName, Rule, Set, Socket, Table, priority,
};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

use crate::cidr::Cidr;
use crate::error::Error;
use crate::links::{Links, Peer, mac_of};
use crate::namespace::enter_async;
use crate::sysctl;

/// The name of a node's uplink inside its namespace.
const UPLINK: &str = "eth0";

/// Nodes in namespaces of this machine.
#[derive(Clone, Debug)]
pub struct Config {
    /// The host bridge they are attached to. Default `corten-nodes`.
    pub bridge: String,
    /// Their addresses; the first host address is the host's. Default 10.89.0.0/24.
    pub subnet: Cidr,
    /// Ranges they reach with their own address: the cluster's pod CIDR. What leaves these and the
    /// subnet is masqueraded by the host.
    pub cluster_cidrs: Vec<Cidr>,
    /// Where the namespaces are pinned: files below `netns` of this directory.
    pub run_dir: PathBuf,
}

impl Config {
    pub fn new(run_dir: impl Into<PathBuf>, cluster_cidr: Cidr) -> Config {
        Config {
            bridge: "corten-nodes".to_owned(),
            subnet: Cidr::new(Ipv4Addr::new(10, 89, 0, 0).into(), 24).expect("24 is a prefix length"),
            cluster_cidrs: vec![cluster_cidr],
            run_dir: run_dir.into(),
        }
    }

    /// The host's address among the nodes: their gateway.
    pub fn gateway(&self) -> Result<Ipv4Addr, Error> {
        Ok(self.subnet.hosts()?.gateway)
    }

    /// The address of the n-th node in a namespace, from zero.
    pub fn address(&self, index: usize) -> Result<Ipv4Addr, Error> {
        self.subnet.hosts()?.after(None).nth(index).ok_or(Error::AddressesExhausted(self.subnet))
    }

    fn pin(&self, name: &str) -> PathBuf {
        self.run_dir.join("netns").join(name)
    }

    fn table(&self) -> Table {
        Table::new(Family::Ipv4, &self.bridge)
    }
}

/// A node's namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeNamespace {
    pub name: String,
    /// Its pin; [`crate::enter`] takes it.
    pub path: PathBuf,
    pub address: Ipv4Addr,
}

/// Makes the host's side, then the namespace, then the link between them. A namespace of the name
/// that is whole is kept: its pods may be running.
pub async fn create(config: &Config, name: &str, address: Ipv4Addr) -> Result<NodeNamespace, Error> {
    let links = Links::open()?;
    let gateway = config.gateway()?;
    let bridge = links.ensure_bridge(&config.bridge, gateway, config.subnet.length(), None).await?;
    sysctl::set("net/ipv4/ip_forward", "1")?;
    // Node ports of the machine serve localhost also where the endpoint is on a node in a namespace.
    sysctl::set(&format!("net/ipv4/conf/{}/route_localnet", config.bridge), "1")?;
    replace_table(config)?;

    let path = config.pin(name);
    let (link, length) = (host_link(address), config.subnet.length());
    let configure = move || configure_node(address, length, gateway);
    let stands = links.find(&link).await?.is_some() && enter_async(&path, configure).await.is_ok();
    if !stands {
        delete(config, name, address).await?;
        pin_new_namespace(&path)?;
        let namespace = File::open(&path).map_err(Error::file("open", &path))?;
        let mtu = links.uplink_mtu().await?;
        let peer = Peer { name: UPLINK, namespace: namespace.as_fd(), mac: mac_of(address) };
        let port = links.add_veth(&link, mtu, peer).await?;
        links.attach(&port, &bridge).await?;
        enter_async(&path, configure).await?;
    }
    links.await_carrier(&link, &bridge.name).await?;
    Ok(NodeNamespace { name: name.to_owned(), path, address })
}

/// Deletes a namespace with its link. One that is not there is no error. Processes that still run
/// in it keep it alive, without its uplink, until they end.
pub async fn delete(config: &Config, name: &str, address: Ipv4Addr) -> Result<(), Error> {
    Links::open()?.delete(&host_link(address)).await?;
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
    batch.destroy_table(&config.table());
    Ok(Socket::open()?.apply(batch)?)
}

/// The host's end of a node's link, named after its address: `cn-` and eight hexadecimal digits.
fn host_link(address: Ipv4Addr) -> String {
    format!("cn-{:08x}", address.to_bits())
}

/// What nodes send beyond the cluster leaves with the host's address; nothing they send may claim
/// to be for the host's 127.0.0.0/8.
fn replace_table(config: &Config) -> Result<(), Error> {
    let table = config.table();
    let inside = Set::new("inside", &[DataType::Ipv4Addr]).intervals();
    let ranges: Vec<Element> = std::iter::once(&config.subnet)
        .chain(&config.cluster_cidrs)
        .map(|cidr| Element::prefix(cidr.address(), cidr.length()))
        .collect();
    let mut batch = Batch::new();
    batch.replace_table(&table);
    batch.add_set(&table, &inside);
    batch.add_elements(&table, &inside, &ranges);
    batch.add_chain(&table, &Chain::base("postrouting", ChainType::Nat, Hook::Postrouting, priority::SRCNAT));
    let out = Rule::new()
        .in_prefix(Field::IpSaddr, config.subnet.address(), config.subnet.length())
        .not_in_set(&[Field::IpDaddr], inside.name())
        .masquerade();
    batch.add_rule(&table, "postrouting", &out);
    batch.add_chain(&table, &Chain::base("guard", ChainType::Filter, Hook::Prerouting, priority::RAW));
    let bridge = InterfaceName(config.bridge.clone());
    let loopback = Ipv4Addr::new(127, 0, 0, 0).into();
    let guard = Rule::new().eq(Field::Iifname, bridge).in_prefix(Field::IpDaddr, loopback, 8).drop();
    batch.add_rule(&table, "guard", &guard);
    Ok(Socket::open()?.apply(batch)?)
}

/// Runs inside the node's namespace.
async fn configure_node(address: Ipv4Addr, length: u8, gateway: Ipv4Addr) -> Result<(), Error> {
    sysctl::set("net/ipv4/ip_forward", "1")?;
    let links = Links::open()?;
    links.set_up("lo").await?;
    let uplink = links.set_up(UPLINK).await?;
    links.add_address(uplink.index, address, length).await?;
    links.add_default_route(gateway, uplink.index).await
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

/// Takes the pin away; one that is not there is no error.
pub fn unpin(path: &Path) -> Result<(), Error> {
    // A path that is no mount point answers EINVAL, a missing one ENOENT; both only need the removal.
    let _ = umount2(path, MntFlags::MNT_DETACH);
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::file("remove", path)(error)),
        _ => Ok(()),
    }
}
