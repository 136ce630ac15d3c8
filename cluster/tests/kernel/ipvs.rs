//! IPVS as the proxy's mode: ClusterIPs of both IP families, node ports, session affinity, SCTP, network policies, endpoints
//! and Services that are deleted, and nothing left after the cluster.

use std::collections::BTreeSet;

use testkit::cluster::Cluster;
use testkit::wait;

use crate::clusters::{Clusters, SECOND, answers, create, program, read, run_in, until_printed};
use crate::sctp;

const SERVICES: &str = r#"
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  clusterIP: 10.96.0.50
  clusterIPs: [10.96.0.50, 'fd00:10:96::50']
  ipFamilyPolicy: RequireDualStack
  selector: {app: web}
  ports:
  - {name: http, port: 80, nodePort: 30080}
  - {name: sctp, port: 5000, nodePort: 30500, protocol: SCTP}
---
apiVersion: v1
kind: Service
metadata: {name: sticky}
spec:
  clusterIP: 10.96.0.51
  clusterIPs: [10.96.0.51, 'fd00:10:96::51']
  ipFamilyPolicy: RequireDualStack
  sessionAffinity: ClientIP
  selector: {app: web}
  ports: [{port: 80}]
---
apiVersion: v1
kind: Service
metadata: {name: second}
spec: {clusterIP: 10.96.0.52, selector: {pod: two}, ports: [{port: 80}]}
"#;

/// Lets the pods of one label reach the web servers.
const POLICY: &str = r#"
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web}
spec:
  podSelector: {matchLabels: {app: web}}
  policyTypes: [Ingress]
  ingress: [{from: [{podSelector: {matchLabels: {role: client}}}]}]
"#;

pub fn missing() -> Option<String> {
    corten_proxy::supports_ipvs().err().map(|error| error.to_string())
}

pub fn services_are_served(clusters: &Clusters) {
    let cluster = clusters.two_nodes();
    create(cluster, SERVICES);
    cluster_ips_are_shared_out(cluster);
    node_ports_lead_to_pods(cluster);
    if sctp::missing().is_none() {
        sctp_is_served(cluster);
    }
    policies_decide(cluster);
    endpoints_are_removed(cluster);
    services_are_removed(cluster);
    nothing_is_left(cluster);
}

fn both() -> BTreeSet<String> {
    ["one", "two"].map(str::to_owned).into()
}

fn cluster_ips_are_shared_out(cluster: &Cluster) {
    for pod in ["one", "two"] {
        let all = wait::until("both endpoints", wait::BOUND, || {
            let all =
                answers(cluster, pod, &["10.96.0.50", "fd00:10:96::50", "10.96.0.51", "fd00:10:96::51", "second"]);
            if all[..2].iter().all(|names| *names == both()) { Ok(all) } else { Err(format!("{all:?}")) }
        });
        assert!(all[2..4].iter().all(|names| names.len() == 1), "a client keeps its endpoint: {all:?}");
        assert_eq!(all[4], BTreeSet::from(["two".to_owned()]), "by the Service's name");
    }
    let served = read(cluster, "/proc/net/ip_vs");
    // As the kernel writes 10.96.0.50 and .51, port 80.
    let line = |address: &str| served.lines().find(|line| line.starts_with("TCP") && line.contains(address));
    assert!(line("0A600032:0050").is_some_and(|line| line.contains("rr")), "{served}");
    assert!(line("0A600033:0050").is_some_and(|line| line.contains("persistent")), "{served}");
}

fn node_ports_lead_to_pods(cluster: &Cluster) {
    let address = ["get", "node", SECOND, "-o", "jsonpath={.status.addresses[0].address}"];
    // On localhost too, whether the endpoint is on this node or on the other.
    for node in [testkit::machine::ADDRESS, &cluster.kubectl(&address), "127.0.0.1"] {
        let mut names = BTreeSet::new();
        wait::until(&format!("both endpoints at {node}"), wait::BOUND, || {
            names.insert(cluster.machine.fetch(node, "30080")?.trim().to_owned());
            if names == both() { Ok(()) } else { Err(format!("{names:?}")) }
        });
    }
    // The node's own processes reach cluster addresses as well.
    let page = wait::until("the cluster address", wait::BOUND, || cluster.machine.fetch("10.96.0.52", "80"));
    assert_eq!(page, "two\n");
}

/// Checks SCTP at a cluster address, from pods of both nodes, and at a node port.
fn sctp_is_served(cluster: &Cluster) {
    let program = program();
    let ask = format!("for i in 1 2 3 4; do {} sctp-ask 10.96.0.50 5000; done", program.display());
    for pod in ["one", "two"] {
        let answers = run_in(cluster, pod, &ask);
        let names: BTreeSet<String> =
            answers.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect();
        assert_eq!(names, both(), "from {pod}: {answers}");
    }
    let answer = cluster.machine.in_network(|| sctp::ask(testkit::machine::ADDRESS, "30500"));
    assert!(
        answer.as_ref().is_ok_and(|name| both().contains(name.split(' ').next().unwrap_or_default())),
        "{answer:?}"
    );
}

fn policies_decide(cluster: &Cluster) {
    create(cluster, POLICY);
    until_printed(cluster, "one", "f 10.96.0.52 80; f 10.96.0.52 80; echo end", "end");
    cluster.kubectl(&["label", "pod", "one", "role=client"]);
    until_printed(cluster, "one", "f 10.96.0.52 80; f 10.96.0.52 80; echo end", "two two end");
    cluster.kubectl(&["delete", "networkpolicy", "web"]);
}

fn endpoints_are_removed(cluster: &Cluster) {
    cluster.kubectl(&["delete", "pod", "two", "--now"]);
    let only = BTreeSet::from(["one".to_owned()]);
    wait::until("the endpoint that is left", wait::BOUND, || {
        let all = answers(cluster, "one", &["10.96.0.50", "fd00:10:96::50", "10.96.0.51"]);
        if all.iter().all(|names| *names == only) { Ok(()) } else { Err(format!("{all:?}")) }
    });
    // A Service without endpoints refuses at once.
    until_printed(cluster, "one", "nc -w 60 10.96.0.52 80 </dev/null || echo refused", "refused");
}

fn services_are_removed(cluster: &Cluster) {
    cluster.kubectl(&["delete", "service", "web", "sticky", "second"]);
    wait::until("the addresses are removed", wait::BOUND, || {
        let addresses = cluster.machine.ip("addr show kube-ipvs0");
        let served = read(cluster, "/proc/net/ip_vs");
        // In full: the device's own link-local address begins as it likes.
        let names_address = ["10.96.0.5", "fd00:10:96::5"].iter().any(|start| addresses.contains(start));
        let is_gone = !names_address && !served.contains("0A60003");
        if is_gone { Ok(()) } else { Err(format!("{addresses}{served}")) }
    });
}

fn nothing_is_left(cluster: &Cluster) {
    cluster.corten(&["down", "--purge"]);
    let links = cluster.machine.ip("link");
    assert!(!links.contains("kube-ipvs0") && !links.contains("corten"), "{links}");
    let served = read(cluster, "/proc/net/ip_vs");
    assert_eq!(served.lines().count(), 3, "the head of the list alone: {served}");
}
