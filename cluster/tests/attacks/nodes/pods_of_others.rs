//! A compromised node reads its own pods, and of all others only their addresses.

#![allow(clippy::unwrap_used)]

use base64::{Engine, engine::general_purpose::STANDARD};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use testkit::agent::Agent;
use testkit::cluster::{Cluster, IMAGE};
use testkit::{tools, wait};

const CORTEN: &str = env!("CARGO_BIN_EXE_corten");
const PASSWORD: &str = "hunter2";

fn join(first: &Cluster, second: &Cluster) -> Agent {
    first.machine.connect(&second.machine, "10.88.0.3");
    let command = first.corten(&["token", "create", "--print-join-command"]);
    let words: Vec<&str> = command.split_whitespace().skip(1).chain(["--node-name", "second"]).collect();
    Agent::start(second, &words)
}

/// The means of the thief: the credentials in the node's files.
struct Thief<'a> {
    node: &'a Cluster,
    kubeconfig: String,
}

impl Thief<'_> {
    fn with<'a>(node: &'a Cluster, file: &str) -> Thief<'a> {
        let kubeconfig = node.data_dir().join("kubeconfig").join(file).to_string_lossy().into_owned();
        Thief { node, kubeconfig }
    }

    fn words<'w>(&'w self, words: &[&'w str]) -> Vec<&'w str> {
        [&["--kubeconfig", &self.kubeconfig], words].concat()
    }

    fn reads(&self, words: &[&str]) -> String {
        self.node.kubectl(&self.words(words))
    }

    #[track_caller]
    fn is_refused(&self, words: &[&str]) {
        let printed = self.node.kubectl_fails(&self.words(words));
        assert!(printed.contains("Forbidden"), "{} {words:?}: {printed}", self.kubeconfig);
    }
}

fn pod(name: &str, node: &str, labels: &str) -> String {
    let serve = "echo served > /www/index.html; exec httpd -f -p 80 -h /www";
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {{{labels}}}, annotations: {{note: {PASSWORD}}}}}\n\
         spec:\n  terminationGracePeriodSeconds: 1\n  nodeName: {node}\n  containers:\n  - name: web\n    image: {IMAGE}\n    \
         command: [sh, -c, '{serve}']\n    env: [{{name: PASSWORD, value: {PASSWORD}}}]\n---\n"
    )
}

const POLICY: &str = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: friends}\nspec:\n  \
    podSelector: {matchLabels: {app: server}}\n  ingress: [{from: [{podSelector: {matchLabels: {app: friend}}}]}]\n";

/// Returns a signing request for the network's certificate on a node.
fn signing_request(name: &str, node: &str) -> String {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "system:corten:network");
    params.distinguished_name.push(DnType::CommonName, format!("system:corten:network:{node}"));
    let pem = params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
    format!(
        "apiVersion: certificates.k8s.io/v1\nkind: CertificateSigningRequest\nmetadata: {{name: {name}}}\nspec:\n  \
         request: {}\n  signerName: kubernetes.io/kube-apiserver-client\n  usages: [digital signature, client auth]\n",
        STANDARD.encode(pem)
    )
}

#[test]
fn a_stolen_node_reads_no_pods_of_others() {
    if !tools::is_root() {
        eprintln!("skipped: a cluster needs root");
        return;
    }
    let first = Cluster::up(CORTEN, &["--node-name", "first"]);
    let second = Cluster::machine(CORTEN);
    let _agent = join(&first, &second);
    first.kubectl_until(&["get", "nodes"], |text| text.matches(" Ready ").count() == 2);
    let archive = testkit::image::busybox_archive(second.scratch(), IMAGE);
    second.corten(&["image", "import", &archive.to_string_lossy()]);
    let friend = pod("friend", "first", "app: friend");
    let stranger = pod("stranger", "first", "app: stranger");
    first.apply(&format!("{friend}{stranger}{}{POLICY}", pod("server", "second", "app: server")));
    first.kubectl_wait(&["wait", "--for=condition=Ready", "pod/friend", "pod/stranger", "pod/server"]);

    let kubelet = Thief::with(&second, "kubelet.conf");
    for words in [
        &["get", "pods", "-A"][..],
        &["get", "pods", "-A", "--field-selector", "spec.nodeName=first"],
        &["get", "pod", "friend"],
        &["get", "podaddresses", "-A"],
        &["get", "nodes"],
        &["get", "namespaces"],
        &["get", "networkpolicies", "-A"],
        &["get", "secrets", "-A"],
    ] {
        kubelet.is_refused(words);
    }
    assert!(kubelet.reads(&["get", "pods", "-A", "--field-selector", "spec.nodeName=second"]).contains("server"));
    for file in ["network.conf", "proxy.conf", "dns.conf"] {
        let component = Thief::with(&second, file);
        component.is_refused(&["get", "pods", "-A"]);
        component.is_refused(&["get", "secrets", "-A"]);
        component.is_refused(&["get", "configmaps", "-A"]);
    }

    // The network reads the addresses of pods, and no more.
    let network = Thief::with(&second, "network.conf");
    let address = first.kubectl(&["get", "pod", "friend", "-o", "jsonpath={.status.podIP}"]);
    let raw = "/apis/network.corten.dev/v1/podaddresses";
    let watched = format!("{raw}?watch=1&timeoutSeconds=1");
    let table = ["get", "podaddresses", "-A", "-o", "wide"];
    for words in [&table[..], &["get", "--raw", raw], &["get", "--raw", &watched]] {
        let seen = network.reads(words);
        assert!(seen.contains("friend") && seen.contains(&address), "{words:?}: {seen}");
        assert!(!seen.contains(PASSWORD) && !seen.contains("httpd"), "{words:?}: {seen}");
    }

    // It is enough for the policies of the pods of this node.
    let address = first.kubectl(&["get", "pod", "server", "-o", "jsonpath={.status.podIP}"]);
    assert_eq!(first.fetch_in("friend", &address, "80"), "served\n");
    let knock = format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 2 {address} 80");
    wait::until("the policy", wait::BOUND, || {
        let output = first.kubectl_command(&["exec", "stranger", "--", "sh", "-c", &knock]).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        if printed.is_empty() { Ok(()) } else { Err(printed) }
    });

    // A certificate of the network of another node is not for this one: when its own was approved, that one is still
    // pending.
    for (name, node) in [("forged", "first"), ("own", "second")] {
        let path = second.scratch().join(format!("{name}.yaml"));
        std::fs::write(&path, signing_request(name, node)).unwrap();
        kubelet.reads(&["create", "-f", &path.to_string_lossy()]);
    }
    let conditions = "jsonpath={.status.conditions[*].type}";
    first.kubectl_until(&["get", "csr", "own", "-o", conditions], |text| text == "Approved");
    assert_eq!(first.kubectl(&["get", "csr", "forged", "-o", conditions]), "");
}
