//! Certificates, authorities and keys of a running cluster: renewed, rotated under load, and revoked.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use corten_client::{Client, HttpsConfig};
use testkit::cluster::{Cluster, IMAGE};
use testkit::{machine, wait};

use crate::machines::{TwoMachines, is_skipped, sleeper};

/// Returns the expiry of the first certificate of a file.
fn expiry(path: &Path) -> SystemTime {
    let pem = std::fs::read(path).unwrap_or_default();
    let (_, pem) = x509_parser::pem::parse_x509_pem(&pem).unwrap();
    let until = pem.parse_x509().unwrap().validity().not_after.timestamp();
    SystemTime::UNIX_EPOCH + Duration::from_secs(until.unsigned_abs())
}

#[test]
fn every_leaf_certificate_is_renewed_while_the_cluster_runs() {
    if is_skipped() {
        return;
    }
    let machines = TwoMachines::up(&["--cluster-signing-duration", "60s"]);
    let of_server = ["apiserver.crt", "apiserver-kubelet-client.crt", "front-proxy-client.crt", "kubelet.crt"];
    let of_server = of_server.map(|name| machines.first.data_dir().join("pki").join(name));
    let of_agent = ["kubelet-client-current.pem", "kubelet-server-current.pem", "proxy-client-current.pem"];
    let of_agent = of_agent.map(|name| machines.second.data_dir().join("pki").join(name));
    let of_components = ["kube-controller-manager.crt", "kube-scheduler.crt", "scheduler-client-current.pem"];
    let of_components = of_components.map(|name| machines.first.data_dir().join("pki").join(name));
    let all: Vec<_> = [&of_server[..], &of_agent, &of_components].concat();
    let first: Vec<SystemTime> = all.iter().map(|path| expiry(path)).collect();
    let end = *first.iter().max().unwrap();
    // The administrator's certificate, the kubelets' and the API server's work all the time, also after all of the first
    // ones have expired.
    let logs = ["logs", "pod/on-second"];
    while SystemTime::now() < end + Duration::from_secs(5) {
        assert_eq!(machines.first.kubectl(&logs), "hello\n");
        let nodes = machines.first.kubectl(&["get", "nodes"]);
        assert_eq!(nodes.matches(" Ready ").count(), 2, "{nodes}");
    }
    for (path, before) in all.iter().zip(first) {
        wait::until(&path.to_string_lossy(), wait::BOUND, || match expiry(path) > before {
            true => Ok(()),
            false => Err("not renewed".to_owned()),
        });
    }
    assert_eq!(machines.first.kubectl(&logs), "hello\n");
    let listed = machines.first.corten(&["certificate", "list"]);
    assert!(listed.contains("pki/apiserver.crt") && listed.contains("CN=kube-apiserver"), "{listed}");
    assert!(!listed.contains("expired"), "{listed}");
    let listed = machines.second.corten(&["certificate", "list"]);
    assert!(listed.contains("kubelet-client-current.pem") && listed.contains("corten agent"), "{listed}");
    machines.down();
}

/// The requests of a client during a test.
#[derive(Debug, Default)]
struct Counted {
    answered: usize,
    failed: Vec<String>,
}

/// Requests the namespaces until the end: on one connection for all, and on a new one for each.
fn load(cluster: &Cluster, config: &HttpsConfig, end: &AtomicBool) -> Counted {
    cluster.machine.in_network(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut counted = Counted::default();
            let kept = Client::https(config.clone()).unwrap();
            while !end.load(Ordering::Acquire) {
                for client in [kept.clone(), Client::https(config.clone()).unwrap()] {
                    match client.get_raw("/api/v1/namespaces/default").await {
                        Ok(_) => counted.answered += 1,
                        Err(error) => counted.failed.push(error.to_string()),
                    }
                }
            }
            counted
        })
    })
}

/// Returns what a pod has: the authority of kube-root-ca.crt as it is now, and a token of its ServiceAccount.
fn in_cluster_config(cluster: &Cluster) -> HttpsConfig {
    let jsonpath = "jsonpath={.data.ca\\.crt}";
    let authority = cluster.kubectl(&["get", "configmap", "kube-root-ca.crt", "-o", jsonpath]);
    let token = cluster.kubectl(&["create", "token", "default"]);
    HttpsConfig {
        server: format!("https://{}:6443", machine::ADDRESS),
        ca: Some(authority.as_str().into()),
        token: Some(token.trim().to_owned()),
        ..HttpsConfig::default()
    }
}

