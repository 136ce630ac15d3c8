//! A cluster's configuration: parsed from the flags once, validated once, then plain values for every component.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use corten_controllers::{AddressRange, LoadBalancerAddresses};
use tokio::sync::watch;

use crate::access_options::AccessOptions;
use crate::backup_cli::BackupOptions;
use crate::cli;
use crate::cloud_options::{Cloud, is_provider};
use crate::control_plane_endpoint::Endpoint;
use crate::directories::{Directories, absolute};
use crate::edge_options::EdgeOptions;
use crate::kubelet_options::KubeletOptions;
use crate::network_options::NetworkOptions;
use crate::settings::Settings;
use crate::storage_options::StorageOptions;
use crate::store_options::StoreOptions;

/// The time in which the balancers of all nodes check every server.
const SEVERAL_SERVERS_DELAY: Duration = Duration::from_secs(5);

/// The configuration of one node.
#[derive(Clone, Debug)]
pub struct Node {
    pub name: String,
    /// The primary address of the node.
    pub address: IpAddr,
    /// Its addresses, one per IP family, the primary one first.
    pub addresses: Vec<IpAddr>,
    /// The addresses of `--node-ip`.
    pub provided_addresses: Vec<IpAddr>,
    pub directories: Directories,
    /// The image store, which nodes of one machine share.
    pub images: PathBuf,
    pub kubelet_port: u16,
    pub bridge: String,
    pub network_backend: cli::NetworkBackend,
    pub proxy_mode: corten_proxy::Mode,
    /// Address ranges of load balancers that the nodes announce.
    pub load_balancer_pool: Vec<String>,
    /// Domains that cluster DNS forwards to other servers, in the form of the flag.
    pub dns_stub_domains: Vec<String>,
    /// One CIDR, or one per IP family, separated by a comma; the first one's family is the primary one.
    pub cluster_cidr: String,
    pub service_cidr: String,
    pub cluster_domain: String,
    /// The addresses of the Service kube-dns, one per Service CIDR.
    pub cluster_dns: Vec<IpAddr>,
    /// The addresses of the API servers on other machines, as far as they are known by address; they change.
    pub api_servers: watch::Receiver<Vec<IpAddr>>,
    pub network: NetworkOptions,
    pub edge: EdgeOptions,
    pub storage: StorageOptions,
    pub kubelet: KubeletOptions,
}

/// The configuration of the cluster.
#[derive(Clone, Debug)]
pub struct Cluster {
    pub node: Node,
    pub nodes: u8,
    /// The number of servers on this machine; those beyond the first are the next of the nodes.
    pub servers: u8,
    /// The value of the flag, for the further nodes of this machine.
    pub proxy_mode: cli::ProxyMode,
    pub bind: SocketAddr,
    /// The first address of the Service CIDR: the API server's own Service.
    pub kubernetes_service: IpAddr,
    pub extra_names: Vec<String>,
    pub control_plane_endpoint: Option<Endpoint>,
    /// The scheduler's configuration; none if another scheduler schedules the pods.
    pub scheduler: Option<corten_scheduler::Config>,
    /// The source of the addresses of Services of type LoadBalancer.
    pub load_balancer: Option<LoadBalancerAddresses>,
    /// The cloud whose controllers this process runs.
    pub cloud: Option<Cloud>,
    pub store: StoreOptions,
    pub access: AccessOptions,
    pub audit: cli::Audit,
    pub backup: BackupOptions,
    /// The lifetime of the certificates that the cluster signs.
    pub leaf_lifetime: Duration,
    /// Whether the cluster may have other servers, so that controllers stand for election.
    pub several_servers: bool,
}

