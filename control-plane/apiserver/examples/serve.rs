//! Serves the API alone, for trying it with kubectl: `cargo run --example serve -- DIRECTORY PORT [PLUGINS [CIDR]]`.
//!
//! The store, a new CA and a kubeconfig of the administrator (`kubeconfig`) are written to the directory. The named
//! admission plugins, separated by commas, are disabled; Services get addresses of the range.

use std::sync::Arc;

use arc_swap::ArcSwap;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tokio_util::sync::CancellationToken;

struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

fn authority() -> Result<Authority, rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "example");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let pem = params.self_signed(&key)?.pem();
    Ok(Authority { issuer: Issuer::from_ca_cert_pem(&pem, key)?, pem })
}

fn issue(authority: &Authority, name: &str, group: &str, names: Vec<String>) -> Result<(String, String), rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.distinguished_name.push(DnType::OrganizationName, group);
    Ok((params.signed_by(&key, &authority.issuer)?.pem(), key.serialize_pem()))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = std::path::PathBuf::from(arguments.next().ok_or("a directory is missing")?);
    let port: u16 = arguments.next().ok_or("a port is missing")?.parse()?;
    let plugins = arguments.next().unwrap_or_default();
    let service_cidr = arguments.next();
    let disabled = plugins.split(',').filter(|name| !name.is_empty()).map(str::to_owned);
    std::fs::create_dir_all(&directory)?;
    let ca = authority()?;
    let (certificate, key) = issue(&ca, "kube-apiserver", "", vec!["localhost".to_owned(), "127.0.0.1".to_owned()])?;
    let (admin, admin_key) = issue(&ca, "kubernetes-admin", "system:masters", Vec::new())?;
    let default = corten_apiserver::Config::default();
    let config = corten_apiserver::Config {
        port,
        service_cidr: service_cidr.unwrap_or_else(|| default.service_cidr.clone()),
        hostname: Some("localhost".to_owned()),
        client_ca: ca.pem.clone(),
        serving_ca: ca.pem.clone(),
        service_account_keys: vec![KeyPair::generate()?.serialize_pem()],
        disabled_admission_plugins: disabled.collect(),
        encryption_keys: vec![corten_apiserver::EncryptionKey::first([1; 32])],
        ..default
    };
    let started = std::time::Instant::now();
    let store = corten_store::Embedded::open(corten_store::Config::new(directory.join("store")))?;
    let server = corten_apiserver::Server::new(config, store).await?;
    println!("started in {:?}", started.elapsed());
    let kubeconfig = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "corten",
        "clusters": [{ "name": "corten", "cluster": {
            "server": format!("https://127.0.0.1:{port}"), "certificate-authority-data": STANDARD.encode(&ca.pem) } }],
        "users": [{ "name": "admin", "user": {
            "client-certificate-data": STANDARD.encode(admin), "client-key-data": STANDARD.encode(admin_key) } }],
        "contexts": [{ "name": "corten", "context": { "cluster": "corten", "user": "admin" } }],
    });
    std::fs::write(directory.join("kubeconfig"), kubeconfig.to_string())?;
    let tls = Arc::new(ArcSwap::from_pointee(corten_apiserver::tls_config(&certificate, &key, &ca.pem)?));
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    println!("serving on {port}");
    server.serve(listener, tls, CancellationToken::new()).await?;
    Ok(())
}
