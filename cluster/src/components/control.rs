//! The controllers and the scheduler, as clients of an API server in this process.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::{Context, Result};
use corten_client::{Client, Metrics};
use corten_controllers::{Cidr, Clients, KubeletServing, MANAGER, SigningAuthorities, SigningAuthority};
use corten_meta::metrics::HealthChecks;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::apiserver::ApiServer;
use super::cloud;
use super::ebs;
use super::edge;
use super::endpoint::{self, Endpoint, EndpointTls};
use super::server_metrics::ServerMetrics;
use crate::config::Cluster;
use crate::pki::{Authorities, Authority, Leaf, Pki, validity, write_private};
use crate::tasks::Tasks;

/// The port of upstream's controller manager.
pub const MANAGER_PORT: u16 = 10257;
/// The port of upstream's scheduler.
pub const SCHEDULER_PORT: u16 = 10259;
/// The host of requests that never leave the process.
const IN_PROCESS: &str = "in-process";

/// Starts the controllers and the scheduler.
pub fn start(
    cluster: &Cluster,
    authorities: &Authorities,
    api: &Arc<ApiServer>,
    server: &Arc<ServerMetrics>,
    tasks: &mut Tasks,
) -> Result<()> {
    let metrics = Metrics::default();
    let config = corten_controllers::Config {
        identity: format!("{}_corten", cluster.node.name),
        leader_elect: cluster.several_servers,
        cluster_cidr: Some(cluster.node.cluster_cidr.clone()),
        kubelet_serving: Some(kubelet_serving(cluster)?),
        certificate_lifetime: cluster.leaf_lifetime,
        load_balancer: cluster.load_balancer.clone(),
        address_pools: cluster.load_balancer.is_some(),
        local_volumes: true,
        snapshots: true,
        metrics: metrics.clone(),
        ..corten_controllers::Config::default()
    };
    let clients = clients(api.clone(), metrics.clone());
    let manager = clients(MANAGER);
    tasks.spawn("controller-manager", manage(config, authorities.clone(), clients, tasks.shutdown()));
    let own = endpoint::page(metrics);
    let server = Arc::clone(server);
    let page = Box::new(move || own() + &server.page());
    let shown = Shown { name: MANAGER, port: MANAGER_PORT, client: manager, metrics: page };
    show(cluster, authorities, shown, tasks)?;
    edge::start_control(cluster, api, tasks);
    if let Some(cloud) = &cluster.cloud {
        let metrics = Metrics::default();
        let client = api.client(cloud::USER, &[]).with_metrics(&metrics, IN_PROCESS);
        let page = endpoint::page(metrics);
        let shown = Shown { name: cloud::NAME, port: cloud::PORT, client: client.clone(), metrics: page };
        show(cluster, authorities, shown, tasks)?;
        if cloud.provider == ebs::PROVIDER {
            let identity = format!("{}_corten", cluster.node.name);
            let control = ebs::Control { options: cloud.options.clone(), client: client.clone(), identity };
            tasks.spawn("EBS volumes", ebs::control(control, tasks.shutdown()));
        }
        tasks.spawn(cloud::NAME, cloud::run(cluster.clone(), cloud.clone(), client, tasks.shutdown()));
    }
    if let Some(config) = &cluster.scheduler {
        let scheduler = api.client("system:kube-scheduler", &[]);
        let counted = config.metrics.clone();
        let page = Box::new(move || counted.render());
        let client = scheduler.clone();
        let shown = Shown { name: "kube-scheduler", port: SCHEDULER_PORT, client, metrics: page };
        show(cluster, authorities, shown, tasks)?;
        tasks.spawn("scheduler", schedule(config.clone(), scheduler, tasks.shutdown()));
    }
    Ok(())
}

/// Returns the signing CAs: kubelets' serving certificates have one of their own, everything else is signed by the
/// cluster's.
fn signing_authorities(pki: &Pki) -> SigningAuthorities {
    let pair =
        |authority: &Authority| SigningAuthority { certificate: authority.certificate.clone(), key: authority.key() };
    SigningAuthorities { kubelet_serving: Some(pair(&pki.kubelet)), ..SigningAuthorities::all(pair(&pki.cluster)) }
}

/// Returns the names and addresses that no kubelet may serve under.
fn kubelet_serving(cluster: &Cluster) -> Result<KubeletServing> {
    let ranges = |text: &str| Cidr::parse_list(text).with_context(|| format!("{text:?} is not a range of addresses"));
    let node = &cluster.node;
    let mut reserved_addresses = node.addresses.clone();
    reserved_addresses.extend([cluster.bind.ip(), cluster.kubernetes_service]);
    reserved_addresses.extend(cluster.extra_names.iter().filter_map(|name| name.parse::<IpAddr>().ok()));
    Ok(KubeletServing {
        cluster_domain: node.cluster_domain.clone(),
        reserved_ranges: [ranges(&node.service_cidr)?, ranges(&node.cluster_cidr)?].concat(),
        reserved_addresses,
        reserved_names: cluster.extra_names.clone(),
    })
}

