//! The API servers that an agent knows: all of them, kept on the disk, behind one address of the loopback.
//!
//! The agent joins through one server and learns of the others by the endpoints of the Service `kubernetes`. Its components
//! connect to a balancer on the loopback, which passes the bytes on to a healthy server. The certificate that they check is
//! that of `kubernetes`, a name that every API server has.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use corten_api::k8s_openapi::api::discovery::v1::EndpointSlice;
use corten_balancer::{Balancer, Check, Config, Health};
use corten_client::https::Pem;
use corten_client::{Caches, Client, HttpsConfig, Kubeconfig, ListOptions, Resource};
use corten_meta::Value;
use futures::FutureExt;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::cli::DEFAULT_PORT;
use crate::directories::Directories;
use crate::key_hash;
use crate::pki::rotation::certificates;
use crate::pki::write_private;
use crate::tasks::Tasks;

/// The port of the balancer; another one where it is taken.
pub const BALANCER_PORT: u16 = 6444;
/// The name that the certificate of every API server carries.
pub const SERVER_NAME: &str = "kubernetes";
/// The most servers that are kept.
const MOST: usize = 64;
/// The time within which the file of servers follows a rotation of the CA.
const INTERVAL: Duration = Duration::from_secs(30);
/// The calls that wait until they are looked at.
const CALLS: usize = 16;

/// The API servers of an agent.
#[derive(Clone)]
pub struct ApiServers {
    url: String,
    file: PathBuf,
    /// The kubeconfig that names the cluster's CA, which rotates.
    kubeconfig: PathBuf,
    list: Arc<watch::Sender<Vec<String>>>,
    /// The port of the API server that the kubeconfig names.
    port: u16,
}

/// The content of the file of servers.
#[derive(Default, Serialize, Deserialize)]
struct Known {
    /// The hash of the CA of the cluster whose servers these are.
    cluster: String,
    servers: Vec<String>,
}

impl ApiServers {
    /// Starts the balancer over the servers that are known, and the one that the kubeconfig names. Returns none for a
    /// kubeconfig whose server cannot be one of several: without a CA, without TLS, or with a name of its own.
    pub async fn start(
        directories: &Directories,
        kubeconfig: &Path,
        node: &str,
        tasks: &mut Tasks,
    ) -> Result<Option<ApiServers>> {
        let https = Kubeconfig::load(kubeconfig)?.https_config(None)?;
        let is_named = https.tls_server_name.is_some() || https.insecure_skip_tls_verify;
        if is_named || https.ca.is_none() || !https.server.starts_with("https://") {
            return Ok(None);
        }
        let file = directories.data.join("servers.json");
        let first = host_and_port(&https.server);
        let first = first.with_context(|| format!("{} names no server", kubeconfig.display()))?;
        let port = first.rsplit(':').next().and_then(|port| port.parse().ok()).unwrap_or(DEFAULT_PORT);
        let authorities = crate::kubeconfig::authority(kubeconfig)?;
        let (sender, receiver) = watch::channel(remembered(&file, &authorities));
        let authority = https.ca.context("the kubeconfig has no CA")?;
        let config = Config::new(node, vec![first], receiver, check(authority));
        let loopback = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let balancer = Balancer::bind(&[loopback(BALANCER_PORT), loopback(0)], config).await;
        let balancer = balancer.context("the balancer of API servers cannot listen on the loopback")?;
        let url = format!("https://{}", balancer.address()?);
        tasks.spawn("balancer", balancer.run(tasks.shutdown()));
        Ok(Some(ApiServers { url, file, kubeconfig: kubeconfig.to_owned(), list: Arc::new(sender), port }))
    }

    /// Returns a client with the identity of a kubeconfig that reaches all servers.
    pub fn client(&self, kubeconfig: &Path) -> Result<Client> {
        let config = Kubeconfig::load(kubeconfig)?.https_config(None)?;
        let config = HttpsConfig { server: self.url.clone(), tls_server_name: Some(SERVER_NAME.to_owned()), ..config };
        Ok(Client::https(config)?)
    }

