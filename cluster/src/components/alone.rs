//! Components that run alone, each with a kubeconfig: against this API server or any other.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use corten_client::{Client, Metrics};
use corten_controllers::{MANAGER, Recycler, Recyclers};
use corten_meta::metrics::HealthChecks;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::control::{MANAGER_PORT, SCHEDULER_PORT};
use super::endpoint::{self, Endpoint, EndpointTls};
use super::network::{self, Plugged};
use super::node;
use super::service_accounts;
use crate::config::{Node, node_name};
use crate::directories::Directories;
use crate::files::read;
use crate::tasks::Tasks;
use crate::{cli, config, instance, kubeconfig, preflight};

/// Runs `corten controller-manager`.
pub async fn controller_manager(flags: cli::ControllerManager, shutdown: CancellationToken) -> Result<()> {
    let component = &flags.component;
    let metrics = Metrics::default();
    let clients = service_accounts::clients(&component.kubeconfig, &metrics)?;
    let root_ca = match &flags.root_ca_file {
        Some(path) => read(path)?,
        None => kubeconfig::authority(&component.kubeconfig)?,
    };
    let config = corten_controllers::Config {
        // A host may run several: the process id distinguishes them.
        identity: format!("{}_{}", node_name(component.node_name.as_deref())?, std::process::id()),
        leader_elect: flags.election.leader_elect,
        lease_duration: flags.election.leader_elect_lease_duration,
        renew_deadline: flags.election.leader_elect_renew_deadline,
        retry_period: flags.election.leader_elect_retry_period,
        cluster_cidr: flags.allocate_node_cidrs.then(|| component.cluster_cidr.clone()),
        node_cidr_mask: flags.node_cidr_mask_size_ipv4,
        node_cidr_mask_v6: flags.node_cidr_mask_size_ipv6,
        root_ca,
        signing_authorities: flags.signing.read()?,
        certificate_lifetime: flags.cluster_signing_duration,
        node_monitor_grace_period: flags.node_monitor_grace_period,
        node_startup_grace_period: flags.node_startup_grace_period,
        terminated_pod_threshold: flags.terminated_pod_gc_threshold,
        recyclers: recyclers(&flags)?,
        controllers: flags.controllers,
        metrics: metrics.clone(),
        ..corten_controllers::Config::default()
    };
    let mut tasks = Tasks::new(shutdown.clone());
    let manager = clients(MANAGER);
    let shown = Endpoint {
        address: flags.serving.address(MANAGER_PORT),
        tls: given_tls(&flags.serving, &manager).await?,
        client: manager,
        ready: Vec::new(),
        metrics: endpoint::page(metrics),
        checks: HealthChecks::default(),
    };
    tasks.spawn("secure port", endpoint::serve(shown, tasks.shutdown()));
    tasks.spawn("controller-manager", corten_controllers::run(config, clients, shutdown));
    tasks.run().await
}

/// Returns the recyclers of volumes, with the pod templates of the flags.
fn recyclers(flags: &cli::ControllerManager) -> Result<Recyclers> {
    let with = |mut recycler: Recycler, template: &Option<PathBuf>, minimum: i32, increment: i32| {
        (recycler.minimum_seconds, recycler.seconds_per_gib) = (minimum.into(), increment.into());
        let Some(path) = template else { return Ok::<_, anyhow::Error>(recycler) };
        let pod = corten_meta::decode_yaml(read(path)?.as_bytes()).with_context(|| path.display().to_string())?;
        recycler.with_template(pod).with_context(|| path.display().to_string())
    };
    let Recyclers { host_path, nfs } = Recyclers::default();
    Ok(Recyclers {
        host_path: with(
            host_path,
            &flags.pv_recycler_pod_template_filepath_hostpath,
            flags.pv_recycler_minimum_timeout_hostpath,
            flags.pv_recycler_timeout_increment_hostpath,
        )?,
        nfs: with(
            nfs,
            &flags.pv_recycler_pod_template_filepath_nfs,
            flags.pv_recycler_minimum_timeout_nfs,
            flags.pv_recycler_increment_timeout_nfs,
        )?,
    })
}

/// Runs `corten scheduler`.
pub async fn scheduler(flags: cli::Scheduler, shutdown: CancellationToken) -> Result<()> {
    let mut config = config::scheduler(flags.config.as_deref())?;
    // The identity is unique among candidates, also among those of one machine.
    config.identity = format!("{}_{}", node_name(flags.node_name.as_deref())?, std::process::id());
    if flags.config.is_none() {
        config.leader_election = flags.leader_elect.then(corten_scheduler::Election::default);
    }
    let kubeconfig = flags.kubeconfig.or_else(|| config.kubeconfig.clone().map(Into::into));
    let kubeconfig = kubeconfig.context("no kubeconfig: name one by --kubeconfig or in the configuration")?;
    let client = client(&kubeconfig)?.with_user_agent("kube-scheduler");
    let shown = scheduler_endpoint(&flags.serving, &config, client.clone(), &shutdown).await?;
    let mut tasks = Tasks::new(shutdown);
    tasks.spawn("secure port", endpoint::serve(shown, tasks.shutdown()));
    tasks.spawn("scheduler", corten_scheduler::run(config, client, tasks.shutdown()));
    tasks.run().await
}

