//! A node: runtime, pod network, kubelet, proxy and DNS, each a client of the API under its own name.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use corten_api::k8s_openapi::api::core::v1::Taint;
use corten_client::{Caches, Client};
use corten_controllers::NodeComponent;
use corten_kubelet::{EvictionConfig, HostResolver, ProvidedAddresses, ShutdownConfig, Tls};
use corten_network::policy;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::apiserver::ApiServer;
use super::ebs;
use super::edge;
use super::groups::NODES_GROUP;
use super::load_balancing;
use super::network::{Plugged, cidrs, gateways, pod_range};
use super::node_certificate::{leaf, serving};
use super::node_dns::{DNS_METRICS, dns_endpoints};
use super::storage;
use crate::api_servers::ApiServers;
use crate::config::{Cluster, Node};
use crate::directories::Directories;
use crate::join::Joined;
use crate::node_object::CONTROL_PLANE;
use crate::pki::{Authorities, Pki, validity};
use crate::supervision;
use crate::tasks::Tasks;
use crate::{config, kubeconfig, pki, private, registries};

/// The machine's resolver configuration; a machine may have none.
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// The time that pods have when the machine shuts down; a third of it is for critical ones.
const SHUTDOWN_GRACE_PERIOD: Duration = Duration::from_secs(30);

/// The identity of a node's kubelet.
pub struct KubeletIdentity {
    pub client: Client,
    /// The certificates of the kubelet's API, now and later.
    pub serving: watch::Receiver<Tls>,
    /// Gets the addresses from which API servers call.
    pub callers: Option<mpsc::Sender<IpAddr>>,
}

impl KubeletIdentity {
    /// Returns the identity of a node with a kubeconfig, its client, and certificate files, which are created if they are
    /// missing.
    pub fn of_files(node: &Node, kubeconfig: &Path, client: Client) -> Result<KubeletIdentity> {
        let read = |name: &str| {
            let path = node.directories.pki().join(name);
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
        };
        // A machine that joined has certificate and key in one file, which is renewed as a whole.
        let joined = node.directories.pki().join("kubelet-server-current.pem").exists();
        let (certificate, key) = match joined {
            true => ("kubelet-server-current.pem", "kubelet-server-current.pem"),
            false => ("kubelet.crt", "kubelet.key"),
        };
        if !node.directories.pki().join(certificate).exists() {
            sign_for_itself(node, certificate, key)?;
        }
        let client_ca = read("ca.crt").or_else(|_| kubeconfig::authority(kubeconfig))?;
        let tls = Tls { certificate: read(certificate)?, key: read(key)?, client_ca };
        Ok(KubeletIdentity { client, serving: watch::channel(tls).1, callers: None })
    }
}

/// The identities of a node's components.
pub struct Identities {
    pub kubelet: KubeletIdentity,
    pub proxy: Client,
    pub dns: Client,
    pub network: Client,
    pub edge: Client,
    /// The node's way to all API servers, for the proxy of Gateways, which is a process of its own.
    pub servers: Option<ApiServers>,
    pub storage: Client,
}

impl Identities {
    /// Returns the identities of the node in the API server's own process.
    pub fn in_process(
        cluster: &Cluster,
        authorities: &Authorities,
        api: &ApiServer,
        tasks: &mut Tasks,
    ) -> Result<Identities> {
        let name = format!("system:node:{}", cluster.node.name);
        let (sender, serving) = watch::channel(sign_serving(cluster, &authorities.borrow())?);
        tasks.spawn("serving certificate", renew(cluster.clone(), authorities.clone(), sender, tasks.shutdown()));
        let own = |component: NodeComponent| {
            let user = component.user(&cluster.node.name);
            api.client(&user, &[&component.group()])
        };
        Ok(Identities {
            kubelet: KubeletIdentity { client: api.client(&name, &[NODES_GROUP]), serving, callers: None },
            proxy: own(NodeComponent::Proxy),
            dns: own(NodeComponent::Dns),
            network: own(NodeComponent::Network),
            edge: own(NodeComponent::Edge),
            servers: None,
            storage: own(NodeComponent::Storage),
        })
    }

    /// Returns the identities of a node elsewhere: the proxy, DNS and the network act as the kubelet if they have no
    /// kubeconfig of their own, which the administrator of that kubeconfig must allow.
    pub fn of_agent(joined: &Joined, kubelet: KubeletIdentity) -> Result<Identities> {
        let own = |component: NodeComponent| {
            let path = joined.node.directories.kubeconfig(component.name());
            match path.exists() {
                true => joined.client(&path).with_context(|| format!("{} cannot be used", path.display())),
                false => Ok(kubelet.client.clone()),
            }
        };
        Ok(Identities {
            proxy: own(NodeComponent::Proxy)?,
            dns: own(NodeComponent::Dns)?,
            network: own(NodeComponent::Network)?,
            edge: own(NodeComponent::Edge)?,
            servers: joined.servers.clone(),
            storage: own(NodeComponent::Storage)?,
            kubelet,
        })
    }
}

