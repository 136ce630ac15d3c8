//! A rolling restart of API servers behind a load balancer, under clients that retry as client-go does: no request fails.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use corten_api::k8s_openapi::api::core::v1::ConfigMap;
use corten_apiserver::{Config, InProcess};
use corten_client::{Client, DeleteOptions, HttpsConfig, ListOptions};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{ApiServer, EtcdCluster, PATIENCE, config, key, until};

/// The clients, half of which share a connection as the components of a node do.
const CLIENTS: usize = 4;

/// A CA, and the identities that it signed.
struct Identities {
    ca: String,
    serving: Pair,
    admin: Pair,
}

/// A certificate and its key, in PEM.
struct Pair {
    certificate: String,
    key: String,
}

impl Identities {
    fn new() -> Identities {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::from_ca_cert_pem(&ca, key).unwrap();
        let issue = |name: &str, group: &str| {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
            params.distinguished_name.push(DnType::CommonName, name);
            params.distinguished_name.push(DnType::OrganizationName, group);
            Pair { certificate: params.signed_by(&key, &issuer).unwrap().pem(), key: key.serialize_pem() }
        };
        let serving = issue("kube-apiserver", "");
        let admin = issue("admin", "system:masters");
        Identities { serving, admin, ca }
    }

    fn client(&self, balancer: SocketAddr) -> Client {
        Client::https(HttpsConfig {
            server: format!("https://{balancer}"),
            ca: Some(self.ca.as_str().into()),
            client_certificate: Some(self.admin.certificate.as_str().into()),
            client_key: Some(self.admin.key.as_str().into()),
            ..HttpsConfig::default()
        })
        .unwrap()
    }
}

/// A server that listens.
struct Running {
    probe: InProcess,
    address: SocketAddr,
    shutdown: CancellationToken,
    serving: JoinHandle<()>,
}

impl Running {
    async fn start(cluster: &EtcdCluster, identities: &Identities, config: Config) -> Running {
        let config = Config {
            client_ca: identities.ca.clone(),
            shutdown_delay: Duration::from_millis(500),
            shutdown_watch_termination_grace_period: Duration::from_secs(5),
            ..config
        };
        let ApiServer { server, admin } = ApiServer::start(cluster, config).await;
        let Pair { certificate, key } = &identities.serving;
        let tls = corten_apiserver::tls_config(certificate, key, &identities.ca).unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let serve = server.serve(listener, Arc::new(ArcSwap::from_pointee(tls)), shutdown.clone());
        let serving = tokio::spawn(async move { serve.await.unwrap() });
        Running { probe: admin, address, shutdown, serving }
    }
}

/// The targets of a load balancer: the address of each server, and the probe of its readiness.
#[derive(Clone, Default)]
struct Targets(Arc<Mutex<Vec<(SocketAddr, InProcess)>>>);

impl Targets {
    fn set(&self, servers: &[&Running]) {
        *self.0.lock().unwrap() = servers.iter().map(|server| (server.address, server.probe.clone())).collect();
    }

    /// Returns a ready server, each in turn.
    async fn next(&self, turn: usize) -> SocketAddr {
        loop {
            let mut all = self.0.lock().unwrap().clone();
            let count = all.len();
            all.rotate_left(turn % count);
            for (address, probe) in all {
                let request = http::Request::get("/readyz").body(bytes::Bytes::new()).unwrap();
                if probe.call(request).await.status() == 200 {
                    return address;
                }
            }
            tokio::task::yield_now().await;
        }
    }
}

/// Passes connections to servers that are ready; it ends with the test's runtime.
async fn balance(targets: Targets) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        for turn in 0.. {
            let Ok((mut client, _)) = listener.accept().await else { return };
            let targets = targets.clone();
            tokio::spawn(async move {
                let mut server = TcpStream::connect(targets.next(turn).await).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    address
}

/// Writes, reads, lists and deletes until `stop`; every error fails the test.
async fn work(client: Client, number: usize, done: Arc<AtomicUsize>, stop: Arc<AtomicBool>) {
    for round in 0.. {
        if stop.load(Ordering::SeqCst) {
            return;
        }
        let name = format!("map-{number}-{round}");
        let mut map = ConfigMap::default();
        map.metadata.name = Some(name.clone());
        map.metadata.namespace = Some("default".to_owned());
        client.create(&map).await.unwrap_or_else(|error| panic!("create {name}: {error}"));
        let read: ConfigMap = client.get("default", &name).await.unwrap_or_else(|error| panic!("get {name}: {error}"));
        assert!(read.metadata.resource_version.is_some());
        let list = client.list::<ConfigMap>("default", &ListOptions::default()).await;
        let list = list.unwrap_or_else(|error| panic!("list after {name}: {error}"));
        assert!(list.items.iter().any(|map| map.metadata.name.as_ref() == Some(&name)));
        let deleted = client.delete::<ConfigMap>("default", &name, &DeleteOptions::default()).await;
        deleted.unwrap_or_else(|error| panic!("delete {name}: {error}"));
        done.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_request_fails_while_each_server_is_restarted() {
    let Some(cluster) = EtcdCluster::start(1) else { return };
    let identities = Identities::new();
    let key = key();
    let mut one = Running::start(&cluster, &identities, config(1, &key)).await;
    let mut other = Running::start(&cluster, &identities, config(2, &key)).await;
    let targets = Targets::default();
    targets.set(&[&one, &other]);
    let balancer = balance(targets.clone()).await;
    let stop = Arc::new(AtomicBool::new(false));
    let done = Arc::new(AtomicUsize::new(0));
    let shared = identities.client(balancer);
    let workers: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let client = if number < CLIENTS / 2 { shared.clone() } else { identities.client(balancer) };
            tokio::spawn(work(client, number, Arc::clone(&done), Arc::clone(&stop)))
        })
        .collect();
    let progress = async || {
        let before = done.load(Ordering::SeqCst);
        let has_failed = || workers.iter().any(JoinHandle::is_finished);
        until("further rounds", async || done.load(Ordering::SeqCst) > before + 2 * CLIENTS || has_failed()).await;
    };
    for number in [1, 2] {
        progress().await;
        let stopping = if number == 1 { &mut one } else { &mut other };
        stopping.shutdown.cancel();
        tokio::time::timeout(PATIENCE, &mut stopping.serving).await.expect("the server ends").unwrap();
        *stopping = Running::start(&cluster, &identities, config(number, &key)).await;
        targets.set(&[&one, &other]);
    }
    progress().await;
    stop.store(true, Ordering::SeqCst);
    for worker in workers {
        tokio::time::timeout(PATIENCE, worker).await.expect("the client ends").expect("no request failed");
    }
}
