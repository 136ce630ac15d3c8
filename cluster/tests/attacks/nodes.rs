//! Nodes: a machine that joined, or a thief of its credentials, that wants more than its own pods.

mod pods_of_others;

use std::process::Output;

use base64::Engine;
use rcgen::string::BmpString;
use rcgen::{CertificateParams, DistinguishedName, DnType, DnValue, KeyPair};
use serde_json::{Value, json};
use testkit::cluster::{Cluster, IMAGE};
use testkit::{machine, tools};

const CORTEN: &str = env!("CARGO_BIN_EXE_corten");
/// The node whose credentials were stolen, and another.
const STOLEN: &str = "first-2";
const OTHER: &str = "first-3";
const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";
const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const API_CLIENT: &str = "kubernetes.io/kube-apiserver-client";

/// A thief with the client certificate of one node, and nothing else.
struct Thief<'a> {
    cluster: &'a Cluster,
    kubeconfig: String,
}

impl Thief<'_> {
    fn new(cluster: &Cluster) -> Thief<'_> {
        let kubeconfig = cluster.data_dir().join("nodes").join(STOLEN).join("kubeconfig/kubelet.conf");
        Thief { cluster, kubeconfig: kubeconfig.to_string_lossy().into_owned() }
    }

    fn kubectl(&self, arguments: &[&str]) -> Output {
        let all = [&["--kubeconfig", &self.kubeconfig], arguments].concat();
        self.cluster.kubectl_command(&all).output().expect("kubectl runs")
    }

    #[track_caller]
    fn succeeds(&self, arguments: &[&str]) {
        let output = self.kubectl(arguments);
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kubectl {} failed: {printed}", arguments.join(" "));
    }

    /// Asserts that the request is forbidden, for this reason.
    #[track_caller]
    fn is_refused(&self, arguments: &[&str], why: &str) {
        let output = self.kubectl(arguments);
        let printed = String::from_utf8_lossy(&output.stderr);
        let words = arguments.join(" ");
        assert!(!output.status.success(), "kubectl {words} was not refused");
        assert!(printed.to_lowercase().contains("forbidden") && printed.contains(why), "kubectl {words}: {printed}");
    }

    /// Writes a file with an object, for `-f`.
    fn file(&self, name: &str, object: &Value) -> String {
        let path = self.cluster.scratch().join(format!("{name}.json"));
        std::fs::write(&path, object.to_string()).expect("the test's directory is writable");
        path.to_string_lossy().into_owned()
    }

    /// Returns an object as the administrator sees it, in any version.
    fn object(&self, name: &[&str]) -> Value {
        let text = self.cluster.kubectl(&[&["get", "-o", "json"], name].concat());
        let mut object: Value = serde_json::from_str(&text).expect("JSON");
        object["metadata"].as_object_mut().expect("metadata").remove("resourceVersion");
        object
    }

    /// Tries to replace the object at a path of the API.
    #[track_caller]
    fn puts(&self, path: &str, name: &str, object: &Value, why: &str) {
        self.is_refused(&["replace", "--raw", path, "-f", &self.file(name, object)], why);
    }

    /// Tries to create an object at a path of the API.
    #[track_caller]
    fn posts(&self, path: &str, name: &str, object: &Value, why: &str) {
        self.is_refused(&["create", "--raw", path, "-f", &self.file(name, object)], why);
    }
}

/// The certificate that a thief requests.
struct Wanted<'a> {
    name: &'a str,
    signer: &'a str,
    common_name: &'a str,
    organizations: Vec<DnValue>,
    names: &'a [&'a str],
    usage: &'a str,
}

impl Wanted<'_> {
    fn object(&self) -> Value {
        let names: Vec<String> = self.names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names");
        params.distinguished_name = DistinguishedName::new();
        // The library takes one value of a type: further organizations are named by their object identifier.
        let types = [DnType::OrganizationName, DnType::CustomDnType(vec![2, 5, 4, 10])];
        for (kind, organization) in types.into_iter().zip(&self.organizations) {
            params.distinguished_name.push(kind, organization.clone());
        }
        params.distinguished_name.push(DnType::CommonName, self.common_name);
        let request = params.serialize_request(&KeyPair::generate().expect("a key")).expect("a request");
        let encoded = base64::engine::general_purpose::STANDARD.encode(request.pem().expect("as text"));
        json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
            "metadata": {"name": self.name},
            "spec": {"request": encoded, "signerName": self.signer, "usages": ["digital signature", self.usage]},
        })
    }
}

fn serving<'a>(name: &'a str, names: &'a [&'a str]) -> Wanted<'a> {
    Wanted {
        name,
        signer: KUBELET_SERVING,
        common_name: "system:node:first-2",
        organizations: vec!["system:nodes".into()],
        names,
        usage: "server auth",
    }
}

