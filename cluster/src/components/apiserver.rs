//! The API server in this process: its store, certificates and listener, and clients that reach it without a socket.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use corten_apiserver::{Adviser, Server, Site, Stores, User};
use corten_client::{Caches, Client};
use corten_store::{Embedded, Store};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::console::Console;
use super::ingress_advice::IngressAdviser;
use super::server_certificates::{self, Renewed, ServerClients, mark_loaded, write_kubeconfigs};
use super::serving_certificate::Certificates;
use super::{access, addons, authorization, etcd_client, further_nodes, in_process, joining};
use crate::config::Cluster;
use crate::files;
use crate::pki::{Authorities, Pki, live};
use crate::supervision;
use crate::tasks::Tasks;

/// A started API server.
pub struct ApiServer {
    server: Arc<Server>,
}

impl ApiServer {
    /// Returns a client that acts as `name` with `groups`, through the same pipeline as every other client.
    pub fn client(&self, name: &str, groups: &[&str]) -> Client {
        let mut groups: Vec<String> = groups.iter().map(|group| (*group).to_owned()).collect();
        groups.push("system:authenticated".into());
        in_process::client(&self.server, User { name: name.into(), groups, ..User::default() })
    }
}

/// Starts the API server over its stores and waits until it serves. The stores outlive all clients.
pub async fn start(
    cluster: &Cluster,
    authorities: &Authorities,
    stores: Stores,
    prepares_node: bool,
    tasks: &mut Tasks,
) -> Result<ApiServer> {
    tasks.spawn("store", outlive(Arc::clone(&stores.main), tasks.shutdown()));
    // A change from here on is taken over later.
    let authorities = authorities.clone();
    let pki = Arc::clone(&authorities.borrow());
    let console = (!cluster.access.disable_console).then(|| Arc::new(Console::new(&cluster.access)));
    let server = Server::with_stores(config(cluster, &pki, console.clone(), tasks)?, stores).await;
    let server = server.context("the API server cannot start")?;
    if let Some(console) = &console {
        console.ask(&server);
    }
    tasks.wait_at_least(server.longest_shutdown());
    let certificates = Arc::new(Certificates::issue(cluster, &authorities)?);
    write_kubeconfigs(cluster, &pki)?;
    let listener = supervision::listen(cluster.bind).await?;
    tasks.spawn("apiserver", server.clone().serve(listener, certificates.clone(), tasks.shutdown()));
    let api = ApiServer { server: Arc::clone(&server) };
    let admin = api.client("system:admin", &["system:masters"]);
    let renewed = Renewed { cluster: cluster.clone(), authorities, server, certificates, admin, prepares_node };
    tasks.spawn("certificates", server_certificates::renew(renewed, tasks.shutdown()));
    mark_loaded(cluster, &pki)?;
    Ok(api)
}

/// Opens the stores that the flags name: etcd, whose endpoints may change, or the embedded store in the data directory, which
/// serves etcd's API.
pub async fn open_stores(
    cluster: &Cluster,
    endpoints: Option<watch::Receiver<Vec<String>>>,
    tasks: &mut Tasks,
) -> Result<Stores> {
    if let Some(stores) = etcd_client::open(&cluster.store, endpoints, tasks).await? {
        return Ok(stores);
    }
    let store = open_embedded(&cluster.node.directories.data.join("store")).await?;
    super::etcd_api::start(cluster, &store, tasks).await?;
    Ok(Stores { main: store, overrides: Vec::new() })
}

/// Opens the embedded store; recovery reads files, so it runs on a thread of its own.
async fn open_embedded(dir: &Path) -> Result<Arc<Embedded>> {
    let config = corten_store::Config::new(dir);
    let store = tokio::task::spawn_blocking(move || Embedded::open(config)).await?;
    store.context("the store cannot be opened")
}

/// Ends with an error once the store is broken: only a process that opens it again can write.
async fn outlive(store: Arc<dyn Store>, shutdown: CancellationToken) -> Result<()> {
    let broken = store.broken();
    // The store closes with its last holder, and must not wait for this task.
    drop(store);
    tokio::select! {
        () = shutdown.cancelled() => Ok(()),
        reason = broken => bail!("it takes no writes until it is opened again, because its log failed: {reason}"),
    }
}

