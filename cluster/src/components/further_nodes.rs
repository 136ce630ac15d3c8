//! Further nodes on this machine: each is an agent in its own process and network namespace.
//!
//! For the cluster they are machines like any other. The server starts them, restarts them when they fail, and stops
//! them; their containers outlive both.

use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use corten_controllers::NodeComponent;
use corten_network::namespace_node::{self, NodeNamespace};
use tokio_util::sync::CancellationToken;

use super::companion::Companion;
use super::groups::NODES_GROUP;
use super::network::cidrs;
use super::node_certificate::serving;
use crate::config::Cluster;
use crate::directories::Directories;
use crate::join::certificate;
use crate::pki::{Authorities, Leaf, Pki, validity, write_private};
use crate::tasks::Tasks;
use crate::{config_file, instance, kubeconfig, private};

/// The time until a failed agent is started again.
const PAUSE: Duration = Duration::from_secs(1);

/// Returns the settings of the namespaces of a cluster's further nodes.
pub fn namespaces(cluster_cidr: &str, directories: &Directories) -> Result<namespace_node::Config> {
    Ok(namespace_node::Config::new(&directories.run, &cidrs(cluster_cidr).context("the cluster's pod range")?))
}

pub fn of_cluster(cluster: &Cluster) -> Result<namespace_node::Config> {
    let host_addresses = cluster.node.addresses.clone();
    Ok(namespace_node::Config { host_addresses, ..namespaces(&cluster.node.cluster_cidr, &cluster.node.directories)? })
}

/// Creates the bridge with this machine's address among such nodes, if it has no other address, with or without nodes.
pub async fn ensure_address(cluster: &Cluster) -> Result<()> {
    let namespaces = of_cluster(cluster)?;
    let gateways = namespaces.gateways()?;
    if cluster.node.addresses.iter().any(|address| gateways.contains(address)) {
        namespace_node::ensure_host(&namespaces).await.context("the machine's own address cannot be made")?;
    }
    Ok(())
}

/// Starts the nodes beyond the servers; returns their names.
pub async fn start(cluster: &Cluster, authorities: &Authorities, tasks: &mut Tasks) -> Result<Vec<String>> {
    let namespaces = of_cluster(cluster)?;
    let mut names = Vec::new();
    for number in cluster.servers + 1..=cluster.nodes {
        let name = format!("{}-{number}", cluster.node.name);
        let directories = cluster.node.directories.node(&name);
        if let Some(stray) = instance::running(&directories)? {
            // An agent of a killed server: its successor takes over the containers.
            instance::stop(stray, Duration::from_secs(10))?;
        }
        let addresses = namespaces.addresses(usize::from(number) - 2)?;
        let namespace = namespace_node::create(&namespaces, &name, &addresses)
            .await
            .with_context(|| format!("the network namespace of node {name} cannot be made"))?;
        tasks.spawn("node", supervise(cluster.clone(), authorities.clone(), directories, namespace, tasks.shutdown()));
        names.push(name);
    }
    Ok(names)
}

/// Writes the agent's credentials.
pub fn prepare(
    cluster: &Cluster,
    pki: &Pki,
    name: &str,
    directories: &Directories,
    addresses: &[IpAddr],
) -> Result<()> {
    let write = |file: &str, user: &str, group: &str| {
        let identity = pki.cluster.issue(&Leaf::client(user, &[group]))?;
        let path = certificate::current_path(directories, file);
        write_private(&path, format!("{}{}", identity.certificate, identity.key).as_bytes())?;
        let config = kubeconfig::by_files(&cluster.advertised_url(), &directories.authority(), &path);
        kubeconfig::write(&directories.kubeconfig(file), &config)
    };
    write("kubelet", &format!("system:node:{name}"), NODES_GROUP)?;
    for component in NodeComponent::ALL {
        write(component.name(), &component.user(name), &component.group())?;
    }
    let tls = serving(pki, name, addresses)?;
    for (file, text) in [("kubelet.key", tls.key), ("kubelet.crt", tls.certificate)] {
        write_private(&directories.pki().join(file), text.as_bytes())?;
    }
    // On the server's own machine it is the authority's own file.
    if directories.pki() != cluster.node.directories.pki() {
        write_private(&directories.authority(), tls.client_ca.as_bytes())?;
    }
    Ok(())
}

