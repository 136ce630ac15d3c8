//! Gateways and Ingresses on a real cluster without a pool of addresses: the nodes' own addresses serve them, the proxy
//! has no rights, and reads only the Secrets that are named.

#![allow(clippy::unwrap_used)]

use std::process::Output;

use testkit::cluster::{Cluster, IMAGE};
use testkit::{tools, wait};

const CORTEN: &str = env!("CARGO_BIN_EXE_corten");

#[test]
fn gateways_and_ingresses_are_served_by_all_nodes() {
    if !tools::is_root() {
        eprintln!("skipped: a cluster needs root");
        return;
    }
    let cluster = Cluster::up(CORTEN, &["--nodes", "2"]);
    assert_eq!(proxies(&cluster), [""; 0], "a cluster without Gateways and Ingresses runs no proxy");
    cluster.apply(&manifest());
    cluster.kubectl_wait(&["wait", "--for=condition=Ready", "pod/web"]);
    cluster.kubectl_wait(&["wait", "--for=condition=Programmed", "gateway/web"]);
    let addresses = cluster.kubectl(&["get", "gateway", "web", "-o", "jsonpath={.status.addresses[*].value}"]);
    let addresses: Vec<&str> = addresses.split(' ').collect();
    assert_eq!(addresses.len(), 2, "{addresses:?}");
    for address in &addresses {
        assert_eq!(fetch(&cluster, address, 8088, "a.test", "200"), "web\n", "the Gateway at {address}");
        assert_eq!(fetch(&cluster, address, 80, "b.test", "200"), "web\n", "the Ingress at {address}");
        fetch(&cluster, address, 8088, "other.test", "404");
    }
    let ingress = cluster.kubectl(&["get", "ingress", "web", "-o", "jsonpath={.status.loadBalancer.ingress[*].ip}"]);
    assert_eq!(ingress.split(' ').count(), 2, "{ingress}");
    the_proxy_has_no_rights(&cluster);
    an_ingress_of_nginx_is_imported(&cluster);
}

fn manifest() -> String {
    format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: web, labels: {{app: web}}}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {{name: web, image: {IMAGE}, command: [sh, -c, 'echo web > /www/index.html; exec httpd -f -p 80 -h /www']}}
---
apiVersion: v1
kind: Service
metadata: {{name: web}}
spec: {{selector: {{app: web}}, ports: [{{port: 80}}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: web}}
spec: {{gatewayClassName: corten, listeners: [{{name: http, port: 8088, protocol: HTTP}}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: web}}
spec:
  parentRefs: [{{name: web}}]
  hostnames: [a.test]
  rules: [{{backendRefs: [{{name: web, port: 80}}]}}]
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {{name: web}}
spec:
  rules:
  - host: b.test
    http: {{paths: [{{path: /, pathType: Prefix, backend: {{service: {{name: web, port: {{number: 80}}}}}}}}]}}
"#
    )
}

/// Sends a request from the machine, and returns its answer.
fn request(cluster: &Cluster, address: &str, port: u16, host: &str) -> String {
    let script = format!(
        "printf 'GET / HTTP/1.0\\r\\nHost: {host}\\r\\n\\r\\n' | {} nc -w 5 {address} {port}",
        tools::busybox().display()
    );
    let Output { stdout, .. } =
        cluster.machine.command(&tools::busybox()).args(["sh", "-c", &script]).output().unwrap();
    String::from_utf8_lossy(&stdout).into_owned()
}

/// Returns the body of the first answer with a status.
#[track_caller]
fn fetch(cluster: &Cluster, address: &str, port: u16, host: &str, status: &str) -> String {
    let answer = wait::until(&format!("{host} at {address}:{port}"), wait::BOUND, || {
        let answer = request(cluster, address, port, host);
        if answer.contains(&format!(" {status} ")) { Ok(answer) } else { Err(answer) }
    });
    answer.rsplit("\r\n\r\n").next().unwrap_or_default().to_owned()
}

