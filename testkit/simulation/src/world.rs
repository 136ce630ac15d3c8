//! The processes of a cluster: the API server on its store, the controllers, the scheduler and the kubelets. Each can be
//! killed, and started again on what it left behind.

use std::sync::{Arc, Weak};
use std::time::Duration;

use corten_apiserver::{Server, User};
use corten_client::{Client, Transport};
use corten_controllers::{Clients, MANAGER};
use corten_store::{CommitterPlace, Embedded, Store};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::network::{Line, Network};

/// The number of nodes.
pub const NODES: u32 = 5;
/// The CPUs of a node; each pod requests one.
pub const NODE_CPUS: u64 = 8;
/// The directory of the store, below the current one: its path is in errors, and so in what replays.
const STORE: &str = "store";
const PAUSE: Duration = Duration::from_millis(10);

/// A cluster.
pub struct World {
    pub network: Arc<Network>,
    /// The lines of the nodes.
    pub nodes: Vec<Line>,
    server: Option<Running>,
    controllers: Option<Process>,
    scheduler: Option<Process>,
    kubelets: Option<Process>,
}

/// The API server that runs.
struct Running {
    server: Arc<Server>,
    /// The server's store, which must not outlive it.
    store: Weak<Embedded>,
}

/// A process of the control plane.
struct Process {
    line: Line,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

impl Process {
    /// Ends the process at once. Nothing of it reaches the server any more, whatever it still tries.
    fn kill(self) {
        self.line.set_cut(true);
        self.shutdown.cancel();
        self.task.abort();
    }
}

impl World {
    /// Starts a cluster with all of its nodes.
    pub async fn start(seed: u64) -> World {
        let network = Network::new(seed);
        let nodes = (0..NODES).map(|_| network.line()).collect();
        let mut world = World { network, nodes, server: None, controllers: None, scheduler: None, kubelets: None };
        world.start_server().await;
        world.start_kubelets();
        world.start_controllers();
        world.start_scheduler();
        world
    }

    /// Returns the store, while the server runs.
    pub fn store(&self) -> Option<Arc<Embedded>> {
        self.server.as_ref()?.store.upgrade()
    }

    /// Returns a client with all rights.
    pub fn admin(&self, line: &Line) -> Client {
        line.client(User::new("admin", &["system:masters"]))
    }

    pub async fn start_server(&mut self) {
        if self.server.is_some() {
            return;
        }
        let config = corten_store::Config {
            committer: CommitterPlace::Task,
            // Checkpoints and further segments are made by threads; the store's own tests have them.
            checkpoint_bytes: u64::MAX,
            segment_bytes: 32 << 20,
            ..corten_store::Config::new(STORE)
        };
        let store = Embedded::open(config).expect("the store opens after whatever happened");
        let weak = Arc::downgrade(&store);
        // Few addresses and ports: users meet in them.
        let config = corten_apiserver::Config {
            service_cidr: "10.96.0.0/27".to_owned(),
            node_port_range: (30000, 30007),
            ..testkit::server::config()
        };
        let server = Server::new(config, store).await.expect("the server starts");
        self.network.set_server(Some(server.clone()));
        self.server = Some(Running { server, store: weak });
    }

    /// Kills the API server: what was under way has an unknown outcome.
    pub async fn kill_server(&mut self) {
        let Some(Running { server, store }) = self.server.take() else { return };
        self.network.set_server(None);
        server.shut_down();
        drop(server);
        while store.strong_count() > 0 {
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Reports whether the disk has failed, after which a supervisor starts the server again.
    pub fn is_store_broken(&self) -> bool {
        self.store().is_some_and(|store| matches!(store.health(), corten_store::Health::Broken { .. }))
    }

    pub fn start_controllers(&mut self) {
        if self.controllers.is_some() {
            return;
        }
        let line = self.network.line();
        let callers = line.clone();
        let clients: Clients = Arc::new(move |name| callers.client(controller(name)));
        let shutdown = CancellationToken::new();
        let running = corten_controllers::run(corten_controllers::Config::default(), clients, shutdown.clone());
        let task = tokio::spawn(async move { running.await.expect("the controllers' settings are valid") });
        self.controllers = Some(Process { line, shutdown, task });
    }

    pub fn kill_controllers(&mut self) {
        self.controllers.take().into_iter().for_each(Process::kill);
    }

    pub fn start_scheduler(&mut self) {
        if self.scheduler.is_some() {
            return;
        }
        let line = self.network.line();
        let client = line.client(User::new("system:kube-scheduler", &[]));
        let shutdown = CancellationToken::new();
        let running = corten_scheduler::run(corten_scheduler::Config::default(), client, shutdown.clone());
        let task = tokio::spawn(async move { running.await.expect("the scheduler's settings are valid") });
        self.scheduler = Some(Process { line, shutdown, task });
    }

    pub fn kill_scheduler(&mut self) {
        self.scheduler.take().into_iter().for_each(Process::kill);
    }

    fn start_kubelets(&mut self) {
        let config = corten_simulate::Config {
            nodes: NODES,
            prefix: "node".to_owned(),
            node_cpu: NODE_CPUS.to_string(),
            taint: false,
            watch: corten_simulate::Watch::Node,
            ..corten_simulate::Config::default()
        };
        let user = User::new("kubelets", &["system:masters"]);
        let transports: Vec<Arc<dyn Transport>> = self.nodes.iter().map(|line| line.transport(user.clone())).collect();
        let shutdown = CancellationToken::new();
        let ended = shutdown.clone();
        let task = tokio::spawn(async move {
            corten_simulate::run_nodes(config, &transports, ended).await.expect("the nodes register before any fault")
        });
        self.kubelets = Some(Process { line: self.network.line(), shutdown, task });
    }

    /// Ends everything.
    pub async fn stop(mut self) {
        self.kill_controllers();
        self.kill_scheduler();
        self.kubelets.take().into_iter().for_each(Process::kill);
        self.kill_server().await;
    }
}

/// Returns the identity of a controller.
fn controller(name: &str) -> User {
    if name == MANAGER {
        return User::new("system:kube-controller-manager", &[]);
    }
    let groups = ["system:serviceaccounts", "system:serviceaccounts:kube-system"];
    User::new(&format!("system:serviceaccount:kube-system:{name}"), &groups)
}
