//! Pods on a real node, as upstream's end-to-end tests beyond conformance use them: the owners of their tokens, refused
//! pods, mount propagation, port forwarding, and the node's own endpoints.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::Stdio;
use std::time::Duration;

use testkit::cluster::{Cluster, IMAGE};
use testkit::{tools, wait};

const CORTEN: &str = env!("CARGO_BIN_EXE_corten");

#[test]
fn pods_are_run_as_upstream_runs_them() {
    if !tools::is_root() {
        eprintln!("skipped: a cluster needs root");
        return;
    }
    let cluster = Cluster::up(CORTEN, &[]);
    tokens_belong_to_the_pods_user(&cluster);
    root_is_refused_where_it_must_not_be(&cluster);
    mounts_propagate_as_specified(&cluster);
    ports_are_forwarded_to_servers_of_one_client(&cluster);
    components_show_their_health(&cluster);
}

/// Returns the manifest of a pod with one container, which runs a shell script.
fn pod(name: &str, script: &str, spec: &str, container: &str) -> String {
    format!(
        r#"
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  {spec}
  containers:
  - name: main
    image: {IMAGE}
    command: [sh, -c, '{script}']
    {container}
"#
    )
}

fn tokens_belong_to_the_pods_user(cluster: &Cluster) {
    let cases = [
        ("token-of-user", "{runAsUser: 1000}", "600 1000 0"),
        ("token-of-group", "{fsGroup: 10000}", "640 0 10000"),
        ("token-of-both", "{runAsUser: 1000, fsGroup: 10000}", "640 1000 10000"),
        ("token-of-none", "{}", "644 0 0"),
    ];
    let script = r#"cd /var/run/secrets/kubernetes.io/serviceaccount && stat -Lc "%a %u %g" token && test -r token && echo readable"#;
    let manifests: Vec<String> = cases
        .iter()
        .map(|(name, security, _)| pod(name, script, &format!("securityContext: {security}"), ""))
        .collect();
    cluster.apply(&manifests.concat());
    for (name, _, expected) in cases {
        cluster.kubectl_wait(&["wait", "--for=jsonpath={.status.phase}=Succeeded", &format!("pod/{name}")]);
        assert_eq!(cluster.kubectl(&["logs", name]), format!("{expected}\nreadable\n"), "{name}");
    }
}

fn root_is_refused_where_it_must_not_be(cluster: &Cluster) {
    let cases = [
        (
            "implicit-root",
            "securityContext: {runAsNonRoot: true}",
            "container has runAsNonRoot and image will run as root",
        ),
        (
            "explicit-root",
            "securityContext: {runAsNonRoot: true, runAsUser: 0}",
            "container's runAsUser breaks non-root policy",
        ),
    ];
    for (name, security, why) in cases {
        cluster.apply(&pod(name, "id -u", "", security));
        let failed = ["get", "events", "--field-selector", &format!("involvedObject.name={name},reason=Failed")];
        let message = [&failed[..], &["-o", "jsonpath={.items[*].message}"]].concat();
        let message = cluster.kubectl_until(&message, |text| text.contains(why));
        assert!(message.starts_with("Error: "), "{message}");
        let state = "jsonpath={.status.containerStatuses[0].state.waiting.reason}";
        cluster.kubectl_until(&["get", "pod", name, "-o", state], |reason| reason == "CreateContainerConfigError");
        cluster.kubectl(&["delete", "pod", name, "--now"]);
    }
    cluster.apply(&pod("other-user", "id -u", "", "securityContext: {runAsNonRoot: true, runAsUser: 1234}"));
    cluster.kubectl_wait(&["wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/other-user"]);
    assert_eq!(cluster.kubectl(&["logs", "other-user"]), "1234\n");
}

/// The machine's mounts are private, which must not affect the volumes.
fn mounts_propagate_as_specified(cluster: &Cluster) {
    let shared = cluster.scratch().join("propagation");
    let names = ["both", "down", "private", "unsaid"];
    let propagation = ["Bidirectional", "HostToContainer", "None", ""];
    let mut manifests = String::new();
    for (name, propagation) in names.iter().zip(propagation) {
        let propagated =
            if propagation.is_empty() { String::new() } else { format!(", mountPropagation: {propagation}") };
        let spec = format!("volumes: [{{name: host, hostPath: {{path: {}}}}}]", shared.display());
        let container = format!(
            "securityContext: {{privileged: true}}\n    volumeMounts: [{{name: host, mountPath: /shared{propagated}}}]"
        );
        manifests += &pod(name, &format!("mkdir /shared/{name}; sleep 3600"), &spec, &container);
    }
    cluster.apply(&manifests);
    let run = |pod: &str, script: &str| cluster.kubectl_command(&["exec", pod, "--", "sh", "-c", script]).output();
    let on_node = |script: &str| cluster.machine.command(&tools::busybox()).args(["sh", "-c", script]).output();
    for name in names {
        cluster.kubectl_wait(&["wait", "--for=condition=Ready", &format!("pod/{name}")]);
        let script = format!("mount -t tmpfs none /shared/{name} && touch /shared/{name}/file");
        wait::until(&format!("{name} mounts"), wait::BOUND, || match run(name, &script) {
            Ok(output) if output.status.success() => Ok(()),
            other => Err(format!("{other:?}")),
        });
    }
    let busybox = tools::busybox();
    let node = format!(
        "{0}/host && {1} mount -t tmpfs none {0}/host && {1} touch {0}/host/file",
        shared.display(),
        busybox.display()
    );
    let mounted = on_node(&format!("{} mkdir {node}", busybox.display())).unwrap();
    assert!(mounted.status.success(), "{mounted:?}");
    for (name, seen) in [
        ("both", &["both", "host"][..]),
        ("down", &["both", "down", "host"]),
        ("private", &["private"]),
        ("unsaid", &["unsaid"]),
    ] {
        for mount in ["both", "down", "private", "unsaid", "host"] {
            let is_seen = run(name, &format!("test -e /shared/{mount}/file")).unwrap().status.success();
            assert_eq!(is_seen, seen.contains(&mount), "whether {name} sees the mount of {mount}");
        }
    }
    for mount in names {
        let is_seen = on_node(&format!("test -e {}/{mount}/file", shared.display())).unwrap().status.success();
        assert_eq!(is_seen, mount == "both", "whether the node sees the mount of {mount}");
    }
    let pods: Vec<String> = names.iter().map(|name| format!("pod/{name}")).collect();
    let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
    cluster.kubectl(&[&["delete", "--now"], &pods[..]].concat());
}

