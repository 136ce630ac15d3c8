//! The manager: follows Nodes and Services, and reconciles each change, with back-off after a failure.

use std::sync::Arc;
use std::time::Duration;

use corten_api::AddressRange;
use corten_client::{Cache, Caches, Change, Client, EventRecorder, LeaderConfig, LeaderElector, Outcome, WorkQueue};
use corten_meta::{Key, Object, Value};
use k8s_openapi::api::core::v1::{Node, Service};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::controllers::node::UNINITIALIZED;
use crate::controllers::{node, node_lifecycle, route, service};
use crate::execute::{ClientApi, Failure, execute, execute_each};
use crate::nodes::{reference, targets};
use crate::objects::list;
use crate::provider::{COMPARE_INTERVAL, Error, Provider};

/// The number of tasks that run at once. Providers ask about the objects of several in one call.
const WORKERS: usize = 32;
/// The interval at which the addresses of initialized nodes are read again.
const ADDRESS_INTERVAL: Duration = Duration::from_secs(300);
/// The interval at which the cloud is asked about nodes that are not Ready.
const LIFECYCLE_INTERVAL: Duration = Duration::from_secs(5);
/// The interval at which the routes are compared with the cloud's.
const ROUTE_INTERVAL: Duration = Duration::from_secs(60);
/// The wait after an error that only a user can correct; a change of the object ends it.
const INVALID: Duration = Duration::from_secs(60);
/// The wait after an answer that asks for fewer requests without a time.
const THROTTLED: Duration = Duration::from_secs(30);

/// The names of the controllers, as upstream's manager has them.
pub const CONTROLLERS: [&str; 4] = [NODE, NODE_LIFECYCLE, ROUTE, SERVICE];
const NODE: &str = "cloud-node-controller";
const NODE_LIFECYCLE: &str = "cloud-node-lifecycle-controller";
const ROUTE: &str = "node-route-controller";
const SERVICE: &str = "service-lb-controller";

/// The times of the leader election.
#[derive(Clone, Copy, Debug)]
pub struct Election {
    pub lease_duration: Duration,
    pub renew_deadline: Duration,
    pub retry_period: Duration,
}

/// The Lease was lost to another process.
#[derive(Debug, thiserror::Error)]
#[error("the Lease kube-system/cloud-controller-manager was lost")]
pub struct LostLease;

/// The settings of the manager.
#[derive(Clone, Debug)]
pub struct Config {
    /// The identity of this process in the leader election.
    pub identity: String,
    /// The leader election that the process takes part in first; none if it leads at once.
    pub election: Option<Election>,
    /// The names of the controllers to run, of [`CONTROLLERS`].
    pub controllers: Vec<&'static str>,
    /// The pod CIDRs of the cluster: routes elsewhere are never deleted.
    pub cluster_cidrs: Vec<AddressRange>,
    /// Whether the cloud's network routes packets to pods.
    pub configure_routes: bool,
}

/// Runs the controllers until shutdown.
pub async fn run(
    config: Config,
    provider: Arc<dyn Provider>,
    client: Client,
    shutdown: CancellationToken,
) -> Result<(), LostLease> {
    let Some(election) = config.election else {
        lead(config, provider, client, shutdown).await;
        return Ok(());
    };
    let lease = LeaderConfig {
        lease_duration: election.lease_duration,
        renew_deadline: election.renew_deadline,
        retry_period: election.retry_period,
        ..LeaderConfig::new("kube-system", "cloud-controller-manager", &config.identity)
    };
    let elector = LeaderElector::new(client.clone(), lease);
    match elector.run(shutdown, |leading| lead(config, provider, client, leading)).await {
        Outcome::Lost => Err(LostLease),
        Outcome::Stopped | Outcome::Finished => Ok(()),
    }
}

/// One unit of work. A node has two: its addresses and its existence are asked for at different times.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Task {
    Node(String),
    Lifecycle(String),
    Service(Key),
    Routes,
}

