//! Input of a node from containers, pods and clients: logs, files, queries, names, profiles, DNS messages.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::OnceLock;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{Pod, Secret};
use hickory_proto::op::{Message, MessageType, OpCode, Query};
use hickory_proto::rr::{Name, RecordType};
use serde_json::json;

use super::{joined, parts, text, texts};
use crate::Target;

pub const TARGETS: &[Target] = &[
    Target { name: "container-log", seeds: log_seeds, run: container_log },
    Target { name: "log-query", seeds: query_seeds, run: log_query },
    Target { name: "bus-message", seeds: bus_seeds, run: bus_message },
    Target { name: "env-file", seeds: env_file_seeds, run: env_file },
    Target { name: "references", seeds: reference_seeds, run: references },
    Target { name: "pull-secret", seeds: pull_secret_seeds, run: pull_secret },
    Target { name: "static-pod", seeds: static_pod_seeds, run: static_pod },
    Target { name: "kernel-figures", seeds: figure_seeds, run: kernel_figures },
    Target { name: "seccomp-profile", seeds: seccomp_seeds, run: seccomp_profile },
    Target { name: "image-user", seeds: user_seeds, run: image_user },
    Target { name: "cdi-specification", seeds: cdi_seeds, run: cdi },
    Target { name: "device-record", seeds: record_seeds, run: device_record },
    Target { name: "dns-query", seeds: dns_query_seeds, run: dns_query },
    Target { name: "dns-answer", seeds: dns_answer_seeds, run: dns_answer },
    Target { name: "bgp-message", seeds: bgp_seeds, run: corten_bgp::fuzz::messages },
];

/// Returns an OPEN, a KEEPALIVE, an UPDATE of both families and a NOTIFICATION.
fn bgp_seeds() -> Vec<Vec<u8>> {
    use corten_bgp::message::{AsWidth, Attribute, Capability, Message, Notification, Open, Segment, Update};
    use corten_bgp::{Family, Prefix};
    let capabilities = vec![
        Capability::Multiprotocol(Family::Ipv6),
        Capability::RouteRefresh,
        Capability::GracefulRestart { restarted: true, restart_time: 120, families: Vec::new() },
    ];
    let host = |address: &str| address.parse().map(Prefix::host).into_iter().collect::<Vec<_>>();
    let attributes = vec![
        Attribute::Origin(0),
        Attribute::AsPath(vec![Segment { is_sequence: true, numbers: vec![64_512] }]),
        Attribute::Communities(vec![0xfde8_0001]),
        Attribute::Reach { next_hop: std::net::Ipv6Addr::LOCALHOST, prefixes: host("2001:db8::1") },
    ];
    let update = Update { withdrawn: host("192.0.2.1"), attributes, announced: host("192.0.2.2") };
    let messages = [
        Message::Open(Open::new(64_512, 90, [192, 0, 2, 1].into(), capabilities)),
        Message::Keepalive,
        Message::Update(update),
        Message::Notification(Notification::cease(2)),
    ];
    let mut seeds: Vec<Vec<u8>> = messages.iter().map(|message| message.encode(AsWidth::Four)).collect();
    seeds.push(seeds.concat());
    seeds
}

fn log_seeds() -> Vec<Vec<u8>> {
    texts(&["2026-01-02T03:04:05.123456789Z stdout F hello world\n", "2026-01-02T03:04:05Z stderr P:x part"])
}

fn container_log(input: &[u8]) {
    corten_kubelet::fuzz::log_line(input);
}

fn query_seeds() -> Vec<Vec<u8>> {
    texts(&[
        "follow=true&tailLines=3&sinceSeconds=9&limitBytes=5&stream=Stdout&timestamps=1",
        "query=kubelet&query=%2Fvar%2Flog&sinceTime=2026-01-02T03%3A04%3A05Z&untilTime=2026-01-03T00:00:00Z&boot=-1&pattern=a+b",
    ])
}

fn log_query(input: &[u8]) {
    let _ = text(input).map(corten_kubelet::fuzz::log_query);
}

/// Returns a signal of the bus: interface, member, signature, and a body.
fn bus_seeds() -> Vec<Vec<u8>> {
    vec![b"l\x04\0\x01\x04\0\0\0\x01\0\0\0\x28\0\0\0\x02\x01s\0\x03\0\0\0a.b\0\0\0\0\0\x03\x01s\0\x02\0\0\0Do\0\0\0\0\0\0\x08\x01g\0\x01b\0\0\x01\0\0\0".to_vec()]
}

fn bus_message(input: &[u8]) {
    corten_kubelet::fuzz::bus_message(input);
}

fn env_file_seeds() -> Vec<Vec<u8>> {
    vec![joined(&["A", "# c\nA='x y\nz' # d\nB=''\n\tC='$D'\n"])]
}

