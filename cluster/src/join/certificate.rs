//! Certificates by request: a key that never leaves the machine, and a CertificateSigningRequest that the cluster
//! approves and signs.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use corten_api::Typed;
use corten_api::k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use corten_client::{Caches, Client, ListOptions};
use corten_controllers::NodeComponent;
use corten_meta::Key;
use jiff::Timestamp;
use rcgen::{CertificateParams, DnType, KeyPair};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::directories::Directories;
use crate::pki::{Identity, write_private};

/// The time limit of the cluster's answer.
const PATIENCE: Duration = Duration::from_secs(120);

/// The certificate to request.
pub struct Wanted {
    signer: &'static str,
    organization: String,
    common_name: String,
    names: Vec<String>,
    usages: &'static [&'static str],
}

impl Wanted {
    /// Returns the request for the node as a client of the API.
    pub fn client(node: &str) -> Wanted {
        Wanted {
            signer: "kubernetes.io/kube-apiserver-client-kubelet",
            organization: "system:nodes".to_owned(),
            common_name: format!("system:node:{node}"),
            names: Vec::new(),
            usages: &["digital signature", "client auth"],
        }
    }

    /// Returns the request for a component of the node as a client of the API.
    pub fn component(component: NodeComponent, node: &str) -> Wanted {
        Wanted {
            signer: "kubernetes.io/kube-apiserver-client",
            organization: component.group(),
            common_name: component.user(node),
            ..Wanted::client(node)
        }
    }

    /// Returns the request for the node's own API, with the names and addresses of its Node object.
    pub fn serving(node: &str, names: Vec<String>) -> Wanted {
        Wanted {
            signer: "kubernetes.io/kubelet-serving",
            names,
            usages: &["digital signature", "server auth"],
            ..Wanted::client(node)
        }
    }
}

/// Returns the path of the node's client certificate, with its key.
pub fn client_path(directories: &Directories) -> PathBuf {
    current_path(directories, "kubelet")
}

/// Returns the path of the serving certificate of a node that joined, with its key.
pub fn serving_path(directories: &Directories) -> PathBuf {
    directories.pki().join("kubelet-server-current.pem")
}

/// Returns the path of a component's certificate, with its key.
pub fn component_path(directories: &Directories, component: NodeComponent) -> PathBuf {
    current_path(directories, component.name())
}

/// Returns the path of the client certificate in use of a component, with its key.
pub fn current_path(directories: &Directories, component: &str) -> PathBuf {
    directories.pki().join(format!("{component}-client-current.pem"))
}

/// Reports whether a file has a certificate that has not expired.
pub fn is_alive(path: &Path) -> bool {
    let pem = std::fs::read(path).unwrap_or_default();
    expiry(&pem).is_some_and(|expiry| expiry > corten_meta::time::now())
}

/// Requests a client certificate and writes it, with its key.
pub async fn renew(client: &Client, wanted: &Wanted, path: &Path) -> Result<()> {
    write(&request(client, wanted).await?, path)
}

/// Writes a certificate with its key.
pub fn write(identity: &Identity, path: &Path) -> Result<()> {
    write_private(path, format!("{}{}", identity.certificate, identity.key).as_bytes())
}

/// Returns the expiry of the first certificate of a PEM file.
pub fn expiry(pem: &[u8]) -> Option<Timestamp> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem).ok()?;
    Timestamp::from_second(pem.parse_x509().ok()?.validity().not_after.timestamp()).ok()
}

/// Requests a certificate and waits for it.
pub async fn request(client: &Client, wanted: &Wanted) -> Result<Identity> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(wanted.names.clone()).context("a certificate name is not valid")?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, wanted.organization.as_str());
    params.distinguished_name.push(DnType::CommonName, wanted.common_name.as_str());
    let request = params.serialize_request(&key)?.pem()?;
    let created = client.create(&CertificateSigningRequest::from_value(object(wanted, &request))?).await?;
    let certificate = tokio::time::timeout(PATIENCE, answer(client, created.name())).await.with_context(|| {
        format!("the request {} was not answered; approve it by hand and try again", created.name())
    })??;
    Ok(Identity { certificate, key: key.serialize_pem() })
}

fn object(wanted: &Wanted, request: &str) -> corten_meta::Value {
    use base64::{Engine, engine::general_purpose::STANDARD};
    json!({
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"generateName": if wanted.names.is_empty() { "node-csr-" } else { "csr-" }},
        "spec": {"request": STANDARD.encode(request), "signerName": wanted.signer, "usages": wanted.usages},
    })
}

/// Watches one request until it is signed or denied.
async fn answer(client: &Client, name: &str) -> Result<String> {
    let done = CancellationToken::new();
    let _end = done.clone().drop_guard();
    let caches = Caches::new(client.clone(), done);
    let cache = caches.filtered::<CertificateSigningRequest>(ListOptions::fields(format!("metadata.name={name}")));
    let mut changes = cache.subscribe();
    loop {
        if let Some(request) = cache.typed::<CertificateSigningRequest>(&Key::new("", name)) {
            let status = request.status.unwrap_or_default();
            if let Some(refusal) = status.conditions.iter().flatten().find(|one| one.type_ != "Approved") {
                bail!("the request {name} was {}: {}", refusal.type_, refusal.message.as_deref().unwrap_or_default());
            }
            if let Some(certificate) = status.certificate {
                return Ok(String::from_utf8(certificate.0)?);
            }
        }
        changes.next().await.context("the request cannot be watched")?;
    }
}
