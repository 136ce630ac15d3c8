//! Leader election of schedulers: one of several candidates schedules pods, none is lost or bound twice, whether the
//! former leader stopped cleanly or crashed.

#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod cluster;

use std::collections::HashMap;
use std::time::Duration;

use cluster::{BOUND, Cluster};
use corten_api::k8s_openapi::api::coordination::v1::Lease;
use corten_api::k8s_openapi::api::core::v1::Pod;
use corten_client::{Caches, Subscription};
use corten_scheduler::{Config, Election};
use serde_json::json;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

fn candidate(identity: &str) -> Config {
    let election = Election {
        // Long enough for a leader on a machine that stalls, and short enough to wait for its expiry once.
        lease_duration: Duration::from_secs(15),
        renew_deadline: Duration::from_secs(12),
        retry_period: Duration::from_millis(100),
        ..Election::default()
    };
    Config { identity: identity.to_owned(), leader_election: Some(election), ..Config::default() }
}

fn start(cluster: &Cluster, identity: &str) -> (JoinHandle<()>, CancellationToken) {
    let client = cluster.server.client("system:kube-scheduler", &[]);
    let (config, shutdown) = (candidate(identity), CancellationToken::new());
    let ending = shutdown.clone();
    let running = tokio::spawn(async move { corten_scheduler::run(config, client, ending).await.unwrap() });
    (running, shutdown)
}

/// Follows the pods until this many have a node; no pod may change its node.
async fn placed(changes: &mut Subscription, nodes: &mut HashMap<String, String>, pods: usize) {
    while nodes.len() < pods {
        let change = tokio::time::timeout(BOUND, changes.next()).await.expect("pods are still being placed").unwrap();
        let Some(object) = change.new else { continue };
        let Some(node) = object.value()["spec"]["nodeName"].as_str().map(str::to_owned) else { continue };
        let before = nodes.insert(object.header.name.clone(), node.clone());
        assert!(before.is_none_or(|before| before == node), "{} was bound twice", object.header.name);
    }
}

/// Waits until the lease has this holder: a leader that stops may have scheduled the last pods before it released the
/// lease.
async fn leads(cluster: &Cluster, identity: &str) {
    let held = || async {
        let lease = cluster.admin.get::<Lease>("kube-system", "kube-scheduler").await.unwrap();
        lease.spec.unwrap().holder_identity.as_deref() == Some(identity)
    };
    cluster.eventually(&format!("{identity} leads"), held).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_find_nodes_with_any_leader() {
    let cluster = Cluster::start(candidate("first")).await;
    cluster.node("a", "64").await;
    cluster.node("b", "64").await;
    let ending = CancellationToken::new();
    let caches = Caches::new(cluster.admin.clone(), ending.clone());
    let (mut changes, mut nodes) = (caches.of::<Pod>().subscribe(), HashMap::new());
    cluster.pod("p0", "10m", json!({})).await;
    placed(&mut changes, &mut nodes, 1).await;
    leads(&cluster, "first").await;

    let (second, _) = start(&cluster, "second");
    for number in 1..20 {
        cluster.pod(&format!("p{number}"), "10m", json!({})).await;
    }
    // The first stops cleanly in the middle of its work.
    cluster.shutdown.cancel();
    for number in 20..40 {
        cluster.pod(&format!("p{number}"), "10m", json!({})).await;
    }
    placed(&mut changes, &mut nodes, 40).await;
    leads(&cluster, "second").await;

    let (_third, stop) = start(&cluster, "third");
    for number in 40..60 {
        cluster.pod(&format!("p{number}"), "10m", json!({})).await;
    }
    // The second crashes, as if its machine had failed.
    second.abort();
    placed(&mut changes, &mut nodes, 60).await;
    cluster.pod("p60", "10m", json!({})).await;
    placed(&mut changes, &mut nodes, 61).await;
    leads(&cluster, "third").await;
    stop.cancel();
    ending.cancel();
    caches.ended().await;
}