fn env_file(input: &[u8]) {
    let [key, file] = parts::<2>(input);
    let (Some(key), Some(file)) = (text(key), text(file)) else { return };
    if let Some(value) = corten_kubelet::fuzz::env_file(file, key) {
        assert!(value.len() <= file.len(), "a value is part of its file");
    }
}

fn reference_seeds() -> Vec<Vec<u8>> {
    texts(&["$(A)/$$(B)$(C$(A))", "metadata.annotations['a.b/c']", "metadata.labels['']", "0-3,8", "status.podIPs"])
}

/// Reads references in commands, paths of the downward API, sets of processors.
fn references(input: &[u8]) {
    let Some(text) = text(input) else { return };
    let environment = BTreeMap::from([("A".to_owned(), "value".to_owned())]);
    let expanded = corten_kubelet::fuzz::expand(text, &environment);
    assert!(expanded.len() <= 2 * text.len(), "a reference is not expanded twice");
    static POD: OnceLock<Pod> = OnceLock::new();
    let pod = POD.get_or_init(|| {
        let pod = json!({"metadata": {"name": "a", "labels": {"": "x"}, "annotations": {"a.b/c": "\"\n"}}});
        Pod::decode(pod.to_string().as_bytes()).expect("a pod")
    });
    let _ = corten_kubelet::fuzz::downward_path(pod, text);
    if let Some(written) = corten_kubelet::fuzz::cpu_set(text) {
        assert_eq!(corten_kubelet::fuzz::cpu_set(&written).as_ref(), Some(&written));
    }
}

fn pull_secret_seeds() -> Vec<Vec<u8>> {
    vec![
        joined(&[
            "registry.example:5000/a/b:c",
            r#"{"auths":{"https://*.example:5000/v2/":{"auth":"YTpi"},"a":{"username":"u","password":"p"}}}"#,
        ]),
        joined(&["a", r#"{"index.docker.io/v1/":{"identitytoken":"t"}}"#]),
    ]
}

fn pull_secret(input: &[u8]) {
    let [image, config] = parts::<2>(input);
    let Some(image) = text(image) else { return };
    for key in [".dockerconfigjson", ".dockercfg"] {
        let data = BTreeMap::from([(key.to_owned(), corten_api::k8s_openapi::ByteString(config.to_vec()))]);
        let _ = corten_kubelet::fuzz::credentials(Secret { data: Some(data), ..Secret::default() }, image);
    }
}

fn static_pod_seeds() -> Vec<Vec<u8>> {
    texts(&[
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  hostNetwork: true\n  containers:\n  - {name: c, image: i, command: [a]}\n  volumes: [{name: v, hostPath: {path: /etc}}]\n",
    ])
}

fn static_pod(input: &[u8]) {
    if let Some(pod) = text(input).and_then(corten_kubelet::fuzz::static_pod) {
        assert!(pod.spec.is_some_and(|spec| !spec.containers.is_empty()), "a pod has containers");
    }
}

fn figure_seeds() -> Vec<Vec<u8>> {
    texts(&[
        "cpu  1 2 3 4 5 6 7 8 9 10\nbtime 1700000000\n",
        "MemTotal: 100 kB\nMemFree: 50 kB\nInactive(file): 3 kB\nSwapTotal: 1 kB\npgfault 4\npgmajfault 5\n",
        "0.00 0.01 0.05 1/123 456\n",
        "Inter-|   Receive\n face |bytes\n  eth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n",
        "Iface\tDestination\tGateway\neth0\t00000000\t0100000A\t0003\n",
    ])
}

fn kernel_figures(input: &[u8]) {
    let _ = text(input).map(corten_kubelet::fuzz::kernel_figures);
}

fn seccomp_seeds() -> Vec<Vec<u8>> {
    texts(&[
        r#"{"defaultAction":"SCMP_ACT_ERRNO","defaultErrnoRet":38,"architectures":["SCMP_ARCH_X86_64"],"syscalls":[{"names":["read","openat"],
        "action":"SCMP_ACT_ALLOW"},{"names":["clone"],"action":"SCMP_ACT_ERRNO","errnoRet":1,"args":[{"index":0,"value":2114060288,
        "valueTwo":0,"op":"SCMP_CMP_MASKED_EQ"},{"index":5,"value":1,"op":"SCMP_CMP_GE"}]},{"names":["kill"],"action":"SCMP_ACT_KILL"}]}"#,
    ])
}

fn seccomp_profile(input: &[u8]) {
    let _ = corten_runtime::fuzz::seccomp_profile(input);
}

fn user_seeds() -> Vec<Vec<u8>> {
    vec![
        joined(&["app:staff", "root:x:0:0:root:/:/bin/sh\napp:x:7:8::/home:/bin/sh\n", "staff:x:9:app,root\n"]),
        joined(&["4294967295:1", "", ""]),
    ]
}

