//! The component as the binary runs it: the kernel follows the objects of the API.

#![allow(clippy::unwrap_used, dead_code)]

#[path = "../../dns/tests/api/mod.rs"]
mod api;
mod node;

use std::time::{Duration, Instant};

use api::Api;
use corten_nftables::{Family, Socket, Table};
use corten_proxy::Config;
use tokio_util::sync::CancellationToken;

const TIMEOUT: Duration = Duration::from_secs(300);

/// Waits until a set of the proxy has so many elements.
async fn elements(set: &str, count: usize) {
    let table = Table::new(Family::Ipv4, "corten-proxy");
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let found = Socket::open().unwrap().elements(&table, set).map_or(usize::MAX, |found| found.len());
        if found == count {
            return;
        }
        assert!(Instant::now() < deadline, "{set} has {found} elements, not {count}");
        tokio::task::yield_now().await;
    }
}

#[test]
fn the_kernel_follows_the_api() {
    node::on_node(|| async {
        let api = Api::default();
        let service = |ip: &str, name: &str| {
            format!(
                r#"{{"metadata":{{"name":"{name}","namespace":"default"}},
                    "spec":{{"clusterIP":"{ip}","ports":[{{"port":80}}]}}}}"#
            )
        };
        api.put("services", &service("10.96.0.1", "a"));
        let shutdown = CancellationToken::new();
        let config = Config::new("self", Vec::new());
        let running = tokio::spawn(corten_proxy::run(config, api.client(), shutdown.clone()));
        elements("unavailable", 1).await;

        api.put(
            "endpointslices",
            r#"{"addressType":"IPv4","endpoints":[{"addresses":["10.244.0.9"]},{"addresses":["10.244.0.8"]}],
                "metadata":{"labels":{"kubernetes.io/service-name":"a"},"name":"a-1","namespace":"default"},
                "ports":[{"port":8080}]}"#,
        );
        elements("unavailable", 0).await;
        elements("endpoints", 2).await;
        api.put("services", &service("10.96.0.2", "b"));
        elements("unavailable", 1).await;
        api.delete("endpointslices", "default", "a-1");
        elements("unavailable", 2).await;
        api.delete("services", "default", "a");
        api.delete("services", "default", "b");
        elements("unavailable", 0).await;

        shutdown.cancel();
        tokio::time::timeout(TIMEOUT, running).await.unwrap().unwrap().unwrap();
        // The rules stay, so that connections go on while the proxy restarts.
        elements("services", 0).await;
    });
}