impl Cluster {
    pub fn from_flags(flags: &cli::Server) -> Result<Cluster> {
        disjoint(&flags.cluster_cidr, &flags.service_cidr)?;
        // A cluster that was created with three nodes and stopped starts with three again.
        let directories = Directories::of(&flags.directories);
        let servers = flags.servers.unwrap_or_else(|| 1 + directories.further_servers().len() as u8);
        let nodes = flags.nodes.unwrap_or_else(|| 1 + directories.further_nodes().len() as u8).max(servers);
        let addresses = node_addresses(&flags.node_ip, &flags.cluster_cidr, Some(nodes))?;
        let endpoint = flags.membership.control_plane_endpoint.as_deref();
        let endpoint = endpoint.map(|endpoint| Endpoint::parse(endpoint, flags.port)).transpose()?;
        let usual = if nodes > 1 { cli::NetworkBackend::HostGw } else { cli::NetworkBackend::Vxlan };
        let node = Node {
            name: node_name(flags.node_name.as_deref())?,
            address: addresses[0],
            addresses,
            provided_addresses: flags.node_ip.clone(),
            images: flags.image_dir.as_deref().map_or_else(|| directories.images(), absolute),
            directories,
            kubelet_port: flags.kubelet_port,
            bridge: flags.bridge.clone(),
            network_backend: network_backend(flags.network_backend.unwrap_or(usual))?,
            proxy_mode: proxy_mode(flags.proxy_mode)?,
            load_balancer_pool: flags.load_balancer_pool.clone(),
            dns_stub_domains: stub_flags(&flags.dns_stub_domain)?,
            cluster_cidr: pod_range(&flags.cluster_cidr)?,
            service_cidr: flags.service_cidr.clone(),
            cluster_domain: domain(&flags.cluster_domain)?,
            cluster_dns: in_ranges(&flags.service_cidr, 10)?,
            api_servers: watch::channel(Vec::new()).1,
            network: flags.network.clone(),
            edge: flags.edge.clone(),
            storage: flags.storage.clone(),
            kubelet: flags.kubelet.clone(),
        };
        Ok(Cluster {
            node,
            nodes,
            servers,
            proxy_mode: flags.proxy_mode,
            bind: SocketAddr::new(every_address(flags.bind_address, &flags.cluster_cidr), flags.port),
            kubernetes_service: in_ranges(&flags.service_cidr, 1)?[0],
            extra_names: flags.tls_san.iter().cloned().chain(endpoint.as_ref().map(Endpoint::name)).collect(),
            control_plane_endpoint: endpoint,
            scheduler: elected_scheduler(flags)?,
            load_balancer: load_balancer(flags)?,
            cloud: cloud(flags),
            store: flags.store.clone(),
            access: flags.access.clone(),
            audit: flags.audit.clone(),
            backup: flags.backup.clone(),
            leaf_lifetime: flags.certificates.cluster_signing_duration,
            several_servers: !flags.store.etcd_servers.is_empty(),
        })
    }

    /// Returns the settings that nodes which join must agree on.
    pub fn settings(&self) -> Settings {
        Settings {
            cluster_cidr: self.node.cluster_cidr.clone(),
            service_cidr: self.node.service_cidr.clone(),
            cluster_domain: self.node.cluster_domain.clone(),
            network_backend: self.node.network_backend,
            load_balancer_pool: self.node.load_balancer_pool.clone(),
            dns_stub_domains: self.node.dns_stub_domains.clone(),
            network_policy_host_egress: self.node.network.network_policy_host_egress,
            control_plane_endpoint: self.control_plane_endpoint.as_ref().map(Endpoint::to_string).unwrap_or_default(),
        }
    }

    /// Returns the time for which the API server still serves after it announced its shutdown: with others, until the
    /// balancers of all nodes have noticed.
    pub fn shutdown_delay(&self) -> Duration {
        let usual = if self.several_servers { SEVERAL_SERVERS_DELAY } else { Duration::ZERO };
        self.store.shutdown_delay_duration.unwrap_or(usual)
    }

    /// Returns the URL of the API server for a process on this machine.
    pub fn local_url(&self) -> String {
        let host = if self.bind.ip().is_unspecified() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { self.bind.ip() };
        format!("https://{}", SocketAddr::new(host, self.bind.port()))
    }

    /// Returns the URL of this API server for a process on another node.
    pub fn advertised_url(&self) -> String {
        format!("https://{}", SocketAddr::new(self.node.address, self.bind.port()))
    }
}