fn image_user(input: &[u8]) {
    let [name, passwd, group] = parts::<3>(input).map(|part| String::from_utf8_lossy(part).into_owned());
    let found = corten_runtime::fuzz::user(&name, &passwd, &group);
    let is_named = passwd.lines().chain(group.lines()).any(|line| line.contains(':'));
    let asks_for_root = name.split(':').any(|part| part.is_empty() || part.trim_start_matches(['0', '+']).is_empty());
    if !is_named && !asks_for_root {
        assert!(found.is_none_or(|(uid, _)| uid != 0), "no name leads to root by itself: {name:?}");
    }
}

fn cdi_seeds() -> Vec<Vec<u8>> {
    texts(&[
        "cdiVersion: '0.6.0'\nkind: a.b/c\ncontainerEdits: {env: ['A=b']}\ndevices:\n- name: d\n  containerEdits:\n    env: ['C=d']\n    deviceNodes: [{path: /dev/x, hostPath: /dev/null, permissions: r, uid: 7, fileMode: 384}]\n    mounts: [{hostPath: /a, containerPath: /b, options: [ro, nosuid, rbind]}]\n    additionalGids: [44, -1]\n",
    ])
}

/// Reads a CDI specification. Of the host files that it names, only the type is read.
fn cdi(input: &[u8]) {
    let folder = tempfile::tempdir().expect("a directory");
    std::fs::write(folder.path().join("a.yaml"), input).expect("a specification");
    let _ = corten_runtime::fuzz::cdi(folder.path().to_owned(), "a.b/c=d");
}

fn record_seeds() -> Vec<Vec<u8>> {
    texts(&[
        r#"{"allocations":[{"podUID":"p","container":"c","resource":"a.b/c","devices":["d"],"answer":"AAE="}],"resources":["a.b/c"]}"#,
    ])
}

fn device_record(input: &[u8]) {
    let folder = tempfile::tempdir().expect("a directory");
    std::fs::write(folder.path().join(corten_kubelet::fuzz::DEVICE_RECORD), input).expect("a record");
    let _ = corten_kubelet::fuzz::device_record(folder.path());
}

fn zone() -> &'static corten_dns::Zone {
    static ZONE: OnceLock<corten_dns::Zone> = OnceLock::new();
    ZONE.get_or_init(|| {
        let reverse = vec![(IpAddr::from([10, 96, 0, 0]), 16)];
        let mut zone = corten_dns::Zone::new("cluster.local", 5, reverse).expect("a zone");
        zone.set_namespace("default", true);
        let service = corten_dns::Service::Virtual { addresses: vec![IpAddr::from([10, 96, 0, 1])], ports: Vec::new() };
        zone.set_service("default", "kubernetes", Some(service));
        zone.set_service(
            "default",
            "alias",
            Some(corten_dns::Service::External("kubernetes.default.svc.cluster.local".into())),
        );
        zone.set_service(
            "default",
            "loop",
            Some(corten_dns::Service::External("loop.default.svc.cluster.local".into())),
        );
        zone.set_service("default", "headless", Some(corten_dns::Service::Headless));
        zone.set_synced();
        zone
    })
}

fn question(name: &str, of: RecordType) -> Message {
    let mut message = Message::new(7, MessageType::Query, OpCode::Query);
    message.add_query(Query::query(Name::from_ascii(name).expect("a name"), of));
    message
}

fn dns_query_seeds() -> Vec<Vec<u8>> {
    [
        ("kubernetes.default.svc.cluster.local.", RecordType::A),
        ("_https._tcp.kubernetes.default.svc.cluster.local.", RecordType::SRV),
        ("alias.default.svc.cluster.local.", RecordType::AAAA),
        ("loop.default.svc.cluster.local.", RecordType::A),
        ("1.0.96.10.in-addr.arpa.", RecordType::PTR),
        ("1-2-3-4.default.pod.cluster.local.", RecordType::A),
        ("example.com.", RecordType::ANY),
    ]
    .iter()
    .map(|(name, of)| question(name, *of).to_vec().expect("a query"))
    .collect()
}

fn dns_query(input: &[u8]) {
    let Some((datagram, stream)) = corten_dns::fuzz::query(zone(), input) else { return };
    assert!(datagram.len() <= 1232, "a datagram is not fragmented");
    assert_eq!(datagram.get(..2), input.get(..2), "an answer has the number of its query");
    Message::from_vec(&stream).expect("what was written is read");
}

fn dns_answer_seeds() -> Vec<Vec<u8>> {
    let mut answer = question("example.com.", RecordType::A);
    answer.metadata.message_type = MessageType::Response;
    vec![answer.to_vec().expect("an answer")]
}

fn dns_answer(input: &[u8]) {
    let dns_query = question("example.com.", RecordType::A);
    if let Some(answer) = corten_dns::fuzz::answer(&dns_query, input) {
        assert_eq!(answer.metadata.id, 7);
        let _ = answer.to_vec();
    }
}
