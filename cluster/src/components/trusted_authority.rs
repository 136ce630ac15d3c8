//! The authority that a node trusts and has its certificates of, as an annotation of its Node: a rotation of the
//! authorities is finished only when every node has followed.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::Node;
use corten_client::{Client, Patch};
use corten_meta::Value;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::join::discovery;

/// The annotation: the hash of the public key of the signing authority, as `--discovery-token-ca-cert-hash` has it.
pub const ANNOTATION: &str = "corten.dev/certificate-authority";
/// The time between two looks at the authority.
const INTERVAL: Duration = Duration::from_secs(10);

/// Returns the authority that a Node reports.
pub fn reported(node: &Value) -> Option<&str> {
    node.pointer("/metadata/annotations")?.get(ANNOTATION)?.as_str()
}

/// A node that reports its authority.
pub struct Reporter {
    pub client: Client,
    pub node: String,
    /// The file of the authority, whose first certificate is the signing one.
    pub authority: PathBuf,
    /// The certificates that the authority must have signed first.
    pub certificates: Vec<PathBuf>,
}

/// Reports the authority of a node until the shutdown, whenever it changes.
pub async fn keep(reporter: Reporter, shutdown: CancellationToken) -> Result<()> {
    let mut last = None;
    loop {
        let bundle = std::fs::read_to_string(&reporter.authority).unwrap_or_default();
        if last.as_ref() != Some(&bundle) && has_followed(&reporter) {
            match report(&reporter.client, &reporter.node, &bundle).await {
                Ok(()) => last = Some(bundle),
                Err(error) => tracing::debug!("the node's authority cannot be reported: {error:#}"),
            }
        }
        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => {}
            () = shutdown.cancelled() => return Ok(()),
        }
    }
}

/// Reports whether the node's certificates are of its authority.
fn has_followed(reporter: &Reporter) -> bool {
    reporter.certificates.iter().all(|path| !is_outdated(path, &reporter.authority))
}

/// Reports whether a certificate was written before the authority's file: it is of an older authority.
pub fn is_outdated(certificate: &std::path::Path, authority: &std::path::Path) -> bool {
    let written = |path: &std::path::Path| std::fs::metadata(path).and_then(|file| file.modified()).ok();
    match (written(certificate), written(authority)) {
        (Some(certificate), Some(authority)) => certificate < authority,
        _ => false,
    }
}

/// Reports that a node trusts the first authority of a bundle.
async fn report(client: &Client, name: &str, bundle: &str) -> Result<()> {
    let own = discovery::hash(bundle)?;
    let node = client.find::<Node>("", name).await?.context("the node does not exist yet")?;
    if reported(&node.to_value()) == Some(own.as_str()) {
        return Ok(());
    }
    let patch = json!({"metadata": {"annotations": {ANNOTATION: own}}});
    client.send_patch::<Node>("", name, &Patch::Merge(patch), None).await?;
    Ok(())
}