/// Keeps one agent running until the shutdown. Every start has new certificates, and it is started again long before
/// they expire: its containers do not notice.
async fn supervise(
    cluster: Cluster,
    mut authorities: Authorities,
    directories: Directories,
    namespace: NodeNamespace,
    shutdown: CancellationToken,
) -> Result<()> {
    loop {
        let pki = Arc::clone(&authorities.borrow_and_update());
        prepare(&cluster, &pki, &namespace.name, &directories, &namespace.addresses)?;
        let due = pki.cluster.renewal();
        let command = command(&cluster, &directories, &namespace)?;
        let mut agent = Companion::start(command)
            .await
            .with_context(|| format!("the agent of node {} cannot be started", namespace.name))?;
        tokio::select! {
            () = validity::until(due) => stop(agent).await?,
            _ = authorities.changed() => stop(agent).await?,
            ended = agent.ended() => {
                tracing::warn!(node = namespace.name, "the agent ended: {}", ended?);
                tokio::select! {
                    () = tokio::time::sleep(PAUSE) => {}
                    () = shutdown.cancelled() => return Ok(()),
                }
            }
            () = shutdown.cancelled() => return stop(agent).await,
        }
    }
}

async fn stop(agent: Companion) -> Result<()> {
    agent.stop().await.context("the agent cannot be stopped")
}

fn command(cluster: &Cluster, directories: &Directories, namespace: &NodeNamespace) -> Result<Command> {
    let open = |path: &Path| File::open(path).with_context(|| format!("cannot open {}", path.display()));
    let netns = open(&namespace.path)?;
    let log = private::append(&directories.log())?;
    let node = &cluster.node;
    let addresses: Vec<String> = namespace.addresses.iter().map(IpAddr::to_string).collect();
    let mut command = Command::new(std::env::current_exe().context("this program's own path is unknown")?);
    command
        .arg("agent")
        .args(["--config-file", config_file::NONE])
        .arg("--log-file")
        .arg(directories.log())
        .arg("--data-dir")
        .arg(&directories.data)
        .arg("--run-dir")
        .arg(&directories.run)
        .arg("--kubeconfig")
        .arg(directories.kubeconfig("kubelet"))
        .arg("--image-dir")
        .arg(&node.images)
        .args(["--node-name", &namespace.name, "--node-ip", &addresses.join(",")])
        .args(["--cluster-cidr", &node.cluster_cidr, "--service-cidr", &node.service_cidr])
        .args(["--cluster-domain", &node.cluster_domain])
        .args(node.kubelet.arguments())
        .args(node.network.arguments())
        .args(node.edge.arguments())
        .args(node.storage.arguments())
        .args(["--network-backend", node.network_backend.name()])
        .args(["--proxy-mode", cluster.proxy_mode.name()])
        .args(
            (!node.load_balancer_pool.is_empty())
                .then(|| format!("--load-balancer-pool={}", node.load_balancer_pool.join(","))),
        )
        .args(node.dns_stub_domains.iter().map(|domain| format!("--dns-stub-domain={domain}")))
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    // SAFETY: setns is async-signal-safe, and nothing is allocated between fork and exec.
    unsafe {
        command.pre_exec(move || match libc::setns(netns.as_raw_fd(), libc::CLONE_NEWNET) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    Ok(command)
}

/// Removes the namespaces and their links.
pub async fn cleanup(directories: &Directories) -> Result<()> {
    namespace_node::cleanup(&namespaces("0.0.0.0/0", directories)?).await?;
    Ok(())
}
