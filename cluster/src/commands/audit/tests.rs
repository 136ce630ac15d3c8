//! A cluster passes after its start; every item that can fail does so once the cluster is damaged for it.

use std::path::PathBuf;

use clap::Parser;

use super::facts::{EtcdFact, FileFact, ListenerFact, NodeFact, Objects, Probes};
use super::*;
use crate::components::audit::DEFAULT_POLICY;
use crate::directories::Directories;

fn flags(words: &[&str]) -> cli::Server {
    let parsed = cli::Cli::try_parse_from([&["corten", "server"], words].concat());
    match parsed.expect("the flags are well-formed").command {
        cli::Command::Server(server) => server,
        other => panic!("{other:?}"),
    }
}

fn file(path: &str, is_directory: bool) -> FileFact {
    let mode = if is_directory { 0o700 } else { 0o600 };
    FileFact { path: PathBuf::from(path), is_directory, mode, uid: 0, gid: 0 }
}

/// Returns a cluster with one node, one Secret and no objects of users.
fn healthy() -> Facts {
    let files = [
        "/d/pki/ca.crt",
        "/d/pki/ca.key",
        "/d/pki/sa.key",
        "/d/pki/secrets.key",
        "/d/kubeconfig/admin.conf",
        "/d/kubeconfig/scheduler.conf",
        "/d/kubeconfig/controller-manager.conf",
        "/d/kubeconfig/proxy.conf",
        "/d/kubeconfig/kubelet.conf",
        "/d/store/1.log",
        "/d/audit/audit.log",
        "/d/kubelet.yaml",
        "/etc/cni/net.d/10.conflist",
    ];
    let mut files: Vec<FileFact> = files.map(|path| file(path, false)).into();
    files.extend(["/d", "/d/pki", "/d/store"].map(|path| file(path, true)));
    let mut flags = flags(&["--data-dir", "/d", "--kubelet-config", "/d/kubelet.yaml"]);
    flags.network_backend = None;
    Facts {
        directories: Directories { data: "/d".into(), run: "/r".into() },
        flags,
        files,
        listening: vec!["127.0.0.1:10257".parse().unwrap(), "127.0.0.1:2379".parse().unwrap()],
        nodes: vec![node()],
        etcd: None,
        probes: probes(),
        objects: objects(),
        audit_policy: Some(corten_meta::decode_yaml(DEFAULT_POLICY.as_bytes()).unwrap()),
        encryption: None,
        tables: vec!["corten-policy".to_owned()],
        has_plain_secret: false,
    }
}

/// Returns a cluster whose server is one of several.
fn several_servers() -> Facts {
    let mut facts = healthy();
    let listener = |address: &str| ListenerFact {
        address: address.parse().unwrap(),
        answers_plain: false,
        answers_without_certificate: false,
        answers_self_signed: false,
    };
    facts.etcd = Some(EtcdFact {
        clients: listener("10.0.0.1:2379"),
        peers: listener("10.0.0.1:2380"),
        is_authenticated: true,
        shared_authorities: Vec::new(),
    });
    facts.files.retain(|file| !file.path.starts_with("/d/store"));
    facts.files.push(file("/d/etcd/data/member/snap/db", false));
    facts.files.push(file("/d/etcd/data", true));
    facts
        .listening
        .extend(["10.0.0.1:2379", "10.0.0.1:2380"].map(|address| address.parse::<std::net::SocketAddr>().unwrap()));
    facts
}

fn open_etcd(facts: &mut Facts) {
    let Some(etcd) = &mut facts.etcd else { return };
    for listener in [&mut etcd.clients, &mut etcd.peers] {
        listener.answers_plain = true;
        listener.answers_without_certificate = true;
        listener.answers_self_signed = true;
    }
    etcd.is_authenticated = false;
    etcd.shared_authorities.push("ca".to_owned());
}

fn node() -> NodeFact {
    NodeFact {
        name: "n1".to_owned(),
        configuration: json!({
            "authorization": { "mode": "Webhook" }, "streamingConnectionIdleTimeout": "4h0m0s", "eventRecordQPS": 50,
            "rotateCertificates": true, "seccompDefault": true, "readOnlyPort": 0,
        }),
        anonymous_status: Some(401),
        tls: tls::TlsFact::default(),
        is_self_signed: false,
        certificate_days: 300,
    }
}

