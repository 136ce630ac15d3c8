//! The certificates and keys of a running API server: renewed long before they expire, and replaced when the cluster's
//! authorities or keys rotate. Nothing restarts: sockets show the new certificate to the next connection.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use corten_apiserver::{KubeletClient, ProxyClient, RetiredAuthority, Server, Trust};
use corten_client::Client;
use corten_controllers::NodeComponent;
use tokio_util::sync::CancellationToken;

use super::cloud;
use super::serving_certificate::Certificates;
use super::{further_nodes, joining};
use crate::config::Cluster;
use crate::join::certificate;
use crate::kubeconfig;
use crate::pki::{Authorities, Identity, Leaf, Pki, validity, write_private};

/// The time until the next attempt after a failure.
const PAUSE: Duration = Duration::from_secs(30);

/// A running API server, and all that is signed for it.
pub struct Renewed {
    pub cluster: Cluster,
    pub authorities: Authorities,
    pub server: Arc<Server>,
    pub certificates: Arc<Certificates>,
    pub admin: Client,
    /// Whether the kubelet of this machine is a process of its own, whose files are written here.
    pub prepares_node: bool,
}

/// Renews the leaf certificates while the cluster runs, and takes over new authorities and keys.
pub async fn renew(mut renewed: Renewed, shutdown: CancellationToken) -> Result<()> {
    let mut due = renewed.authorities.borrow().cluster.renewal();
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            changed = renewed.authorities.changed() => if changed.is_err() { return Ok(()) },
            () = validity::until(due) => {}
        }
        let pki = Arc::clone(&renewed.authorities.borrow_and_update());
        due = match take_over(&renewed, &pki).await {
            Ok(()) => pki.cluster.renewal(),
            Err(error) => {
                tracing::error!("the certificates cannot be renewed: {error:#}");
                corten_meta::time::now() + PAUSE
            }
        };
    }
}

/// Signs everything anew and publishes the authorities. Doing it twice is harmless.
async fn take_over(renewed: &Renewed, pki: &Pki) -> Result<()> {
    let Renewed { cluster, server, certificates, admin, .. } = renewed;
    server.trust(&trust(pki)).await?;
    certificates.renew()?;
    let clients = clients(cluster, pki)?;
    server.renew_clients(&clients.kubelet, clients.front_proxy)?;
    write_kubeconfigs(cluster, pki)?;
    if renewed.prepares_node {
        let node = &cluster.node;
        further_nodes::prepare(cluster, pki, &node.name, &node.directories, &node.addresses)?;
    }
    joining::publish(admin, cluster, pki).await.context("the authorities cannot be published")?;
    mark_loaded(cluster, pki)
}

/// Records which authorities and keys are in use, for the commands that rotate them.
pub fn mark_loaded(cluster: &Cluster, pki: &Pki) -> Result<()> {
    write_private(&cluster.node.directories.loaded_authorities(), pki.digest.as_bytes())
}

/// Returns the authorities and keys that the API server trusts.
pub fn trust(pki: &Pki) -> Trust {
    Trust {
        client_ca: pki.cluster.certificate.clone(),
        requestheader_ca: Some(pki.front_proxy.certificate.clone()),
        service_account_keys: pki.service_account_keys.clone(),
        encryption_keys: pki.encryption_keys.clone(),
    }
}

/// The API server's identities towards others.
pub struct ServerClients {
    pub kubelet: KubeletClient,
    pub front_proxy: ProxyClient,
}

/// Signs the API server's identities towards kubelets and towards aggregated API servers.
pub fn clients(cluster: &Cluster, pki: &Pki) -> Result<ServerClients> {
    let show = |name: &str, identity: &Identity| {
        write_private(&cluster.node.directories.pki().join(name), identity.certificate.as_bytes())
    };
    let kubelet = pki.cluster.issue(&Leaf::client("kube-apiserver-kubelet-client", &[]))?;
    show("apiserver-kubelet-client.crt", &kubelet)?;
    // Kubelets that joined before they had a CA of their own keep their certificates until they renew them.
    let retired = match pki.kubelet.is_successor() {
        true => None,
        false => Some(RetiredAuthority { ca: pki.cluster.certificate.clone(), signed_before: pki.kubelet.made()? }),
    };
    let kubelet = KubeletClient {
        ca: pki.kubelet.certificate.clone(),
        retired,
        certificate: kubelet.certificate,
        key: kubelet.key,
    };
    let front_proxy = pki.front_proxy.issue(&Leaf::client("front-proxy-client", &[]))?;
    show("front-proxy-client.crt", &front_proxy)?;
    let front_proxy = ProxyClient { certificate: front_proxy.certificate, key: front_proxy.key };
    Ok(ServerClients { kubelet, front_proxy })
}

/// Writes the kubeconfig files of the administrator and of components that run alone. That of the administrator may be
/// copied; the others name files, which a running component reads again after they were renewed.
pub fn write_kubeconfigs(cluster: &Cluster, pki: &Pki) -> Result<()> {
    let directories = &cluster.node.directories;
    let identity = pki.cluster.issue(&Leaf::client("kubernetes-admin", &["system:masters"]))?;
    let admin = kubeconfig::single(&cluster.local_url(), &pki.cluster.certificate, &identity);
    kubeconfig::write(&directories.kubeconfig("admin"), &admin)?;
    if let Ok(path) = std::fs::read_to_string(directories.user_kubeconfig()) {
        kubeconfig::refresh(path.trim().as_ref(), &admin)?;
    }
    let write = |file: &str, user: &str, groups: &[&str]| {
        let identity = pki.cluster.issue(&Leaf::client(user, groups))?;
        let path = certificate::current_path(directories, file);
        write_private(&path, format!("{}{}", identity.certificate, identity.key).as_bytes())?;
        let config = kubeconfig::by_files(&cluster.local_url(), &directories.authority(), &path);
        kubeconfig::write(&directories.kubeconfig(file), &config)
    };
    write("controller-manager", "system:kube-controller-manager", &[])?;
    write("scheduler", "system:kube-scheduler", &[])?;
    write(cloud::NAME, cloud::USER, &[])?;
    for component in NodeComponent::ALL {
        write(component.name(), &component.user(&cluster.node.name), &[&component.group()])?;
    }
    Ok(())
}
