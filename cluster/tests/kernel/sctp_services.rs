//! SCTP in the default modes: pods, a ClusterIP, a node port, a host port, and a network policy that names the protocol.

use testkit::cluster::Cluster;
use testkit::wait;

use crate::clusters::{Clusters, FIRST, create, program, until_printed, web};
use crate::sctp;

const SERVICE: &str = r#"
---
apiVersion: v1
kind: Service
metadata: {name: sctp}
spec:
  type: NodePort
  clusterIP: 10.96.0.60
  selector: {pod: server}
  ports: [{port: 5000, nodePort: 30500, protocol: SCTP}]
"#;

/// Lets clients reach one port, by SCTP alone.
const POLICY: &str = r#"
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: sctp}
spec:
  podSelector: {matchLabels: {pod: server}}
  policyTypes: [Ingress]
  ingress: [{ports: [{protocol: SCTP, port: 5000}]}]
"#;

pub fn services_and_policies(clusters: &Clusters) {
    let cluster = clusters.one_node();
    create(cluster, &[&web("server", FIRST), &web("client", FIRST), SERVICE].concat());
    cluster.kubectl_wait(&["wait", "--for=condition=Ready", "pod/server", "pod/client"]);
    let ips = ["get", "pods", "server", "client", "-o", "jsonpath={.items[*].status.podIP}"];
    let ips = cluster.kubectl(&ips);
    let (server, client) = ips.split_once(' ').expect("two addresses");
    reached_by_every_address(cluster, server, client);
    policies_know_the_protocol(cluster, server, client);
    cluster.kubectl(&["delete", "pod", "server", "client", "--now"]);
}

fn reached_by_every_address(cluster: &Cluster, server: &str, client: &str) {
    let program = program();
    let ask = |address: &str| format!("{} sctp-ask {address}", program.display());
    let script = format!("{}; {}", ask(&format!("{server} 5000")), ask("10.96.0.60 5000"));
    // A pod keeps its address.
    until_printed(cluster, "client", &script, &format!("server {client} server {client}"));
    // A pod that reaches itself through its Service comes as the node does.
    cluster
        .kubectl_until(&crate::clusters::exec("server", &ask("10.96.0.60 5000")), |text| text.starts_with("server "));
    let node_port = wait::until("the node port", wait::BOUND, || {
        let asked = cluster.machine.in_network(|| sctp::ask(testkit::machine::ADDRESS, "30500"));
        asked.map_err(|error| error.to_string())
    });
    assert!(node_port.starts_with("server "), "{node_port}");
}

fn policies_know_the_protocol(cluster: &Cluster, server: &str, client: &str) {
    let program = program();
    let ask = |port: u16| format!("{} sctp-ask {server} {port} || true", program.display());
    until_printed(cluster, "client", &format!("{}; f {server} 80", ask(5001)), &format!("server {client} server"));
    create(cluster, POLICY);
    // Another port, and another protocol, are refused.
    cluster.kubectl_until(&crate::clusters::exec("client", &ask(5001)), |text| text.starts_with("none: "));
    until_printed(cluster, "client", &format!("{}; f {server} 80", ask(5000)), &format!("server {client}"));
    cluster.kubectl(&["delete", "networkpolicy", "sctp"]);
}