/// Writes a self-signed certificate, as upstream's kubelet does without a given one.
fn sign_for_itself(node: &Node, certificate: &str, key: &str) -> Result<()> {
    let identity = pki::self_signed(&leaf(&format!("system:node:{}", node.name), &node.name, &node.addresses))?;
    pki::write_private(&node.directories.pki().join(key), identity.key.as_bytes())?;
    pki::write_private(&node.directories.pki().join(certificate), identity.certificate.as_bytes())
}

/// Signs the certificate of the API of the server's own node; writes the certificate, without its key, for commands.
fn sign_serving(cluster: &Cluster, pki: &Pki) -> Result<Tls> {
    let tls = serving(pki, &cluster.node.name, &cluster.node.addresses)?;
    pki::write_private(&cluster.node.directories.pki().join("kubelet.crt"), tls.certificate.as_bytes())?;
    Ok(tls)
}

/// Renews the certificate of the API of the server's own node while it runs.
async fn renew(
    cluster: Cluster,
    mut authorities: Authorities,
    tls: watch::Sender<Tls>,
    shutdown: CancellationToken,
) -> Result<()> {
    loop {
        let due = authorities.borrow().kubelet.renewal();
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            changed = authorities.changed() => if changed.is_err() { return Ok(()) },
            () = validity::until(due) => {}
        }
        let pki = Arc::clone(&authorities.borrow_and_update());
        tls.send_replace(sign_serving(&cluster, &pki)?);
    }
}

/// Starts every component of a node.
pub fn start(node: Node, identities: Identities, control_plane_only: bool, tasks: &mut Tasks) -> Result<()> {
    let shutdown = tasks.shutdown();
    let resolver = host_resolver();
    let network = Arc::new(Plugged::default());

    tasks.spawn("runtime", corten_runtime::serve(runtime_config(&node)?, network.clone(), shutdown.clone()));
    let mut kubelet = kubelet_config(&node, identities.kubelet.serving, control_plane_only)?;
    kubelet.api_servers = identities.kubelet.callers;
    tasks.spawn("kubelet", corten_kubelet::run(kubelet, identities.kubelet.client.clone(), shutdown.clone()));
    let mut proxy = corten_proxy::Config::new(&node.name, config::ranges(&node.cluster_cidr)?);
    proxy.mode = node.proxy_mode;
    proxy.served = Some(corten_proxy::Served::default());
    proxy.tcp_timeouts = Some(corten_proxy::TcpTimeouts::default());
    proxy.service_cidrs = config::ranges(&node.service_cidr)?;
    if proxy.mode == corten_proxy::Mode::Ebpf {
        proxy.cgroup = Some(pods_cgroup(&node.directories)?);
    }
    tasks.spawn("proxy", corten_proxy::run(proxy, identities.proxy, shutdown.clone()));
    edge::start(&node, identities.edge, identities.servers.as_ref(), tasks);
    ebs::start(&node, kubelet_root(&node), identities.storage.clone(), tasks);
    storage::start(&node, identities.storage, tasks);
    let clients =
        NetworkClients { network: identities.network, dns: identities.dns, kubelet: identities.kubelet.client };
    tasks.spawn("network", network_and_dns(node, network, clients, resolver, shutdown));
    Ok(())
}

/// Returns the cgroup v2 of the node's pods, created before the kubelet has a pod.
fn pods_cgroup(directories: &Directories) -> Result<PathBuf> {
    let path = config::cgroup2().context("no cgroup2 file system is mounted")?;
    let path = path.join(directories.cgroup().trim_start_matches('/'));
    std::fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
    Ok(path)
}

/// The clients of the pod network and of DNS.
struct NetworkClients {
    network: Client,
    dns: Client,
    /// Writes the node's own object.
    kubelet: Client,
}

