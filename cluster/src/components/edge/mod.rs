//! Gateways and Ingresses: the controller in the server's process, and on every node the proxy in a process of its own.
//!
//! The proxy takes connections from anywhere, so it runs as a user without rights. It runs only while the cluster has a
//! Gateway or an Ingress, and is started again when it fails. It serves on while the API server is away, and outlives the
//! process that started it, as containers do: the next process finds it by its socket (`process.rs`), and keeps it if it
//! is of the same build. A proxy of another build gives its listeners to a new one (`takeover.rs`), so that no connection
//! is refused, and ends with its last connection.

mod credentials;
mod process;
mod takeover;
mod words;

use std::ffi::OsString;
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use corten_client::Client;
use corten_controllers::NodeComponent;
use corten_gateway::data::{Applied, DataHalf, FIRST_SECRETS, Signals, UnknownKeys};
use corten_gateway::demand::Demand;
use corten_gateway::key_sets::{Fetching, is_elsewhere};
use corten_gateway::{control, data};
use corten_routing::{BackendKey, Configuration, Endpoints};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::apiserver::ApiServer;
use crate::api_servers::ApiServers;
use crate::config::{Cluster, Node, node_name};
use crate::directories::Directories;
use crate::edge_options::Edge;
use crate::tasks::Tasks;
use crate::{files, supervision};
use credentials::Credentials;
use process::{Found, Process, Wanted};
use takeover::{Predecessor, Socket};

/// The service account of the controller, in kube-system.
pub const CONTROLLER_ACCOUNT: &str = "gateway-controller";
/// The user and group of the proxy, which own no file of the system.
const USER: u32 = 65534;
/// The descriptors of the proxy's directory, of its socket, and of the proxy that it takes over from, in its process.
const DIRECTORY: RawFd = 3;
const CONTROL: RawFd = 4;
const PREDECESSOR: RawFd = 5;
/// The pause before a failed proxy is started again, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A proxy that ran for this long has recovered.
const RECOVERED: Duration = Duration::from_secs(60);
/// The interval at which renewed credentials are given to the proxy.
const RENEWAL_CHECK: Duration = Duration::from_secs(5);

/// The time limit of a proxy's end: its requests in flight have 30 seconds.
const STOP_TIME: Duration = Duration::from_secs(60);
/// The same when all of the cluster is stopped.
const DOWN_TIME: Duration = Duration::from_secs(5);
/// The takeovers that may fail before the old proxy is stopped instead.
const MAX_TAKEOVERS: u32 = 3;

/// The time limit for the Secrets of a proxy that takes over: the one before serves all hosts meanwhile.
const TAKEOVER_SECRETS: Duration = Duration::from_secs(30);

/// The time for which the proxy stays after the last Gateway and Ingress was deleted.
const IDLE_TIME: Duration = Duration::from_secs(60);

/// How keys of tokens are fetched: by the CAs of this machine, and never from this machine.
const FETCHING: Fetching = Fetching { roots: files::trusted_roots, is_allowed: is_elsewhere };

/// Starts the controller of Gateways and Ingresses in the server's process.
pub fn start_control(cluster: &Cluster, api: &ApiServer, tasks: &mut Tasks) {
    let options = &cluster.node.edge;
    if options.disable_edge {
        return;
    }
    let user = format!("system:serviceaccount:kube-system:{CONTROLLER_ACCOUNT}");
    let client = api.client(&user, &["system:serviceaccounts", "system:serviceaccounts:kube-system"]);
    let config = control::Config {
        identity: format!("{}_corten", cluster.node.name),
        leader_elect: cluster.several_servers,
        ports: options.edge_port_range.unwrap_or_default(),
        fetching: FETCHING,
    };
    let orders = corten_acme::Config { identity: config.identity.clone(), leader_elect: config.leader_elect };
    spawn_control(config, orders, client, tasks);
}

/// Starts the controller, and the orders of certificates.
fn spawn_control(config: control::Config, orders: corten_acme::Config, client: Client, tasks: &mut Tasks) {
    let ordering = corten_acme::run(orders, client.clone(), tasks.shutdown());
    tasks.spawn("acme", async move {
        ordering.await;
        Ok::<(), anyhow::Error>(())
    });
    let controlling = control::run(config, client, tasks.shutdown());
    tasks.spawn("gateway controller", async move {
        controlling.await;
        Ok::<(), anyhow::Error>(())
    });
}

