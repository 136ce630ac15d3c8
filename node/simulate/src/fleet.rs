//! Keeps the nodes alive: registers them, renews their Leases and reports their status. One task a node, as each kubelet
//! is a process of its own; heartbeats of all nodes are spread evenly over the period.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use corten_api::k8s_openapi::api::coordination::v1::Lease;
use corten_api::k8s_openapi::api::core::v1::Node;
use corten_client::{Cache, Caches, Client, DeleteOptions, Dynamic, ListOptions, Patch, Transport};
use corten_meta::Key;
use futures::StreamExt as _;
use jiff::Timestamp;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::recorder::as_node;
use crate::{Config, Error, node};

/// The registrations that are under way at once.
const AT_ONCE: usize = 64;
/// The pause before a heartbeat that failed is sent again.
const RETRY: Duration = Duration::from_secs(1);
/// The requests that may be needed to delete all nodes.
const REMOVALS: usize = 60;

/// The nodes of a simulation.
pub struct Fleet {
    config: Arc<Config>,
    members: Vec<Arc<Member>>,
    /// The Node objects, as the control plane has changed them.
    nodes: Arc<Cache>,
}

/// Returns a client of the simulation.
pub fn client(transport: Arc<dyn Transport>) -> Client {
    Client::new(transport).with_user_agent("corten-simulate")
}

/// One node.
pub struct Member {
    pub index: u32,
    pub name: String,
    pub client: Client,
    registered: OnceLock<Registered>,
    pod_cidr: OnceLock<String>,
}

struct Registered {
    uid: String,
    since: Timestamp,
}

impl Fleet {
    /// Makes the nodes; their requests are spread over the transports.
    pub fn new(config: &Arc<Config>, transports: &[Arc<dyn Transport>], caches: &Caches) -> Fleet {
        let member = |index: u32| {
            let name = node::name(config, index);
            let transport = transports[index as usize % transports.len()].clone();
            let transport = if config.impersonate { as_node(transport, &name) } else { transport };
            let client = client(transport);
            Arc::new(Member { index, name, client, registered: OnceLock::new(), pod_cidr: OnceLock::new() })
        };
        let members = (0..config.nodes).map(member).collect();
        let nodes = caches.filtered::<Node>(ListOptions::labels(format!("{}={}", node::SIMULATION, config.prefix)));
        Fleet { config: config.clone(), members, nodes }
    }

    pub fn members(&self) -> &[Arc<Member>] {
        &self.members
    }

    /// Registers all nodes. A node that is there from an earlier run is taken over.
    pub async fn register(&self) -> Result<(), Error> {
        let register = |member: &Arc<Member>| member.clone().register(self.config.clone());
        let registrations: Vec<_> = self.members.iter().map(register).collect();
        let mut registrations = futures::stream::iter(registrations).buffer_unordered(AT_ONCE);
        while let Some(registered) = registrations.next().await {
            registered?;
        }
        Ok(())
    }

    /// Sends the heartbeats of all nodes until the shutdown.
    pub async fn beat(&self, shutdown: CancellationToken) {
        let tasks = tokio_util::task::TaskTracker::new();
        for member in &self.members {
            let member = member.clone();
            let config = self.config.clone();
            let nodes = self.nodes.clone();
            let shutdown = shutdown.clone();
            tasks.spawn(async move {
                let heartbeats = async { tokio::join!(member.renew(&config), member.report(&config, &nodes)) };
                let _ = shutdown.run_until_cancelled(heartbeats).await;
            });
        }
        tasks.close();
        tasks.wait().await;
    }

    /// Returns the pod CIDR of a node; one of the simulation's own as long as no controller has given it one.
    pub fn pod_cidr(&self, index: u32) -> String {
        let member = &self.members[index as usize];
        if let Some(known) = member.pod_cidr.get() {
            return known.clone();
        }
        let node = self.nodes.get(&Key::new("", &member.name)).map(|node| node.value());
        let Some(cidr) = node.as_ref().and_then(|node| node["spec"]["podCIDR"].as_str()) else {
            return node::own_pod_cidr(index);
        };
        member.pod_cidr.get_or_init(|| cidr.to_owned()).clone()
    }