/// Servers that accept one client and exit, whatever it sends; the pod is not restarted.
fn ports_are_forwarded_to_servers_of_one_client(cluster: &Cluster) {
    let script = "nc -l -p 80 > /tmp/read; echo read $(busybox wc -c < /tmp/read)";
    let listening = "sh, -c, \"busybox netstat -nlt | grep -q :80\"";
    let probe = format!("readinessProbe: {{exec: {{command: [{listening}]}}, periodSeconds: 1}}");
    for (websockets, sent, expected) in
        [("true", "", "read 0\n"), ("true", "abc", "read 3\n"), ("false", "", "read 0\n"), ("false", "abc", "read 3\n")]
    {
        let name = format!("server-{websockets}-{}", sent.len());
        let pod_name = format!("pod/{name}");
        cluster.apply(&pod(&name, script, "", &probe));
        cluster.kubectl_wait(&["wait", "--for=condition=Ready", &pod_name]);
        forward(cluster, &name, websockets, sent);
        cluster.kubectl_wait(&["wait", "--for=jsonpath={.status.phase}=Succeeded", &pod_name]);
        assert_eq!(cluster.kubectl(&["logs", &name]), expected, "{name}");
    }
}

/// Connects once through `kubectl port-forward`, sends, and disconnects.
fn forward(cluster: &Cluster, pod: &str, websockets: &str, sent: &str) {
    let mut command = cluster.kubectl_command(&["port-forward", pod, ":80"]);
    let mut forwarding = command
        .env("KUBECTL_PORT_FORWARD_WEBSOCKETS", websockets)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    // kubectl prints every connection, and exits if its output is not read.
    let mut output = BufReader::new(forwarding.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    let port = line.strip_prefix("Forwarding from 127.0.0.1:").and_then(|rest| rest.split(' ').next());
    let port: u16 = port.and_then(|port| port.parse().ok()).unwrap_or_else(|| panic!("{line}"));
    cluster.machine.in_network(|| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.write_all(sent.as_bytes()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(300))).unwrap();
        // The server sends nothing; its exit closes the connection.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    forwarding.kill().unwrap();
    forwarding.wait().unwrap();
    drop(output);
}

fn components_show_their_health(cluster: &Cluster) {
    assert!(cluster.kubectl(&["get", "--raw", "/metrics/slis"]).contains("process_start_time_seconds"));
    cluster.kubectl(&["get", "--raw", "/readyz"]);
    let page = cluster.kubectl(&["get", "--raw", "/metrics/slis"]);
    assert!(page.contains(r#"kubernetes_healthcheck{name="ping",type="readyz"} 1"#), "{page}");
    let node = cluster.kubectl(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]);
    let of_node = |path: &str| cluster.kubectl(&["get", "--raw", &format!("/api/v1/nodes/{node}/proxy/{path}")]);
    assert_eq!(of_node("healthz"), "ok");
    let page = of_node("metrics/slis");
    assert!(page.contains(r#"kubernetes_healthcheck{name="ping",type="healthz"} 1"#), "{page}");
    let page = of_node("metrics");
    let ended = r#"kubelet_terminated_containers_total{container_type="container",exit_code="0",reason="Completed"}"#;
    assert!(page.contains(ended), "{page}");

    let of_proxy = |port: u16, path: &str| page_on_machine(cluster, port, path);
    let health = of_proxy(10256, "/healthz");
    assert!(health.starts_with("HTTP/1.1 200 OK") && health.contains(r#""nodeEligible":true"#), "{health}");
    let mode = of_proxy(10249, "/proxyMode");
    assert!(mode.starts_with("HTTP/1.1 200 OK") && mode.ends_with("nftables"), "{mode}");
    let setting = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait";
    let timeout = cluster.machine.command(&tools::busybox()).args(["cat", setting]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&timeout.stdout).trim(), "3600");
}

fn page_on_machine(cluster: &Cluster, port: u16, path: &str) -> String {
    cluster.machine.in_network(|| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    })
}