/// Starts the parts that need the node's pod CIDR: the pod network with its policies, the routes to other nodes, and
/// DNS, which listens on the CIDR's gateway.
async fn network_and_dns(
    node: Node,
    plugged: Arc<Plugged>,
    clients: NetworkClients,
    resolver: HostResolver,
    shutdown: CancellationToken,
) -> Result<()> {
    let NetworkClients { network, dns, kubelet } = clients;
    let cluster_cidrs = cidrs(&node.cluster_cidr).context("the cluster's pod range is not valid")?;
    let own_network = node.network_backend.own().is_some();
    if own_network {
        corten_network::routes::fence(&cluster_cidrs).await.context("the cluster's pod range cannot be fenced")?;
    }
    // CNI plugins have CIDRs of their own.
    let within = if own_network { cluster_cidrs.clone() } else { cidrs("0.0.0.0/0,::/0")? };
    let caches = Caches::new(network.clone(), shutdown.clone());
    let range = tokio::select! {
        range = pod_range(&caches, &node.name, &within) => range,
        () = shutdown.cancelled() => return Ok(()),
    };
    let pod_cidrs = cidrs(&range).context("the node's pod range is not valid")?;
    let gateways = gateways(&range);
    let mut tasks = Tasks::new(shutdown.child_token());
    if let Some(backend) = node.network_backend.own() {
        let (gate, requests) = policy::gate();
        let ipvs = node.proxy_mode == corten_proxy::Mode::Ipvs;
        let host_egress = node.network.network_policy_host_egress;
        let policies = policy::Config { ipvs, host_egress, ..policy::Config::new(gateways.clone()) };
        tasks.spawn("network policies", policy::run(policies, network.clone(), requests, tasks.shutdown()));
        plugged.start(&node, &range, Some(gate)).await?;
        let routes = corten_network::routes::Config {
            node_name: node.name.clone(),
            backend,
            pod_cidrs,
            node_address: node.address,
            node_addresses: node.addresses.clone(),
            cluster_cidrs,
            service_cidrs: cidrs(&node.service_cidr).context("the Service range is not valid")?,
            api_servers: node.api_servers.clone(),
        };
        tasks.spawn("routes", corten_network::routes::run(routes, network.clone(), kubelet, tasks.shutdown()));
    } else {
        plugged.start_plugins(&node).await?;
    }

    let listen = dns_endpoints(node.network_backend, &gateways, &node.addresses);
    let dns_config = corten_dns::Config {
        domain: node.cluster_domain.clone(),
        clients: [config::ranges(&node.cluster_cidr)?, config::ranges(&range)?].concat(),
        metrics: listen.iter().map(|address| SocketAddr::new(address.ip(), DNS_METRICS)).collect(),
        own_addresses: node.cluster_dns.clone(),
        stub_domains: config::stub_domains(&node.dns_stub_domains)?,
        reverse_ranges: [config::ranges(&node.cluster_cidr)?, config::ranges(&node.service_cidr)?].concat(),
        ..corten_dns::Config::new(listen, upstreams(&resolver))
    };
    tasks.spawn("announcer", load_balancing::announce(node, network, tasks.shutdown()));
    tasks.spawn("dns", corten_dns::run(dns_config, dns, tasks.shutdown()));
    tasks.run().await
}

/// Returns the settings of a node's container runtime.
pub fn runtime_config(node: &Node) -> Result<corten_runtime::Config> {
    let registries = node.kubelet.registry_config.as_deref().map(registries::read).transpose()?;
    Ok(corten_runtime::Config {
        registries: registries.unwrap_or_default(),
        runtime_handlers: node.kubelet.runtime_handlers()?,
        seccomp_profiles: kubelet_root(node).join(corten_kubelet::SECCOMP_PROFILES),
        ..runtime_in(&node.directories, node.images.clone())?
    })
}

/// Returns the directory of the kubelet's own files.
pub fn kubelet_root(node: &Node) -> PathBuf {
    node.kubelet.root_dir.clone().unwrap_or_else(|| node.directories.data.join("kubelet"))
}

/// Returns the settings of the container runtime in these directories.
pub fn runtime_in(directories: &Directories, images: PathBuf) -> Result<corten_runtime::Config> {
    Ok(corten_runtime::Config {
        state_dir: directories.data.join("runtime"),
        run_dir: directories.run.join("runtime"),
        images_dir: images,
        socket: directories.cri_socket(),
        self_exe: std::env::current_exe().context("this program's own path is unknown")?,
        ..corten_runtime::Config::default()
    })
}

