//! Every component as a process of its own, each with only its kubeconfig: together they are a cluster.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use testkit::cluster::{Cluster, IMAGE};
use testkit::{image, tools, wait};

const CORTEN: &str = env!("CARGO_BIN_EXE_corten");

/// The flags of a leader that keeps its Lease also on a machine that starves it for a while.
const ELECTION: [&str; 5] =
    ["--leader-elect", "--leader-elect-lease-duration", "120s", "--leader-elect-renew-deadline", "100s"];
/// The same for the scheduler.
const SCHEDULER: &str = "apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: true, leaseDuration: 120s, renewDeadline: 100s, retryPeriod: 2s}
";

/// A component, which ends with the test, and its log.
struct Component(Child, PathBuf);

impl Drop for Component {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = std::fs::read_to_string(&self.1).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("--- {} ---\n{}", self.1.display(), lines[lines.len().saturating_sub(20)..].join("\n"));
        }
        // The process is a child of the program that entered the machine, and must be gone before the cluster is
        // purged: its cgroups cannot be removed while it is in them.
        let enters = self.0.id();
        let children = std::fs::read_to_string(format!("/proc/{enters}/task/{enters}/children")).unwrap_or_default();
        for child in children.split_whitespace() {
            let _ = Command::new(tools::busybox()).args(["kill", "-9", child]).status();
        }
        if children.is_empty() {
            let _ = self.0.kill();
        }
        let _ = self.0.wait();
    }
}

/// Starts `corten <arguments>` on the machine; its log is a file of the test's directory.
fn start(cluster: &Cluster, arguments: &[&str]) -> Component {
    let path = cluster.scratch().join(format!("{}.log", arguments[0]));
    let log = std::fs::File::create(&path).expect("a log file");
    let mut command = cluster.machine.command(CORTEN.as_ref());
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    Component(command.spawn().expect("corten starts"), path)
}

/// Starts a scheduler with leader election.
fn start_scheduler(cluster: &Cluster, kubeconfig: &str) -> Component {
    let config = cluster.scratch().join("scheduler.yaml");
    std::fs::write(&config, SCHEDULER).expect("a configuration");
    start(cluster, &["scheduler", "--config", &config.to_string_lossy(), "--kubeconfig", kubeconfig])
}