/// Runs `corten apiserver`: the API server and its store, with the credentials for the components of a first node.
pub async fn alone(cluster: Cluster, shutdown: CancellationToken) -> Result<()> {
    let mut tasks = Tasks::new(shutdown.clone());
    let authorities = live::follow(&cluster.node.directories.pki(), cluster.leaf_lifetime, &mut tasks)?;
    let pki = Arc::clone(&authorities.borrow());
    let stores = open_stores(&cluster, None, &mut tasks).await?;
    let node = &cluster.node;
    further_nodes::prepare(&cluster, &pki, &node.name, &node.directories, &node.addresses)?;
    let api = start(&cluster, &authorities, stores, true, &mut tasks).await?;
    let admin = api.client("system:admin", &["system:masters"]);
    access::grant(&admin).await.context("the roles of the node's components cannot be applied")?;
    joining::publish(&admin, &cluster, &pki).await.context("the cluster cannot be published to nodes that join")?;
    let caches = Caches::new(admin.clone(), shutdown.clone());
    tasks.spawn("addons", addons::run(admin, caches, cluster.clone(), shutdown));
    tracing::info!(url = cluster.local_url(), "serving");
    supervision::notify("READY=1");
    tasks.run().await
}

fn config(
    cluster: &Cluster,
    pki: &Pki,
    console: Option<Arc<Console>>,
    tasks: &mut Tasks,
) -> Result<corten_apiserver::Config> {
    let access = &cluster.access;
    let authorization = authorization::config(access, tasks)?;
    let mut follow = |path: &Option<PathBuf>| path.as_deref().map(|path| files::follow(path, tasks)).transpose();
    let ServerClients { kubelet, front_proxy } = server_certificates::clients(cluster, pki)?;
    let issuer = format!("https://kubernetes.default.svc.{}", cluster.node.cluster_domain);
    Ok(corten_apiserver::Config {
        advertise_address: cluster.node.address,
        hostname: Some(cluster.node.name.clone()),
        port: cluster.bind.port(),
        service_cidr: cluster.node.service_cidr.clone(),
        audiences: vec![issuer.clone()],
        issuer,
        service_account_keys: pki.service_account_keys.clone(),
        client_ca: pki.cluster.certificate.clone(),
        serving_ca: pki.cluster.certificate.clone(),
        requestheader_ca: Some(pki.front_proxy.certificate.clone()),
        kubelet: Some(kubelet),
        encryption_keys: pki.encryption_keys.clone(),
        encryption_configuration: follow(&access.encryption_provider_config)?,
        authorization,
        trusted_roots: files::trusted_roots(),
        authentication_configuration: follow(&access.authentication_config)?,
        token_webhook: access
            .authentication_token_webhook_config_file
            .as_deref()
            .map(super::audit::remote_server)
            .transpose()?,
        disabled_admission_plugins: access.disable_admission_plugins.clone(),
        audit: Some(super::audit::config(&cluster.audit, &cluster.node.directories)?),
        proxy_client: Some(front_proxy),
        tracer: super::spans::tracer(access.tracing_config_file.as_deref(), &cluster.node.name, tasks)?,
        object_metrics: Some(super::state_metrics::page(access, tasks)?),
        site: console.map(|console| console as Arc<dyn Site>),
        adviser: (!cluster.node.edge.disable_edge).then(|| Arc::new(IngressAdviser) as Arc<dyn Adviser>),
        storage_media_type: cluster.store.media_type(),
        etcd_prefix: cluster.store.etcd_prefix.clone(),
        shutdown_delay: cluster.shutdown_delay(),
        shutdown_watch_termination_grace_period: cluster.store.shutdown_watch_termination_grace_period,
        emulated_version: access.emulated_version,
        ..corten_apiserver::Config::default()
    })
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::time::{Duration, SystemTime};

    use clap::Parser;
    use rustls_pki_types::pem::PemObject;
    use rustls_pki_types::{CertificateDer, ServerName};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio_rustls::client::TlsStream;

    use super::*;

    /// The lifetime: long enough for a start on a busy machine, short enough to expire in the test.
    const LIFETIME: Duration = Duration::from_secs(30);
    const PATIENCE: Duration = Duration::from_secs(600);

    /// Returns a cluster whose API server listens on every address of this machine, at a free port outside of the
    /// system's ephemeral range.
    fn cluster(data: &Path) -> Cluster {
        let first = 20_000 + (std::process::id() % 5_000) as u16;
        let is_free = |port: &u16| std::net::TcpListener::bind((Ipv4Addr::UNSPECIFIED, *port)).is_ok();
        let port = (first..first + 1000).find(is_free).unwrap().to_string();
        let run = data.join("run");
        let [data, run] = [data, run.as_path()].map(|path| path.to_str().unwrap());
        let words = [
            "corten",
            "server",
            "--data-dir",
            data,
            "--run-dir",
            run,
            "--node-ip",
            "127.0.0.1",
            "--port",
            &port,
            "--bind-address",
            "0.0.0.0",
        ];
        match crate::cli::Cli::parse_from(words).command {
            crate::cli::Command::Server(flags) => Cluster::from_flags(&flags).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// Connects as a client that trusts only the cluster; returns the connection and the server's certificate.
    async fn connect(pki: &Pki, address: SocketAddr) -> (TlsStream<TcpStream>, Vec<u8>) {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(pki.cluster.certificate.as_bytes()).unwrap()).unwrap();
        let config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let stream = TcpStream::connect(address).await.unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let stream = connector.connect(ServerName::from(address.ip()), stream).await.unwrap();
        let shown = stream.get_ref().1.peer_certificates().unwrap()[0].to_vec();
        (stream, shown)
    }

    /// Sends a request on a connection that stays open.
    async fn is_served(stream: &mut TlsStream<TcpStream>) -> bool {
        stream.write_all(b"GET /livez HTTP/1.1\r\nHost: kubernetes\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"ok") {
            let mut part = [0; 1024];
            match stream.read(&mut part).await {
                Ok(count) if count > 0 => answer.extend_from_slice(&part[..count]),
                _ => return false,
            }
        }
        answer.starts_with(b"HTTP/1.1 200")
    }

    fn expiry(certificate: &[u8]) -> SystemTime {
        let (_, certificate) = x509_parser::parse_x509_certificate(certificate).unwrap();
        SystemTime::UNIX_EPOCH + Duration::from_secs(certificate.validity().not_after.timestamp().unsigned_abs())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn certificates_are_renewed_under_a_server_that_goes_on_serving() {
        // Another test of the process may have installed it first.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let folder = tempfile::tempdir().unwrap();
        let cluster = cluster(folder.path());
        let cluster = Cluster { leaf_lifetime: LIFETIME, ..cluster };
        let shutdown = CancellationToken::new();
        let mut tasks = Tasks::new(shutdown.clone());
        let authorities = live::follow(&cluster.node.directories.pki(), LIFETIME, &mut tasks).unwrap();
        let pki = Arc::clone(&authorities.borrow());
        let stores = open_stores(&cluster, None, &mut tasks).await.unwrap();
        start(&cluster, &authorities, stores, false, &mut tasks).await.unwrap();
        let running = tokio::spawn(tasks.run());
        let own = SocketAddr::from((Ipv4Addr::LOCALHOST, cluster.bind.port()));
        let (mut old, first) = connect(&pki, own).await;
        let kubeconfig = || std::fs::read_to_string(cluster.node.directories.kubeconfig("admin")).unwrap();
        let written = kubeconfig();
        // A client checks the dates too: an expired certificate would fail each of these connections.
        let outlived = async {
            while SystemTime::now() <= expiry(&first) {
                assert!(is_served(&mut connect(&pki, own).await.0).await);
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::time::timeout(PATIENCE, outlived).await.expect("the first certificate never expires");
        let (mut new, second) = connect(&pki, own).await;
        assert!(expiry(&second) > expiry(&first));
        assert!(is_served(&mut old).await && is_served(&mut new).await);
        assert_ne!(kubeconfig(), written, "the administrator's certificate is renewed too");
        // An address that the machine did not have when the certificate was issued.
        let late = SocketAddr::from((Ipv4Addr::new(127, 0, 0, 77), cluster.bind.port()));
        assert!(is_served(&mut connect(&pki, late).await.0).await);
        shutdown.cancel();
        running.await.unwrap().unwrap();
    }
}
