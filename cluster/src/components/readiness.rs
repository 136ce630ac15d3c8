//! The readiness of a cluster: its nodes are Ready, pods can be created in the default namespace, and cluster DNS
//! answers a real query. It must never give up on a slow machine: its caller has a time limit of its own.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use corten_api::k8s_openapi::api::coordination::v1::Lease;
use corten_api::k8s_openapi::api::core::v1::{Node, ServiceAccount};
use corten_client::{Caches, ListOptions, Resource};
use corten_meta::{Key, Value};
use jiff::Timestamp;
use tokio::net::UdpSocket;
use tokio_util::sync::CancellationToken;

use super::network::assigned_ranges;
use super::node_dns::dns_of;
use crate::cli::NetworkBackend;
use crate::node_object::is_ready;
use crate::progress::Progress;

/// The time limit of an answer of a server on this machine.
const PATIENCE: Duration = Duration::from_secs(1);
/// The time limit of the first answers: a query that was sent before the server listened is lost.
const FIRST_PATIENCE: Duration = Duration::from_millis(50);
/// The time limit until DNS knows its first name.
const BOUND: Duration = Duration::from_secs(600);

/// The cluster whose readiness is reported.
pub struct Starting {
    /// The names of all nodes.
    pub nodes: Vec<String>,
    pub domain: String,
    pub backend: NetworkBackend,
    /// A time before the first kubelet of this run, whose Lease may exist before the first check.
    pub started: Timestamp,
}

/// Reports each milestone: the nodes, then DNS, then the cluster.
pub async fn report(caches: Caches, starting: Starting, progress: Progress, shutdown: CancellationToken) -> Result<()> {
    let nodes = tokio::select! {
        nodes = all_ready(&caches, &starting.nodes, starting.started) => nodes,
        () = shutdown.cancelled() => return Ok(()),
    };
    progress.reached("node");
    tokio::select! {
        () = default_account(&caches) => {}
        () = shutdown.cancelled() => return Ok(()),
    }
    let first = nodes.first().and_then(|node| dns_of(node, starting.backend).first().copied());
    let first = first.context("the node has no pod range")?;
    tokio::select! {
        answer = answers(first, &starting.domain) => answer?,
        () = shutdown.cancelled() => return Ok(()),
    }
    progress.reached("dns");
    progress.reached("ready");
    shutdown.cancelled().await;
    Ok(())
}

/// Waits until every named node is Ready and has renewed its Lease since `started`; returns them in the same order. The
/// Lease distinguishes a running kubelet from the state of the last run.
async fn all_ready(caches: &Caches, names: &[String], started: Timestamp) -> Vec<Value> {
    let nodes = caches.of::<Node>();
    let leases = caches.of::<Lease>();
    nodes.synced().await;
    leases.synced().await;
    let mut node_changes = nodes.subscribe();
    let mut lease_changes = leases.subscribe();
    loop {
        let standing = |name: &String| {
            let node = nodes.get(&Key { namespace: String::new(), name: name.clone() })?.value();
            let lease = leases.get(&Key { namespace: "kube-node-lease".into(), name: name.clone() })?.value();
            let ready = is_ready(&node) && renewed(&lease)? >= started;
            (ready && assigned_ranges(&node).is_some()).then_some(node)
        };
        if let Some(nodes) = names.iter().map(standing).collect() {
            return nodes;
        }
        tokio::select! {
            _ = node_changes.next() => {}
            _ = lease_changes.next() => {}
        }
    }
}

fn renewed(lease: &Value) -> Option<Timestamp> {
    lease.pointer("/spec/renewTime")?.as_str()?.parse().ok()
}

/// Waits until the default namespace has its ServiceAccount, without which no pod is admitted to it: `kubectl run` is
/// the first command of a user.
async fn default_account(caches: &Caches) {
    let only = ListOptions { field_selector: "metadata.name=default".into(), ..ListOptions::default() };
    let accounts = caches.resource(&Resource::of::<ServiceAccount>(), "default", only);
    accounts.synced().await;
    let mut changes = accounts.subscribe();
    let key = Key { namespace: "default".into(), name: "default".into() };
    while accounts.get(&key).is_none() {
        changes.next().await;
    }
}

/// Waits until the server at `address` knows the API server's own Service.
async fn answers(address: SocketAddr, domain: &str) -> Result<()> {
    let name = format!("kubernetes.default.svc.{domain}");
    let began = tokio::time::Instant::now();
    let mut patience = FIRST_PATIENCE;
    loop {
        let socket = bind(address, &[]).await?;
        match exchange(patience, socket, address, &name).await {
            Ok(()) => return Ok(()),
            Err(error) if began.elapsed() > BOUND => return Err(error).context("cluster DNS does not answer"),
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
        // A busy machine answers late: every query has more time than the one before.
        patience = PATIENCE.min(patience.mul_f64(1.1));
    }
}

/// Queries the addresses of one name, in the server's own IP family, which is the cluster's primary one; an answer with
/// at least one address is a success. The query is sent from the first of `sources` that this machine has: DNS answers
/// only pods and its own node, so another node is queried from an address of the pod network.
pub async fn ask(server: SocketAddr, name: &str, sources: &[IpAddr]) -> Result<()> {
    let socket = bind(server, sources).await?;
    exchange(PATIENCE, socket, server, name).await
}

async fn bind(server: SocketAddr, sources: &[IpAddr]) -> std::io::Result<UdpSocket> {
    for source in sources.iter().filter(|source| source.is_ipv4() == server.is_ipv4()) {
        if let Ok(socket) = UdpSocket::bind((*source, 0)).await {
            return Ok(socket);
        }
    }
    let any: IpAddr = if server.is_ipv4() { [0, 0, 0, 0].into() } else { [0u16; 8].into() };
    UdpSocket::bind((any, 0)).await
}

async fn exchange(patience: Duration, socket: UdpSocket, server: SocketAddr, name: &str) -> Result<()> {
    socket.connect(server).await?;
    socket.send(&question(name, server.is_ipv4())).await?;
    let mut buffer = [0; 512];
    let read = tokio::time::timeout(patience, socket.recv(&mut buffer)).await??;
    ensure!(read >= 12, "a short answer");
    let code = buffer[3] & 0x0f;
    let count = u16::from_be_bytes([buffer[6], buffer[7]]);
    ensure!(code == 0 && count > 0, "{name}: response code {code}, {count} answers");
    Ok(())
}

/// Returns a DNS query for the addresses of a name.
fn question(name: &str, ipv4: bool) -> Vec<u8> {
    let mut query = vec![0x43, 0x4f, 0x01, 0x00, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.').filter(|label| !label.is_empty()) {
        query.push(label.len() as u8);
        query.extend_from_slice(label.as_bytes());
    }
    query.extend_from_slice(&[0, 0, if ipv4 { 1 } else { 28 }, 0, 1]);
    query
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dns_queries_are_well_formed() {
        assert_eq!(&question("a.bc", true)[12..], b"\x01a\x02bc\x00\x00\x01\x00\x01");
        assert_eq!(&question("a.bc", false)[12..], b"\x01a\x02bc\x00\x00\x1c\x00\x01");
    }
}