impl Node {
    pub fn from_flags(flags: &cli::Agent, settings: &Settings) -> Result<Node> {
        let or = |flag: &Option<String>, otherwise: &String| flag.clone().unwrap_or_else(|| otherwise.clone());
        let service_cidr = or(&flags.service_cidr, &settings.service_cidr);
        let cluster_cidr = pod_range(&or(&flags.cluster_cidr, &settings.cluster_cidr))?;
        let addresses = node_addresses(&flags.node_ip, &cluster_cidr, None)?;
        Ok(Node {
            name: node_name(flags.node_name.as_deref())?,
            address: addresses[0],
            addresses,
            provided_addresses: flags.node_ip.clone(),
            directories: Directories::of(&flags.directories),
            images: flags.image_dir.as_deref().map_or_else(|| Directories::of(&flags.directories).images(), absolute),
            kubelet_port: flags.kubelet_port,
            bridge: flags.bridge.clone(),
            kubelet: flags.kubelet.clone(),
            api_servers: watch::channel(Vec::new()).1,
            edge: flags.edge.clone(),
            storage: flags.storage.clone(),
            network: NetworkOptions {
                network_policy_host_egress: flags.network.network_policy_host_egress
                    || settings.network_policy_host_egress,
            },
            network_backend: network_backend(flags.network_backend.unwrap_or(settings.network_backend))?,
            proxy_mode: proxy_mode(flags.proxy_mode)?,
            load_balancer_pool: flags.load_balancer_pool.clone().unwrap_or_else(|| settings.load_balancer_pool.clone()),
            dns_stub_domains: match flags.dns_stub_domain.as_slice() {
                [] => settings.dns_stub_domains.clone(),
                given => stub_flags(given)?,
            },
            cluster_cidr,
            cluster_domain: domain(&or(&flags.cluster_domain, &settings.cluster_domain))?,
            cluster_dns: in_ranges(&service_cidr, 10)?,
            service_cidr,
        })
    }
}

impl Node {
    /// Returns the part of a node's configuration that its runtime and pod network use.
    pub fn of_runtime(directories: Directories, flags: &cli::Runtime) -> Result<Node> {
        Ok(Node {
            name: node_name(None)?,
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            addresses: Vec::new(),
            provided_addresses: Vec::new(),
            images: directories.images(),
            directories,
            kubelet_port: 0,
            bridge: flags.bridge.clone(),
            network_backend: cli::NetworkBackend::HostGw,
            proxy_mode: corten_proxy::Mode::Nftables,
            load_balancer_pool: Vec::new(),
            dns_stub_domains: Vec::new(),
            cluster_cidr: pod_range(&flags.cluster_cidr)?,
            service_cidr: String::new(),
            cluster_domain: String::new(),
            cluster_dns: Vec::new(),
            api_servers: watch::channel(Vec::new()).1,
            network: NetworkOptions::default(),
            edge: EdgeOptions::default(),
            storage: StorageOptions::default(),
            kubelet: KubeletOptions {
                registry_config: flags.registry_config.clone(),
                runtime_handlers: flags.runtime_handlers.clone(),
                ..KubeletOptions::default()
            },
        })
    }
}

/// Returns the configuration of a scheduler with leader election, so that another scheduler, for example upstream's,
/// may take over and give the Lease back. Its identity is the same after a restart, so that it need not wait for its
/// own Lease.
fn elected_scheduler(flags: &cli::Server) -> Result<Option<corten_scheduler::Config>> {
    let mut config = scheduler(flags.scheduler_config.as_deref())?;
    config.identity = format!("{}_corten", node_name(flags.node_name.as_deref())?);
    if flags.scheduler_config.is_none() {
        config.leader_election = Some(corten_scheduler::Election::default());
    }
    Ok(Some(config).filter(|_| !flags.disable_scheduler))
}

/// Returns the scheduler's configuration: that of the file, else the default.
pub fn scheduler(path: Option<&Path>) -> Result<corten_scheduler::Config> {
    let Some(path) = path else { return Ok(corten_scheduler::Config::default()) };
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut document = corten_meta::decode_yaml(text.as_bytes()).with_context(|| path.display().to_string())?;
    inline_extender_files(&mut document)?;
    corten_scheduler::Config::from_document(document).with_context(|| path.display().to_string())
}