    /// Returns the URL of the balancer.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the addresses of the servers.
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.list.borrow().iter().filter_map(|server| Some(server.parse::<SocketAddr>().ok()?.ip())).collect()
    }

    /// Follows the endpoints of the Service `kubernetes`, by a client that may read them.
    pub fn follow(&self, client: Client, tasks: &mut Tasks) {
        tasks.spawn("API servers", follow(self.clone(), client, tasks.shutdown()));
    }

    /// Returns the receiver of addresses from which API servers call: one that is not known is tried too.
    pub fn hear(&self, tasks: &mut Tasks) -> mpsc::Sender<IpAddr> {
        let (sender, mut callers) = mpsc::channel(CALLS);
        let servers = self.clone();
        let shutdown = tasks.shutdown();
        tasks.spawn("calling API servers", async move {
            loop {
                let called = tokio::select! {
                    called = callers.recv() => called,
                    () = shutdown.cancelled() => None,
                };
                let Some(address) = called else {
                    shutdown.cancelled().await;
                    return Ok::<(), anyhow::Error>(());
                };
                if let Err(error) = servers.add(address) {
                    tracing::warn!("the list of API servers cannot be kept: {error:#}");
                }
            }
        });
        sender
    }

    /// Adds the server at an address to those that are tried.
    fn add(&self, address: IpAddr) -> Result<()> {
        let server = SocketAddr::new(address, self.port).to_string();
        let mut servers = self.list.borrow().clone();
        if servers.contains(&server) || servers.len() >= MOST {
            return Ok(());
        }
        servers.push(server);
        self.learn(servers)
    }

    fn learn(&self, servers: Vec<String>) -> Result<()> {
        if servers.is_empty() || *self.list.borrow() == servers {
            return Ok(());
        }
        tracing::info!(servers = servers.join(", "), "the API servers have changed");
        self.keep(&servers)?;
        self.list.send_replace(servers);
        Ok(())
    }

    /// Writes the servers with the hash of the CA that signs now, if the file has others: a rotation must not make them
    /// those of another cluster.
    fn keep(&self, servers: &[String]) -> Result<()> {
        let cluster = key_hash::hash(&crate::kubeconfig::authority(&self.kubeconfig)?)?;
        let known = serde_json::to_vec(&Known { cluster, servers: servers.to_vec() })?;
        match std::fs::read(&self.file) {
            Ok(kept) if kept == known => Ok(()),
            _ => write_private(&self.file, &known),
        }
    }
}

async fn follow(servers: ApiServers, client: Client, shutdown: CancellationToken) -> Result<()> {
    let caches = Caches::new(client, shutdown.clone());
    let options = ListOptions::labels("kubernetes.io/service-name=kubernetes");
    let slices = caches.resource(&Resource::of::<EndpointSlice>(), "default", options);
    let mut changes = slices.subscribe();
    loop {
        let known: Vec<Value> = slices.all().iter().map(|slice| slice.value()).collect();
        if let Err(error) = servers.learn(endpoints(&known)) {
            tracing::warn!("the list of API servers cannot be kept: {error:#}");
        }
        let current = servers.list.borrow().clone();
        if !current.is_empty()
            && let Err(error) = servers.keep(&current)
        {
            tracing::warn!("the list of API servers cannot be kept: {error:#}");
        }
        tokio::select! {
            _ = changes.next() => {}
            () = tokio::time::sleep(INTERVAL) => {}
            () = shutdown.cancelled() => return Ok(()),
        }
    }
}

/// Returns the servers that EndpointSlices name, each as an address and a port.
pub fn endpoints(slices: &[Value]) -> Vec<String> {
    let mut servers = Vec::new();
    for slice in slices {
        let list = |key: &str| slice.get(key).and_then(Value::as_array).into_iter().flatten();
        let port = list("ports").find(|port| port["name"] == "https").or_else(|| list("ports").next());
        let port = port.and_then(|port| u16::try_from(port["port"].as_u64()?).ok());
        let Some(port) = port else { continue };
        for endpoint in list("endpoints").filter(|endpoint| endpoint["conditions"]["ready"] != false) {
            let addresses = endpoint["addresses"].as_array().into_iter().flatten();
            let addresses = addresses.filter_map(|address| address.as_str()?.parse::<IpAddr>().ok());
            servers.extend(addresses.map(|address| SocketAddr::new(address, port).to_string()));
        }
    }
    servers.sort_unstable();
    servers.dedup();
    servers.truncate(MOST);
    servers
}

