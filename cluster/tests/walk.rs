//! A user's first hour with a cluster: the real binary on a machine of its own, driven by the real kubectl.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;

use testkit::cluster::{Cluster, IMAGE};
use testkit::{tools, wait};

const CORTEN: &str = env!("CARGO_BIN_EXE_corten");

fn root_only() -> bool {
    let root = tools::is_root();
    if !root {
        eprintln!("skipped: a cluster needs root");
    }
    root
}

/// Returns a Deployment of a web server that answers with its pod's name.
fn web(replicas: u32) -> String {
    format!(
        r#"
apiVersion: apps/v1
kind: Deployment
metadata: {{name: web}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: web
        image: {IMAGE}
        command: [sh, -c, 'hostname > /www/index.html; exec httpd -f -p 8080 -h /www']
        ports: [{{containerPort: 8080, name: http}}]
        readinessProbe: {{httpGet: {{path: /, port: http}}, periodSeconds: 1}}
"#
    )
}

#[test]
fn a_users_first_hour() {
    if !root_only() {
        return;
    }
    let cluster = Cluster::up(CORTEN, &[]);
    node_is_ready(&cluster);
    deployment_lives(&cluster);
    service_is_reached_by_name(&cluster);
    node_port_leads_to_pods(&cluster);
    logs_exec_cp(&cluster);
    port_forward(&cluster);
    edits(&cluster);
    configuration_reaches_pods(&cluster);
    restarts_and_probes(&cluster);
    access_is_controlled(&cluster);
    explain_and_diff(&cluster);
    deletion_is_complete(&cluster);
    errors_are_kubernetes_own(&cluster);
}

fn node_is_ready(cluster: &Cluster) {
    cluster.kubectl_wait(&["wait", "--for=condition=Ready", "node", "--all"]);
    let nodes = cluster.kubectl(&["get", "nodes", "-o", "wide"]);
    assert!(nodes.contains("Ready") && nodes.contains("INTERNAL-IP"), "{nodes}");
    assert!(nodes.contains("control-plane"), "{nodes}");
    let namespaces = cluster.kubectl(&["get", "namespaces", "-o", "name"]);
    for name in ["default", "kube-node-lease", "kube-public", "kube-system"] {
        assert!(namespaces.contains(&format!("namespace/{name}")), "{namespaces}");
    }
    // Another scheduler that takes the Lease takes over, so ours must hold it.
    let holder = ["get", "lease", "-n", "kube-system", "kube-scheduler", "-o", "jsonpath={.spec.holderIdentity}"];
    cluster.kubectl_until(&holder, |holder| !holder.is_empty());
    let status = cluster.corten(&["status"]);
    assert!(status.contains("API server") && status.contains("Ready"), "{status}");
    assert!(cluster.corten(&["logs"]).contains("reached"));
    assert!(cluster.corten(&["image", "ls"]).contains("busybox"));
}

fn deployment_lives(cluster: &Cluster) {
    cluster.apply(&web(2));
    cluster.kubectl_wait(&["rollout", "status", "deployment/web"]);
    let table = cluster.kubectl(&["get", "deployment", "web"]);
    assert!(table.contains("UP-TO-DATE") && table.contains("2/2"), "{table}");

    cluster.kubectl(&["scale", "deployment/web", "--replicas=3"]);
    cluster.kubectl_wait(&["rollout", "status", "deployment/web"]);
    assert_eq!(cluster.kubectl(&["get", "pods", "-l", "app=web", "-o", "name"]).lines().count(), 3);

    cluster.kubectl(&["set", "env", "deployment/web", "VERSION=2"]);
    cluster.kubectl_wait(&["rollout", "status", "deployment/web"]);
    let history = cluster.kubectl(&["rollout", "history", "deployment/web"]);
    assert!(history.contains('2'), "{history}");
    cluster.kubectl(&["rollout", "undo", "deployment/web"]);
    cluster.kubectl_wait(&["rollout", "status", "deployment/web"]);
    let environment =
        cluster.kubectl(&["get", "deployment", "web", "-o", "jsonpath={.spec.template.spec.containers[0].env}"]);
    assert!(!environment.contains("VERSION"), "{environment}");

    // The pods of the former revision still terminate: one of those would be gone before its deletion.
    let names = ["get", "pods", "-l", "app=web", "-o", "name"];
    let pods = cluster.kubectl_until(&names, |text| text.lines().count() == 3);
    let victim = pods.lines().next().expect("three pods");
    cluster.kubectl(&["delete", victim, "--wait"]);
    cluster.kubectl_wait(&["rollout", "status", "deployment/web"]);
    cluster.kubectl_until(&["get", "pods", "-l", "app=web", "--no-headers"], |text| {
        text.lines().count() == 3 && text.lines().all(|line| line.contains("1/1") && line.contains("Running"))
    });
    let described = cluster.kubectl(&["describe", "deployment", "web"]);
    assert!(described.contains("ScalingReplicaSet"), "{described}");
}

/// Runs a command in one of the web pods.
fn in_pod(cluster: &Cluster, command: &str) -> String {
    cluster.kubectl(&["exec", "deployment/web", "--", "sh", "-c", command])
}

fn service_is_reached_by_name(cluster: &Cluster) {
    cluster.kubectl(&["expose", "deployment", "web", "--port=80", "--target-port=8080"]);
    cluster.kubectl_until(&["get", "endpointslices", "-l", "kubernetes.io/service-name=web", "-o", "yaml"], |text| {
        text.matches("ready: true").count() == 3
    });
    // Names and rules follow the endpoints a moment later.
    let look = ["exec", "deployment/web", "--", "nslookup", "web.default.svc.cluster.local", "10.96.0.10"];
    cluster.kubectl_until(&look, |looked_up| looked_up.contains("web.default.svc.cluster.local\nAddress"));
    let get = ["exec", "deployment/web", "--", "wget", "-q", "-O", "-", "http://web"];
    cluster.kubectl_until(&get, |answer| answer.starts_with("web-"));
    // Every pod answers sooner or later, including the one that sends the requests.
    let answers = in_pod(cluster, "for i in $(seq 60); do wget -q -O - http://web; done");
    let mut names: Vec<&str> = answers.lines().collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 3, "{answers}");
    let files = in_pod(cluster, "cat /etc/resolv.conf /etc/hosts");
    assert!(files.contains("search default.svc.cluster.local svc.cluster.local cluster.local"), "{files}");
    assert!(files.contains("Kubernetes-managed hosts file"), "{files}");
    let token = in_pod(cluster, "ls /var/run/secrets/kubernetes.io/serviceaccount");
    assert!(token.contains("token") && token.contains("ca.crt") && token.contains("namespace"), "{token}");
}