struct Manager {
    config: Config,
    provider: Arc<dyn Provider>,
    api: ClientApi,
    nodes: Arc<Cache>,
    services: Arc<Cache>,
    queue: WorkQueue<Task>,
}

async fn lead(config: Config, provider: Arc<dyn Provider>, client: Client, shutdown: CancellationToken) {
    provider.forget();
    let caches = Caches::new(client.clone(), shutdown.clone());
    let recorder = EventRecorder::new(client.clone(), "cloud-controller-manager", "");
    let manager = Arc::new(Manager {
        config,
        provider,
        api: ClientApi { client, recorder },
        nodes: caches.of::<Node>(),
        services: caches.of::<Service>(),
        queue: WorkQueue::new(),
    });
    if shutdown.run_until_cancelled(caches.synced()).await.is_none() {
        return;
    }
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        workers.spawn(work(Arc::clone(&manager)));
    }
    manager.queue.add(Task::Routes);
    let mut of_nodes = manager.nodes.subscribe();
    let mut of_services = manager.services.subscribe();
    loop {
        tokio::select! {
            change = of_nodes.next() => match change {
                Some(change) => manager.node_changed(&change),
                None => break,
            },
            change = of_services.next() => match change {
                Some(change) => manager.service_changed(&change),
                None => break,
            },
            () = shutdown.cancelled() => break,
        }
    }
    manager.queue.shut_down();
    while workers.join_next().await.is_some() {}
}

async fn work(manager: Arc<Manager>) {
    while let Some(task) = manager.queue.get().await {
        match manager.reconcile(&task).await {
            Ok(after) => {
                manager.queue.forget(&task);
                if let Some(after) = after {
                    manager.queue.add_after(task.clone(), after);
                }
            }
            Err(Failure::Cloud(Error::Throttled { message, after })) => {
                warn!("the cloud asks to wait: {message}");
                manager.queue.add_after(task.clone(), after.unwrap_or(THROTTLED));
            }
            Err(Failure::Cloud(error @ Error::Invalid(_))) => {
                warn!(?task, "{error}");
                manager.queue.add_after(task.clone(), INVALID);
            }
            Err(failure) => {
                warn!(?task, "{failure}");
                manager.queue.add_rate_limited(task.clone());
            }
        }
        manager.queue.done(&task);
    }
}

impl Manager {
    /// Adds the tasks of a changed Service. A written status, and the finalizer of this controller, need none.
    fn service_changed(&self, change: &Change) {
        let inputs = |object: &Option<Arc<Object>>| object.as_ref().map(|object| service::inputs(&object.value()));
        let is_unfinalized = |object: &Option<Arc<Object>>| {
            object.as_ref().is_some_and(|object| !service::is_finalized(&object.value()))
        };
        let is_released = !is_unfinalized(&change.old) && is_unfinalized(&change.new);
        if inputs(&change.old) != inputs(&change.new) || is_released {
            self.queue.add(Task::Service(change.key.clone()));
        }
    }

    /// Adds the tasks of a changed node. A heartbeat needs none.
    fn node_changed(&self, change: &Change) {
        let value = |object: &Option<Arc<Object>>| object.as_ref().map(|object| object.value());
        let old: Vec<Value> = value(&change.old).into_iter().collect();
        let new: Vec<Value> = value(&change.new).into_iter().collect();
        let references = |nodes: &[Value]| nodes.iter().map(node::inputs).collect::<Vec<_>>();
        if references(&old) != references(&new) {
            self.queue.add(Task::Node(change.key.name.clone()));
        }
        if new.iter().any(node_lifecycle::is_concerned) {
            self.queue.add(Task::Lifecycle(change.key.name.clone()));
        }
        if targets(&old, true) != targets(&new, true) {
            let services = self.services.all();
            services.iter().for_each(|service| self.queue.add(Task::Service(service.key())));
        }
        let cidrs = |nodes: &[Value]| nodes.iter().map(|node| node["spec"].clone()).collect::<Vec<_>>();
        if cidrs(&old) != cidrs(&new) {
            self.queue.add(Task::Routes);
        }
    }