/// Returns a group in an encoding that earlier versions of this server did not read, and other servers do.
fn hidden_masters() -> DnValue {
    DnValue::BmpString(BmpString::try_from("system:masters").expect("letters"))
}

/// Creates the target of the thief: a pod of another node, with a Secret and an account.
fn prepare(cluster: &Cluster) {
    cluster.kubectl(&["create", "secret", "generic", "victim", "--from-literal=key=value"]);
    cluster.kubectl(&["create", "serviceaccount", "victim"]);
    cluster.apply(&format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: victim}}
spec:
  terminationGracePeriodSeconds: 1
  serviceAccountName: victim
  nodeSelector: {{kubernetes.io/hostname: {OTHER}}}
  volumes: [{{name: key, secret: {{secretName: victim}}}}]
  containers:
  - {{name: c, image: {IMAGE}, command: [sleep, '3600'], volumeMounts: [{{name: key, mountPath: /key}}]}}
"#
    ));
    cluster.kubectl_wait(&["wait", "--for=condition=Ready", "pod/victim"]);
}

fn address_of(cluster: &Cluster, node: &str) -> String {
    cluster.kubectl(&["get", "node", node, "-o", "jsonpath={.status.addresses[0].address}"])
}

/// Asserts that the thief reads, writes and deletes no object of another node.
fn reads_nothing_of_others(thief: &Thief<'_>) {
    let unrelated = "no relationship found between node 'first-2' and this object";
    for (arguments, why) in [
        (&["get", "secret", "victim"][..], unrelated),
        (&["get", "secrets"], ""),
        (&["get", "secrets", "-A"], ""),
        (&["get", "configmaps", "-n", "kube-system"], ""),
        (&["create", "token", "victim"], unrelated),
        (&["get", "persistentvolumes"], ""),
        (&["get", "resourceslices"], ""),
        (&["get", "lease", "-n", "kube-node-lease", OTHER], ""),
        (&["get", "leases", "-n", "kube-system"], ""),
        (&["get", "clusterroles"], ""),
        (&["exec", "victim", "--", "true"], ""),
        (&["get", "--raw", "/api/v1/nodes/first-3/proxy/pods"], ""),
        (&["get", "--raw", "/api/v1/nodes/first-2/proxy/pods"], ""),
        (&["get", "pods", "--as=kubernetes-admin", "--as-group=system:masters"], "cannot impersonate"),
        (&["delete", "pod", "victim"], "can only delete pods with spec.nodeName set to itself"),
        (&["delete", "node", OTHER], ""),
        (&["delete", "node", STOLEN], ""),
        (&["delete", "lease", "-n", "kube-node-lease", OTHER], ""),
    ] {
        thief.is_refused(arguments, why);
    }
    let pods = "/api/v1/namespaces/default/pods";
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "victim"}});
    thief.posts(&format!("{pods}/victim/eviction"), "eviction", &eviction, "can only evict pods");
    let mut pod = thief.object(&["pod", "victim"]);
    pod["status"]["phase"] = json!("Failed");
    thief.puts(&format!("{pods}/victim/status"), "status", &pod, "can only update pod status");
    let uid = thief.cluster.kubectl(&["get", "node", STOLEN, "-o", "jsonpath={.metadata.uid}"]);
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": STOLEN, "uid": uid, "controller": true}]);
    for (account, volume) in [
        (Value::Null, json!({"name": "v", "secret": {"secretName": "victim"}})),
        (json!("victim"), json!({"name": "v", "emptyDir": {}})),
    ] {
        let mirror = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "mirror", "annotations": {"kubernetes.io/config.mirror": "x"}, "ownerReferences": owner},
            "spec": {"nodeName": STOLEN, "serviceAccountName": account, "volumes": [volume],
                "containers": [{"name": "c", "image": IMAGE}]},
        });
        thief.posts(pods, "mirror", &mirror, "reference");
    }
    let plain = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "plain"},
        "spec": {"nodeName": STOLEN, "containers": [{"name": "c", "image": IMAGE}]}});
    thief.posts(pods, "plain", &plain, "can only create mirror pods");
}