/// Starts the proxy of a node whenever it is needed. It connects to the API server as the node's other components do:
/// through the balancer if the node has one.
pub fn start(node: &Node, client: Client, servers: Option<&ApiServers>, tasks: &mut Tasks) {
    let directories = node.directories.clone();
    if node.edge.disable_edge {
        let shutdown = tasks.shutdown();
        tasks.spawn("edge", async move {
            stop_all(&directories, STOP_TIME).await?;
            shutdown.cancelled().await;
            Ok::<(), anyhow::Error>(())
        });
        return;
    }
    let credentials = Credentials {
        source: directories.kubeconfig(NodeComponent::Edge.name()),
        directory: directories.run.join("edge"),
        servers: servers.cloned(),
    };
    let shutdown = tasks.shutdown();
    let demand = Demand::open(node.name.clone(), client, shutdown.clone());
    let supervisor = Supervisor { node: node.name.clone(), directories, credentials, demand, failed_takeovers: 0 };
    tasks.spawn("edge", supervisor.run(shutdown));
}

/// Stops all proxies of a node, those that another took over from as well.
pub async fn stop_all(directories: &Directories, patience: Duration) -> Result<()> {
    for found in process::find(&directories.edge_sockets()).await.into_iter().rev() {
        found.process.stop(patience).await?;
    }
    Ok(())
}

/// Stops all proxies of a node with all of its cluster.
pub async fn tear_down(directories: &Directories) -> Result<()> {
    stop_all(directories, DOWN_TIME).await
}

/// The part of a node's process that keeps its proxy.
struct Supervisor {
    node: String,
    directories: Directories,
    credentials: Credentials,
    demand: Demand,
    failed_takeovers: u32,
}