    /// Deletes all nodes of the simulation and their Leases, also those of an earlier run.
    pub async fn remove(&self, client: &Client) -> Result<(), Error> {
        let selector = ListOptions::labels(format!("{}={}", node::SIMULATION, self.config.prefix));
        remove_all(&client.of::<Node>(), "", &selector).await?;
        remove_all(&client.of::<Lease>(), node::LEASES, &selector).await
    }
}

/// Deletes the objects that a selector matches. A server that needs longer than one request may take is asked again.
async fn remove_all(objects: &Dynamic, namespace: &str, selector: &ListOptions) -> Result<(), Error> {
    let doing = || format!("the {} of the simulation cannot be deleted", objects.resource().plural);
    let mut outcome = Ok(());
    for _ in 0..REMOVALS {
        outcome = objects.delete_collection(namespace, &DeleteOptions::default(), selector).await;
        let first = ListOptions { limit: Some(1), ..selector.clone() };
        if objects.list_objects(namespace, &first).await.map_err(Error::api(doing()))?.items.is_empty() {
            return Ok(());
        }
        tokio::time::sleep(RETRY).await;
    }
    outcome.map_err(Error::api(doing()))
}

impl Member {
    async fn register(self: Arc<Self>, config: Arc<Config>) -> Result<(), Error> {
        let now = corten_meta::time::now();
        let nodes = self.client.of::<Node>();
        let created = match nodes.create("", &node::object(&config, self.index, now)).await {
            Err(error) if error.is_already_exists() => nodes.get("", &self.name).await,
            created => created,
        };
        let created = created.map_err(Error::api(format!("node {} cannot be registered", self.name)))?;
        if created["metadata"]["labels"][node::SIMULATED] != "true" {
            return Err(Error::Config(format!(
                "node {} is there and is not simulated: choose another --prefix",
                self.name
            )));
        }
        let uid = corten_meta::uid(&created).to_owned();
        let _ = self.registered.set(Registered { uid, since: now });
        Ok(())
    }

    /// Renews the node's Lease in every period.
    async fn renew(&self, config: &Config) {
        let Some(registered) = self.registered.get() else { return };
        let leases = self.client.of::<Lease>();
        let mut version: Option<String> = None;
        let mut due = Instant::now() + node::first_heartbeat(config, self.index, config.lease_period);
        loop {
            tokio::time::sleep_until(due).await;
            let lease = node::lease(config, self.index, &registered.uid, version.as_deref(), Timestamp::now());
            let answer = match version {
                Some(_) => leases.update(&lease).await,
                None => leases.create(node::LEASES, &lease).await,
            };
            let answer = match answer {
                // Another run's Lease, or a write whose answer was lost.
                Err(error) if error.is_already_exists() || error.is_conflict() => {
                    leases.get(node::LEASES, &self.name).await
                }
                answer => answer,
            };
            match answer {
                Ok(lease) => {
                    version = Some(corten_meta::resource_version(&lease).to_owned());
                    due = (due + config.lease_period).max(Instant::now());
                }
                Err(error) => {
                    tracing::debug!(node = self.name, %error, "lease not renewed");
                    version = version.filter(|_| !error.is_not_found());
                    due = Instant::now() + RETRY;
                }
            }
        }
    }

    /// Reports the node's status in every period, and at once if the control plane takes the node for lost.
    async fn report(&self, config: &Config, nodes: &Cache) {
        let Some(registered) = self.registered.get() else { return };
        let key = Key::new("", &self.name);
        let offset = node::first_heartbeat(config, self.index, config.status_period);
        let mut due = Instant::now() + offset;
        loop {
            // The state in the cache is compared as often as the Lease is renewed.
            tokio::time::sleep_until(due.min(Instant::now() + config.lease_period)).await;
            let is_doubted = nodes.get(&key).is_some_and(|node| node::is_doubted(&node.value()));
            if Instant::now() < due && !is_doubted {
                continue;
            }
            let patch = Patch::Strategic(node::heartbeat(Timestamp::now(), registered.since));
            match self.client.send_patch::<Node>("", &self.name, &patch, Some("status")).await {
                Ok(()) => due = Instant::now() + config.status_period,
                Err(error) => {
                    tracing::debug!(node = self.name, %error, "status not reported");
                    due = Instant::now() + RETRY;
                }
            }
        }
    }
}
