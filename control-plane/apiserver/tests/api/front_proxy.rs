//! A front proxy acts for users, by headers; other clients' headers are ignored.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::server::TestServer;
use arc_swap::ArcSwap;
use bytes::Bytes;
use corten_apiserver::Config;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// Returns a CA, in PEM, and its issuer.
fn authority(name: &str) -> (String, Issuer<'static, KeyPair>) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = params.self_signed(&key).unwrap().pem();
    let issuer = Issuer::from_ca_cert_pem(&ca, key).unwrap();
    (ca, issuer)
}

type Certificate = (String, String);

fn issue(issuer: &Issuer<'_, KeyPair>, name: &str, groups: &str, names: &[&str]) -> Certificate {
    let key = KeyPair::generate().unwrap();
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.distinguished_name.push(DnType::OrganizationName, groups);
    (params.signed_by(&key, issuer).unwrap().pem(), key.serialize_pem())
}

/// Returns the user that the server sees.
async fn whoami(address: SocketAddr, ca: &str, client: Option<&Certificate>, headers: &[(&str, &str)]) -> (u16, Value) {
    let (code, user, _) = ask(address, ca, client, headers).await;
    (code, user)
}

/// Does the same and returns the warnings, over a connection of its own.
async fn ask(
    address: SocketAddr,
    ca: &str,
    client: Option<&Certificate>,
    headers: &[(&str, &str)],
) -> (u16, Value, Option<http::HeaderValue>) {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca.as_bytes()).unwrap()).unwrap();
    let builder = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match client {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
            builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap()).unwrap()
        }
    };
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = connector.connect(ServerName::try_from("127.0.0.1").unwrap(), stream).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let mut request = http::Request::post(path).header("host", "kubernetes").header("content-type", "application/json");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview" }).to_string();
    let response = sender.send_request(request.body(Full::new(Bytes::from(body))).unwrap()).await.unwrap();
    let (code, warning) = (response.status().as_u16(), response.headers().get("warning").cloned());
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    (code, body["status"]["userInfo"].clone(), warning)
}

#[tokio::test]
async fn only_a_front_proxys_headers_are_trusted() {
    let ((users_ca, users), (proxies_ca, proxies)) = (authority("users"), authority("proxies"));
    let serving = issue(&users, "kube-apiserver", "", &["127.0.0.1"]);
    let both = format!("{users_ca}{proxies_ca}");
    let tls = corten_apiserver::tls_config(&serving.0, &serving.1, &both).unwrap();
    let config = Config {
        client_ca: users_ca.clone(),
        requestheader_ca: Some(proxies_ca.clone()),
        requestheader_allowed_names: vec!["front-proxy-client".to_owned()],
        ..crate::server::config()
    };
    let s = TestServer::with(config).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = CancellationToken::new();
    let guard = shutdown.clone().drop_guard();
    tokio::spawn(Arc::clone(&s.server).serve(listener, Arc::new(ArcSwap::from_pointee(tls)), shutdown));

    let headers = [
        ("x-remote-user", "jané"),
        ("x-remote-uid", "17"),
        ("x-remote-group", "dev"),
        ("x-remote-group", "ops"),
        ("x-remote-extra-example.org%2fscope", "read"),
    ];
    let proxy = issue(&proxies, "front-proxy-client", "", &[]);
    let (code, user) = whoami(address, &users_ca, Some(&proxy), &headers).await;
    assert_eq!(code, 201, "{user}");
    assert_eq!((&user["username"], &user["uid"]), (&json!("jané"), &json!("17")));
    assert_eq!(user["groups"], json!(["dev", "ops", "system:authenticated"]));
    assert_eq!(user["extra"]["example.org/scope"], json!(["read"]));

    // A proxy that names no user has none, whatever its own subject is.
    let (code, user) = whoami(address, &users_ca, Some(&proxy), &[]).await;
    assert_eq!((code, user), (403, Value::Null));
    // Another name of the same CA is no front proxy, and no user.
    let other = issue(&proxies, "somebody", "system:masters", &[]);
    assert_eq!(whoami(address, &users_ca, Some(&other), &headers).await.0, 403);
    // The certificate decides the user, whatever the headers are.
    let bob = issue(&users, "bob", "dev", &[]);
    let (code, user) = whoami(address, &users_ca, Some(&bob), &headers).await;
    assert_eq!((code, &user["username"], &user["groups"][0]), (201, &json!("bob"), &json!("dev")), "{user}");
    // A token is ignored then, but an invalid one causes a warning.
    let (code, _, warning) = ask(address, &users_ca, Some(&bob), &[("authorization", "Bearer  x")]).await;
    assert!(code == 201 && warning.is_some_and(|warning| warning.as_bytes().ends_with(b"and is ignored\"")));
    let named = issue(&users, "front-proxy-client", "", &[]);
    let (_, user) = whoami(address, &users_ca, Some(&named), &headers).await;
    assert_eq!(user["username"], "front-proxy-client", "of the users' authority it is a user");
    assert_eq!(whoami(address, &users_ca, None, &headers).await.0, 403, "without a certificate there is no name");
    drop(guard);
}
