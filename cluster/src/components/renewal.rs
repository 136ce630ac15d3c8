//! The certificates of a node that joined: the client certificates of the node and its components, and the serving
//! certificate of its API. All are renewed after 80 % of their lifetime and when the cluster has a new authority, and used
//! without a restart.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use corten_api::k8s_openapi::api::core::v1::Node as NodeObject;
use corten_client::{Caches, Client, ListOptions};
use corten_kubelet::Tls;
use corten_meta::Key;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use x509_parser::extensions::GeneralName;

use super::trusted_authority::is_outdated;
use crate::config::Node;
use crate::directories::Directories;
use crate::join::certificate::{self, Wanted, serving_path};
use crate::pki::validity::{LONGEST_WAIT, fresh_for};
use crate::pki::{Identity, write_private};

/// The time until the next attempt after a failed request.
const PAUSE: Duration = Duration::from_secs(10);
/// The longest time until the next attempt for a serving certificate.
const LONGEST_PAUSE: Duration = Duration::from_secs(30 * 60);

/// Renews a client certificate, of the node or of one of its components. Connections read the file again, so no
/// component needs a notification.
pub async fn client(
    directories: Directories,
    path: PathBuf,
    wanted: Wanted,
    client: Client,
    shutdown: CancellationToken,
) -> Result<()> {
    while until_old(&path, &directories.authority(), &shutdown).await {
        let renewed = shutdown.run_until_cancelled(certificate::renew(&client, &wanted, &path)).await;
        let Some(renewed) = renewed else { break };
        match renewed {
            Ok(()) => tracing::info!(path = %path.display(), "a client certificate of the node was renewed"),
            Err(error) => pause("client", &error, PAUSE, &shutdown).await,
        }
    }
    Ok(())
}

/// Renews the certificate of the node's API and sends it to the kubelet.
pub async fn serving(
    node: Node,
    client: Client,
    tls: Arc<watch::Sender<Tls>>,
    shutdown: CancellationToken,
) -> Result<()> {
    let path = serving_path(&node.directories);
    let mut is_retired = is_of_cluster_authority(&node.directories) || !carries(&path, &node.addresses);
    let authority = node.directories.authority();
    let mut wait = PAUSE;
    while is_retired && !shutdown.is_cancelled() || until_old(&path, &authority, &shutdown).await {
        let renewed = async {
            let names = names(&client, &node, &shutdown).await?;
            certificate::request(&client, &Wanted::serving(&node.name, names)).await
        };
        let Some(renewed) = shutdown.run_until_cancelled(renewed).await else { break };
        match renewed {
            Ok(Identity { certificate, key }) => {
                write_private(&path, format!("{certificate}{key}").as_bytes())?;
                is_retired = false;
                wait = PAUSE;
                tls.send_modify(|tls| (tls.certificate, tls.key) = (certificate, key));
                tracing::info!("the node's serving certificate was renewed");
            }
            Err(_) if shutdown.is_cancelled() => {}
            Err(error) => {
                pause("serving", &error, wait, &shutdown).await;
                // Each attempt is a request that waits for an administrator.
                wait = (wait * 2).min(LONGEST_PAUSE);
            }
        }
    }
    Ok(())
}

/// Reports whether the cluster's own CA signed the serving certificate, as in older versions. It is replaced at the
/// start, once: an older server signs it so again.
fn is_of_cluster_authority(directories: &Directories) -> bool {
    let subject_and_issuer = |path: PathBuf| {
        let text = std::fs::read(path).ok()?;
        let (_, pem) = x509_parser::pem::parse_x509_pem(&text).ok()?;
        let certificate = pem.parse_x509().ok()?;
        Some((certificate.subject().as_raw().to_vec(), certificate.issuer().as_raw().to_vec()))
    };
    let own = subject_and_issuer(serving_path(directories)).map(|(_, issuer)| issuer);
    let authority = subject_and_issuer(directories.pki().join("ca.crt")).map(|(subject, _)| subject);
    own.is_some() && own == authority
}