/// A cluster without a scheduler of its own leaves its pods to others: to a user who binds by hand, and to a scheduler
/// that takes the Lease.
#[test]
fn pods_wait_for_others_where_the_cluster_runs_no_scheduler() {
    if !tools::is_root() {
        eprintln!("skipped: a cluster needs root");
        return;
    }
    let cluster = Cluster::up(CORTEN, &["--disable-scheduler"]);
    let archive = image::busybox_archive(cluster.scratch(), IMAGE);
    cluster.corten(&["image", "import", &archive.to_string_lossy()]);
    for pod in ["by-hand", "waits"] {
        cluster.kubectl(&["run", pod, "--image", IMAGE, "--restart=Never", "--", "sleep", "600"]);
    }
    let node = cluster.kubectl(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]);
    let binding = cluster.scratch().join("binding.json");
    let target = format!(r#"{{"apiVersion": "v1", "kind": "Node", "name": "{node}"}}"#);
    let text =
        format!(r#"{{"apiVersion": "v1", "kind": "Binding", "metadata": {{"name": "by-hand"}}, "target": {target}}}"#);
    std::fs::write(&binding, text).expect("a file");
    let path = "/api/v1/namespaces/default/pods/by-hand/binding";
    cluster.kubectl(&["create", "--raw", path, "-f", &binding.to_string_lossy()]);
    let phase =
        ["get", "pods", "-o", "jsonpath={range .items[*]}{.metadata.name}={.status.phase}{.spec.nodeName} {end}"];
    // By the time that one runs, a scheduler would have scheduled the other as well.
    let running = format!("by-hand=Running{node} ");
    let phases = cluster.kubectl_until(&phase, |phases| phases.contains(&running));
    assert_eq!(phases, format!("{running}waits=Pending "));
    let lease = ["get", "lease", "-n", "kube-system", "kube-scheduler"];
    let answer = cluster.kubectl_fails(&lease);
    assert!(answer.contains("NotFound"), "{answer}");

    let kubeconfig = cluster.data_dir().join("kubeconfig/scheduler.conf").to_string_lossy().into_owned();
    let _scheduler = start_scheduler(&cluster, &kubeconfig);
    cluster.kubectl_until(&phase, |phases| phases.contains(&format!("waits=Running{node} ")));
    cluster.kubectl(&lease);
}

#[test]
fn components_that_run_alone_are_a_cluster() {
    if !tools::is_root() {
        eprintln!("skipped: a cluster needs root");
        return;
    }
    let cluster = Cluster::machine(CORTEN);
    let data = cluster.data_dir().to_string_lossy().into_owned();
    let kubeconfig = |name: &str| format!("{data}/kubeconfig/{name}.conf");
    let admin = kubeconfig("admin");
    let kubectl = |arguments: &[&str]| cluster.kubectl(&[&["--kubeconfig", &admin], arguments].concat());

    let _apiserver = start(&cluster, &["apiserver", "--data-dir", &data]);
    wait::until("the API server", wait::BOUND, || {
        let ready = cluster.kubectl_command(&["--kubeconfig", &admin, "get", "--raw", "/readyz"]).output();
        let ready = ready.map_err(|error| error.to_string())?;
        if ready.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&ready.stderr).into_owned()) }
    });
    let manager = kubeconfig("controller-manager");
    let scheduler = kubeconfig("scheduler");
    let kubelet = kubeconfig("kubelet");
    let proxy = kubeconfig("proxy");
    let _components = [
        start(&cluster, &[&["controller-manager", "--kubeconfig", &manager], &ELECTION[..]].concat()),
        start_scheduler(&cluster, &scheduler),
        start(&cluster, &["runtime", "--data-dir", &data]),
        start(&cluster, &["kubelet", "--data-dir", &data, "--kubeconfig", &kubelet]),
        start(&cluster, &["proxy", "--kubeconfig", &proxy]),
    ];
    cluster.kubectl_until(&["--kubeconfig", &admin, "get", "nodes"], |nodes| nodes.contains(" Ready "));

    let archive = image::busybox_archive(cluster.scratch(), IMAGE);
    cluster.corten(&["image", "import", &archive.to_string_lossy()]);
    let serve = "hostname > /www/index.html; exec httpd -f -p 8080 -h /www";
    kubectl(&["create", "deployment", "web", "--image", IMAGE, "--", "sh", "-c", serve]);
    kubectl(&["rollout", "status", "deployment/web", "--timeout=300s"]);
    kubectl(&["expose", "deployment", "web", "--port=80", "--target-port=8080"]);
    let address = kubectl(&["get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"]);
    // Proxy rules follow the endpoints a moment later.
    let get = format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 1 {address} 80");
    let exec = ["--kubeconfig", &admin, "exec", "deployment/web", "--", "sh", "-c", &get];
    cluster.kubectl_until(&exec, |answer| answer.contains("200 OK") && answer.contains("web-"));
    let leases = kubectl(&["get", "leases", "-n", "kube-system", "-o", "name"]);
    assert!(leases.contains("kube-controller-manager") && leases.contains("kube-scheduler"), "{leases}");

    let ask = |path: &str| {
        let server = ["--server", "https://127.0.0.1:10257", "--insecure-skip-tls-verify", "get", "--raw", path];
        kubectl(&server)
    };
    assert_eq!(ask("/healthz"), "ok");
    let metrics = ask("/metrics");
    for expected in [
        "workqueue_adds_total{name=\"deployment\"}",
        "leader_election_master_status{name=\"kube-controller-manager\"} 1",
        "rest_client_requests_total{code=\"201\"",
        "running_managed_controllers{manager=\"kube-controller-manager\",name=\"deployment-controller\"} 1",
        "process_cpu_seconds_total",
    ] {
        assert!(metrics.contains(expected), "{expected} is not in {metrics}");
    }
}

