//! Gateways and Ingresses: the controller in the server's process, and on every node the proxy in a process of its own.
//!
//! The proxy takes connections from anywhere, so it runs as a user without rights. It reads its credentials through a
//! directory that it inherits open: the directories above it are root's alone. It serves on while the API server is away,
//! and is started again when it fails. It runs only while the cluster has a Gateway or an Ingress.

use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use corten_client::Client;
use corten_controllers::NodeComponent;
use corten_gateway::data::{Applied, DataHalf};
use corten_gateway::demand::Demand;
use corten_gateway::{control, data};
use corten_routing::{BackendKey, Configuration, Endpoints};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::apiserver::ApiServer;
use super::companion::Companion;
use crate::api_servers::{ApiServers, SERVER_NAME};
use crate::config::{Cluster, Node, node_name};
use crate::edge_options::Edge;
use crate::tasks::Tasks;
use crate::{kubeconfig, pki};

/// The service account of the controller, in kube-system.
pub const CONTROLLER_ACCOUNT: &str = "gateway-controller";
/// The user and group of the proxy, which own no file of the system.
const USER: u32 = 65534;
/// The descriptor of the proxy's directory in its process.
const DIRECTORY: RawFd = 3;
/// The pause before a failed proxy is started again, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A proxy that ran for this long has recovered.
const RECOVERED: Duration = Duration::from_secs(60);
/// The interval at which renewed credentials are given to the proxy.
const RENEWAL_CHECK: Duration = Duration::from_secs(5);

/// The time for which the proxy stays after the last Gateway and Ingress was deleted.
const IDLE_TIME: Duration = Duration::from_secs(60);

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
    if !node.edge.disable_edge {
        tasks.spawn("edge", supervise(node.clone(), client, servers.cloned(), tasks.shutdown()));
    }
}