/// Returns the certificate that the node serves with at its start: its own, or a self-signed one for the first moments.
pub fn first_serving(directories: &Directories, name: &str) -> Result<Tls> {
    let client_ca =
        std::fs::read_to_string(directories.pki().join("ca.crt")).context("the cluster's authority is missing")?;
    let kept = std::fs::read_to_string(serving_path(directories)).unwrap_or_default();
    if certificate::expiry(kept.as_bytes()).is_some_and(|expiry| expiry > corten_meta::time::now()) {
        return Ok(Tls { certificate: kept.clone(), key: kept, client_ca });
    }
    let key = rcgen::KeyPair::generate()?;
    let certificate = rcgen::CertificateParams::new(vec![name.to_owned()])?.self_signed(&key)?;
    Ok(Tls { certificate: certificate.pem(), key: key.serialize_pem(), client_ca })
}

/// Waits until a certificate must be renewed, is of an older authority or does not exist; false at shutdown.
async fn until_old(path: &Path, authority: &Path, shutdown: &CancellationToken) -> bool {
    loop {
        let pem = std::fs::read(path).unwrap_or_default();
        let wait = fresh_for(&pem, corten_meta::time::now());
        if shutdown.is_cancelled() || wait.is_zero() || is_outdated(path, authority) {
            return !shutdown.is_cancelled();
        }
        tokio::select! {
            () = tokio::time::sleep(wait.min(LONGEST_WAIT)) => {}
            () = shutdown.cancelled() => {}
        }
    }
}

async fn pause(which: &str, error: &anyhow::Error, wait: Duration, shutdown: &CancellationToken) {
    tracing::warn!("the node's {which} certificate cannot be renewed: {error:#}");
    tokio::select! {
        () = tokio::time::sleep(wait) => {}
        () = shutdown.cancelled() => {}
    }
}

/// Reports whether a certificate carries these addresses; a missing one does.
fn carries(path: &Path, addresses: &[IpAddr]) -> bool {
    let pem = std::fs::read(path).unwrap_or_default();
    let names = || {
        let (_, pem) = x509_parser::pem::parse_x509_pem(&pem).ok()?;
        let certificate = pem.parse_x509().ok()?;
        let names = certificate.subject_alternative_name().ok()??.value.general_names.iter();
        let bytes = names.filter_map(|name| match name {
            GeneralName::IPAddress(bytes) => Some(bytes.to_vec()),
            _ => None,
        });
        Some(bytes.collect::<Vec<_>>())
    };
    let octets = |address: &IpAddr| match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    names().is_none_or(|names| addresses.iter().all(|address| names.contains(&octets(address))))
}

/// Waits until the Node object has the node's addresses; returns its names and addresses.
async fn names(client: &Client, node: &Node, shutdown: &CancellationToken) -> Result<Vec<String>> {
    let name = &node.name;
    let own: Vec<String> = node.addresses.iter().map(IpAddr::to_string).collect();
    let caches = Caches::new(client.clone(), shutdown.child_token());
    let cache = caches.filtered::<NodeObject>(ListOptions::fields(format!("metadata.name={name}")));
    let mut changes = cache.subscribe();
    loop {
        let object = cache.typed::<NodeObject>(&Key::new("", name));
        let addresses = object.and_then(|node| node.status).and_then(|status| status.addresses).unwrap_or_default();
        let mut names: Vec<String> = addresses.into_iter().map(|address| address.address).collect();
        if !names.is_empty() && own.iter().all(|own| names.contains(own)) {
            names.sort_unstable();
            names.dedup();
            return Ok(names);
        }
        changes.next().await.context("the node cannot be watched")?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_of_the_clusters_authority_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let directories = Directories { data: dir.path().to_owned(), run: dir.path().to_owned() };
        let pki = crate::pki::Pki::open(&directories.pki()).unwrap();
        assert!(!is_of_cluster_authority(&directories), "there is none yet");
        let leaf = || crate::pki::Leaf {
            common_name: "system:node:n",
            organizations: &["system:nodes"],
            names: vec!["n".to_owned()],
        };
        for (authority, expected) in [(&pki.cluster, true), (&pki.kubelet, false)] {
            write_private(&serving_path(&directories), authority.issue(&leaf()).unwrap().certificate.as_bytes())
                .unwrap();
            assert_eq!(is_of_cluster_authority(&directories), expected);
        }
    }
}