/// The cloud controller manager leads by its Lease under its own role, and the cloud's failure is an event of the
/// Service, which keeps its finalizer until the cloud has answered.
#[test]
fn a_cloud_controller_manager_runs_alone() {
    if !tools::is_root() {
        eprintln!("skipped: a cluster needs root");
        return;
    }
    let cluster = Cluster::up(CORTEN, &["--load-balancer", "off"]);
    let cloud = cluster.scratch().join("cloud.conf");
    // Nothing listens there.
    std::fs::write(&cloud, "Token = t\nLocation = fsn1\nEndpoint = http://127.0.0.1:9/v1\n").expect("a file");
    let cloud = cloud.to_string_lossy().into_owned();
    let kubeconfig = cluster.data_dir().join("kubeconfig/cloud-controller-manager.conf");
    let kubeconfig = kubeconfig.to_string_lossy().into_owned();
    let command = ["cloud-controller-manager", "--kubeconfig", &kubeconfig, "--cloud-provider", "hetzner"];
    let _manager = start(&cluster, &[&command[..], &["--cloud-config", &cloud], &ELECTION[..]].concat());
    let lease = ["get", "lease", "-n", "kube-system", "cloud-controller-manager", "-o", "name"];
    wait::until("the Lease", wait::BOUND, || {
        let found = cluster.kubectl_command(&lease).output().map_err(|error| error.to_string())?;
        if found.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&found.stderr).into_owned()) }
    });
    cluster.kubectl(&["create", "service", "loadbalancer", "web", "--tcp=80"]);
    let events = ["get", "events", "-o", "jsonpath={range .items[*]}{.reason}: {.message}{end}"];
    let events = cluster.kubectl_until(&events, |events| events.contains("SyncLoadBalancerFailed"));
    assert!(events.contains("Error syncing load balancer: Hetzner GET /load_balancers?name=a"), "{events}");
    let finalizers = cluster.kubectl(&["get", "service", "web", "-o", "jsonpath={.metadata.finalizers}"]);
    assert!(finalizers.contains("service.kubernetes.io/load-balancer-cleanup"), "{finalizers}");
    let ask = |path: &str| {
        let server = ["--server", "https://127.0.0.1:10258", "--insecure-skip-tls-verify", "get", "--raw", path];
        cluster.kubectl(&server)
    };
    assert_eq!(ask("/healthz"), "ok");
    let metrics = ask("/metrics");
    assert!(metrics.contains("rest_client_requests_total"), "{metrics}");
}

/// A server with a cloud initializes its own node by it. The cloud is a directory of static answers.
#[test]
fn a_server_with_a_cloud_initializes_its_node() {
    if !tools::is_root() {
        eprintln!("skipped: a cluster needs root");
        return;
    }
    let cluster = Cluster::machine(CORTEN);
    let answers = cluster.scratch().join("cloud");
    std::fs::create_dir_all(answers.join("v1")).expect("a directory");
    let server = r#"{"servers": [{"id": 1, "name": "one", "status": "running", "server_type": {"name": "cx22"},
        "datacenter": {"name": "fsn1-dc14", "location": {"name": "fsn1"}},
        "public_net": {"ipv4": {"ip": "203.0.113.7"}}, "private_net": []}]}"#;
    std::fs::write(answers.join("v1/servers"), server).expect("a file");
    let mut httpd = cluster.machine.command(&tools::busybox());
    httpd.args(["httpd", "-f", "-p", "127.0.0.1:9911", "-h", &answers.to_string_lossy()]);
    let log = cluster.scratch().join("httpd.log");
    let _cloud = Component(httpd.stdin(Stdio::null()).spawn().expect("httpd starts"), log);
    let config = cluster.scratch().join("cloud.conf");
    std::fs::write(&config, "Token = t\nEndpoint = http://127.0.0.1:9911/v1\n").expect("a file");
    let config = config.to_string_lossy().into_owned();
    cluster.start(&["--node-name", "one", "--cloud-provider", "hetzner", "--cloud-config", &config]);
    let node = ["get", "node", "one", "-o", "jsonpath={.spec.providerID} {.spec.taints} {.status.addresses}"];
    let node = cluster.kubectl_until(&node, |node| node.starts_with("hcloud://1 "));
    assert!(!node.contains("uninitialized") && node.contains("203.0.113.7"), "{node}");
    let zone = ["get", "node", "one", "-L", "topology.kubernetes.io/zone", "--no-headers"];
    assert!(cluster.kubectl(&zone).contains("fsn1-dc14"));
}
