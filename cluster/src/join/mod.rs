//! Joins a machine as a node to a cluster whose API server is elsewhere.
//!
//! The steps are kubeadm's: discover the cluster by the ConfigMap `cluster-info`, trust its CA because it has the
//! pinned hash, request the node's certificate with the bootstrap token, and continue as the node. A machine that has
//! joined keeps its certificate, so it needs no token after a reboot.
//!
//! Must never: trust a CA that neither a hash nor an explicit flag of the user vouches for.

pub mod certificate;
pub mod discovery;
pub mod settings;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use corten_client::{Client, HttpsConfig};
use corten_controllers::NodeComponent;
use futures::future::try_join_all;
use tokio::sync::watch;

use crate::api_servers::ApiServers;
use crate::cli;
use crate::config::{Node, node_name};
use crate::directories::Directories;
use crate::kubeconfig;
use crate::node_object::is_ready;
use crate::pki::write_private;
use crate::settings::Settings;
use crate::tasks::Tasks;
use certificate::Wanted;

/// The configuration of a node that joined.
pub struct Joined {
    pub node: Node,
    pub kubeconfig: PathBuf,
    /// Whether the node requested its certificates itself, and so must renew them.
    pub renews: bool,
    /// The node's way to all API servers; none where the kubeconfig's server cannot be one of several.
    pub servers: Option<ApiServers>,
}

impl Joined {
    /// Returns a client with the identity of a kubeconfig of the node.
    pub fn client(&self, kubeconfig: &Path) -> Result<Client> {
        client(self.servers.as_ref(), kubeconfig)
    }
}

fn client(servers: Option<&ApiServers>, kubeconfig: &Path) -> Result<Client> {
    match servers {
        Some(servers) => servers.client(kubeconfig),
        None => Ok(Client::from_kubeconfig(kubeconfig, None)?),
    }
}

/// Makes the machine a node: by its kubeconfig, by the files of an earlier join, or by a token.
pub async fn join(flags: &cli::Agent, tasks: &mut Tasks) -> Result<Joined> {
    if let Some(path) = &flags.kubeconfig {
        let node = Node::from_flags(flags, &Settings::default())?;
        let unusable = || format!("{} cannot be used", path.display());
        let servers = ApiServers::start(&node.directories, path, &node.name, tasks).await.with_context(unusable)?;
        let node = of_server(node, path, servers.as_ref());
        return Ok(Joined { node, kubeconfig: path.clone(), renews: false, servers });
    }
    let directories = Directories::of(&flags.directories);
    let path = directories.kubeconfig("kubelet");
    if must_join(flags, &directories)? || is_refused(flags, &path).await {
        join_by_token(flags, &directories).await?;
    }
    keep_by_files(&directories)?;
    let unusable = || format!("{} cannot be used; delete it and join again with a token", path.display());
    let name = node_name(flags.node_name.as_deref())?;
    let servers = ApiServers::start(&directories, &path, &name, tasks).await.with_context(unusable)?;
    let client = client(servers.as_ref(), &path).with_context(unusable)?;
    let settings = settings::learn(&client, &directories).await?;
    let node = of_server(Node::from_flags(flags, &settings)?, &path, servers.as_ref());
    Ok(Joined { node, kubeconfig: path, renews: true, servers })
}

/// Rewrites the kubeconfig of an older version, which holds the cluster's authority: it is a file that may change.
fn keep_by_files(directories: &Directories) -> Result<()> {
    let path = directories.kubeconfig("kubelet");
    if directories.authority().exists() && kubeconfig::holds_authority(&path)? {
        let identity = certificate::client_path(directories);
        let config = kubeconfig::by_files(&kubeconfig::server(&path)?, &directories.authority(), &identity);
        kubeconfig::write(&path, &config)?;
    }
    Ok(())
}

/// Requests an identity for each component of the node that has none.
pub async fn identify_components(client: &Client, node: &Node) -> Result<()> {
    let kubelet = node.directories.kubeconfig("kubelet");
    let server = kubeconfig::server(&kubelet)?;
    let authority = node.directories.authority();
    let identified = NodeComponent::ALL.map(|component| {
        let path = certificate::component_path(&node.directories, component);
        let config = kubeconfig::by_files(&server, &authority, &path);
        async move {
            if !certificate::is_alive(&path) {
                certificate::renew(client, &Wanted::component(component, &node.name), &path).await?;
            }
            kubeconfig::write(&node.directories.kubeconfig(component.name()), &config)
        }
    });
    try_join_all(identified).await.map(drop)
}

