//! The cloud controller manager: alone with a kubeconfig, or in the process of a server.

use anyhow::{Context, Result};
use corten_api::AddressRange;
use corten_client::{Client, Metrics};
use corten_cloud::{CONTROLLERS, Config, Election};
use corten_meta::metrics::HealthChecks;
use tokio_util::sync::CancellationToken;

use super::ebs;
use super::endpoint::{self, Endpoint};
use crate::cli::CloudControllerManager;
use crate::cloud_options::{self, Cloud};
use crate::config::{Cluster, node_name};
use crate::tasks::Tasks;

/// The port of upstream's cloud controller manager.
pub const PORT: u16 = 10258;
/// The user, as upstream's roles name it.
pub const USER: &str = "system:cloud-controller-manager";
/// The name of the component.
pub const NAME: &str = "cloud-controller-manager";

/// Runs `corten cloud-controller-manager`.
pub async fn alone(flags: CloudControllerManager, shutdown: CancellationToken) -> Result<()> {
    let component = &flags.component;
    let path = &component.kubeconfig;
    let metrics = Metrics::default();
    let client = Client::from_kubeconfig(path, None).with_context(|| format!("{} cannot be used", path.display()))?;
    let client = client.with_user_agent(NAME).with_metrics(&metrics, "apiserver");
    let election = Election {
        lease_duration: flags.election.leader_elect_lease_duration,
        renew_deadline: flags.election.leader_elect_renew_deadline,
        retry_period: flags.election.leader_elect_retry_period,
    };
    let config = Config {
        // A host may run several: the process id distinguishes them.
        identity: format!("{}_{}", node_name(component.node_name.as_deref())?, std::process::id()),
        election: flags.election.leader_elect.then_some(election),
        controllers: cloud_options::enabled(&flags.controllers)?,
        cluster_cidrs: cidrs(&component.cluster_cidr)?,
        configure_routes: flags.cloud.configure_cloud_routes && flags.allocate_node_cidrs,
    };
    let provider = cloud_options::open(&flags.cloud_provider, &flags.cloud).await?;
    let mut tasks = Tasks::new(shutdown);
    if flags.cloud_provider == ebs::PROVIDER {
        let identity = config.identity.clone();
        let control = ebs::Control { options: flags.cloud.clone(), client: client.clone(), identity };
        tasks.spawn("EBS volumes", ebs::control(control, tasks.shutdown()));
    }
    let shown = Endpoint {
        address: flags.serving.address(PORT),
        tls: endpoint::given_tls(&flags.serving, &client).await?,
        client: client.clone(),
        ready: Vec::new(),
        metrics: endpoint::page(metrics),
        checks: HealthChecks::default(),
    };
    tasks.spawn("secure port", endpoint::serve(shown, tasks.shutdown()));
    tasks.spawn(NAME, corten_cloud::run(config, provider, client, tasks.shutdown()));
    tasks.run().await
}

/// Runs the controllers of a server's cloud whenever this process holds the Lease.
pub async fn run(cluster: Cluster, cloud: Cloud, client: Client, shutdown: CancellationToken) -> Result<()> {
    let provider = cloud_options::open(&cloud.provider, &cloud.options).await?;
    let election = Election {
        lease_duration: std::time::Duration::from_secs(15),
        renew_deadline: std::time::Duration::from_secs(10),
        retry_period: std::time::Duration::from_secs(2),
    };
    let config = Config {
        identity: format!("{}_corten", cluster.node.name),
        election: Some(election),
        controllers: CONTROLLERS.to_vec(),
        cluster_cidrs: cidrs(&cluster.node.cluster_cidr)?,
        configure_routes: cloud.options.configure_cloud_routes,
    };
    // Another server that took the Lease does not end this one.
    while corten_cloud::run(config.clone(), provider.clone(), client.clone(), shutdown.clone()).await.is_err() {}
    Ok(())
}

fn cidrs(text: &str) -> Result<Vec<AddressRange>> {
    let range = |cidr: &str| AddressRange::parse(cidr.trim()).with_context(|| format!("{cidr:?} is no CIDR"));
    text.split(',').map(range).collect()
}