fn node_port_leads_to_pods(cluster: &Cluster) {
    cluster.kubectl(&[
        "expose",
        "deployment",
        "web",
        "--name=web-node",
        "--type=NodePort",
        "--port=80",
        "--target-port=8080",
    ]);
    let port = cluster.kubectl(&["get", "service", "web-node", "-o", "jsonpath={.spec.ports[0].nodePort}"]);
    for address in [testkit::machine::ADDRESS, "127.0.0.1"] {
        let answer = wait::until("the node port", wait::BOUND, || cluster.machine.fetch(address, &port));
        assert!(answer.starts_with("web-"), "{answer:?}");
    }
}

fn logs_exec_cp(cluster: &Cluster) {
    cluster.kubectl(&["run", "talker", "--image", IMAGE, "--restart=Never", "--", "sh", "-c",
        "for i in 1 2 3; do echo line $i; done; echo oops >&2; touch /tmp/up; while [ ! -e /tmp/go ]; do sleep 0.1; done; echo gone on; sleep 3600"]);
    cluster.kubectl_wait(&["wait", "--for=condition=Ready", "pod/talker"]);
    cluster.kubectl_until(&["logs", "talker"], |text| text.contains("line 3") && text.contains("oops"));
    assert_eq!(cluster.kubectl(&["logs", "talker", "--tail=1"]).lines().count(), 1);
    assert!(cluster.kubectl(&["logs", "talker", "--since=1h", "--timestamps"]).contains("Z line 1"));

    let mut follower = cluster.kubectl_command(&["logs", "-f", "talker"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "line 1");
    cluster.kubectl(&["exec", "talker", "--", "touch", "/tmp/go"]);
    assert!(lines.any(|line| line.unwrap() == "gone on"));
    follower.kill().unwrap();
    follower.wait().unwrap();

    let mut shell = cluster.kubectl_command(&["exec", "-i", "talker", "--", "cat"]);
    let mut shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    shell.stdin.take().unwrap().write_all(b"through the pipe\n").unwrap();
    let mut echoed = String::new();
    shell.stdout.take().unwrap().read_to_string(&mut echoed).unwrap();
    assert_eq!(echoed, "through the pipe\n");
    assert!(shell.wait().unwrap().success());

    let failed = cluster.kubectl_command(&["exec", "talker", "--", "sh", "-c", "exit 7"]).output().unwrap();
    assert_eq!(failed.status.code(), Some(7));

    let file = cluster.scratch().join("sent.txt");
    std::fs::write(&file, "sent by cp").unwrap();
    cluster.kubectl(&["cp", &file.to_string_lossy(), "talker:/tmp/received.txt"]);
    assert_eq!(cluster.kubectl(&["exec", "talker", "--", "cat", "/tmp/received.txt"]), "sent by cp");
}

fn port_forward(cluster: &Cluster) {
    let mut forward = cluster.kubectl_command(&["port-forward", "service/web", "18080:80"]);
    let mut forward = forward.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(forward.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    assert!(first.contains("Forwarding from"), "{first}");
    for _ in 0..3 {
        let answer = wait::until("the port is forwarded", wait::BOUND, || cluster.machine.fetch("127.0.0.1", "18080"));
        assert!(answer.starts_with("web-"), "{answer:?}");
    }
    forward.kill().unwrap();
    forward.wait().unwrap();
}

fn edits(cluster: &Cluster) {
    cluster.kubectl(&["label", "deployment", "web", "tier=front"]);
    cluster.kubectl(&["annotate", "deployment", "web", "note=hello"]);
    assert!(cluster.kubectl(&["get", "deployments", "-l", "tier=front", "-o", "name"]).contains("web"));
    let edited = cluster
        .kubectl_command(&["edit", "deployment", "web"])
        .env("KUBE_EDITOR", "sed -i s/hello/edited/")
        .output()
        .unwrap();
    assert!(edited.status.success(), "{}", String::from_utf8_lossy(&edited.stderr));
    assert_eq!(cluster.kubectl(&["get", "deployment", "web", "-o", "jsonpath={.metadata.annotations.note}"]), "edited");
    for (kind, patch) in [
        ("merge", r#"{"metadata":{"labels":{"tier":"back"}}}"#),
        ("json", r#"[{"op":"remove","path":"/metadata/labels/tier"}]"#),
        (
            "strategic",
            r#"{"spec":{"template":{"spec":{"containers":[{"name":"web","env":[{"name":"P","value":"q"}]}]}}}}"#,
        ),
    ] {
        cluster.kubectl(&["patch", "deployment", "web", "--type", kind, "-p", patch]);
    }
    let container =
        cluster.kubectl(&["get", "deployment", "web", "-o", "jsonpath={.spec.template.spec.containers[0]}"]);
    assert!(container.contains(IMAGE) && container.contains(r#""P""#), "a strategic patch merges: {container}");
    cluster.kubectl_wait(&["rollout", "status", "deployment/web"]);
}

fn configuration_reaches_pods(cluster: &Cluster) {
    cluster.kubectl(&["create", "configmap", "settings", "--from-literal=color=blue"]);
    cluster.kubectl(&["create", "secret", "generic", "key", "--from-literal=word=sesame"]);
    cluster.apply(&format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: configured, labels: {{app: configured}}}}
spec:
  terminationGracePeriodSeconds: 1
  initContainers:
  - {{name: first, image: {IMAGE}, command: [sh, -c, 'echo prepared > /prepared/ready'], volumeMounts: [{{name: work, mountPath: /prepared}}]}}
  containers:
  - name: main
    image: {IMAGE}
    command: [sh, -c, 'sleep 3600']
    env:
    - {{name: COLOR, valueFrom: {{configMapKeyRef: {{name: settings, key: color}}}}}}
    - {{name: WORD, valueFrom: {{secretKeyRef: {{name: key, key: word}}}}}}
    - {{name: NODE, valueFrom: {{fieldRef: {{fieldPath: spec.nodeName}}}}}}
    - {{name: BOTH, value: '$(COLOR)-$(WORD)'}}
    resources: {{requests: {{cpu: 50m}}, limits: {{memory: 64Mi}}}}
    volumeMounts:
    - {{name: settings, mountPath: /settings}}
    - {{name: work, mountPath: /prepared}}
    - {{name: all, mountPath: /all}}
    - {{name: host, mountPath: /host}}
  volumes:
  - {{name: settings, configMap: {{name: settings}}}}
  - {{name: work, emptyDir: {{}}}}
  - {{name: host, hostPath: {{path: /etc, type: Directory}}}}
  - name: all
    projected:
      sources:
      - secret: {{name: key}}
      - downwardAPI: {{items: [{{path: labels, fieldRef: {{fieldPath: metadata.labels}}}}]}}
"#
    ));
    cluster.kubectl_wait(&["wait", "--for=condition=Ready", "pod/configured"]);
    let run = |command: &str| cluster.kubectl(&["exec", "configured", "-c", "main", "--", "sh", "-c", command]);
    assert_eq!(
        run("echo $BOTH; cat /settings/color /all/word; cat /prepared/ready"),
        "blue-sesame\nbluesesameprepared\n"
    );
    assert!(run("cat /all/labels; ls /host").contains("app=\"configured\""));
    assert!(!run("echo $NODE").trim().is_empty());
    let cgroups = run("cat /proc/self/cgroup");
    assert!(cgroups.contains("kubepods") || cgroups.contains("0::/"), "{cgroups}");
    let limit = run("cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.max");
    assert_eq!(limit.trim(), (64 << 20).to_string());
    cluster.kubectl(&["create", "configmap", "unreal", "--dry-run=server"]);
    assert!(cluster.kubectl_fails(&["get", "configmap", "unreal"]).contains("NotFound"));
}

fn restarts_and_probes(cluster: &Cluster) {
    cluster.apply(&format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: mortal}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {{name: main, image: {IMAGE}, command: [sh, -c, 'echo life; test -e /state/lived && sleep 3600; touch /state/lived; exit 3'], volumeMounts: [{{name: state, mountPath: /state}}]}}
  volumes: [{{name: state, emptyDir: {{}}}}]
---
apiVersion: v1
kind: Pod
metadata: {{name: sickly}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: {IMAGE}
    command: [sh, -c, 'touch /tmp/healthy; sleep 3600']
    livenessProbe: {{exec: {{command: [test, -e, /tmp/healthy]}}, periodSeconds: 1, failureThreshold: 1, timeoutSeconds: 60}}
"#
    ));
    cluster.kubectl_until(
        &["get", "pod", "mortal", "-o", "jsonpath={.status.containerStatuses[0].restartCount} {.status.phase}"],
        |t| t == "1 Running",
    );
    let last = cluster.kubectl(&[
        "get",
        "pod",
        "mortal",
        "-o",
        "jsonpath={.status.containerStatuses[0].lastState.terminated.exitCode}",
    ]);
    assert_eq!(last, "3");
    assert_eq!(cluster.kubectl(&["logs", "mortal", "--previous"]), "life\n");
    cluster.kubectl_wait(&["wait", "--for=condition=Ready", "pod/sickly"]);
    // A slow machine may probe before the container has created its file, and restart it once more than expected.
    cluster.kubectl_until(&["exec", "sickly", "--", "rm", "/tmp/healthy"], |_| true);
    cluster
        .kubectl_until(&["get", "pod", "sickly", "-o", "jsonpath={.status.containerStatuses[0].restartCount}"], |t| {
            t.parse::<u32>().is_ok_and(|restarts| restarts > 0)
        });
    let messages = ["Unhealthy", "Liveness probe failed", "failed liveness probe, will be restarted"];
    cluster.kubectl_until(&["events", "--for", "pod/sickly"], |text| messages.iter().all(|words| text.contains(words)));
}

fn access_is_controlled(cluster: &Cluster) {
    assert_eq!(cluster.kubectl(&["auth", "can-i", "create", "deployments"]).trim(), "yes");
    let nobody = ["--as", "nobody"];
    let answer = cluster.kubectl_command(&["auth", "can-i", "list", "secrets", nobody[0], nobody[1]]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&answer.stdout).trim(), "no");
    let refused = cluster.kubectl_fails(&["get", "secrets", nobody[0], nobody[1]]);
    assert!(
        refused.contains(r#"secrets is forbidden: User "nobody" cannot list resource "secrets" in API group "" in the namespace "default""#),
        "{refused}"
    );
    // A pod's own token is valid, and has no rights yet.
    let inside = cluster.kubectl(&["create", "token", "default"]);
    let refused = cluster.kubectl_fails(&[
        "get",
        "pods",
        "--token",
        inside.trim(),
        "--kubeconfig",
        "/dev/null",
        "--server",
        "https://127.0.0.1:6443",
        "--insecure-skip-tls-verify",
    ]);
    assert!(refused.contains("system:serviceaccount:default:default"), "{refused}");
}

fn explain_and_diff(cluster: &Cluster) {
    let explained = cluster.kubectl(&["explain", "deployment.spec.strategy.rollingUpdate"]);
    assert!(explained.contains("maxSurge") && explained.contains("DESCRIPTION"), "{explained}");
    let path = cluster.scratch().join("web.yaml");
    std::fs::write(&path, web(3).replace("periodSeconds: 1", "periodSeconds: 2")).unwrap();
    let diff = cluster.kubectl_command(&["diff", "-f", &path.to_string_lossy()]).output().unwrap();
    assert_eq!(diff.status.code(), Some(1), "{}", String::from_utf8_lossy(&diff.stderr));
    assert!(String::from_utf8_lossy(&diff.stdout).contains("periodSeconds: 2"));

    let dir = cluster.scratch().join("manifests");
    std::fs::create_dir_all(&dir).unwrap();
    for name in ["one", "two"] {
        let manifest = format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{a: b}}\n");
        std::fs::write(dir.join(format!("{name}.yaml")), manifest).unwrap();
    }
    let directory = dir.to_string_lossy();
    assert!(cluster.kubectl(&["apply", "-f", &directory]).contains("configmap/two created"));
    assert!(cluster.kubectl(&["apply", "-f", &directory]).contains("configmap/two unchanged"));
}

fn deletion_is_complete(cluster: &Cluster) {
    cluster.kubectl(&["create", "namespace", "short"]);
    cluster.kubectl(&["create", "configmap", "inside", "-n", "short"]);
    cluster.kubectl_wait(&["delete", "namespace", "short", "--wait"]);
    assert!(cluster.kubectl_fails(&["get", "namespace", "short"]).contains("NotFound"));

    let mut watcher = cluster
        .kubectl_command(&["get", "pods", "-l", "app=web", "-w", "-o", "name"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watcher.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().starts_with("pod/web-"));
    cluster.kubectl_wait(&["delete", "deployment", "web", "--wait"]);
    cluster.kubectl_until(&["get", "pods,replicasets", "-l", "app=web", "-o", "name"], str::is_empty);
    watcher.kill().unwrap();
    watcher.wait().unwrap();
}

fn errors_are_kubernetes_own(cluster: &Cluster) {
    let missing = cluster.kubectl_fails(&["get", "pod", "nowhere"]);
    assert_eq!(missing.trim(), r#"Error from server (NotFound): pods "nowhere" not found"#);
    let twice = cluster.kubectl_fails(&["create", "configmap", "one"]);
    assert!(twice.contains(r#"configmaps "one" already exists"#), "{twice}");
    let manifest = cluster.scratch().join("bad.yaml");
    std::fs::write(
        &manifest,
        "apiVersion: v1\nkind: Pod\nmetadata: {name: Bad_Name}\nspec: {containers: [{name: a, imagee: x}]}\n",
    )
    .unwrap();
    let bad = cluster.kubectl_fails(&["apply", "-f", &manifest.to_string_lossy()]);
    assert!(bad.contains(r#"unknown field "spec.containers[0].imagee""#), "{bad}");
}
