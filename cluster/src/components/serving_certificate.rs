//! The serving certificate of the API server. It has the names and addresses by which clients reach it.
//!
//! A machine gets addresses while it runs: a lease expires, an interface comes up. A client that connects to an address
//! that the certificate does not have yet gets a certificate that has it.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::config::Cluster;
use crate::pki::{Authorities, Leaf, Pki, write_private};

/// The largest number of names of a certificate; a machine has fewer addresses.
const MAX_NAMES: usize = 128;

/// The current certificate and its names.
pub struct Certificates {
    authorities: Authorities,
    /// The file that shows the current certificate to commands.
    shown: PathBuf,
    names: Mutex<BTreeSet<String>>,
    current: ArcSwap<ServerConfig>,
}

impl Certificates {
    /// Issues a certificate for all names that are known at the start.
    pub fn issue(cluster: &Cluster, authorities: &Authorities) -> Result<Certificates> {
        let names = names(cluster);
        let shown = cluster.node.directories.pki().join("apiserver.crt");
        let current = ArcSwap::from(config(&names, &authorities.borrow(), &shown)?);
        Ok(Certificates { authorities: authorities.clone(), shown, names: Mutex::new(names), current })
    }

    pub fn renew(&self) -> Result<()> {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        self.current.store(config(&names, &self.authorities.borrow(), &self.shown)?);
        Ok(())
    }

    /// Adds an address of this machine to the certificate.
    fn carry(&self, address: IpAddr) -> Result<()> {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if names.len() >= MAX_NAMES || !names.insert(address.to_string()) {
            return Ok(());
        }
        self.current.store(config(&names, &self.authorities.borrow(), &self.shown)?);
        tracing::info!(%address, "the API server's certificate carries another address");
        Ok(())
    }
}

impl corten_apiserver::Certificates for Certificates {
    fn tls(&self, local: Option<IpAddr>) -> Arc<ServerConfig> {
        if let Some(Err(error)) = local.map(|address| self.carry(address)) {
            tracing::warn!("the API server's certificate cannot be signed anew: {error:#}");
        }
        self.current.load_full()
    }
}

/// Returns the names and addresses by which clients reach the API server.
fn names(cluster: &Cluster) -> BTreeSet<String> {
    let service = ["kubernetes", "kubernetes.default", "kubernetes.default.svc"].map(str::to_owned);
    let mut names = vec!["localhost".to_owned(), cluster.node.name.clone()];
    names.extend(service);
    names.push(format!("kubernetes.default.svc.{}", cluster.node.cluster_domain));
    let mut addresses = vec![IpAddr::from([127, 0, 0, 1]), cluster.kubernetes_service];
    addresses.extend(&cluster.node.addresses);
    if cluster.node.addresses.iter().any(IpAddr::is_ipv6) {
        addresses.push(Ipv6Addr::LOCALHOST.into());
    }
    if !cluster.bind.ip().is_unspecified() {
        addresses.push(cluster.bind.ip());
    }
    names.extend(addresses.iter().map(IpAddr::to_string));
    names.extend(cluster.extra_names.iter().cloned());
    names.into_iter().collect()
}

/// Signs a certificate for these names; writes the certificate, without its key, for commands.
fn config(names: &BTreeSet<String>, pki: &Pki, shown: &Path) -> Result<Arc<ServerConfig>> {
    let leaf = Leaf { common_name: "kube-apiserver", organizations: &[], names: names.iter().cloned().collect() };
    let identity = pki.cluster.issue(&leaf)?;
    write_private(shown, identity.certificate.as_bytes())?;
    let mut roots = rustls::RootCertStore::empty();
    // A front proxy has a CA of its own; the API server distinguishes the two.
    for authority in [&pki.cluster, &pki.front_proxy] {
        for certificate in CertificateDer::pem_slice_iter(authority.certificate.as_bytes()) {
            roots.add(certificate?)?;
        }
    }
    let verifier = rustls::server::WebPkiClientVerifier::builder(Arc::new(roots)).allow_unauthenticated().build()?;
    let chain = CertificateDer::pem_slice_iter(identity.certificate.as_bytes()).collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes())?;
    let mut config = ServerConfig::builder().with_client_cert_verifier(verifier).with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use corten_apiserver::Certificates as _;
    use rustls_pki_types::ServerName;

    use super::*;

    /// Reports whether a client that trusts the cluster accepts the certificate for a name, without a network.
    fn is_taken(certificates: &Certificates, local: IpAddr, name: &str) -> bool {
        let mut roots = rustls::RootCertStore::empty();
        for certificate in
            CertificateDer::pem_slice_iter(certificates.authorities.borrow().cluster.certificate.as_bytes())
        {
            roots.add(certificate.unwrap()).unwrap();
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let mut client = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
        let mut server = rustls::ServerConnection::new(certificates.tls(Some(local))).unwrap();
        while client.is_handshaking() {
            let mut wire = Vec::new();
            client.write_tls(&mut wire).unwrap();
            server.read_tls(&mut wire.as_slice()).unwrap();
            server.process_new_packets().unwrap();
            wire.clear();
            server.write_tls(&mut wire).unwrap();
            client.read_tls(&mut wire.as_slice()).unwrap();
            if client.process_new_packets().is_err() {
                return false;
            }
        }
        true
    }

    #[test]
    fn an_address_that_is_connected_to_is_carried_from_then_on() {
        // Another test of the process may have installed it first.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let folder = tempfile::tempdir().unwrap();
        let authorities = crate::pki::live::fixed(Pki::open(folder.path()).unwrap());
        let names = BTreeSet::from(["localhost".to_owned(), "127.0.0.1".to_owned()]);
        let shown = folder.path().join("apiserver.crt");
        let current = ArcSwap::from(config(&names, &authorities.borrow(), &shown).unwrap());
        let certificates = Certificates { authorities, shown, names: Mutex::new(names), current };
        let own = IpAddr::from([127, 0, 0, 1]);
        let new = IpAddr::from([10, 1, 2, 3]);
        assert!(is_taken(&certificates, own, "127.0.0.1"));
        assert!(!is_taken(&certificates, own, "10.1.2.3"));
        assert!(is_taken(&certificates, new, "10.1.2.3"));
        assert!(is_taken(&certificates, own, "10.1.2.3") && is_taken(&certificates, own, "localhost"));
        certificates.renew().unwrap();
        assert!(is_taken(&certificates, own, "10.1.2.3"));
    }
}