/// Reads the certificates for extenders into the document: components themselves read no files.
fn inline_extender_files(document: &mut corten_meta::Value) -> Result<()> {
    use base64::Engine as _;
    let extenders = document.get_mut("extenders").and_then(corten_meta::Value::as_array_mut);
    for extender in extenders.into_iter().flatten() {
        let Some(tls) = extender.get_mut("tlsConfig").and_then(|tls| tls.as_object_mut()) else { continue };
        for (file, data) in [("certFile", "certData"), ("keyFile", "keyData"), ("caFile", "caData")] {
            let Some(path) = tls.remove(file).and_then(|path| path.as_str().map(str::to_owned)) else { continue };
            let bytes = std::fs::read(&path).with_context(|| format!("cannot read {path}"))?;
            tls.insert(data.to_owned(), base64::engine::general_purpose::STANDARD.encode(bytes).into());
        }
    }
    Ok(())
}

/// The SSH port: a Service that takes it from a node would lock its administrator out.
const SSH_PORT: u16 = 22;

/// Returns the flags, if all of them are valid.
fn stub_flags(flags: &[String]) -> Result<Vec<String>> {
    stub_domains(flags)?;
    Ok(flags.to_vec())
}

/// Returns the stub domains with their resolvers; a domain may occur more than once.
pub fn stub_domains(flags: &[String]) -> Result<Vec<(String, Vec<SocketAddr>)>> {
    let mut domains: Vec<(String, Vec<SocketAddr>)> = Vec::new();
    for flag in flags {
        let parse = || {
            let (name, address) = flag.split_once('=')?;
            let address = address.parse().or_else(|_| address.parse().map(|ip| SocketAddr::new(ip, 53))).ok()?;
            Some((name.to_owned(), address))
        };
        let (name, address) = parse().with_context(|| format!("--dns-stub-domain {flag:?}: domain=address"))?;
        let name = domain(&name)?;
        match domains.iter_mut().find(|(known, _)| *known == name) {
            Some((_, addresses)) => addresses.push(address),
            None => domains.push((name, vec![address])),
        }
    }
    Ok(domains)
}

/// Returns the ranges of a pool, both ends included.
pub fn pool(texts: &[String]) -> Result<Vec<AddressRange>> {
    let range = |text: &String| {
        AddressRange::parse(text).with_context(|| format!("--load-balancer-pool {text:?}: an address, or first-last"))
    };
    texts.iter().map(range).collect()
}

fn load_balancer(flags: &cli::Server) -> Result<Option<LoadBalancerAddresses>> {
    if !flags.load_balancer_pool.is_empty() {
        return Ok(Some(LoadBalancerAddresses::Pool(pool(&flags.load_balancer_pool)?)));
    }
    Ok(match flags.load_balancer {
        // A Service has one load balancer: the cloud's.
        cli::LoadBalancer::Nodes if cloud(flags).is_some() => None,
        cli::LoadBalancer::Nodes => {
            let kept_ports = [SSH_PORT, flags.port, flags.kubelet_port].into();
            Some(LoadBalancerAddresses::Nodes { kept_ports })
        }
        cli::LoadBalancer::Off => None,
    })
}

/// Returns the cloud whose controllers a server runs; none if they run elsewhere.
fn cloud(flags: &cli::Server) -> Option<Cloud> {
    let provider = flags.kubelet.cloud_provider.clone().filter(|name| is_provider(name))?;
    Some(Cloud { provider, options: flags.cloud.clone() })
}

/// Returns the node's name: the flag, else the host name, as a DNS subdomain.
pub fn node_name(flag: Option<&str>) -> Result<String> {
    let name = match flag {
        Some(name) => name.to_owned(),
        None => nix::unistd::gethostname().context("cannot read the host name")?.to_string_lossy().to_lowercase(),
    };
    let problems = corten_meta::names::dns1123_subdomain(&name);
    ensure!(
        problems.is_empty(),
        "the node name {name:?} cannot be used: {}; choose one by --node-name",
        problems.join("; ")
    );
    Ok(name)
}