/// Returns the settings of the kubelet.
pub fn kubelet_config(
    node: &Node,
    serving: watch::Receiver<Tls>,
    control_plane_only: bool,
) -> Result<corten_kubelet::Config> {
    let taint = Taint { key: CONTROL_PLANE.into(), effect: "NoSchedule".into(), ..Taint::default() };
    let mut config = corten_kubelet::Config {
        node_name: node.name.clone(),
        node_ips: node.addresses.clone(),
        cri_socket: node.directories.cri_socket().to_string_lossy().into_owned(),
        root_dir: kubelet_root(node),
        log_dir: node.directories.data.join("log"),
        listen: SocketAddr::new(config::every_address([0, 0, 0, 0].into(), &node.cluster_cidr), node.kubelet_port),
        tls: Some(serving),
        cluster_dns: node.cluster_dns.first().map(IpAddr::to_string).into_iter().collect(),
        cluster_domain: node.cluster_domain.clone(),
        taints: if control_plane_only { vec![taint] } else { Vec::new() },
        cgroup_root: node.directories.cgroup(),
        eviction: EvictionConfig { hard: least_free(), ..EvictionConfig::default() },
        shutdown: graceful_shutdown(),
        ..corten_kubelet::Config::default()
    };
    node.kubelet.apply(&mut config)?;
    if node.kubelet.is_external_cloud() {
        config.external_cloud = Some(ProvidedAddresses(node.provided_addresses.clone()));
    }
    config.host_resolver = match config.resolv_conf.as_deref() {
        Some(path) if path == Path::new(RESOLV_CONF) => host_resolver(),
        Some(path) => parse_resolver(&crate::files::read(path)?),
        None => HostResolver::default(),
    };
    read_certificates(&mut config)?;
    // The directory has volumes with Secrets and the logs of containers, wherever the flags put it.
    private::directory(&config.root_dir)?;
    private::directory(&config.log_dir)?;
    Ok(config)
}

/// Reads the certificate files of the kubelet's configuration.
fn read_certificates(config: &mut corten_kubelet::Config) -> Result<()> {
    let read = |path: &Option<PathBuf>| path.as_deref().map(crate::files::read).transpose();
    let files = &config.tls_files;
    config.client_ca = read(&files.client_ca)?;
    if let (Some(certificate), Some(key)) = (read(&files.certificate)?, read(&files.key)?) {
        let client_ca = config.tls.as_ref().map(|tls| tls.borrow().client_ca.clone()).unwrap_or_default();
        config.tls = Some(watch::channel(Tls { certificate, key, client_ca }).1);
    }
    Ok(())
}

/// Returns the default of graceful node shutdown: on for a service of the machine, which ends with it.
fn graceful_shutdown() -> ShutdownConfig {
    if !supervision::is_service() {
        return ShutdownConfig::default();
    }
    ShutdownConfig {
        grace_period: SHUTDOWN_GRACE_PERIOD,
        critical_grace_period: SHUTDOWN_GRACE_PERIOD / 3,
        is_optional: true,
        ..ShutdownConfig::default()
    }
}

/// Returns the default hard eviction thresholds. Upstream's percentages of a disk are for a disk that belongs to the
/// node; ours belongs to a user who may keep it nearly full, and a free tenth of it is no emergency.
fn least_free() -> BTreeMap<String, String> {
    [
        ("memory.available", "100Mi"),
        ("nodefs.available", "1Gi"),
        ("nodefs.inodesFree", "1%"),
        ("imagefs.available", "1Gi"),
        ("imagefs.inodesFree", "1%"),
    ]
    .map(|(signal, value)| (signal.to_owned(), value.to_owned()))
    .into()
}

/// Returns the resolver configuration of the node itself.
pub fn host_resolver() -> HostResolver {
    parse_resolver(&std::fs::read_to_string(RESOLV_CONF).unwrap_or_default())
}

fn parse_resolver(text: &str) -> HostResolver {
    let mut resolver = HostResolver::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let keyword = words.next();
        let words = words.map(str::to_owned);
        match keyword {
            Some("nameserver") => resolver.servers.extend(words.take(1)),
            Some("search") => resolver.searches = words.collect(),
            Some("options") => resolver.options.extend(words),
            _ => {}
        }
    }
    resolver
}

/// Returns the servers to which DNS forwards names outside of the cluster domain.
pub fn upstreams(resolver: &HostResolver) -> Vec<SocketAddr> {
    resolver.servers.iter().filter_map(|server| Some(SocketAddr::new(server.parse().ok()?, 53))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_resolver_is_read_as_the_resolver_reads_it() {
        let resolver = parse_resolver("# a comment\nnameserver 10.0.0.2\nsearch a.b c.d\noptions ndots:2 rotate\n");
        assert_eq!(resolver.servers, ["10.0.0.2"]);
        assert_eq!(resolver.searches, ["a.b", "c.d"]);
        assert_eq!(resolver.options, ["ndots:2", "rotate"]);
        assert_eq!(upstreams(&resolver), ["10.0.0.2:53".parse().unwrap()]);
    }
}
