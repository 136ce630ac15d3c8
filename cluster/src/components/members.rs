//! The etcd member of a server: started before the API server, stopped after it.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use corten_members::learners::{self, Unreachable};
use corten_members::{Config, Members, Supervisor, join};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::member_certificates::{self, Renewed};
use super::{forgotten, further_nodes};
use crate::config::{Cluster, addresses_of_links};
use crate::membership::{Membership, member};
use crate::pki::Authorities;
use crate::store_options::StoreOptions;
use crate::tasks::Tasks;

/// The time between two looks at the members.
const INTERVAL: Duration = Duration::from_secs(10);

/// The members of a server.
pub struct Started {
    pub members: Members,
    /// The client URLs of the members, the own first; they change while the server runs.
    pub endpoints: watch::Receiver<Vec<String>>,
    /// The id of the own member.
    pub own: u64,
    /// The certificates of the authority that the running etcd trusts.
    pub trusted: watch::Receiver<String>,
}

/// The client URLs of the members, the own first. While the own member restarts, the others serve alone.
pub struct Endpoints {
    own: String,
    sender: watch::Sender<Vec<String>>,
    is_drained: AtomicBool,
}

impl Endpoints {
    /// Replaces the URLs, unless the own member is drained.
    fn set(&self, next: Vec<String>) {
        if self.is_drained.load(Ordering::Acquire) {
            return;
        }
        self.sender.send_if_modified(|known| {
            let is_changed = *known != next;
            *known = next;
            is_changed
        });
    }

    /// Leaves the own member out, if there are others; returns all URLs as they were.
    pub fn drain(&self) -> Vec<String> {
        self.is_drained.store(true, Ordering::Release);
        let all = self.sender.borrow().clone();
        let others: Vec<String> = all.iter().filter(|url| **url != self.own).cloned().collect();
        if !others.is_empty() {
            self.sender.send_replace(others);
        }
        all
    }

    /// Takes the own member in again.
    pub fn restore(&self, all: Vec<String>) {
        self.is_drained.store(false, Ordering::Release);
        self.set(all);
    }
}

/// Starts the member, waits until it is a voter, and makes the members the cluster's store; the own is asked first.
pub async fn start(
    cluster: &mut Cluster,
    membership: &Membership,
    authorities: &Authorities,
    tasks: &mut Tasks,
) -> Result<Started> {
    let node = &cluster.node;
    let authority = member::authority(&node.directories)?.with_leaf_lifetime(cluster.leaf_lifetime);
    let config = member::config(node);
    let addresses = own_addresses(cluster)?;
    member::write_certificates(&config, &addresses, &authority)?;
    let credentials = member::credentials(&authority)?;
    member::write_client(&config, &credentials)?;
    let supervisor = Supervisor::new(config.clone(), membership.binary.clone()).await?;
    let restarts = supervisor.restarts();
    member::refuse_taken_ports(&config)?;
    member::record_binary(&node.directories, &membership.binary.path)?;
    let members = Members::new(known(&config, membership)?, &credentials)?;
    let expected = match &membership.migration {
        Some(migration) => Some(migration.prepare(&config).await?),
        None => None,
    };
    let entered = match &membership.joined {
        None => join::first(&config, &members).await,
        Some(_) => join::enter(&config, &members, membership.may_join).await,
    };
    let start = match entered {
        Err(corten_members::Error::Removed) if forgotten::is_wanted(&config, &members, &cluster.store).await => {
            tracing::warn!("the cluster was recovered without this server, which joins it again");
            join::enter(&config, &members, true).await?
        }
        entered => entered?,
    };
    tasks.spawn("etcd", supervisor.run(start, members.clone(), tasks.shutdown()));
    let state = tokio::select! {
        state = join::settle(&config, &members) => state?,
        failed = tasks.failed() => {
            failed?;
            anyhow::bail!("etcd ended while it was starting");
        }
    };
    if let (Some(migration), Some(expected)) = (&membership.migration, &expected) {
        migration.finish(&config, &members, expected).await?;
    }
    let members = members.at(state.endpoints.clone());
    let (sender, endpoints) = watch::channel(state.endpoints.clone());
    let (trusting, trusted) = watch::channel(authority.certificate.clone());
    let all = Arc::new(Endpoints { own: config.client_url(), sender, is_drained: AtomicBool::new(false) });
    cluster.store = StoreOptions { etcd_servers: state.endpoints, ..member::store_options(&config, &cluster.store) };
    tasks.spawn("members", reconcile(config.clone(), members.clone(), Arc::clone(&all), tasks.shutdown()));
    let renewed = Renewed {
        config,
        directories: cluster.node.directories.clone(),
        leaf_lifetime: cluster.leaf_lifetime,
        addresses,
        authorities: authorities.clone(),
        members: members.clone(),
        restarts,
        endpoints: all,
        trusting,
    };
    tasks.spawn("etcd certificates", member_certificates::renew(renewed, tasks.shutdown()));
    Ok(Started { members, endpoints, own: state.member, trusted })
}

/// Returns all addresses from which this machine may reach other members, which check them: also those that it has among
/// servers in namespaces of it.
fn own_addresses(cluster: &Cluster) -> Result<Vec<IpAddr>> {
    let mut addresses = cluster.node.addresses.clone();
    addresses.extend(addresses_of_links().into_iter().map(|(_, address)| address));
    if cluster.servers > 1 {
        addresses.extend(further_nodes::of_cluster(cluster)?.gateways()?);
    }
    addresses.sort_unstable();
    addresses.dedup();
    Ok(addresses)
}

/// Returns the members to ask: those of the last run, else those that the machine learned when it joined. The own is none
/// of them: a member that is about to start cannot be asked yet.
fn known(config: &Config, membership: &Membership) -> Result<Vec<String>> {
    let state = corten_members::State::read(&config.directory)?;
    // The first of the last run is the own, perhaps by an address that the machine no longer has.
    let last = state.filter(|state| state.member != 0).map(|state| state.endpoints.into_iter().skip(1).collect());
    let learned = membership.joined.as_ref().map(|joined| joined.endpoints.clone());
    let all: Vec<String> = last.or(learned).unwrap_or_default();
    let own = config.client_url();
    Ok(all.into_iter().filter(|endpoint| *endpoint != own).collect())
}

/// Removes learners that never came up, and follows the list of members, for this run and the next.
async fn reconcile(
    config: Config,
    members: Members,
    endpoints: Arc<Endpoints>,
    shutdown: CancellationToken,
) -> Result<()> {
    let own = members.at(vec![config.client_url()]);
    let mut unreachable = Unreachable::default();
    loop {
        if let Err(error) = learners::reconcile(&own, &mut unreachable).await {
            tracing::debug!("the learners cannot be reconciled: {error}");
        }
        let known = endpoints.sender.borrow().clone();
        match join::refresh(&config, &members.at(known)).await {
            Ok(next) => endpoints.set(next),
            Err(error) => tracing::debug!("the members cannot be listed: {error}"),
        }
        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => {}
            () = shutdown.cancelled() => return Ok(()),
        }
    }
}