/// Returns this machine's addresses for other machines: those of the flag, else one per IP family that both the cluster
/// and this machine have. A machine that runs a complete cluster and has none of them uses that of the bridge of the
/// nodes in its namespaces, which [`crate::components::further_nodes::ensure_address`] creates.
fn node_addresses(flag: &[IpAddr], cluster_cidr: &str, nodes: Option<u8>) -> Result<Vec<IpAddr>> {
    if !flag.is_empty() {
        let versions = flag.iter().filter(|address| address.is_ipv4()).count();
        ensure!(flag.len() == 1 || (flag.len() == 2 && versions == 1), "--node-ip: one address per IP family");
        return Ok(flag.to_vec());
    }
    let ranges = ranges(cluster_cidr)?;
    let cidrs: Vec<_> = ranges.iter().filter_map(|(range, bits)| corten_network::Cidr::new(*range, *bits)).collect();
    let among_nodes = corten_network::namespace_node::Config::new("", &cidrs).gateways()?;
    let known = |ipv4: bool| {
        let here = || among_nodes.iter().copied().find(|address| address.is_ipv4() == ipv4);
        let here = || nodes.filter(|nodes| *nodes > 1).and_then(|_| here());
        machine_address(ipv4).or_else(here)
    };
    let found: Vec<IpAddr> = ranges.iter().filter_map(|(range, _)| known(range.is_ipv4())).collect();
    match (found.is_empty(), nodes) {
        (false, _) => Ok(found),
        (true, Some(_)) => Ok(among_nodes),
        (true, None) => {
            bail!("this machine has no address of the cluster's IP families ({cluster_cidr}); set one by --node-ip")
        }
    }
}

/// Returns this machine's address for other machines in an IP family.
pub fn machine_address(ipv4: bool) -> Option<IpAddr> {
    routed_address(ipv4).or_else(|| linked_address(ipv4, addresses_of_links()))
}

/// Returns the source address of the default route. Connecting a datagram socket sends nothing; the kernel only
/// consults the routing table.
fn routed_address(ipv4: bool) -> Option<IpAddr> {
    let (own, other) = if ipv4 { ("0.0.0.0:0", "192.0.2.254:9") } else { ("[::]:0", "[2001:db8::fe]:9") };
    let socket = std::net::UdpSocket::bind(own).ok()?;
    socket.connect(other).ok()?;
    socket.local_addr().ok().map(|local| local.ip()).filter(|address| !address.is_unspecified())
}

/// Returns the links of this machine that are up, each with one address.
pub fn addresses_of_links() -> Vec<(String, IpAddr)> {
    let all = nix::ifaddrs::getifaddrs().into_iter().flatten();
    let up = all.filter(|link| link.flags.contains(nix::net::if_::InterfaceFlags::IFF_UP));
    up.filter_map(|link| {
        let address = link.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        let v6 = || address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip()));
        Some((link.interface_name, v4.or_else(v6)?))
    })
    .collect()
}

/// Returns the first usable address where no route gives one: a global or private address on a link that is not the
/// cluster's own.
fn linked_address(ipv4: bool, links: Vec<(String, IpAddr)>) -> Option<IpAddr> {
    let usable = |address: &IpAddr| match address {
        IpAddr::V4(address) => ipv4 && !address.is_loopback() && !address.is_link_local(),
        IpAddr::V6(address) => !ipv4 && !address.is_loopback() && !address.is_unicast_link_local(),
    };
    let others = links.into_iter().filter(|(name, _)| !name.starts_with("corten") && name != "kube-ipvs0");
    others.map(|(_, address)| address).find(usable)
}

/// Returns the address to listen on: all IPv4 addresses stand for all addresses if the cluster has IPv6.
pub fn every_address(wanted: IpAddr, cluster_cidr: &str) -> IpAddr {
    let ipv6 = cluster_cidr.contains(':');
    if ipv6 && wanted == IpAddr::V4(Ipv4Addr::UNSPECIFIED) { Ipv6Addr::UNSPECIFIED.into() } else { wanted }
}

/// Checks that this kernel supports the network backend.
fn network_backend(flag: cli::NetworkBackend) -> Result<cli::NetworkBackend> {
    if flag == cli::NetworkBackend::Wireguard {
        corten_network::wireguard::supported()
            .context("--network-backend wireguard is not supported here; use vxlan")?;
    }
    Ok(flag)
}