/// Imports an Ingress: the API server accepts the objects, and they are attached. Its author gets warnings.
fn an_ingress_of_nginx_is_imported(cluster: &Cluster) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ingress.yaml");
    std::fs::write(&file, OLD_INGRESS).unwrap();
    let path = file.to_str().unwrap();
    let applied = cluster.kubectl_command(&["apply", "-f", path]).output().unwrap();
    let warnings = String::from_utf8_lossy(&applied.stderr).into_owned();
    assert!(warnings.contains("configuration-snippet: text of a configuration is never used"), "{warnings}");
    let imported = std::process::Command::new(CORTEN).args(["ingress", "import", path]).output().unwrap();
    let notes = String::from_utf8_lossy(&imported.stderr).into_owned();
    assert!(notes.contains("Ingress default/old: "), "{notes}");
    cluster.apply(&String::from_utf8_lossy(&imported.stdout));
    let accepted = "jsonpath={.status.parents[0].conditions[?(@.type==\"Accepted\")].status}=True";
    cluster.kubectl_wait(&["wait", &format!("--for={accepted}"), "httproute/old"]);
    let accepted = accepted.replace("parents", "ancestors");
    cluster.kubectl_wait(&["wait", &format!("--for={accepted}"), "routepolicy/old", "routepolicy/old-canary-0"]);
}

const OLD_INGRESS: &str = r#"
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: old
  annotations:
    nginx.ingress.kubernetes.io/rewrite-target: /$2
    nginx.ingress.kubernetes.io/limit-rps: "5"
    nginx.ingress.kubernetes.io/whitelist-source-range: 10.0.0.0/8,192.0.2.7
    nginx.ingress.kubernetes.io/proxy-body-size: 8m
    nginx.ingress.kubernetes.io/affinity: cookie
    nginx.ingress.kubernetes.io/session-cookie-max-age: "172800"
    nginx.ingress.kubernetes.io/enable-cors: "true"
    nginx.ingress.kubernetes.io/upstream-hash-by: $http_x_user
    nginx.ingress.kubernetes.io/proxy-next-upstream: error timeout http_502
    nginx.ingress.kubernetes.io/configuration-snippet: more_set_headers "X-A 1";
spec:
  ingressClassName: corten
  rules:
  - host: old.test
    http:
      paths:
      - path: /old(/|$)(.*)
        pathType: ImplementationSpecific
        backend: {service: {name: web, port: {number: 80}}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: old-canary
  annotations:
    nginx.ingress.kubernetes.io/canary: "true"
    nginx.ingress.kubernetes.io/canary-weight: "10"
    nginx.ingress.kubernetes.io/canary-by-header: X-Canary
spec:
  ingressClassName: corten
  rules:
  - host: old.test
    http:
      paths:
      - path: /old(/|$)(.*)
        pathType: ImplementationSpecific
        backend: {service: {name: web, port: {number: 80}}}
"#;

fn the_proxy_has_no_rights(cluster: &Cluster) {
    let can = |arguments: &[&str]| {
        let own = ["auth", "can-i", "--as=system:corten:edge:x", "--as-group=system:corten:edge"];
        let output = cluster.kubectl_command(&[&own, arguments].concat()).output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    assert_eq!(can(&["list", "httproutes.gateway.networking.k8s.io", "-A"]), "yes");
    assert_eq!(can(&["get", "secrets"]), "no");
    assert_eq!(can(&["get", "secrets/other", "-n", "kube-system"]), "no");
    assert_eq!(can(&["patch", "leases", "-n", "kube-system"]), "no");
    assert_eq!(can(&["patch", "leases", "-n", "corten-edge"]), "yes");
    let proxies = proxies(cluster);
    assert_eq!(proxies.len(), 2, "{proxies:?}");
    assert!(proxies.iter().all(|line| !line.starts_with("root")), "{proxies:?}");
}

/// Returns the processes of proxies, with their users.
fn proxies(cluster: &Cluster) -> Vec<String> {
    let processes = cluster.machine.command(&tools::busybox()).args(["ps", "-o", "user,args"]).output().unwrap();
    let processes = String::from_utf8_lossy(&processes.stdout).into_owned();
    processes.lines().filter(|line| line.contains("edge --controller=false")).map(str::to_owned).collect()
}
