//! Tests of TLS at listeners and to backends.

use crate::fixture::*;
use corten_routing::{
    Backend, BackendProtocol, BackendTls, ClientValidation, HostPattern, Hosts, ListenerProtocol, ServerCertificate,
    TlsHost, TlsUse, TrustedCertificates,
};
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn signed(authority: &Authority, names: &[&str]) -> Arc<ServerCertificate> {
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.subject_alt_names = names
        .iter()
        .map(|name| match name.contains("://") {
            true => SanType::URI((*name).try_into().unwrap()),
            false => SanType::DnsName((*name).try_into().unwrap()),
        })
        .collect();
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, authority).unwrap();
    Arc::new(ServerCertificate {
        chain_pem: certificate.pem().into_bytes().into(),
        key_pem: key.serialize_pem().into_bytes().into(),
    })
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn chain(pair: &ServerCertificate) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(&pair.chain_pem).collect::<Result<_, _>>().unwrap()
}

fn private_key(pair: &ServerCertificate) -> PrivateKeyDer<'static> {
    PrivateKeyDer::from_pem_slice(&pair.key_pem).unwrap()
}

fn client_config(authority: &Authority, certificate: Option<&ServerCertificate>, protocols: &[&str]) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(authority.der().clone()).unwrap();
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().unwrap();
    let builder = builder.with_root_certificates(roots);
    let mut config = match certificate {
        None => builder.with_no_client_auth(),
        Some(pair) => builder.with_client_auth_cert(chain(pair), private_key(pair)).unwrap(),
    };
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    config
}

async fn connect(
    address: SocketAddr,
    config: ClientConfig,
    name: &str,
) -> io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from(name.to_owned()).unwrap();
    within(TlsConnector::from(Arc::new(config)).connect(name, stream)).await
}

fn terminate(certificates: &[&Arc<ServerCertificate>], service: &str) -> TlsHost {
    TlsHost::Terminate {
        certificates: certificates.iter().map(|pair| Arc::clone(pair)).collect(),
        client_validation: None,
        then: TlsUse::Http(any_host(vec![rule("/", service)])),
    }
}

fn names(entries: Vec<(HostPattern, TlsHost)>) -> ListenerProtocol {
    let mut hosts = Hosts::default();
    for (pattern, host) in entries {
        hosts.insert(pattern, Arc::new(host));
    }
    ListenerProtocol::Tls(hosts)
}

fn exact(name: &str) -> HostPattern {
    HostPattern::Exact(name.to_owned())
}

#[tokio::test]
async fn the_server_name_chooses_certificate_and_listener() {
    let authority = authority();
    let first = signed(&authority, &["a.example"]);
    let wildcard = signed(&authority, &["*.b.example"]);
    let other = signed(&authority, &["other.b.example"]);
    let fixture = Fixture::new(names(vec![
        (exact("a.example"), terminate(&[&first], "a")),
        (HostPattern::Wildcard("b.example".to_owned()), terminate(&[&wildcard, &other], "b")),
    ]))
    .await;
    let _a = fixture.echo("a").await;
    let _b = fixture.echo("b").await;
    for (name, service) in [("a.example", "a"), ("x.b.example", "b"), ("other.b.example", "b")] {
        let stream = connect(fixture.address, client_config(&authority, None, &[]), name).await.unwrap();
        let response = within(send_http1(stream, request("GET", "/", &[("host", name)], ""))).await;
        assert_eq!(response.headers()["x-served-by"], service, "{name}");
        assert!(text(&response).contains("x-forwarded-proto: https\n"));
    }
    assert!(connect(fixture.address, client_config(&authority, None, &[]), "c.example").await.is_err());
}

#[tokio::test]
async fn requests_for_another_listener_of_the_port_are_misdirected() {
    let authority = authority();
    let certificate = signed(&authority, &["a.example", "b.example", "other.example"]);
    let fixture = Fixture::new(names(vec![
        (exact("a.example"), terminate(&[&certificate], "a")),
        (exact("b.example"), terminate(&[&certificate], "b")),
        (HostPattern::Any, terminate(&[&certificate], "any")),
    ]))
    .await;
    let _a = fixture.echo("a").await;
    let _any = fixture.echo("any").await;
    for (name, host, status) in [
        ("a.example", "a.example", 200),
        ("a.example", "b.example", 421),
        ("a.example", "unknown.example", 421),
        ("other.example", "unknown.example", 200),
        ("other.example", "a.example", 421),
    ] {
        let config = client_config(&authority, None, &["h2"]);
        let stream = connect(fixture.address, config, name).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(b"h2".as_slice()));
        let mut sender = http2(stream).await;
        let request = Request::get(format!("https://{host}/")).body(Full::default()).unwrap();
        let response = within(sender.send_request(request)).await.unwrap();
        assert_eq!(response.status(), status, "{name} {host}");
    }
}