/// Returns the mode of the proxy, if this machine supports it.
pub fn proxy_mode(flag: cli::ProxyMode) -> Result<corten_proxy::Mode> {
    match flag {
        cli::ProxyMode::Nftables => Ok(corten_proxy::Mode::Nftables),
        cli::ProxyMode::Iptables => Ok(corten_proxy::Mode::Iptables),
        cli::ProxyMode::Ipvs => {
            corten_proxy::supports_ipvs().context("--proxy-mode ipvs is not supported here; use nftables")?;
            Ok(corten_proxy::Mode::Ipvs)
        }
        cli::ProxyMode::Ebpf => {
            ensure!(cgroup2().is_some(), "--proxy-mode ebpf: no cgroup2 file system is mounted; take nftables");
            corten_proxy::supports_sockets().context("--proxy-mode ebpf is not supported here; use nftables")?;
            Ok(corten_proxy::Mode::Ebpf)
        }
    }
}

/// Returns the mount point of cgroup v2, also where v1 has the controllers.
pub fn cgroup2() -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let words = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    words.filter(|words| words.get(2) == Some(&"cgroup2")).find_map(|words| Some(PathBuf::from(*words.get(1)?)))
}

fn domain(text: &str) -> Result<String> {
    let name = text.trim_end_matches('.').to_owned();
    let problems = corten_meta::names::dns1123_subdomain(&name);
    ensure!(problems.is_empty(), "--cluster-domain {text:?}: {}", problems.join("; "));
    Ok(name)
}

fn pod_range(text: &str) -> Result<String> {
    for (address, bits) in ranges(text).with_context(|| format!("--cluster-cidr {text:?}"))? {
        match address {
            IpAddr::V4(_) => ensure!(bits <= 24, "--cluster-cidr {text:?} is too small: a node takes a /24 of it"),
            IpAddr::V6(_) => {
                ensure!((48..=64).contains(&bits), "--cluster-cidr {text:?}: nodes take a /64 of a /48 to a /64");
            }
        }
    }
    Ok(text.to_owned())
}

/// Returns the n-th address of each Service CIDR.
fn in_ranges(text: &str, n: u32) -> Result<Vec<IpAddr>> {
    let ranges = ranges(text).with_context(|| format!("--service-cidr {text:?}"))?;
    let nth = |(address, bits): (IpAddr, u8)| match address {
        IpAddr::V4(network) => {
            ensure!(bits <= 24, "--service-cidr {text:?} is too small: at least a /24 is needed");
            Ok(Ipv4Addr::from_bits(network.to_bits() + n).into())
        }
        IpAddr::V6(network) => {
            ensure!(bits <= 120, "--service-cidr {text:?} is too small: at least a /120 is needed");
            Ok(Ipv6Addr::from_bits(network.to_bits() + u128::from(n)).into())
        }
    };
    ranges.into_iter().map(nth).collect()
}

/// Checks that pods and Services share no addresses, and have the same IP families in the same order.
fn disjoint(pods: &str, services: &str) -> Result<()> {
    let (Ok(pod_ranges), Ok(service_ranges)) = (ranges(pods), ranges(services)) else {
        return Ok(()); // Each is checked for itself, with its own sentence.
    };
    let versions = |ranges: &[(IpAddr, u8)]| ranges.iter().map(|(address, _)| address.is_ipv4()).collect::<Vec<_>>();
    ensure!(
        versions(&pod_ranges) == versions(&service_ranges),
        "--cluster-cidr {pods} and --service-cidr {services} must have the same IP families, in one order"
    );
    for (pod, service) in pod_ranges.iter().zip(&service_ranges) {
        let bits = pod.1.min(service.1);
        let overlap = corten_network::Cidr::new(pod.0, bits) == corten_network::Cidr::new(service.0, bits);
        ensure!(!overlap, "--cluster-cidr {pods} and --service-cidr {services} overlap; choose ranges that do not");
    }
    Ok(())
}

/// Parses one CIDR, or one per IP family separated by a comma, to addresses and prefix lengths.
pub fn ranges(text: &str) -> Result<Vec<(IpAddr, u8)>> {
    let all: Vec<(IpAddr, u8)> = text.split(',').map(range).collect::<Result<_>>()?;
    let ipv4 = all.iter().filter(|(address, _)| address.is_ipv4()).count();
    ensure!(all.len() == 1 || (all.len() == 2 && ipv4 == 1), "it is not one CIDR, or one per IP family");
    Ok(all)
}