    fn all_nodes(&self) -> Vec<Value> {
        self.nodes.all().iter().map(|node| node.value()).collect()
    }

    /// Reconciles; returns the time until the next reconcile if nothing changes before.
    async fn reconcile(&self, task: &Task) -> Result<Option<Duration>, Failure> {
        let controller = match task {
            Task::Node(_) => NODE,
            Task::Lifecycle(_) => NODE_LIFECYCLE,
            Task::Service(_) => SERVICE,
            Task::Routes => ROUTE,
        };
        if !self.config.controllers.contains(&controller) {
            return Ok(None);
        }
        match task {
            Task::Node(name) => self.node(name).await,
            Task::Lifecycle(name) => self.lifecycle(name).await,
            Task::Service(key) => self.service(key).await,
            Task::Routes => self.routes().await,
        }
    }

    async fn node(&self, name: &str) -> Result<Option<Duration>, Failure> {
        let Some(object) = self.nodes.get(&Key::new("", name)) else { return Ok(None) };
        let value = with_version(&object);
        let instance = self.provider.instance(&reference(&value)).await;
        let actions = node::reconcile(&value, &instance);
        execute(&*self.provider, &self.api, &actions).await?;
        let is_new = list(&value, "/spec/taints").any(|taint| taint["key"] == UNINITIALIZED);
        match instance {
            Ok(None) if is_new => Err(Failure::Api(format!("the cloud has no instance of node {name} yet"))),
            Ok(_) => Ok(Some(ADDRESS_INTERVAL)),
            Err(error) => Err(error.into()),
        }
    }

    async fn lifecycle(&self, name: &str) -> Result<Option<Duration>, Failure> {
        let Some(object) = self.nodes.get(&Key::new("", name)) else { return Ok(None) };
        let value = with_version(&object);
        if !node_lifecycle::needs_instance(&value) {
            execute(&*self.provider, &self.api, &node_lifecycle::reconcile(&value, None)).await?;
            return Ok(None);
        }
        let instance = self.provider.instance(&reference(&value)).await;
        execute(&*self.provider, &self.api, &node_lifecycle::reconcile(&value, Some(&instance))).await?;
        instance.map(|_| Some(LIFECYCLE_INTERVAL)).map_err(Failure::from)
    }

    async fn service(&self, key: &Key) -> Result<Option<Duration>, Failure> {
        let Some(object) = self.services.get(key) else { return Ok(None) };
        let actions = service::reconcile(&with_version(&object), &self.all_nodes(), self.provider.name());
        execute(&*self.provider, &self.api, &actions).await?;
        Ok(service::wants_balancer(&object.value()).then_some(COMPARE_INTERVAL))
    }

    async fn routes(&self) -> Result<Option<Duration>, Failure> {
        let Some(routes) = self.provider.routes().filter(|_| self.config.configure_routes) else { return Ok(None) };
        let present = routes.list_routes().await?;
        let nodes: Vec<Value> = self.nodes.all().iter().map(|node| with_version(node)).collect();
        let now = corten_meta::time::rfc3339(corten_meta::time::now());
        let plan = route::reconcile(&nodes, &present, &self.config.cluster_cidrs, &now);
        let deleted = execute_each(&*self.provider, &self.api, &plan.surplus).await;
        let created = execute_each(&*self.provider, &self.api, &plan.nodes).await;
        deleted.and(created).map(|()| Some(ROUTE_INTERVAL))
    }
}

/// Returns the object with its resourceVersion, which its bytes do not have.
fn with_version(object: &Object) -> Value {
    let mut value = object.value();
    value["metadata"]["resourceVersion"] = object.revision.to_string().into();
    value
}
