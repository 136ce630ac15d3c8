//! Further servers on this machine, for trying out: each a server of its own process in a network namespace of its own,
//! joined by a token as another machine would.

use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use corten_client::Client;
use corten_network::namespace_node::{self, NodeNamespace};
use jiff::SignedDuration;
use tokio_util::sync::CancellationToken;

use super::companion::Companion;
use super::further_nodes;
use crate::config::Cluster;
use crate::directories::Directories;
use crate::join::discovery;
use crate::membership::{Membership, directory, sealed};
use crate::tasks::Tasks;
use crate::{config_file, instance, private, secrets};

/// How long a server that failed stays down before it is started again.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a token for one of them is valid.
const TOKEN_LIFETIME: SignedDuration = SignedDuration::from_mins(10);

/// A server of this machine beyond the first.
struct Further {
    cluster: Cluster,
    membership: Membership,
    /// For a token to join with; none for a server that has joined.
    admin: Option<Client>,
    directories: Directories,
    namespace: NodeNamespace,
}

/// Returns the names of the servers beyond the first.
pub fn names(cluster: &Cluster) -> Vec<String> {
    (2..=cluster.servers).map(|number| format!("{}-{number}", cluster.node.name)).collect()
}

/// Starts the servers that have joined, which need none to start: the first has no quorum without them.
pub async fn start_joined(cluster: &Cluster, membership: &Membership, tasks: &mut Tasks) -> Result<()> {
    start(cluster, membership, None, tasks).await
}

/// Starts the servers that are still to join, by tokens of the first.
pub async fn start_new(cluster: &Cluster, membership: &Membership, admin: &Client, tasks: &mut Tasks) -> Result<()> {
    start(cluster, membership, Some(admin), tasks).await
}

async fn start(cluster: &Cluster, membership: &Membership, admin: Option<&Client>, tasks: &mut Tasks) -> Result<()> {
    let namespaces = further_nodes::of_cluster(cluster)?;
    for (index, name) in names(cluster).into_iter().enumerate() {
        let directories = cluster.node.directories.node(&name);
        let has_joined = directory(&directories).join("joined.json").exists();
        if has_joined == admin.is_some() {
            continue;
        }
        if let Some(stray) = instance::running(&directories)? {
            // A server of a process that was killed: its successor takes over the containers.
            instance::stop(stray, Duration::from_secs(20))?;
        }
        let addresses = namespaces.addresses(index)?;
        let namespace = namespace_node::create(&namespaces, &name, &addresses)
            .await
            .with_context(|| format!("the network namespace of server {name} cannot be made"))?;
        let further = Further {
            cluster: cluster.clone(),
            membership: membership.clone(),
            admin: admin.cloned(),
            directories,
            namespace,
        };
        tasks.spawn("server", further.supervise(tasks.shutdown()));
    }
    Ok(())
}

impl Further {
    /// Keeps the server running until the shutdown.
    async fn supervise(self, shutdown: CancellationToken) -> Result<()> {
        let name = &self.namespace.name;
        loop {
            let mut server = Companion::start(self.command().await?)
                .await
                .with_context(|| format!("the server {name} cannot be started"))?;
            tokio::select! {
                ended = server.ended() => tracing::warn!(server = name, "the server ended: {}", ended?),
                () = shutdown.cancelled() => return server.stop().await.context("the server cannot be stopped"),
            }
            tokio::select! {
                () = tokio::time::sleep(PAUSE) => {}
                () = shutdown.cancelled() => return Ok(()),
            }
        }
    }

    async fn command(&self) -> Result<Command> {
        let node = &self.cluster.node;
        let namespace = &self.namespace;
        private::directory(&self.directories.data)?;
        let netns = File::open(&namespace.path);
        let netns = netns.with_context(|| format!("cannot open {}", namespace.path.display()))?;
        let log = private::append(&self.directories.log())?;
        let addresses: Vec<String> = namespace.addresses.iter().map(IpAddr::to_string).collect();
        let mut command = Command::new(std::env::current_exe().context("this program's own path is unknown")?);
        command
            .arg("server")
            .args(["--config-file", config_file::NONE])
            .arg("--log-file")
            .arg(self.directories.log())
            .arg("--data-dir")
            .arg(&self.directories.data)
            .arg("--run-dir")
            .arg(&self.directories.run)
            .arg("--image-dir")
            .arg(&node.images)
            .arg("--etcd-binary")
            .arg(&self.membership.binary.path)
            .args(["--node-name", &namespace.name, "--node-ip", &addresses.join(",")])
            .args(["--port", &self.cluster.bind.port().to_string()])
            .args(["--proxy-mode", self.cluster.proxy_mode.name()])
            .args(node.kubelet.arguments())
            .args(self.cluster.cloud.iter().flat_map(|cloud| cloud.options.arguments()))
            .args(self.cluster.access.arguments())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        if let Some(admin) = &self.admin
            && !directory(&self.directories).join("joined.json").exists()
        {
            self.join(admin, &mut command).await?;
        }
        // SAFETY: setns is async-signal-safe, and nothing is allocated between fork and exec.
        unsafe {
            command.pre_exec(move || match libc::setns(netns.as_raw_fd(), libc::CLONE_NEWNET) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        Ok(command)
    }

    /// Gives the server a token to join with.
    async fn join(&self, admin: &Client, command: &mut Command) -> Result<()> {
        let node = &self.cluster.node;
        let expiration = corten_meta::time::now().checked_add(TOKEN_LIFETIME)?;
        let new = sealed::NewToken {
            directories: &node.directories,
            encryption: self.cluster.access.encryption_provider_config.as_deref(),
            expiration: Some(corten_meta::time::rfc3339(expiration)),
            description: Some(format!("for the server {} of this machine", self.namespace.name)),
        };
        let token = sealed::create(admin, &new).await?;
        let authority = crate::files::read(&node.directories.pki().join("ca.crt"))?;
        command
            .args(["--join", &self.cluster.advertised_url(), "--token", "-"])
            .args(["--discovery-token-ca-cert-hash", &discovery::hash(&authority)?])
            .stdin(secrets::as_input(&token.reveal())?);
        Ok(())
    }
}