/// Asserts that a node writes neither other Nodes nor the fields of its own that affect others.
fn rules_no_node(thief: &Thief<'_>) {
    let other = address_of(thief.cluster, OTHER);
    let modify = |what: &str| format!("node \"first-2\" is not allowed to modify {what}");
    for (patch, why) in [
        (json!({"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}}), modify("taints")),
        (json!({"spec": {"podCIDR": "10.88.0.2/32"}}), "podCIDR".to_owned()),
        (json!({"metadata": {"labels": {"node-restriction.kubernetes.io/a": "b"}}}), "labels".to_owned()),
        (json!({"metadata": {"labels": {"node-role.kubernetes.io/a": "b"}}}), "labels".to_owned()),
        (
            json!({"metadata": {"annotations": {"corten/serving-names": "10.88.0.2"}}}),
            modify("annotation corten/serving-names"),
        ),
        (
            json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "b"}]}}),
            modify("ownerReferences"),
        ),
    ] {
        let text = patch.to_string();
        thief.is_refused(&["patch", "node", STOLEN, "-p", &text], &why);
    }
    let mut node = thief.object(&["node", STOLEN]);
    for address in [machine::ADDRESS, "127.0.0.1", "169.254.169.254", "10.96.0.1", &other] {
        node["status"]["addresses"][0]["address"] = json!(address);
        let why = format!("is not allowed to report the address {address}");
        thief.puts("/api/v1/nodes/first-2/status", "status", &node, &why);
    }
    let mut node = thief.object(&["node", OTHER]);
    node["metadata"]["labels"]["a"] = json!("b");
    node["status"]["addresses"][0]["address"] = json!("10.1.1.1");
    for path in ["/api/v1/nodes/first-3", "/api/v1/nodes/first-3/status"] {
        thief.puts(path, "node", &node, "is not allowed to modify node \"first-3\"");
    }
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "first-9"}});
    thief.posts("/api/v1/nodes", "node", &node, "is not allowed to modify node \"first-9\"");
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "first-9"}});
    thief.posts("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", "lease", &lease, "");
}

/// Asserts that a node gets certificates in its own name only, and for the names that it joined with.
fn gets_no_other_certificate(thief: &Thief<'_>) {
    let requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let own = || vec!["system:nodes".into()];
    let me = "system:node:first-2";
    let others = "can only create a node CSR with CN=system:node:first-2";
    let unread = "parse";
    for (wanted, why) in [
        (Wanted { common_name: "system:node:first-3", ..serving("a", &["first-3"]) }, others),
        (
            Wanted {
                name: "b",
                signer: KUBELET_CLIENT,
                common_name: "system:node:first-3",
                organizations: own(),
                names: &[],
                usage: "client auth",
            },
            others,
        ),
        (Wanted { organizations: vec!["system:nodes".into(), hidden_masters()], ..serving("c", &["first-2"]) }, unread),
        (
            Wanted {
                name: "d",
                signer: KUBELET_CLIENT,
                common_name: me,
                organizations: vec!["system:nodes".into(), hidden_masters()],
                names: &[],
                usage: "client auth",
            },
            unread,
        ),
        (
            Wanted {
                name: "e",
                signer: API_CLIENT,
                common_name: me,
                organizations: vec![hidden_masters()],
                names: &[],
                usage: "client auth",
            },
            unread,
        ),
        (
            Wanted {
                name: "f",
                signer: API_CLIENT,
                common_name: me,
                organizations: vec!["system:masters".into()],
                names: &[],
                usage: "client auth",
            },
            "system:masters group is not allowed",
        ),
    ] {
        thief.posts(requests, wanted.name, &wanted.object(), why);
    }
    let other = address_of(thief.cluster, OTHER);
    for (name, names) in [
        ("api-server", &["kubernetes.default.svc"][..]),
        ("api-address", &[machine::ADDRESS]),
        ("service", &["web.prod.svc.cluster.local"]),
        ("service-address", &["10.96.0.1"]),
        ("local", &["localhost"]),
        ("other-name", &[OTHER]),
        ("other-address", &[other.as_str()]),
        ("new-address", &["first-2", "10.1.1.1"]),
    ] {
        thief.succeeds(&["create", "-f", &thief.file(name, &serving(name, names).object())]);
        let events = ["get", "events", "-A", "--field-selector", &format!("involvedObject.name={name}")];
        thief.cluster.kubectl_until(&events, |text| text.contains("ServingCertificatePending"));
        let state = ["get", "csr", name, "-o", "jsonpath={.status.conditions}{.status.certificate}"];
        assert_eq!(thief.cluster.kubectl(&state), "", "{name} is not answered");
    }
    thief.is_refused(&["certificate", "approve", "api-server"], "");
    // It is not signed either if a user is tricked into approving it.
    thief.cluster.kubectl(&["certificate", "approve", "api-server"]);
    let state = ["get", "csr", "api-server", "-o", "jsonpath={.status.conditions[*].type} {.status.certificate}"];
    thief.cluster.kubectl_until(&state, |text| text == "Approved Failed ");
}