fn probes() -> Probes {
    Probes {
        anonymous: [("/api/v1/secrets", 403), ("/healthz", 200)].into(),
        wrong_token: 401,
        profiling: 404,
        default_account: Some("default".to_owned()),
        absent_namespace: 404,
        foreign_node: 403,
        external_ips: 201,
        tls: tls::TlsFact::default(),
    }
}

fn objects() -> Objects {
    let first = json!({ "kind": "ClusterRoleBinding", "metadata": { "name": "cluster-admin" },
        "roleRef": { "kind": "ClusterRole", "name": "cluster-admin" },
        "subjects": [{ "kind": "Group", "name": "system:masters" }] });
    let all = json!({ "metadata": { "name": "cluster-admin" },
        "rules": [{ "apiGroups": ["*"], "resources": ["*"], "verbs": ["*"] }] });
    Objects {
        namespaces: vec![json!({ "metadata": { "name": "default" } })],
        cluster_roles: vec![all],
        cluster_role_bindings: vec![first],
        flow_schemas: vec![json!({ "metadata": { "name": "global-default" } })],
        secrets: vec![json!({ "metadata": { "name": "s", "namespace": "kube-system" }, "type": "Opaque" })],
        services: vec![json!({ "metadata": { "name": "kubernetes", "namespace": "default" } })],
        ..Objects::default()
    }
}

/// Binds cluster-admin to a user.
fn give_all(facts: &mut Facts) {
    facts.objects.cluster_role_bindings.push(json!({ "kind": "ClusterRoleBinding", "metadata": { "name": "oops" },
        "roleRef": { "kind": "ClusterRole", "name": "cluster-admin" },
        "subjects": [{ "kind": "User", "name": "bob" }, { "kind": "Group", "name": "system:masters" }] }));
}

