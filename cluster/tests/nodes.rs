//! Several nodes on one machine: the first runs the control plane and no user pods; pods on the others reach each
//! other.

use testkit::cluster::{Cluster, IMAGE};
use testkit::{tools, wait};

const CORTEN: &str = env!("CARGO_BIN_EXE_corten");

#[test]
fn three_nodes_on_one_machine() {
    if !tools::is_root() {
        eprintln!("skipped: a cluster needs root");
        return;
    }
    let ranges =
        ["--cluster-cidr", "10.244.0.0/16,fd00:10:244::/56", "--service-cidr", "10.96.0.0/16,fd00:10:96::/112"];
    let cluster = Cluster::up(CORTEN, &[&["--nodes", "3", "--node-name", "first"][..], &ranges].concat());
    let nodes = cluster.kubectl(&["get", "nodes", "--no-headers"]);
    assert_eq!(nodes.lines().filter(|line| line.contains(" Ready ")).count(), 3, "{nodes}");
    let taints = cluster.kubectl(&["get", "node", "first", "-o", "jsonpath={.spec.taints}"]);
    assert!(taints.contains("node-role.kubernetes.io/control-plane") && taints.contains("NoSchedule"), "{taints}");

    for number in [2, 3] {
        cluster.apply(&format!(
            r#"
apiVersion: v1
kind: Pod
metadata: {{name: on-{number}, labels: {{app: "web-{number}"}}}}
spec:
  terminationGracePeriodSeconds: 1
  nodeSelector: {{kubernetes.io/hostname: first-{number}}}
  containers:
  - {{name: web, image: {IMAGE}, command: [sh, -c, 'echo node-{number} > /www/index.html; exec httpd -f -p 80 -h /www']}}
"#
        ));
    }
    cluster.kubectl_wait(&["wait", "--for=condition=Ready", "pod/on-2", "pod/on-3"]);
    let address = |pod: &str| cluster.kubectl(&["get", "pod", pod, "-o", "jsonpath={.status.podIP}"]);
    let fetch = |from: &str, host: &str| cluster.fetch_in(from, host, "80");
    assert_eq!(fetch("on-2", &address("on-3")), "node-3\n");
    assert_eq!(fetch("on-3", &address("on-2")), "node-2\n");

    // The same by IPv6, which the pods have too.
    let second = |pod: &str| cluster.kubectl(&["get", "pod", pod, "-o", "jsonpath={.status.podIPs[1].ip}"]);
    assert_eq!(fetch("on-2", &second("on-3")), "node-3\n");
    assert_eq!(fetch("on-3", &second("on-2")), "node-2\n");

    cluster.kubectl(&["expose", "pod", "on-3", "--name=remote", "--port=80"]);
    cluster.kubectl(&["patch", "service", "remote", "-p", r#"{"spec":{"ipFamilyPolicy":"RequireDualStack"}}"#]);
    cluster
        .kubectl_until(&["get", "endpointslices", "-l", "kubernetes.io/service-name=remote", "-o", "yaml"], |text| {
            text.contains("ready: true")
        });
    assert_eq!(fetch("on-2", "remote"), "node-3\n");
    let families =
        cluster.kubectl(&["get", "service", "remote", "-o", "jsonpath={.spec.ipFamilies} {.spec.clusterIPs[1]}"]);
    let (families, address) = families.split_once(' ').unwrap_or_default();
    assert_eq!(families, r#"["IPv4","IPv6"]"#);
    cluster
        .kubectl_until(&["get", "endpointslices", "-l", "kubernetes.io/service-name=remote", "-o", "yaml"], |text| {
            text.contains("addressType: IPv6")
        });
    assert_eq!(fetch("on-2", address), "node-3\n");
    let resolve = ["exec", "on-2", "--", "nslookup", "-type=aaaa", "remote.default.svc.cluster.local"];
    cluster.kubectl_until(&resolve, |resolved| resolved.contains(address));

    // A pod without tolerations is never scheduled on the control plane.
    cluster.kubectl(&["create", "deployment", "many", "--image", IMAGE, "--replicas=4", "--", "sleep", "3600"]);
    cluster.kubectl_wait(&["rollout", "status", "deployment/many"]);
    // DNS answers only pods and its own node; the status queries the other nodes all the same.
    let status = cluster.corten(&["status"]);
    assert!(!status.contains("failing"), "{status}");
    let places = cluster.kubectl(&["get", "pods", "-l", "app=many", "-o", "jsonpath={.items[*].spec.nodeName}"]);
    assert!(places.split_whitespace().all(|node| node != "first"), "{places}");
    assert!(cluster.corten(&["logs", "--node", "first-2"]).contains("the container runtime is ready"));
}

#[test]
fn an_ipv6_cluster_starts_on_a_machine_without_ipv6_addresses() {
    if !tools::is_root() {
        eprintln!("skipped: a cluster needs root");
        return;
    }
    let ranges = ["--cluster-cidr", "fd00:10:244::/56", "--service-cidr", "fd00:10:96::/112", "--node-name", "first"];
    let cluster = Cluster::up(CORTEN, &ranges);
    let addresses = r#"jsonpath={.status.addresses[?(@.type=="InternalIP")].address} {.spec.podCIDRs}"#;
    assert_eq!(cluster.kubectl(&["get", "node", "first", "-o", addresses]), r#"fd89::1 ["fd00:10:244::/64"]"#);
    let endpoints = "jsonpath={.addressType} {.endpoints[0].addresses[0]}";
    assert_eq!(cluster.kubectl(&["get", "endpointslice", "kubernetes", "-o", endpoints]), "IPv6 fd89::1");

    cluster.apply(&format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: web, labels: {{app: web}}}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {{name: web, image: {IMAGE}, command: [sh, -c, 'echo six > /www/index.html; exec httpd -f -p 80 -h /www']}}
---
apiVersion: v1
kind: Service
metadata: {{name: web}}
spec: {{type: NodePort, selector: {{app: web}}, ports: [{{port: 80, nodePort: 30080}}]}}
"#
    ));
    cluster.kubectl_wait(&["wait", "--for=condition=Ready", "pod/web"]);
    cluster.kubectl_until(&["get", "endpointslices", "-l", "kubernetes.io/service-name=web", "-o", "yaml"], |text| {
        text.contains("ready: true")
    });
    let ips = "jsonpath={.status.podIPs[*].ip}";
    let pod = cluster.kubectl(&["get", "pod", "web", "-o", ips]);
    let service = cluster.kubectl(&["get", "service", "web", "-o", "jsonpath={.spec.clusterIPs[*]}"]);
    assert!(pod.starts_with("fd00:10:244::") && service.starts_with("fd00:10:96::"), "{pod} {service}");
    for host in ["web", &service, &pod] {
        assert_eq!(cluster.fetch_in("web", host, "80"), "six\n", "{host}");
    }
    let page = wait::until("the node port", wait::BOUND, || cluster.machine.fetch("fd89::1", "30080"));
    assert_eq!(page, "six\n");
    // The API server is a Service like any other, found by the environment variables of every container.
    cluster.kubectl(&[
        "exec",
        "web",
        "--",
        "sh",
        "-c",
        "nc -w 5 $KUBERNETES_SERVICE_HOST $KUBERNETES_SERVICE_PORT </dev/null",
    ]);
}