/// Returns the node, with the addresses of the API servers: that of the kubeconfig, and those that are known later.
fn of_server(node: Node, kubeconfig: &Path, servers: Option<&ApiServers>) -> Node {
    let only = || watch::channel(kubeconfig::server_address(kubeconfig).into_iter().collect()).1;
    let api_servers = servers.map_or_else(only, ApiServers::addresses);
    Node { api_servers, ..node }
}

/// Reports whether the files of an earlier join are missing, of another cluster, or expired.
fn must_join(flags: &cli::Agent, directories: &Directories) -> Result<bool> {
    let path = directories.kubeconfig("kubelet");
    let may_join = flags.join.server.is_some() && flags.join.token.is_some();
    if !path.exists() {
        if may_join {
            return Ok(true);
        }
        bail!(
            "this machine has not joined a cluster: give --server and --token (`corten token create \
             --print-join-command` on the server prints them), or --kubeconfig"
        );
    }
    let hashes = &flags.join.discovery_token_ca_cert_hash;
    let same = hashes.is_empty() || discovery::is_pinned(&kubeconfig::authority(&path)?, hashes)?;
    match (same, certificate::is_alive(&certificate::client_path(directories))) {
        (true, true) => Ok(false),
        _ if may_join => Ok(true),
        (false, _) => bail!("this machine belongs to another cluster; give --server and --token to join this one"),
        (_, false) => bail!(
            "the certificate of this node has expired while it was off: join again with the flags that `corten token \
             create --print-join-command` prints on a server"
        ),
    }
}

/// Reports whether the cluster refuses the certificate of this node, which may join again: it was revoked.
async fn is_refused(flags: &cli::Agent, kubeconfig: &Path) -> bool {
    if flags.join.token.is_none() {
        return false;
    }
    let Ok(client) = Client::from_kubeconfig(kubeconfig, None) else { return false };
    matches!(client.get_raw("/api").await, Err(error) if error.is_unauthorized())
}

async fn join_by_token(flags: &cli::Agent, directories: &Directories) -> Result<()> {
    let (Some(server), Some(token)) = (&flags.join.server, &flags.join.token) else {
        bail!("--server and --token are needed to join");
    };
    let name = node_name(flags.node_name.as_deref())?;
    let cluster = discovery::discover(server, token, &flags.join).await?;
    tracing::info!(server = cluster.server, "the cluster is the one that was pinned");
    let bootstrap = Client::https(HttpsConfig {
        server: cluster.server.clone(),
        ca: Some(cluster.authority.as_str().into()),
        token: Some(token.clone()),
        ..HttpsConfig::default()
    })?;
    refuse_taken_name(&bootstrap, &name).await?;
    let path = certificate::client_path(directories);
    let identity = certificate::request(&bootstrap, &Wanted::client(&name))
        .await
        .context("the cluster gives this node no certificate")?;
    forget_certificates(directories)?;
    // A certificate is newer than the authority that signed it.
    write_private(&directories.authority(), cluster.authority.as_bytes())?;
    certificate::write(&identity, &path)?;
    kubeconfig::write(
        &directories.kubeconfig("kubelet"),
        &kubeconfig::by_files(&cluster.server, &directories.authority(), &path),
    )?;
    tracing::info!(node = name, "joined the cluster");
    Ok(())
}

/// Deletes the certificates of the node's API and components, which are of the node's former cluster.
fn forget_certificates(directories: &Directories) -> Result<()> {
    let components = NodeComponent::ALL.map(|component| certificate::component_path(directories, component));
    for path in components.into_iter().chain([certificate::serving_path(directories)]) {
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot delete {}", path.display()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Refuses the name of another Ready node: two machines with one name would fight over one Node object. A node that is
/// not Ready may be this very machine, installed again.
async fn refuse_taken_name(client: &Client, name: &str) -> Result<()> {
    use corten_api::Typed;
    use corten_api::k8s_openapi::api::core::v1::Node as NodeObject;
    let node = client.find::<NodeObject>("", name).await.context("the bootstrap token is not accepted")?;
    if node.is_some_and(|node| is_ready(&node.to_value())) {
        bail!(
            "a Ready node of the name {name:?} exists in the cluster; delete it or give this machine another name by \
             --node-name"
        );
    }
    Ok(())
}
