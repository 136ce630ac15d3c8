//! The cluster's authority as a node that joined has it: it follows the rotations of the cluster.
//!
//! The API server is trusted by the authority that the node has. While the cluster rotates its authority, the server shows
//! certificates that both the old and the new one vouch for, and publishes both; the node takes them over from it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use corten_client::Client;
use corten_kubelet::Tls;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::directories::Directories;
use crate::join::discovery;
use crate::pki::write_private;

/// The time between two looks at the published authority.
const INTERVAL: Duration = Duration::from_secs(15);

/// Follows the published authority until the shutdown. Clients read the file for every connection; the kubelet's API gets
/// the authority of its clients by the channel.
pub async fn follow(
    directories: Directories,
    client: Client,
    tls: Arc<watch::Sender<Tls>>,
    shutdown: CancellationToken,
) -> Result<()> {
    loop {
        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => {}
            () = shutdown.cancelled() => return Ok(()),
        }
        match take_over(&directories, &client).await {
            Ok(Some(authority)) => {
                tracing::info!("the cluster's authority has changed");
                tls.send_modify(|tls| tls.client_ca = authority);
            }
            Ok(None) => {}
            Err(error) => tracing::debug!("the cluster's authority cannot be read: {error:#}"),
        }
    }
}

/// Writes the published authority, if it is another one than the node has, and returns it.
async fn take_over(directories: &Directories, client: &Client) -> Result<Option<String>> {
    let bytes = client.get_raw(discovery::CLUSTER_INFO).await?;
    let info: corten_meta::Value = serde_json::from_slice(&bytes)?;
    let content = info.pointer("/data/kubeconfig").and_then(|content| content.as_str());
    let published = discovery::parse(content.context("cluster-info holds no kubeconfig")?)?.authority;
    discovery::hash(&published)?;
    let own = std::fs::read_to_string(directories.authority()).unwrap_or_default();
    if own == published {
        return Ok(None);
    }
    write_private(&directories.authority(), published.as_bytes())?;
    Ok(Some(published))
}