#[tokio::test]
async fn client_certificates_are_required_or_optional() {
    let server_authority = authority();
    let client_authority = authority();
    let certificate = signed(&server_authority, &["a.example"]);
    let valid = signed(&client_authority, &["client.example"]);
    let foreign = signed(&server_authority, &["client.example"]);
    for (optional, presented, works) in [
        (false, Some(&valid), true),
        (false, Some(&foreign), false),
        (false, None, false),
        (true, Some(&valid), true),
        (true, Some(&foreign), true),
        (true, None, true),
    ] {
        let validation = ClientValidation { trusted_pem: client_authority.pem().into_bytes().into(), optional };
        let host = TlsHost::Terminate {
            certificates: Arc::from([Arc::clone(&certificate)]),
            client_validation: Some(Arc::new(validation)),
            then: TlsUse::Http(any_host(vec![rule("/", "a")])),
        };
        let fixture = Fixture::new(names(vec![(exact("a.example"), host)])).await;
        let _upstream = fixture.echo("a").await;
        let config = client_config(&server_authority, presented.map(|pair| &**pair), &[]);
        // In TLS 1.3 a client learns of its refusal with its first read.
        let answered = async {
            let mut stream = connect(fixture.address, config, "a.example").await?;
            stream.write_all(b"GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n").await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.map(|_| answer)
        };
        let answered = within(answered).await;
        assert_eq!(answered.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200 ")), works, "{optional}");
    }
}

#[tokio::test]
async fn a_host_without_a_valid_certificate_is_refused_and_the_others_serve() {
    let authority = authority();
    let certificate = signed(&authority, &["a.example"]);
    let broken = Arc::new(ServerCertificate { chain_pem: Arc::from(*b"no pem"), key_pem: Arc::from(*b"no pem") });
    let fixture = Fixture::new(names(vec![
        (exact("a.example"), terminate(&[&broken, &certificate], "a")),
        (exact("b.example"), terminate(&[&broken], "b")),
    ]))
    .await;
    let _upstream = fixture.echo("a").await;
    assert!(connect(fixture.address, client_config(&authority, None, &[]), "a.example").await.is_ok());
    assert!(connect(fixture.address, client_config(&authority, None, &[]), "b.example").await.is_err());
}

/// A server that ends TLS itself and echoes.
async fn tls_server(pair: &ServerCertificate, client_authority: Option<&Authority>) -> Upstream {
    let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().unwrap();
    let builder = match client_authority {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let mut roots = RootCertStore::empty();
            roots.add(authority.der().clone()).unwrap();
            let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
            builder.with_client_cert_verifier(verifier.build().unwrap())
        }
    };
    let mut config = builder.with_single_cert(chain(pair), private_key(pair)).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind((LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    Upstream::from_task(address, async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else {
                    return;
                };
                let service = hyper::service::service_fn(|request| async {
                    Ok::<_, std::convert::Infallible>(echo("tls", request).await)
                });
                let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                let _ = builder.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    })
}

#[tokio::test]
async fn passthrough_leaves_the_bytes_alone() {
    let authority = authority();
    let certificate = signed(&authority, &["pass.example"]);
    let own = signed(&authority, &["a.example"]);
    let fixture = Fixture::new(names(vec![
        (exact("pass.example"), TlsHost::Passthrough(Arc::from([reference("pass")]))),
        (exact("a.example"), terminate(&[&own], "a")),
    ]))
    .await;
    let upstream = tls_server(&certificate, None).await;
    fixture.endpoints("pass", &[upstream.address]);
    let _a = fixture.echo("a").await;
    let stream = connect(fixture.address, client_config(&authority, None, &[]), "pass.example").await.unwrap();
    let response = within(send_http1(stream, request("GET", "/", &[("host", "pass.example")], ""))).await;
    assert_eq!(response.headers()["x-served-by"], "tls");
    assert!(!text(&response).contains("x-forwarded"));
    let stream = connect(fixture.address, client_config(&authority, None, &[]), "a.example").await.unwrap();
    let response = within(send_http1(stream, request("GET", "/", &[("host", "a.example")], ""))).await;
    assert_eq!(response.headers()["x-served-by"], "a");
}

#[tokio::test]
async fn a_terminated_stream_goes_on_as_tcp() {
    let authority = authority();
    let own = signed(&authority, &["a.example"]);
    let host = TlsHost::Terminate {
        certificates: Arc::from([own]),
        client_validation: None,
        then: TlsUse::Tcp(Arc::from([reference("a")])),
    };
    let fixture = Fixture::new(names(vec![(exact("a.example"), host)])).await;
    let _upstream = fixture.echo("a").await;
    let stream = connect(fixture.address, client_config(&authority, None, &[]), "a.example").await.unwrap();
    let response = within(send_http1(stream, get("/"))).await;
    assert!(!text(&response).contains("x-forwarded"));
}

fn backend_tls(authority: &Authority, hostname: &str, names: &[&str]) -> BackendTls {
    BackendTls {
        hostname: hostname.into(),
        subject_alt_names: names.iter().map(|name| Arc::from(*name)).collect(),
        trusted: TrustedCertificates::Pem(authority.pem().into_bytes().into()),
        client_certificate: None,
    }
}

#[tokio::test]
async fn backends_are_verified_by_their_policy() {
    let authority = authority();
    let foreign = self::authority();
    let certificate = signed(&authority, &["backend.example", "spiffe://cluster/backend"]);
    let upstream = tls_server(&certificate, None).await;
    let mut fixture = Fixture::http(vec![rule("/", "a")]).await;
    fixture.endpoints("a", &[upstream.address]);
    let invalid =
        BackendTls { trusted: TrustedCertificates::Invalid, ..backend_tls(&authority, "backend.example", &[]) };
    for (policy, status) in [
        (backend_tls(&authority, "backend.example", &[]), 200),
        (backend_tls(&authority, "other.example", &[]), 502),
        (backend_tls(&foreign, "backend.example", &[]), 502),
        (backend_tls(&authority, "any.example", &["no.example", "backend.example"]), 200),
        (backend_tls(&authority, "any.example", &["spiffe://cluster/backend"]), 200),
        (backend_tls(&authority, "backend.example", &["spiffe://cluster/other"]), 502),
        (backend_tls(&foreign, "any.example", &["backend.example"]), 502),
        (invalid, 502),
    ] {
        for protocol in [BackendProtocol::Http1, BackendProtocol::Http2] {
            let backend = Backend { tls: Some(policy.clone()), ..Backend::plain(protocol) };
            fixture.backend("a", backend).await;
            let response = fixture.get("/").await;
            assert_eq!(response.status(), status, "{policy:?}");
        }
    }
}

#[tokio::test]
async fn a_backend_sees_the_gateways_certificate() {
    let authority = authority();
    let certificate = signed(&authority, &["backend.example"]);
    let ours = signed(&authority, &["gateway.example"]);
    let upstream = tls_server(&certificate, Some(&authority)).await;
    let mut fixture = Fixture::http(vec![rule("/", "a")]).await;
    fixture.endpoints("a", &[upstream.address]);
    for (client_certificate, works) in [(Some(ours), true), (None, false)] {
        let tls = BackendTls { client_certificate, ..backend_tls(&authority, "backend.example", &[]) };
        fixture.backend("a", Backend { tls: Some(tls), ..Backend::plain(BackendProtocol::Http1) }).await;
        assert_eq!(fixture.get("/").await.status() == 200, works);
    }
}

#[tokio::test]
async fn certificates_change_under_open_connections() {
    let authority = authority();
    let old = signed(&authority, &["a.example"]);
    let new = signed(&authority, &["a.example"]);
    let mut fixture = Fixture::new(names(vec![(exact("a.example"), terminate(&[&old], "a"))])).await;
    let _upstream = fixture.echo("a").await;
    let leaf = |stream: &tokio_rustls::client::TlsStream<TcpStream>| {
        stream.get_ref().1.peer_certificates().unwrap().first().unwrap().clone()
    };
    let config = || client_config(&authority, None, &["h2"]);
    let stream = connect(fixture.address, config(), "a.example").await.unwrap();
    assert_eq!(leaf(&stream), chain(&old)[0]);
    let mut sender = http2(stream).await;
    fixture.apply(names(vec![(exact("a.example"), terminate(&[&new], "a"))])).await;
    let response = within(sender.send_request(Request::get("https://a.example/").body(Full::default()).unwrap())).await;
    assert_eq!(response.unwrap().into_body().collect().await.unwrap().to_bytes().first(), Some(&b'a'));
    let stream = connect(fixture.address, config(), "a.example").await.unwrap();
    assert_eq!(leaf(&stream), chain(&new)[0]);
}