/// Reads the servers of the last run; none if there are none, they are of another cluster, or the file is damaged, as the
/// first server is known anyway.
fn remembered(file: &Path, authorities: &str) -> Vec<String> {
    let bytes = std::fs::read(file).unwrap_or_default();
    let known: Known = serde_json::from_slice(&bytes).unwrap_or_default();
    let is_own = |certificate: &String| key_hash::hash(certificate).is_ok_and(|hash| hash == known.cluster);
    let servers = if certificates(authorities).iter().any(is_own) { known.servers } else { Vec::new() };
    servers.into_iter().filter(|server| server.parse::<SocketAddr>().is_ok()).take(MOST).collect()
}

/// Returns the host and port of a URL, as a connection takes them.
fn host_and_port(url: &str) -> Option<String> {
    let uri: http::Uri = url.parse().ok()?;
    let port = uri.port_u16().unwrap_or(443);
    Some(format!("{}:{port}", uri.host()?))
}

/// Returns the check of a server: its readiness. A connection to each is kept.
fn check(authority: Pem) -> Check {
    let clients: Arc<Mutex<HashMap<String, Client>>> = Arc::default();
    Arc::new(move |server| {
        let client = client_of(&clients, &authority, &server);
        async move {
            match client {
                Some(client) => health(client.get_raw("/readyz").await),
                None => Health::Failing,
            }
        }
        .boxed()
    })
}

/// Returns the health of a server by its answer.
fn health<T>(answer: Result<T, corten_client::Error>) -> Health {
    let error = match answer {
        Ok(_) => return Health::Healthy,
        Err(error) => error,
    };
    // It lets no anonymous client ask, so that its readiness is not known; it answers.
    if error.is_unauthorized() || error.is_forbidden() {
        return Health::Healthy;
    }
    let message = error.status().map(|status| status.message.as_str()).unwrap_or_default();
    let mut failed = message.split("[-]").skip(1).peekable();
    match failed.peek().is_some() && failed.all(|check| check.starts_with("shutdown ")) {
        true => Health::Leaving,
        false => Health::Failing,
    }
}

