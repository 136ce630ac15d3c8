//! etcd's API on the embedded store: a socket for root, and TLS if the flags ask for it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use corten_etcd_server::{Limits, Member, Server, bind_unix, serve_tls, serve_unix};
use corten_store::Embedded;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;

use crate::config::Cluster;
use crate::private;
use crate::store_options::EtcdListen;
use crate::tasks::Tasks;

/// Starts the listeners.
pub async fn start(cluster: &Cluster, store: &Arc<Embedded>, tasks: &mut Tasks) -> Result<()> {
    let socket = cluster.node.directories.etcd_socket();
    let listen = &cluster.store.listen;
    let mut urls = vec![format!("unix://{}", socket.display())];
    urls.extend(listen.etcd_listen_address.map(|address| format!("https://{address}")));
    let member = Member::named(&cluster.node.name, urls);
    let server = Server::new(Arc::clone(store), member, Limits::default(), tasks.shutdown());
    private::directory(&cluster.node.directories.run)?;
    let listener = bind_unix(&socket).with_context(|| format!("cannot listen on {}", socket.display()))?;
    tasks.spawn("etcd API", serve_unix(server.clone(), listener));
    if let Some(address) = listen.etcd_listen_address {
        let config = tls(listen)?;
        let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
        tasks.spawn("etcd API over TLS", serve_tls(server, listener, config));
    }
    Ok(())
}

/// Makes the TLS configuration, which demands a certificate of the clients' CA.
fn tls(listen: &EtcdListen) -> Result<Arc<ServerConfig>> {
    let path = |path: &Option<PathBuf>| path.clone().context("--etcd-listen-address needs its certificate, key and CA");
    let chain = certificates(&path(&listen.etcd_listen_certfile)?)?;
    let key_path = path(&listen.etcd_listen_keyfile)?;
    let key = PrivateKeyDer::from_pem_file(&key_path).with_context(|| format!("cannot read {}", key_path.display()))?;
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&path(&listen.etcd_listen_client_cafile)?)? {
        roots.add(certificate).context("--etcd-listen-client-cafile")?;
    }
    let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build().context("--etcd-listen-client-cafile")?;
    let mut config = ServerConfig::builder()
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .context("--etcd-listen-certfile")?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let failed = || format!("cannot read {}", path.display());
    let certificates = CertificateDer::pem_file_iter(path).with_context(failed)?;
    certificates.collect::<Result<Vec<_>, _>>().with_context(failed)
}