/// Keeps the proxy running while it is needed, until the shutdown.
async fn supervise(node: Node, client: Client, servers: Option<ApiServers>, shutdown: CancellationToken) -> Result<()> {
    let demand = Demand::open(node.name.clone(), client, shutdown.clone());
    let credentials = Credentials {
        source: node.directories.kubeconfig(NodeComponent::Edge.name()),
        directory: node.directories.run.join("edge"),
        servers,
    };
    let mut pause = FIRST_PAUSE;
    while shutdown.run_until_cancelled(demand.begun()).await.is_some() {
        let started = Instant::now();
        match run_once(&node, &credentials, &demand, &shutdown).await {
            Ok(()) => continue,
            Err(error) => tracing::warn!("the proxy of Gateways ended: {error:#}"),
        }
        if started.elapsed() > RECOVERED {
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

/// Runs the proxy until it fails, until it is no longer needed, or until the shutdown.
async fn run_once(node: &Node, credentials: &Credentials, demand: &Demand, shutdown: &CancellationToken) -> Result<()> {
    credentials.renew()?;
    let mut proxy = Companion::start(command(node, credentials)?).await.context("it cannot be started")?;
    let mut unneeded = std::pin::pin!(demand.ended(IDLE_TIME));
    loop {
        tokio::select! {
            ended = proxy.ended() => anyhow::bail!("{}", ended?),
            () = tokio::time::sleep(RENEWAL_CHECK) => credentials.renew()?,
            () = &mut unneeded => break,
            () = shutdown.cancelled() => break,
        }
    }
    proxy.stop().await.context("it cannot be stopped")
}

fn command(node: &Node, credentials: &Credentials) -> Result<Command> {
    let directory = credentials.open()?;
    // Its own path may be in a directory that the user of the proxy cannot enter.
    let mut command = Command::new("/proc/self/exe");
    command
        .args(["edge", "--controller=false", "--node-name", &node.name])
        .arg(format!("--kubeconfig=/proc/self/fd/{DIRECTORY}/kubeconfig"))
        .uid(USER)
        .gid(USER)
        .stdin(Stdio::null());
    // SAFETY: dup2 and fcntl are async-signal-safe, and nothing is allocated between fork and exec.
    unsafe {
        command.pre_exec(move || {
            let inherited = match directory.as_raw_fd() {
                DIRECTORY => libc::fcntl(DIRECTORY, libc::F_SETFD, 0),
                other => libc::dup2(other, DIRECTORY),
            };
            if inherited < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
        });
    }
    Ok(command)
}

/// The proxy's credentials: a copy of its kubeconfig that its user can read.
struct Credentials {
    source: PathBuf,
    directory: PathBuf,
    /// The node's way to all API servers; without it the server of the kubeconfig is the only one.
    servers: Option<ApiServers>,
}

impl Credentials {
    /// Copies the kubeconfig, with the authority and the identity in files of their own, which the proxy reads again when
    /// they change.
    fn renew(&self) -> Result<()> {
        let mut config = kubeconfig::read(&self.source)?;
        let identity = kubeconfig::identity(&self.source)?;
        let authority = kubeconfig::authority(&self.source)?;
        std::fs::create_dir_all(&self.directory)
            .with_context(|| format!("cannot create {}", self.directory.display()))?;
        let file = |name: &str| format!("/proc/self/fd/{DIRECTORY}/{name}");
        let client = file("client.pem");
        config["users"][0]["user"] = json!({"client-certificate": client, "client-key": client});
        let server = config["clusters"][0]["cluster"]["server"].take();
        config["clusters"][0]["cluster"] = match &self.servers {
            Some(servers) => json!({
                "server": servers.url(),
                "tls-server-name": SERVER_NAME,
                "certificate-authority": file("ca.crt"),
            }),
            None => json!({"server": server, "certificate-authority": file("ca.crt")}),
        };
        self.write("ca.crt", &authority)?;
        self.write("client.pem", &format!("{}{}", identity.certificate, identity.key))?;
        self.write("kubeconfig", &corten_meta::codec::encode_yaml(&config))?;
        self.own(&self.directory, 0o500)
    }

    /// Writes a file of the proxy, unless it has this content.
    fn write(&self, name: &str, content: &str) -> Result<()> {
        let path = self.directory.join(name);
        if std::fs::read(&path).is_ok_and(|current| current == content.as_bytes()) {
            return Ok(());
        }
        pki::write_private(&path, content.as_bytes())?;
        self.own(&path, 0o400)
    }

    fn own(&self, path: &Path, mode: u32) -> Result<()> {
        chown(path, Some(USER), Some(USER))
            .with_context(|| format!("cannot change the owner of {}", path.display()))?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
            .with_context(|| format!("cannot change the mode of {}", path.display()))
    }

    fn open(&self) -> Result<File> {
        File::open(&self.directory).with_context(|| format!("cannot open {}", self.directory.display()))
    }
}

/// The proxy, as the controller's half calls it.
struct Proxy(corten_edge::Edge);

impl DataHalf for Proxy {
    fn set_endpoints(&self, backend: &BackendKey, endpoints: &Endpoints) {
        self.0.set_endpoints(backend, endpoints);
    }

    fn apply<'a>(&'a self, configuration: &'a Configuration) -> Applied<'a> {
        Box::pin(async move {
            let failed = self.0.apply(configuration).await;
            failed.into_iter().map(|failed| failed.key).collect()
        })
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
        };
        let orders = corten_acme::Config { identity: config.identity.clone(), leader_elect: true };
        spawn_control(config, orders, client.clone(), &mut tasks);
    }
    let proxy = Arc::new(Proxy(corten_edge::Edge::new(corten_edge::Options::default())));
    let serving = proxy.clone();
    tasks.spawn("edge", async move {
        data::run(name, client, serving, shutdown).await;
        Ok::<(), anyhow::Error>(())
    });
    let outcome = tasks.run().await;
    proxy.0.drain().await;
    outcome
}