impl Supervisor {
    /// Keeps the proxy running while it is needed, until the shutdown.
    async fn run(mut self, shutdown: CancellationToken) -> Result<()> {
        let mut pause = FIRST_PAUSE;
        while !shutdown.is_cancelled() {
            let started = Instant::now();
            match self.run_once(&shutdown).await {
                Ok(()) => continue,
                Err(error) => tracing::warn!("the proxy of Gateways ended: {error:#}"),
            }
            if started.elapsed() > RECOVERED {
                self.failed_takeovers = 0;
                pause = FIRST_PAUSE;
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = shutdown.cancelled() => {}
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        Ok(())
    }

    /// Runs the proxy until it fails, until it is no longer needed, or until the shutdown, which it outlives.
    async fn run_once(&mut self, shutdown: &CancellationToken) -> Result<()> {
        let proxy = tokio::select! {
            proxy = self.proxy() => proxy?,
            () = shutdown.cancelled() => return Ok(()),
        };
        let mut unneeded = std::pin::pin!(self.demand.ended(IDLE_TIME));
        loop {
            tokio::select! {
                ended = proxy.ended() => anyhow::bail!("{}", ended?),
                () = tokio::time::sleep(RENEWAL_CHECK) => drop(self.credentials.renew()?),
                () = &mut unneeded => return proxy.stop(STOP_TIME).await,
                () = shutdown.cancelled() => break,
            }
        }
        if supervision::is_stopping()
            && let Err(error) = proxy.leave().await
        {
            tracing::warn!("the proxy of Gateways does not know that this process stops: {error:#}");
        }
        Ok(())
    }

    /// Returns the proxy that runs, or one that takes over from it; otherwise starts one once it is needed.
    async fn proxy(&mut self) -> Result<Process> {
        let mut running = process::find(&self.directories.edge_sockets()).await;
        running.retain(Found::is_current);
        let Some(mut newest) = running.pop() else {
            self.demand.begun().await;
            return self.start(None);
        };
        if newest.serves() {
            // They should have retired; the process that took over from them may have failed to say so.
            for older in &mut running {
                older.tell(words::RETIRE).await?;
            }
        }
        if newest.is(&self.wanted()?) {
            newest.tell(words::ATTACH).await.context("it does not answer")?;
            self.failed_takeovers = 0;
            tracing::info!("the proxy of Gateways goes on");
            return Ok(newest.process);
        }
        if newest.shares_network() && self.failed_takeovers < MAX_TAKEOVERS {
            self.failed_takeovers += 1;
            tracing::info!("another build of the proxy of Gateways takes over");
            return self.start(Some(newest));
        }
        newest.process.stop(STOP_TIME).await?;
        self.start(None)
    }

    /// Returns the facts of the proxy, with credentials of the time.
    fn wanted(&self) -> Result<Wanted> {
        let kubeconfig = self.credentials.renew()?;
        let arguments = [
            "edge".to_owned(),
            "--controller=false".to_owned(),
            format!("--node-name={}", self.node),
            format!("--kubeconfig={kubeconfig}"),
            format!("--control-fd={CONTROL}"),
        ];
        let arguments = arguments.into_iter().map(OsString::from).collect();
        Ok(Wanted { arguments, directory: self.credentials.directory.clone() })
    }

    fn start(&self, predecessor: Option<Found>) -> Result<Process> {
        let wanted = self.wanted()?;
        // Its own path may be in a directory that the user of the proxy cannot enter.
        let mut command = Command::new("/proc/self/exe");
        command.args(&wanted.arguments).uid(USER).gid(USER).stdin(Stdio::null());
        if predecessor.is_some() {
            command.arg(format!("--predecessor-fd={PREDECESSOR}"));
        }
        let directory = self.credentials.open()?;
        let stream = predecessor.map(|found| found.stream);
        Process::start(command, &self.directories.edge_sockets(), directory.into(), stream)
    }
}

/// The proxy, as the controller's half calls it.
struct Proxy {
    edge: corten_edge::Edge,
    serves: AtomicBool,
    /// The time limit of the first table for its Secrets.
    patience: Duration,
    predecessor: Mutex<Option<Predecessor>>,
}

impl Proxy {
    /// Makes a proxy; it takes over the listeners of another if it has the connection to it.
    fn new(predecessor: Option<RawFd>) -> Result<Proxy> {
        let predecessor = predecessor.map(Predecessor::new).transpose()?;
        let inherited = match &predecessor {
            Some(predecessor) => predecessor.listeners().context("the listeners cannot be taken over")?,
            None => Vec::new(),
        };
        let edge = corten_edge::Edge::new(corten_edge::Options { inherited, ..corten_edge::Options::default() });
        let patience = if predecessor.is_some() { TAKEOVER_SECRETS } else { FIRST_SECRETS };
        Ok(Proxy { edge, serves: AtomicBool::new(false), patience, predecessor: Mutex::new(predecessor) })
    }

    /// Reports whether a table is served.
    fn serves(&self) -> bool {
        self.serves.load(Ordering::Relaxed)
    }
}

impl DataHalf for Proxy {
    fn set_endpoints(&self, backend: &BackendKey, endpoints: &Endpoints) {
        self.edge.set_endpoints(backend, endpoints);
    }

    fn apply<'a>(&'a self, configuration: &'a Configuration) -> Applied<'a> {
        Box::pin(async move {
            let failed = self.edge.apply(configuration).await;
            if let Some(predecessor) = self.predecessor.lock().await.take() {
                predecessor.retire().await;
                self.edge.forget_inherited().await;
            }
            self.serves.store(true, Ordering::Relaxed);
            failed.into_iter().map(|failed| failed.key).collect()
        })
    }

    fn unknown_keys(&self) -> UnknownKeys<'_> {
        Box::pin(self.edge.unknown_keys())
    }

    fn patience(&self) -> Duration {
        self.patience
    }
}

/// Runs `corten edge`.
pub async fn alone(flags: Edge, shutdown: CancellationToken) -> Result<()> {
    let path = &flags.kubeconfig;
    let client = Client::from_kubeconfig(path, None).with_context(|| format!("{} cannot be used", path.display()))?;
    let client = client.with_user_agent("corten-edge");
    let name = node_name(flags.node_name.as_deref())?;
    let mut tasks = Tasks::new(shutdown.clone());
    if flags.controller {
        let config = control::Config {
            identity: format!("{name}_{}", std::process::id()),
            leader_elect: true,
            ports: flags.edge_port_range.unwrap_or_default(),
            fetching: FETCHING,
        };
        let orders = corten_acme::Config { identity: config.identity.clone(), leader_elect: true };
        spawn_control(config, orders, client.clone(), &mut tasks);
    }
    let proxy = Arc::new(Proxy::new(flags.predecessor_fd)?);
    let signals = Signals { shutdown, retired: CancellationToken::new() };
    if let Some(descriptor) = flags.control_fd {
        let socket = Socket::new(Arc::clone(&proxy), signals.clone());
        tasks.spawn("control socket", socket.serve(descriptor));
    }
    let serving = proxy.clone();
    tasks.spawn("edge", async move {
        data::run(name, client, serving, signals).await;
        Ok::<(), anyhow::Error>(())
    });
    let outcome = tasks.run().await;
    proxy.edge.drain().await;
    outcome
}