/// Runs the controllers whenever this process holds the Lease. Another server that took it does not end this one. New
/// authorities begin with new controllers, which sign with them and publish them.
async fn manage(
    config: corten_controllers::Config,
    mut authorities: Authorities,
    clients: Clients,
    shutdown: CancellationToken,
) -> Result<(), corten_controllers::Error> {
    loop {
        let pki = Arc::clone(&authorities.borrow_and_update());
        let config = corten_controllers::Config {
            root_ca: pki.cluster.certificate.clone(),
            signing_authorities: signing_authorities(&pki),
            ..config.clone()
        };
        let round = shutdown.child_token();
        let running = corten_controllers::run(config, clients.clone(), round.clone());
        tokio::pin!(running);
        let ended = tokio::select! {
            ended = &mut running => ended,
            _ = authorities.changed() => {
                round.cancel();
                running.await
            }
        };
        match ended {
            Err(corten_controllers::Error::LostLease) => {}
            Ok(()) if round.is_cancelled() && !shutdown.is_cancelled() => {}
            ended => return ended,
        }
    }
}

/// Schedules whenever this process holds the Lease. Another process that took it does not end the cluster: this one
/// waits for it.
async fn schedule(
    config: corten_scheduler::Config,
    client: Client,
    shutdown: CancellationToken,
) -> Result<(), corten_scheduler::Error> {
    loop {
        match corten_scheduler::run(config.clone(), client.clone(), shutdown.clone()).await {
            Err(corten_scheduler::Error::LostLease) => {}
            ended => return ended,
        }
    }
}

/// A component whose health and metrics are served.
struct Shown {
    name: &'static str,
    port: u16,
    client: Client,
    metrics: endpoint::Page,
}

/// Serves a component's health and metrics to this machine, at upstream's port. A port that another cluster of the
/// machine uses is no reason to fail.
fn show(cluster: &Cluster, authorities: &Authorities, shown: Shown, tasks: &mut Tasks) -> Result<()> {
    let Shown { name, port, client, metrics } = shown;
    let (sender, tls) = watch::channel(endpoint_tls(cluster, &authorities.borrow(), name)?);
    tasks.spawn("serving certificate", renew(cluster.clone(), authorities.clone(), name, sender, tasks.shutdown()));
    let endpoint = Endpoint {
        address: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port),
        tls,
        client,
        ready: Vec::new(),
        metrics,
        checks: HealthChecks::default(),
    };
    let shutdown = tasks.shutdown();
    tasks.spawn("secure port", async move {
        if let Err(error) = endpoint::serve(endpoint, shutdown.clone()).await {
            tracing::info!("{name} does not show its metrics: {error:#}");
            shutdown.cancelled().await;
        }
        Ok::<(), anyhow::Error>(())
    });
    Ok(())
}

/// Signs the certificate of a component's endpoint.
fn endpoint_tls(cluster: &Cluster, pki: &Pki, name: &str) -> Result<EndpointTls> {
    let names = vec![name.to_owned(), "localhost".to_owned(), "127.0.0.1".to_owned()];
    let identity = pki.cluster.issue(&Leaf { common_name: name, organizations: &[], names })?;
    let shown = cluster.node.directories.pki().join(format!("{name}.crt"));
    write_private(&shown, identity.certificate.as_bytes())?;
    Ok(EndpointTls { identity: Some(identity), client_ca: Some(pki.cluster.certificate.clone()) })
}

/// Renews the certificate of a component's endpoint.
async fn renew(
    cluster: Cluster,
    mut authorities: Authorities,
    name: &'static str,
    tls: watch::Sender<EndpointTls>,
    shutdown: CancellationToken,
) -> Result<()> {
    loop {
        let due = authorities.borrow().cluster.renewal();
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            changed = authorities.changed() => if changed.is_err() { return Ok(()) },
            () = validity::until(due) => {}
        }
        let pki = Arc::clone(&authorities.borrow_and_update());
        tls.send_replace(endpoint_tls(&cluster, &pki, name)?);
    }
}

/// Returns the clients: each controller acts under its own ServiceAccount, the manager itself under its own name.
fn clients(api: Arc<ApiServer>, metrics: Metrics) -> Clients {
    Arc::new(move |name: &str| -> Client {
        let client = if name == MANAGER {
            api.client("system:kube-controller-manager", &[])
        } else {
            let user = format!("system:serviceaccount:kube-system:{name}");
            api.client(&user, &["system:serviceaccounts", "system:serviceaccounts:kube-system"])
        };
        client.with_metrics(&metrics, IN_PROCESS)
    })
}