/// Adds a pod in the default namespace, as `kubectl run` creates it, and worse.
fn add_pod(facts: &mut Facts) {
    let variable = json!({ "name": "a", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k" } } });
    facts.objects.pods.push(json!({ "kind": "Pod", "metadata": { "name": "p", "namespace": "default" },
        "spec": { "securityContext": {}, "serviceAccountName": "default",
            "containers": [{ "name": "c", "env": [variable] }] } }));
    facts.nodes[0].configuration["seccompDefault"] = false.into();
}

fn open_files(facts: &mut Facts) {
    facts.files.iter_mut().for_each(|file| file.mode = 0o777);
}

fn give_files_away(facts: &mut Facts) {
    facts.files.iter_mut().for_each(|file| file.uid = 1000);
}

fn break_kubelet(facts: &mut Facts) {
    let node = &mut facts.nodes[0];
    node.configuration = json!({
        "authorization": { "mode": "AlwaysAllow" }, "streamingConnectionIdleTimeout": "0s", "eventRecordQPS": -1,
        "rotateCertificates": false, "seccompDefault": false, "readOnlyPort": 10255, "podPidsLimit": -1,
    });
    node.anonymous_status = Some(200);
    node.tls = tls::TlsFact { offers_tls_1_1: true, offers_weak_ciphers: true };
    node.is_self_signed = true;
    node.certificate_days = 3;
    facts.flags.node_name = Some("other".to_owned());
}

fn break_server(facts: &mut Facts) {
    let audit = ["--audit-log-maxage", "1", "--audit-log-maxbackup", "1", "--audit-log-maxsize", "1"];
    facts.flags = flags(&[&["--authorization-mode", "AlwaysAllow"], &audit[..]].concat());
    facts.probes = Probes {
        anonymous: [("/api/v1/secrets", 200)].into(),
        wrong_token: 200,
        profiling: 200,
        default_account: None,
        absent_namespace: 201,
        foreign_node: 200,
        external_ips: 201,
        tls: tls::TlsFact { offers_tls_1_1: true, offers_weak_ciphers: true },
    };
    facts.objects.flow_schemas.clear();
    facts.objects.services.push(json!({ "metadata": { "name": "x", "namespace": "a" },
        "spec": { "externalIPs": ["192.0.2.1"] } }));
    facts.audit_policy = None;
    facts.has_plain_secret = true;
    facts.tables.clear();
    facts.files.clear();
    facts.nodes[0].configuration = Value::Null;
    facts.nodes[0].certificate_days = 3;
}

fn open_ports(facts: &mut Facts) {
    facts.listening = [2379, 2380, 10249, 10255, 10257, 10259].map(|port| ([0, 0, 0, 0], port).into()).into();
}

fn keep_tokens(facts: &mut Facts) {
    facts.objects.secrets = vec![
        json!({ "metadata": { "name": "t" }, "type": "kubernetes.io/service-account-token" }),
        json!({ "metadata": { "name": "b" }, "type": "bootstrap.kubernetes.io/token", "data": {} }),
    ];
}

const DAMAGES: [fn(&mut Facts); 9] =
    [give_all, add_pod, open_files, give_files_away, break_kubelet, break_server, open_ports, keep_tokens, open_etcd];

#[test]
fn a_new_cluster_passes() {
    for facts in [healthy(), several_servers()] {
        for line in check_all(&facts) {
            assert!(!matches!(line.outcome, Outcome::Fail(_)), "{} {:?}", line.item.id, line.outcome);
        }
    }
}

#[test]
fn every_item_that_passes_can_fail() {
    for cluster in [healthy, several_servers] {
        let damaged: Vec<Vec<Line>> = DAMAGES
            .iter()
            .map(|damage| {
                let mut facts = cluster();
                damage(&mut facts);
                check_all(&facts)
            })
            .collect();
        for (at, line) in check_all(&cluster()).iter().enumerate() {
            if matches!(line.outcome, Outcome::Pass(_)) {
                let fails = damaged.iter().any(|lines| matches!(lines[at].outcome, Outcome::Fail(_)));
                assert!(fails, "{} never fails: {:?}", line.item.id, line.outcome);
            }
        }
    }
}

#[test]
fn items_are_numbered_once_and_in_order() {
    let number = |id: &str| id.split('.').map(|part| part.parse().expect("a number")).collect::<Vec<u32>>();
    let all: Vec<Vec<u32>> = check_all(&healthy()).iter().map(|line| number(line.item.id)).collect();
    assert!(all.is_sorted_by(|before, after| before < after), "{all:?}");
    for (at, (_, items)) in SECTIONS.iter().enumerate() {
        assert!(items.iter().all(|item| number(item.id)[0] as usize == at + 1));
    }
}

#[test]
fn rights_of_namespaces_and_accounts_are_found() {
    let mut facts = healthy();
    facts.objects.roles.push(json!({ "metadata": { "name": "r", "namespace": "a" },
        "rules": [{ "apiGroups": [""], "resources": ["secrets"], "verbs": ["get"] }] }));
    let binding = |namespace: &str| {
        json!({ "kind": "RoleBinding", "metadata": { "name": "b", "namespace": namespace },
            "roleRef": { "kind": "Role", "name": "r" },
            "subjects": [{ "kind": "ServiceAccount", "name": "x", "namespace": "a" }] })
    };
    facts.objects.role_bindings = vec![binding("a"), binding("other")];
    let right = bindings::Right { group: "", resources: &["secrets"], verbs: &["list", "get"] };
    let found = bindings::holders(&facts, &right);
    assert_eq!(found, ["RoleBinding b in a gives r to ServiceAccount x"]);
}

#[test]
fn the_report_names_remedies_and_totals() {
    let mut facts = healthy();
    give_all(&mut facts);
    let lines = check_all(&facts);
    let text = text(&lines);
    assert!(text.contains("[fail] 5.1.1") && text.contains("remedy: delete the binding"), "{text}");
    let document = document(&lines);
    assert_eq!(document["totals"]["fail"].as_u64().unwrap() as usize, count(&lines, "fail"));
    assert_eq!(document["items"].as_array().unwrap().len(), lines.len());
}