#[test]
fn authorities_and_keys_rotate_under_load_without_a_failed_request() {
    if is_skipped() {
        return;
    }
    let machines = TwoMachines::up(&[]);
    let first = &machines.first;
    first.kubectl(&["create", "clusterrolebinding", "view", "--clusterrole=view", "--serviceaccount=default:default"]);
    first.kubectl(&["create", "secret", "generic", "kept", "--from-literal=a=b"]);
    let old = in_cluster_config(first);
    let former = first.scratch().join("former.conf");
    std::fs::copy(first.data_dir().join("kubeconfig/admin.conf"), &former).unwrap();
    let former = former.to_string_lossy().into_owned();
    let before = std::fs::read_to_string(first.data_dir().join("pki/ca.crt")).unwrap();
    let end = AtomicBool::new(false);
    let counted = std::thread::scope(|scope| {
        let load = scope.spawn(|| load(first, &old, &end));
        let rotated = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| rotate(&machines, &before, &former)));
        end.store(true, Ordering::Release);
        let counted = load.join().unwrap();
        rotated.unwrap();
        counted
    });
    assert!(counted.failed.is_empty(), "{} failed: {:?}", counted.failed.len(), &counted.failed[..1]);
    assert!(counted.answered > 20, "{}", counted.answered);

    // After the end neither the old authority nor the old key is trusted.
    first.corten(&["ca", "rotate", "--finish"]);
    first.corten(&["service-account-key", "rotate", "--finish"]);
    let refused = first.kubectl_fails(&["--kubeconfig", &former, "get", "namespaces"]);
    assert!(refused.contains("certificate") || refused.contains("Unauthorized"), "{refused}");
    let token = HttpsConfig { ca: in_cluster_config(first).ca, ..old };
    let refused = load_once(first, &token).unwrap_err();
    assert!(refused.contains("Unauthorized"), "{refused}");
    load_once(first, &in_cluster_config(first)).unwrap();
    assert_eq!(first.kubectl(&["logs", "pod/on-second"]), "hello\n");
    first.kubectl(&["run", "again", "--image", IMAGE, "--", "sleep", "3600"]);
    first.kubectl_wait(&["wait", "--for=condition=Ready", "pod/again"]);
    // A cluster that was killed comes back with its new authorities and keys.
    first.kill_hard();
    first.start(&["--node-name", "first"]);
    first.kubectl_until(&["get", "nodes"], |text| text.matches(" Ready ").count() == 2);
    assert_eq!(first.kubectl(&["get", "secret", "kept", "-o", "jsonpath={.data.a}"]), "Yg==");
    machines.down();
}

fn load_once(cluster: &Cluster, config: &HttpsConfig) -> Result<(), String> {
    cluster.machine.in_network(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let client = Client::https(config.clone()).unwrap();
        let answer = runtime.block_on(client.get_raw("/api/v1/namespaces/default"));
        answer.map(drop).map_err(|error| error.to_string())
    })
}

/// Rotates everything, up to the steps that end the trust in what was before.
fn rotate(machines: &TwoMachines, before: &str, former: &str) {
    let TwoMachines { first, second, .. } = machines;
    let printed = first.corten(&["ca", "rotate"]);
    assert!(printed.contains("corten ca rotate --finish"), "{printed}");
    let bundle = std::fs::read_to_string(first.data_dir().join("pki/ca.crt")).unwrap();
    assert!(bundle.contains(before.trim()) && bundle != before, "both are trusted");
    first.corten(&["service-account-key", "rotate"]);
    let printed = first.corten(&["encryption-key", "rotate"]);
    assert!(printed.contains("the old key is removed"), "{printed}");
    // The agent follows, and a kubeconfig of the old authority works until the end.
    wait::until("the agent's authority", wait::BOUND, || {
        let own = std::fs::read_to_string(second.data_dir().join("pki/ca.crt")).unwrap_or_default();
        if own == bundle { Ok(()) } else { Err("the old one".to_owned()) }
    });
    let root = ["get", "configmap", "kube-root-ca.crt", "-o", "jsonpath={.data.ca\\.crt}"];
    first.kubectl_until(&root, |text| text.trim() == bundle.trim());
    first.kubectl(&["--kubeconfig", former, "get", "namespaces"]);
    let annotation = "jsonpath={.items[*].metadata.annotations.corten\\.dev/certificate-authority}";
    first.kubectl_until(&["get", "nodes", "-o", annotation], |text| {
        let words: Vec<&str> = text.split_whitespace().collect();
        words.len() == 2 && words[0] == words[1]
    });
    assert_eq!(first.kubectl(&["logs", "pod/on-second"]), "hello\n");
}

#[test]
fn a_revoked_node_is_refused_at_once_and_joins_again_by_a_token() {
    if is_skipped() {
        return;
    }
    let mut machines = TwoMachines::up(&[]);
    let kubeconfig = machines.second.data_dir().join("kubeconfig/kubelet.conf");
    let kubeconfig = kubeconfig.to_string_lossy().into_owned();
    let own = ["--kubeconfig", kubeconfig.as_str(), "get", "node", "second"];
    machines.second.kubectl(&own);
    let printed = machines.first.corten(&["node", "revoke", "second"]);
    assert!(printed.contains("refused from now on"), "{printed}");
    let refused = machines.second.kubectl_fails(&own);
    assert!(refused.contains("Unauthorized") || refused.contains("must be logged in"), "{refused}");
    let server = machines.first.corten_command(&["node", "revoke", "first"]).output().unwrap();
    assert!(String::from_utf8_lossy(&server.stderr).contains("is a server"));
    machines.first.kubectl_until(&["get", "pods"], |text| !text.contains("on-second"));
    assert!(!machines.first.kubectl(&["get", "nodes"]).contains("second"));
    // The agent that runs cannot register its node again.
    let log = machines.second.agent_log();
    wait::until("the refusal in the agent's log", wait::BOUND, || {
        let log = std::fs::read_to_string(&log).unwrap_or_default();
        if log.contains("Unauthorized") { Ok(()) } else { Err("none".to_owned()) }
    });
    assert!(!machines.first.kubectl(&["get", "nodes"]).contains("second"));
    drop(machines.agent.take());
    machines.second.corten(&["down"]);
    machines.join();
    machines.first.apply(&sleeper("second"));
    machines.first.kubectl_wait(&["wait", "--for=condition=Ready", "pod/on-second"]);
    machines.down();
}