fn range(text: &str) -> Result<(IpAddr, u8)> {
    let parsed: corten_network::Cidr = text.trim().parse().context("it is not of the form address/bits")?;
    let address = text.trim().split_once('/').and_then(|(address, _)| address.parse::<IpAddr>().ok());
    ensure!(address == Some(parsed.address()), "it has bits set beyond the range's size");
    Ok((parsed.address(), parsed.length()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_checked() {
        let tenth = |text: &str| in_ranges(text, 10).unwrap().iter().map(IpAddr::to_string).collect::<Vec<_>>();
        assert_eq!(tenth("10.96.0.0/12"), ["10.96.0.10"]);
        assert_eq!(tenth("fd00:96::/112,10.96.0.0/12"), ["fd00:96::a", "10.96.0.10"]);
        for bad in
            ["10.96.0.0", "10.96.0.1/12", "x/12", "10.96.0.0/33", "10.96.0.0/30", "fd00::/121", "fd00::/64,fd01::/64"]
        {
            assert!(in_ranges(bad, 1).is_err(), "{bad}");
        }
        for bad in ["10.244.0.0/25", "fd00::/32", "fd00::/65", "10.244.0.0/16,10.245.0.0/16"] {
            assert!(pod_range(bad).is_err(), "{bad}");
        }
        assert!(pod_range("10.244.0.0/16,fd00:10:244::/56").is_ok());
        for (pods, services, good) in [
            ("10.244.0.0/16", "10.96.0.0/12", true),
            ("10.244.0.0/16", "10.244.0.0/16", false),
            ("10.96.0.0/16", "10.96.0.0/12", false),
            ("10.0.0.0/8", "10.96.0.0/12", false),
            ("10.0.0.0/16", "10.1.0.0/16", true),
            ("10.0.0.0/16,fd00::/56", "10.1.0.0/16,fd01::/112", true),
            ("10.0.0.0/16,fd00::/56", "10.1.0.0/16,fd00::/112", false),
            ("10.0.0.0/16,fd00::/56", "fd01::/112,10.1.0.0/16", false),
            ("10.0.0.0/16,fd00::/56", "10.1.0.0/16", false),
        ] {
            assert_eq!(disjoint(pods, services).is_ok(), good, "{pods} {services}");
        }
    }

    #[test]
    fn without_a_route_the_node_has_an_address_of_a_link() {
        let links = |text: &str| {
            let pair = |word: &str| word.split_once('=').map(|(name, ip)| (name.to_owned(), ip.parse().unwrap()));
            text.split(' ').filter_map(pair).collect::<Vec<_>>()
        };
        let all =
            links("lo=127.0.0.1 lo=::1 corten0=10.244.0.1 corten0=fd00::1 eth0=fe80::1 eth0=fd01::7 eth1=192.0.2.7");
        assert_eq!(linked_address(false, all.clone()), "fd01::7".parse().ok());
        assert_eq!(linked_address(true, all), "192.0.2.7".parse().ok());
        assert_eq!(linked_address(false, links("lo=::1 eth0=fe80::1 corten-nodes=fd89::1")), None);
    }

    #[test]
    fn stub_domains_are_read() {
        let flags = ["a.example=10.0.0.1", "a.example=10.0.0.2:5353", "b.example=fd00::1"].map(str::to_owned);
        let read = stub_domains(&flags).unwrap();
        assert_eq!(
            format!("{read:?}"),
            r#"[("a.example", [10.0.0.1:53, 10.0.0.2:5353]), ("b.example", [[fd00::1]:53])]"#
        );
        for bad in ["a.example", "a.example=x", "A_=10.0.0.1"] {
            assert!(stub_domains(&[bad.to_owned()]).is_err(), "{bad}");
        }
    }

    #[test]
    fn names_are_checked() {
        assert_eq!(node_name(Some("n1")).unwrap(), "n1");
        assert!(node_name(Some("No_Name")).is_err());
        assert_eq!(domain("cluster.local.").unwrap(), "cluster.local");
    }

    #[test]
    fn clusters_in_different_directories_do_not_share_a_cgroup() {
        let directories = |data: &str| Directories { data: data.into(), run: "/run/x".into() };
        assert_eq!(directories("/var/lib/corten").cgroup(), "/corten");
        assert_ne!(directories("/a").cgroup(), directories("/b").cgroup());
        assert_eq!(directories("/a").cgroup(), directories("/a").cgroup());
    }
}