/// Asserts that a user's own policy that denies the approval delays it, and nothing else.
fn survives_a_denied_approval(thief: &Thief<'_>) {
    thief.cluster.apply(
        r#"
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: no-approvals}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - {apiGroups: [certificates.k8s.io], apiVersions: [v1], operations: [UPDATE], resources: [certificatesigningrequests/approval]}
  validations: [{expression: "false", message: no approvals today}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: no-approvals}
spec: {policyName: no-approvals, validationActions: [Deny]}
"#,
    );
    let cluster = thief.cluster;
    // The policy is in force once an approval by hand is denied too.
    thief.succeeds(&["create", "-f", &thief.file("by-hand", &serving("by-hand", &["localhost"]).object())]);
    testkit::wait::until("the policy", testkit::wait::BOUND, || {
        let output = cluster.kubectl_command(&["certificate", "approve", "by-hand", "--force"]).output();
        let printed = output.map(|output| String::from_utf8_lossy(&output.stderr).into_owned());
        printed.map_err(|e| e.to_string())?.contains("no approvals today").then_some(()).ok_or("not yet".to_owned())
    });
    let address = address_of(cluster, STOLEN);
    let names = [STOLEN, &address];
    thief.succeeds(&["create", "-f", &thief.file("own", &serving("own", &names).object())]);
    let metrics = ["get", "--raw", "/metrics", "--server", "https://127.0.0.1:10257", "--insecure-skip-tls-verify"];
    let retries = "workqueue_retries_total{name=\"kubelet_serving_requests\"}";
    cluster.kubectl_until(&metrics, |text| text.lines().any(|line| line.starts_with(retries) && !line.ends_with(" 0")));
    cluster.kubectl(&["delete", "validatingadmissionpolicybinding", "no-approvals"]);
    let certificate = ["get", "csr", "own", "-o", "jsonpath={.status.certificate}"];
    let issued = cluster.kubectl_until(&certificate, |text| !text.is_empty());
    assert_eq!(issuer(&issued), "CN=kubelet-ca", "kubelets have an authority of their own");
}

fn issuer(encoded: &str) -> String {
    let pem = base64::engine::general_purpose::STANDARD.decode(encoded).expect("base64");
    let (_, pem) = x509_parser::pem::parse_x509_pem(&pem).expect("PEM");
    pem.parse_x509().expect("a certificate").issuer().to_string()
}

/// Asserts that a user who may use `nodes/proxy` reaches kubelets, and never the API server as itself.
fn proxies_to_kubelets_alone(cluster: &Cluster) {
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "evil"}});
    let file = cluster.scratch().join("evil.json");
    std::fs::write(&file, node.to_string()).expect("a file");
    cluster.kubectl(&["create", "-f", &file.to_string_lossy()]);
    for (address, port) in [("127.0.0.1", 6443), (machine::ADDRESS, 6443), ("10.96.0.1", 443), ("localhost", 6443)] {
        let status = json!({"status": {
            "addresses": [{"type": "InternalIP", "address": address}, {"$patch": "replace"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }});
        cluster.kubectl(&["patch", "node", "evil", "--subresource=status", "-p", &status.to_string()]);
        let printed = cluster.kubectl_fails(&["get", "--raw", "/api/v1/nodes/evil/proxy/api/v1/secrets"]);
        assert!(printed.contains("address not allowed"), "{address}:{port}: {printed}");
    }
    // Another node's kubelet is not accepted as this one's.
    let status = json!({"status": {
        "addresses": [{"type": "InternalIP", "address": address_of(cluster, OTHER)}, {"$patch": "replace"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
    }});
    cluster.kubectl(&["patch", "node", "evil", "--subresource=status", "-p", &status.to_string()]);
    let printed = cluster.kubectl_fails(&["get", "--raw", "/api/v1/nodes/evil/proxy/pods"]);
    assert!(printed.contains("not system:node:evil"), "{printed}");
    for node in ["first", STOLEN, OTHER] {
        cluster.kubectl(&["get", "--raw", &format!("/api/v1/nodes/{node}/proxy/pods")]);
    }
    cluster.kubectl(&["delete", "node", "evil"]);
}

#[test]
fn a_stolen_node_accesses_only_its_own_objects() {
    if !tools::is_root() {
        eprintln!("skipped: a cluster needs root");
        return;
    }
    let cluster = Cluster::up(CORTEN, &["--nodes", "3", "--node-name", "first"]);
    prepare(&cluster);
    let thief = Thief::new(&cluster);
    thief.succeeds(&["get", "node", STOLEN]);
    thief.succeeds(&["get", "pods", "-A", "--field-selector", "spec.nodeName=first-2"]);
    reads_nothing_of_others(&thief);
    rules_no_node(&thief);
    gets_no_other_certificate(&thief);
    survives_a_denied_approval(&thief);
    proxies_to_kubelets_alone(&cluster);
    cluster.kubectl(&["exec", "victim", "--", "cat", "/key/key"]);
}