fn client_of(clients: &Mutex<HashMap<String, Client>>, authority: &Pem, server: &str) -> Option<Client> {
    let mut clients = clients.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(client) = clients.get(server) {
        return Some(client.clone());
    }
    let config = HttpsConfig {
        server: format!("https://{server}"),
        ca: Some(authority.clone()),
        tls_server_name: Some(SERVER_NAME.to_owned()),
        ..HttpsConfig::default()
    };
    let client = Client::https(config).ok()?;
    if clients.len() >= MOST {
        clients.clear();
    }
    clients.insert(server.to_owned(), client.clone());
    Some(client)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::pki::{Authority, Leaf};

    #[test]
    fn servers_are_the_ready_endpoints_of_the_service() {
        let slice = |addresses: &[&str], ready: Value| {
            json!({
                "ports": [{"name": "other", "port": 1}, {"name": "https", "port": 6443}],
                "endpoints": addresses.iter().map(|address| json!({
                    "addresses": [address], "conditions": {"ready": ready},
                })).collect::<Vec<_>>(),
            })
        };
        let slices = [
            slice(&["10.0.0.2", "10.0.0.1"], json!(true)),
            slice(&["10.0.0.1", "fd00::1"], Value::Null),
            slice(&["10.0.0.9"], json!(false)),
            json!({"endpoints": [{"addresses": ["10.0.0.8"]}]}),
            json!({"ports": [{"name": "https", "port": 70_000}], "endpoints": [{"addresses": ["10.0.0.7"]}]}),
            slice(&["nonsense"], json!(true)),
        ];
        assert_eq!(endpoints(&slices), ["10.0.0.1:6443", "10.0.0.2:6443", "[fd00::1]:6443"]);
        assert!(endpoints(&[]).is_empty());
    }

    #[test]
    fn the_list_is_kept_and_an_empty_one_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("servers.json");
        let authority = |name: &str| Authority::open(folder.path(), name, name).unwrap();
        let own = authority("own");
        let successor = authority("successor");
        let kubeconfig = folder.path().join("kubeconfig");
        let write = |authority: &Authority| {
            let identity = authority.issue(&Leaf::client("jane", &[])).unwrap();
            let config = crate::kubeconfig::single("https://10.0.0.1:6443", &authority.certificate, &identity);
            crate::kubeconfig::write(&kubeconfig, &config).unwrap();
        };
        write(&own);
        assert!(remembered(&file, &own.certificate).is_empty());
        let servers = ApiServers {
            url: String::new(),
            file: file.clone(),
            kubeconfig: kubeconfig.clone(),
            list: Arc::new(watch::Sender::new(Vec::new())),
            port: 6443,
        };
        let list = vec!["10.0.0.1:6443".to_owned(), "[fd00::1]:6443".to_owned()];
        servers.learn(list.clone()).unwrap();
        assert_eq!(remembered(&file, &own.certificate), list);
        assert!(remembered(&file, &successor.certificate).is_empty(), "the servers of another cluster");
        // While the CA rotates, both are the cluster's; then the file follows.
        let both = format!("{}{}", successor.certificate, own.certificate);
        assert_eq!(remembered(&file, &both), list);
        write(&successor);
        servers.keep(&list).unwrap();
        assert_eq!(remembered(&file, &successor.certificate), list);
        servers.learn(Vec::new()).unwrap();
        assert_eq!(*servers.list.borrow(), list);
        assert_eq!(servers.addresses().len(), 2);
        // A server that calls from another address is tried too.
        for _ in 0..2 {
            servers.add("10.0.0.9".parse().unwrap()).unwrap();
        }
        assert_eq!(servers.list.borrow().last().map(String::as_str), Some("10.0.0.9:6443"));
        assert_eq!(servers.addresses().len(), 3);
        std::fs::write(&file, "{\"cluster\": \"a\", 1").unwrap();
        assert!(remembered(&file, &both).is_empty());
    }

    #[test]
    fn a_server_that_stops_leaves_and_any_other_failure_is_one() {
        use corten_meta::Status;
        let answer = |code: u16, body: &str| {
            let status = Status::generic(code, "GET", &corten_meta::GroupResource::default(), "", body);
            health(Err::<(), _>(corten_client::Error::Api(status)))
        };
        assert_eq!(health(Ok(())), Health::Healthy);
        assert_eq!(answer(401, ""), Health::Healthy);
        let stops = "[+]ping ok\n[-]shutdown failed: reason withheld\nreadyz check failed";
        assert_eq!(answer(500, stops), Health::Leaving);
        let fails =
            "[-]etcd-readiness failed: reason withheld\n[-]shutdown failed: reason withheld\nreadyz check failed";
        assert_eq!(answer(500, fails), Health::Failing);
        assert_eq!(answer(500, "shutdown"), Health::Failing);
        assert_eq!(answer(503, ""), Health::Failing);
        assert_eq!(health(Err::<(), _>(corten_client::Error::Transport(stops.to_owned()))), Health::Failing);
    }

    #[test]
    fn urls_become_hosts_and_ports() {
        for (url, expected) in [
            ("https://10.0.0.1:6443", Some("10.0.0.1:6443")),
            ("https://[fd00::1]:6443", Some("[fd00::1]:6443")),
            ("https://lb.example", Some("lb.example:443")),
            ("nonsense\u{7f}", None),
        ] {
            assert_eq!(host_and_port(url).as_deref(), expected, "{url}");
        }
    }
}
