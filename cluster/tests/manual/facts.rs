//! Compares the pages about a cluster with a running one: metrics, ports and example files.

use std::collections::BTreeSet;
use std::path::Path;

use testkit::cluster::Cluster;
use testkit::{tools, wait};

/// Returns the metrics endpoints, and the flags of kubectl that reach them.
fn pages(cluster: &Cluster) -> Vec<(&'static str, String)> {
    let token = cluster.kubectl(&["create", "token", "prometheus"]);
    let gateway = cluster.kubectl(&["get", "node", "one", "-o", "jsonpath={.spec.podCIDR}"]).replace(".0/24", ".1");
    let raw = |arguments: &[&str]| cluster.kubectl(&[&["get", "--raw"], arguments].concat());
    let component = |port: u16| {
        let server = format!("--server=https://127.0.0.1:{port}");
        let token = format!("--token={}", token.trim());
        let empty = ["--kubeconfig=/dev/null", "--insecure-skip-tls-verify"];
        raw(&[&["/metrics", &server, &token], &empty[..]].concat())
    };
    let kubelet = |path: &str| raw(&[&format!("/api/v1/nodes/one/proxy/{path}")]);
    let dns = format!("--server=http://{gateway}:9153");
    vec![
        ("API server", raw(&["/metrics"])),
        ("`/metrics/slis`", raw(&["/metrics/slis"])),
        ("controller manager", component(10257)),
        ("scheduler", component(10259)),
        ("kubelet", kubelet("metrics")),
        ("kubelet, `/metrics/cadvisor`", kubelet("metrics/cadvisor")),
        ("kubelet, `/metrics/resource`", kubelet("metrics/resource")),
        ("kubelet, `/metrics/probes`", kubelet("metrics/probes")),
        ("cluster DNS", raw(&["/metrics", &dns, "--kubeconfig=/dev/null"])),
    ]
}

/// Checks that every family of a running cluster is in the list of its component, with its type and HELP.
pub fn metrics_are_listed(cluster: &Cluster) {
    let lists = corten::reference::metrics();
    for (endpoint, page) in pages(cluster) {
        let served = families(&page);
        assert!(!served.is_empty() || endpoint.contains("probes"), "{endpoint} shows no metrics");
        let listed = lists.iter().filter(|list| list.endpoints.contains(&endpoint)).flat_map(|list| list.families);
        let listed: BTreeSet<[&str; 3]> = listed.map(|family| [family.name, family.kind.name(), family.help]).collect();
        let missing: Vec<_> =
            served.iter().filter(|family| !listed.contains(&family.each_ref().map(String::as_str))).collect();
        assert!(missing.is_empty(), "the lists of {endpoint} lack {missing:#?}");
    }
}

/// Returns name, type and HELP of each family of a page.
fn families(page: &str) -> Vec<[String; 3]> {
    let lines: Vec<&str> = page.lines().collect();
    let kind = |name: &str| {
        let start = format!("# TYPE {name} ");
        lines.iter().find_map(|line| line.strip_prefix(&start)).unwrap_or_default().to_owned()
    };
    let described = lines.iter().filter_map(|line| line.strip_prefix("# HELP ")?.split_once(' '));
    described.map(|(name, help)| [name.to_owned(), kind(name), help.to_owned()]).collect()
}

/// Checks that every listening socket is in the reference; those with a port of the system's choice are on 127.0.0.1.
pub fn ports_are_listed(cluster: &Cluster) {
    let known: BTreeSet<u16> = corten::reference::listeners().iter().filter_map(|listener| listener.port).collect();
    let mut chosen = 0;
    for (table, listening) in [("tcp", "0A"), ("tcp6", "0A"), ("udp", "07"), ("udp6", "07")] {
        let path = format!("/proc/net/{table}");
        let output = cluster.machine.command(&tools::busybox()).args(["cat", &path]).output().expect("cat runs");
        for line in String::from_utf8_lossy(&output.stdout).lines().skip(1) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let Some((address, port)) = words[1].split_once(':').filter(|_| words[3] == listening) else { continue };
            let port = u16::from_str_radix(port, 16).expect("the kernel writes ports so");
            if !known.contains(&port) {
                assert_eq!(address, "0100007F", "port {port} of {table} is open and not in the reference");
                chosen += 1;
            }
        }
    }
    assert_eq!(chosen, 1, "listeners on 127.0.0.1 with a port that the reference does not name");
    for port in [6443, 10250, 10257, 10259] {
        assert!(known.contains(&port), "port {port} is not in the reference");
    }
}

/// Checks that a cluster starts with all example files. The authorization webhook is never called, and there is no KMS
/// plugin to encrypt with.
pub fn examples_are_taken(cluster: &Cluster, root: &Path) {
    let folder = cluster.scratch().join("examples");
    std::fs::create_dir_all(&folder).expect("the test's directory is writable");
    let put = |name: &str, change: &dyn Fn(String) -> String| {
        let text = std::fs::read_to_string(root.join("docs/examples").join(name)).expect("the example is there");
        let path = folder.join(name);
        std::fs::write(&path, change(text)).expect("the test's directory is writable");
        path.display().to_string()
    };
    std::fs::copy(cluster.data_dir().join("kubeconfig/admin.conf"), folder.join("authorization-webhook.conf"))
        .expect("the administrator's kubeconfig is there");
    std::fs::write(folder.join("mirror-ca.pem"), "").expect("the test's directory is writable");
    let same = |text: String| text;
    let here = |text: String| text.replace("/etc/corten", &folder.display().to_string());
    let without_plugin =
        |text: String| text.lines().filter(|line| !line.contains("kms:")).collect::<Vec<_>>().join("\n");
    let flags = [
        ("--authentication-config", put("authentication.yaml", &same)),
        ("--authorization-config", put("authorization.yaml", &here)),
        ("--encryption-provider-config", put("encryption.yaml", &without_plugin)),
        ("--audit-policy-file", put("audit-policy.yaml", &same)),
        ("--registry-config", put("registries.yaml", &same)),
    ];
    let arguments: Vec<&str> = flags.iter().flat_map(|(flag, value)| [*flag, value.as_str()]).collect();
    cluster.corten(&["down"]);
    cluster.start(&[&["--node-name", "one"], arguments.as_slice()].concat());
    cluster.kubectl(&["create", "secret", "generic", "sealed", "--from-literal=a=b"]);
    assert_eq!(cluster.kubectl(&["get", "secret", "sealed", "-o", "jsonpath={.data.a}"]), "Yg==");
    // Without its key the next start could not read it.
    cluster.kubectl(&["delete", "secret", "sealed"]);
    cluster.corten(&["down"]);
    cluster.start(&["--node-name", "one"]);
    wait::until("the cluster", wait::BOUND, || match cluster.kubectl(&["get", "--raw", "/readyz"]).as_str() {
        "ok" => Ok(()),
        other => Err(other.to_owned()),
    });
}