async fn scheduler_endpoint(
    flags: &cli::Serving,
    config: &corten_scheduler::Config,
    client: Client,
    shutdown: &CancellationToken,
) -> Result<Endpoint> {
    let metrics = config.metrics.clone();
    let ending = shutdown.clone();
    let counted = config.metrics.clone();
    let ending = move || if ending.is_cancelled() { Err("process is shutting down".to_owned()) } else { Ok(()) };
    let synced = move || match metrics.is_catching_up() {
        true => Err("handlers are not fully synchronized".to_owned()),
        false => Ok(()),
    };
    Ok(Endpoint {
        address: flags.address(SCHEDULER_PORT),
        tls: given_tls(flags, &client).await?,
        client,
        ready: vec![("shutdown", Box::new(ending)), ("sched-handler-sync", Box::new(synced))],
        metrics: Box::new(move || counted.render()),
        checks: HealthChecks::default(),
    })
}

/// Returns the certificates that the flags name, and the CA that the API server publishes.
pub async fn given_tls(flags: &cli::Serving, client: &Client) -> Result<watch::Receiver<EndpointTls>> {
    let identity = flags.identity()?;
    let client_ca = endpoint::published_client_ca(client).await;
    Ok(watch::channel(EndpointTls { identity, client_ca }).1)
}

/// Runs `corten kubelet`, which joins as `corten agent` does if it has no kubeconfig.
pub async fn kubelet(flags: cli::Kubelet, shutdown: CancellationToken) -> Result<()> {
    let directories = Directories::of(&flags.agent.directories);
    preflight::node(&directories)?;
    let _lock = instance::acquire_component(&directories, "kubelet")?;
    let mut tasks = Tasks::new(shutdown);
    let Some((joined, kubelet)) = super::become_node(&flags.agent, &mut tasks).await? else { return Ok(()) };
    let mut config = node::kubelet_config(&joined.node, kubelet.serving, false)?;
    config.api_servers = kubelet.callers;
    if let Some(endpoint) = flags.container_runtime_endpoint {
        config.cri_socket = endpoint;
    }
    tasks.spawn("kubelet", corten_kubelet::run(config, kubelet.client, tasks.shutdown()));
    tasks.run().await
}

/// Runs `corten proxy`.
pub async fn proxy(flags: cli::Proxy, shutdown: CancellationToken) -> Result<()> {
    let mode = config::proxy_mode(flags.proxy_mode)?;
    let flags = flags.component;
    preflight::root()?;
    let ranges = config::ranges(&flags.cluster_cidr)?;
    let mut config = corten_proxy::Config::new(node_name(flags.node_name.as_deref())?, ranges);
    config.mode = mode;
    config.served = Some(corten_proxy::Served::default());
    config.tcp_timeouts = Some(corten_proxy::TcpTimeouts::default());
    // The pods of another kubelet may be in any cgroup.
    config.cgroup = config::cgroup2();
    Ok(corten_proxy::run(config, client(&flags.kubeconfig)?, shutdown).await?)
}

/// Runs `corten runtime`: a CRI v1 server for any kubelet, with a pod network of the given CIDR.
pub async fn runtime(flags: cli::Runtime, shutdown: CancellationToken) -> Result<()> {
    let directories = Directories::of(&flags.directories);
    preflight::root()?;
    preflight::data_directory(&directories)?;
    let node = Node::of_runtime(directories, &flags)?;
    let mut config = node::runtime_config(&node)?;
    if let Some(socket) = flags.listen {
        config.socket = socket;
    }
    config.seccomp_profiles = flags.seccomp_profile_root;
    let network = Arc::new(match &flags.pod_cidr {
        Some(_) => Plugged::default(),
        None => Plugged::alone(node.clone()),
    });
    if let Some(range) = flags.pod_cidr.or_else(|| network::known_range(&node)) {
        network.start(&node, &range, None).await?;
    }
    Ok(corten_runtime::serve(config, network, shutdown).await?)
}

/// Runs `corten dns`.
pub async fn dns(flags: cli::Dns, shutdown: CancellationToken) -> Result<()> {
    let upstreams = node::upstreams(&node::host_resolver());
    let config =
        corten_dns::Config { domain: flags.cluster_domain, ..corten_dns::Config::new(flags.listen, upstreams) };
    Ok(corten_dns::run(config, client(&flags.kubeconfig)?, shutdown).await?)
}

fn client(path: &Path) -> Result<Client> {
    Client::from_kubeconfig(path, None).with_context(|| format!("{} cannot be used", path.display()))
}
