//! Probes the etcd member of this machine: whether its listeners answer clients that they should refuse, and whether its
//! authority signs for it alone.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use corten_members::{Config, Members, State};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use super::facts::{EtcdFact, ListenerFact};
use crate::directories::Directories;
use crate::join::discovery;
use crate::membership::{directory, member};
use crate::pki::{self, Identity, Leaf};

const PATIENCE: Duration = Duration::from_secs(5);
/// A path that both listeners of etcd answer.
const REQUEST: &[u8] = b"GET /version HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\n\r\n";
/// The beginning of every answer that is not a refusal.
const ANSWERED: &[u8] = b"HTTP/1.1 200";
/// The other authorities of the cluster.
const AUTHORITIES: [&str; 3] = ["ca", "kubelet-ca", "front-proxy-ca"];

/// Returns the facts of this machine's member; none for a server without one.
pub async fn fact(directories: &Directories) -> Result<Option<EtcdFact>> {
    let Some(state) = State::read(&directory(directories))? else { return Ok(None) };
    let Some(client) = state.endpoints.first().and_then(|url| url.strip_prefix("https://")?.parse().ok()) else {
        return Ok(None);
    };
    let peer = SocketAddr::new(SocketAddr::ip(&client), Config::PEER_PORT);
    let members = member::credentials(&member::authority(directories)?)
        .and_then(|credentials| Ok(Members::new(vec![format!("https://{client}")], &credentials)?))?;
    Ok(Some(EtcdFact {
        clients: listener(client).await?,
        peers: listener(peer).await?,
        is_authenticated: members.status().await.is_ok(),
        shared_authorities: shared_authorities(&directories.pki())?,
    }))
}

async fn listener(address: SocketAddr) -> Result<ListenerFact> {
    let stranger = pki::self_signed(&Leaf::client("kube-apiserver-etcd-client", &[]))?;
    Ok(ListenerFact {
        address,
        answers_plain: answers(plain(address)).await,
        answers_without_certificate: answers(with_tls(address, None)).await,
        answers_self_signed: answers(with_tls(address, Some(stranger))).await,
    })
}

/// Reports whether a connection gets an answer to a request.
async fn answers(exchange: impl Future<Output = Result<Vec<u8>>>) -> bool {
    let answer = tokio::time::timeout(PATIENCE, exchange).await;
    answer.is_ok_and(|answer| answer.is_ok_and(|answer| answer.starts_with(ANSWERED)))
}

async fn plain(address: SocketAddr) -> Result<Vec<u8>> {
    exchange(TcpStream::connect(address).await?).await
}

/// Asks over TLS. The server's certificate is not checked, since no secret is sent.
async fn with_tls(address: SocketAddr, identity: Option<Identity>) -> Result<Vec<u8>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = Arc::new(corten_client::AnyServer::new(&provider));
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    let config = match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let chain = vec![CertificateDer::from_pem_slice(identity.certificate.as_bytes())?];
            builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(identity.key.as_bytes())?)?
        }
    };
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = TcpStream::connect(address).await?;
    exchange(connector.connect(ServerName::IpAddress(address.ip().into()), stream).await?).await
}

/// Sends the request and reads the beginning of the answer: a server of TLS 1.3 refuses a certificate only then.
async fn exchange<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) -> Result<Vec<u8>> {
    stream.write_all(REQUEST).await?;
    let mut answer = vec![0; ANSWERED.len()];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

/// Returns the names of other authorities of the cluster that have the key of etcd's.
fn shared_authorities(pki: &Path) -> Result<Vec<String>> {
    let hash = |name: &str| discovery::hash(&crate::files::read(&pki.join(format!("{name}.crt")))?);
    let own = hash("etcd-ca")?;
    let is_shared = |name: &&str| hash(name).is_ok_and(|other| other == own);
    Ok(AUTHORITIES.into_iter().filter(is_shared).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use rustls::RootCertStore;
    use rustls::server::WebPkiClientVerifier;
    use tokio::net::TcpListener;

    use super::*;
    use crate::pki::Authority;

    /// Serves every request like etcd, to clients with a certificate of the authority, if there is one.
    async fn serve(authority: &Authority, is_strict: bool) -> SocketAddr {
        let leaf = Leaf { common_name: "etcd", organizations: &[], names: vec!["127.0.0.1".to_owned()] };
        let identity = authority.issue_for_both(&leaf).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(authority.certificate.as_bytes()).unwrap()).unwrap();
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
        let builder =
            if is_strict { builder.with_client_cert_verifier(verifier) } else { builder.with_no_client_auth() };
        let chain = vec![CertificateDer::from_pem_slice(identity.certificate.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(builder.with_single_cert(chain, key).unwrap()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let mut stream = acceptor.accept(stream).await.ok()?;
                    let mut head = [0; 16];
                    stream.read_exact(&mut head).await.ok()?;
                    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.ok()
                });
            }
        });
        address
    }

    #[tokio::test]
    async fn a_listener_that_answers_strangers_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::open(folder.path(), "etcd-ca", "etcd-ca").unwrap();
        let strict = listener(serve(&authority, true).await).await.unwrap();
        assert!(!strict.answers_plain && !strict.answers_without_certificate && !strict.answers_self_signed);
        let open = listener(serve(&authority, false).await).await.unwrap();
        assert!(!open.answers_plain && open.answers_without_certificate && open.answers_self_signed);
        let plain = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = plain.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = plain.accept().await {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
            }
        });
        assert!(listener(address).await.unwrap().answers_plain);
    }

    #[test]
    fn an_authority_that_signs_for_others_is_found() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["etcd-ca", "ca", "kubelet-ca", "front-proxy-ca"] {
            Authority::open(folder.path(), name, name).unwrap();
        }
        assert!(shared_authorities(folder.path()).unwrap().is_empty());
        std::fs::copy(folder.path().join("ca.crt"), folder.path().join("etcd-ca.crt")).unwrap();
        assert_eq!(shared_authorities(folder.path()).unwrap(), ["ca"]);
    }
}
