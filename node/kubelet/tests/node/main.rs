//! A complete kubelet against a CRI server on a socket and an API server in memory: registering the node, running pods,
//! reporting, restarting, and deleting them.

// A test fails by panicking, its fakes too.
#![allow(clippy::unwrap_used)]

mod csi_refusals;
mod fake_api;
mod fake_cri;
mod node_api;
mod plugins;
mod pressure;
mod replacement;
mod shutdown;
mod static_pods;

use std::path::{Path, PathBuf};
use std::time::Duration;

use corten_kubelet::Config;
use corten_meta::Value;
use fake_api::FakeApi;
use fake_cri::FakeCri;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The limit of every single wait, also on a busy machine.
const BOUND: Duration = Duration::from_secs(300);

/// Directories, both fakes and a running kubelet; dropping it unmounts what the kubelet mounted.
struct Fixture {
    root: tempfile::TempDir,
    api: FakeApi,
    cri: FakeCri,
    config: Config,
    shutdown: CancellationToken,
    kubelet: JoinHandle<Result<(), corten_kubelet::Error>>,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.shutdown.cancel();
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mounts = table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
        for mount in mounts.filter(|mount| mount.starts_with(self.root.path())) {
            let _ = nix::mount::umount2(&mount, nix::mount::MntFlags::MNT_DETACH);
        }
    }
}

fn node_object() -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "spec": {"podCIDR": "10.244.0.0/24"}})
}

fn config(root: &Path) -> Config {
    Config {
        node_name: "n1".into(),
        node_ips: vec![[192, 0, 2, 1].into()],
        cri_socket: root.join("cri.sock").display().to_string(),
        root_dir: root.join("kubelet"),
        log_dir: root.join("log"),
        cgroup_mount: root.join("cgroup"),
        cluster_dns: vec!["10.96.0.10".into()],
        // The result must not depend on the disk of the machine that runs the test.
        eviction: corten_kubelet::EvictionConfig { hard: Default::default(), ..Default::default() },
        healthz: ([127, 0, 0, 1], 0).into(),
        ..Config::default()
    }
}

impl Fixture {
    async fn start() -> Fixture {
        Fixture::start_with(|_| {}).await
    }

    async fn start_with(change: impl FnOnce(&mut Config)) -> Fixture {
        let root = tempfile::tempdir().unwrap();
        let mut config = config(root.path());
        change(&mut config);
        let cri = FakeCri::listen(Path::new(&config.cri_socket), &["present", "exits:0", "exits:1"]);
        let api = FakeApi::new();
        let shutdown = CancellationToken::new();
        let kubelet = tokio::spawn(corten_kubelet::run(config.clone(), api.client(), shutdown.clone()));
        Fixture { root, api, cri, config, shutdown, kubelet }
    }

    async fn restart(&mut self) {
        self.stop().await;
        self.resume();
    }

    async fn stop(&mut self) {
        self.shutdown.cancel();
        (&mut self.kubelet).await.unwrap().unwrap();
    }

    fn resume(&mut self) {
        self.shutdown = CancellationToken::new();
        self.kubelet = tokio::spawn(corten_kubelet::run(self.config.clone(), self.api.client(), self.shutdown.clone()));
    }

    fn create_pod(&self, name: &str, spec: Value) {
        let mut spec = spec;
        spec["nodeName"] = json!("n1");
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "ns", "generation": 1}, "spec": spec, "status": {"phase": "Pending"}});
        self.api.put(&path(name), pod);
    }

    fn delete_pod(&self, name: &str, grace: i64) {
        self.api.change(&path(name), |pod| {
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            pod["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
        });
    }

    fn status(&self, name: &str) -> Value {
        self.api.get(&path(name)).map_or(Value::Null, |pod| pod["status"].clone())
    }

    /// Waits until the pod's status matches.
    async fn pod(&self, name: &str, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
        eventually(
            what,
            || Some(self.status(name)).filter(|status| fits(status)),
            || format!("{:#}", self.status(name)),
        )
        .await
    }

    async fn event(&self, text: &str) {
        let found = || self.api.events().into_iter().find(|event| event.contains(text));
        eventually(text, found, || self.api.events().join("\n")).await;
    }
}

fn path(name: &str) -> String {
    format!("/api/v1/namespaces/ns/pods/{name}")
}

fn condition<'a>(status: &'a Value, type_: &str) -> &'a str {
    let all = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    all.iter()
        .find(|condition| condition["type"] == type_)
        .and_then(|condition| condition["status"].as_str())
        .unwrap_or("")
}

async fn eventually<T>(what: &str, look: impl Fn() -> Option<T>, explain: impl Fn() -> String) -> T {
    let deadline = tokio::time::Instant::now() + BOUND;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(tokio::time::Instant::now() < deadline, "never: {what}\n{}", explain());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn one(image: &str) -> Value {
    json!({"containers": [{"name": "main", "image": image, "imagePullPolicy": "IfNotPresent"}]})
}

#[tokio::test]
async fn the_node_registers_and_becomes_ready() {
    let fixture = Fixture::start().await;
    let node = || fixture.api.get("/api/v1/nodes/n1");
    let explain = || format!("{:#}", node().unwrap_or_default());
    let registered = eventually("the node registers", node, explain).await;
    assert_eq!(registered["metadata"]["labels"]["kubernetes.io/hostname"], "n1");
    assert_eq!(condition(&registered["status"], "Ready"), "False", "there is no podCIDR yet");
    fixture.api.change("/api/v1/nodes/n1", |node| node["spec"]["podCIDR"] = json!("10.244.0.0/24"));
    let ready = || node().filter(|node| condition(&node["status"], "Ready") == "True");
    let ready = eventually("the node is ready", ready, explain).await;
    assert_eq!(ready["status"]["nodeInfo"]["containerRuntimeVersion"], "fake://1");
    assert_eq!(ready["status"]["addresses"][0]["address"], "192.0.2.1");
    let lease = || fixture.api.get("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1");
    let lease = eventually("the lease is held", lease, explain).await;
    assert_eq!(lease["spec"]["holderIdentity"], "n1");
}

#[tokio::test]
async fn a_pod_runs_is_reported_and_deleted() {
    let fixture = Fixture::start().await;
    fixture.create_pod("p", one("present"));
    let status = fixture.pod("p", "the pod is ready", |status| condition(status, "Ready") == "True").await;
    assert_eq!(
        (&status["phase"], &status["podIP"], &status["hostIP"]),
        (&json!("Running"), &json!("10.244.0.5"), &json!("192.0.2.1"))
    );
    assert_eq!(status["qosClass"], "BestEffort");
    let container = &status["containerStatuses"][0];
    assert_eq!((&container["ready"], &container["restartCount"]), (&json!(true), &json!(0)));
    assert!(container["containerID"].as_str().unwrap().starts_with("fake://main-"));
    for event in ["already present on machine", "Container created", "Container started"] {
        fixture.event(event).await;
    }
    let log = fixture.root.path().join("log/pods/ns_p_uid-p/main/0.log");
    assert!(log.is_file(), "the log is where upstream has it");

    fixture.delete_pod("p", 5);
    eventually(
        "the pod is gone",
        || fixture.api.get(&path("p")).is_none().then_some(()),
        || fixture.cri.calls().join("\n"),
    )
    .await;
    eventually(
        "the runtime is clean",
        || fixture.cri.with(|inner| inner.sandboxes.is_empty()).then_some(()),
        || fixture.cri.calls().join("\n"),
    )
    .await;
    assert!(fixture.cri.calls().iter().any(|call| call.starts_with("stop main-") && call.ends_with(" 5")));
    fixture.event("Stopping container main").await;
    let directory = fixture.config.root_dir.join("pods/uid-p");
    eventually("no files are left", || (!log.exists() && !directory.exists()).then_some(()), String::new).await;
}

#[tokio::test]
async fn a_finished_pod_succeeds_and_is_not_restarted() {
    let fixture = Fixture::start().await;
    let mut spec = one("exits:0");
    spec["restartPolicy"] = json!("Never");
    fixture.create_pod("job", spec);
    let status = fixture.pod("job", "it succeeds", |status| status["phase"] == "Succeeded").await;
    assert_eq!(status["containerStatuses"][0]["state"]["terminated"]["reason"], "Completed");
    eventually(
        "its sandbox stops",
        || fixture.cri.calls().iter().any(|call| call.starts_with("stop sandbox")).then_some(()),
        String::new,
    )
    .await;
    assert_eq!(fixture.cri.calls().iter().filter(|call| call.starts_with("create")).count(), 1);
}

#[tokio::test]
async fn a_crashing_container_restarts_once_and_then_backs_off() {
    let fixture = Fixture::start().await;
    fixture.create_pod("crash", one("exits:1"));
    let looping = |status: &Value| status["containerStatuses"][0]["state"]["waiting"]["reason"] == "CrashLoopBackOff";
    let status = fixture.pod("crash", "it loops", looping).await;
    let container = &status["containerStatuses"][0];
    assert_eq!((&container["restartCount"], &container["lastState"]["terminated"]["exitCode"]), (&json!(1), &json!(1)));
    assert!(
        container["state"]["waiting"]["message"]
            .as_str()
            .unwrap()
            .starts_with("back-off 10s restarting failed container=main")
    );
    fixture.event("Back-off restarting failed container main in pod crash_ns(uid-crash)").await;
}

#[tokio::test]
async fn an_image_that_cannot_be_pulled_is_reported() {
    let fixture = Fixture::start().await;
    fixture.create_pod("bad", one("missing:1"));
    let reason = |status: &Value| status["containerStatuses"][0]["state"]["waiting"]["reason"].clone();
    fixture
        .pod("bad", "the pull fails", |status| reason(status) == "ErrImagePull" || reason(status) == "ImagePullBackOff")
        .await;
    fixture.pod("bad", "it backs off", |status| reason(status) == "ImagePullBackOff").await;
    for event in [
        "Pulling image \"missing:1\"",
        "Failed to pull image \"missing:1\"",
        "Error: ErrImagePull",
        "Back-off pulling image \"missing:1\"",
    ] {
        fixture.event(event).await;
    }
    fixture.create_pod("good", one("pullable:1"));
    fixture.pod("good", "another is pulled", |status| status["phase"] == "Running").await;
    fixture.event("Successfully pulled image \"pullable:1\"").await;
}

#[tokio::test]
async fn init_containers_run_first() {
    let fixture = Fixture::start().await;
    let mut spec = one("present");
    spec["initContainers"] = json!([{"name": "init", "image": "present"}]);
    fixture.create_pod("p", spec);
    fixture.pod("p", "init runs", |status| status["initContainerStatuses"][0]["state"]["running"].is_object()).await;
    assert!(!fixture.cri.calls().iter().any(|call| call.starts_with("create main")));
    fixture.cri.exit("init", 0);
    fixture.pod("p", "main runs", |status| condition(status, "Ready") == "True").await;
}

#[tokio::test]
async fn probes_decide_about_readiness_and_restarts() {
    let fixture = Fixture::start().await;
    let probe = |command: &str| json!({"exec": {"command": [command]}, "periodSeconds": 1, "failureThreshold": 1});
    let mut spec = one("present");
    spec["containers"][0]["readinessProbe"] = probe("/bin/true");
    spec["containers"][0]["livenessProbe"] = probe("/bin/true");
    fixture.create_pod("good", spec.clone());
    fixture.pod("good", "it is ready", |status| condition(status, "Ready") == "True").await;
    spec["containers"][0]["readinessProbe"] = probe("/bin/false");
    spec["containers"][0]["livenessProbe"] = probe("/bin/false");
    fixture.create_pod("bad", spec);
    fixture
        .pod("bad", "it is restarted", |status| status["containerStatuses"][0]["restartCount"].as_u64() > Some(0))
        .await;
    fixture.event("Liveness probe failed").await;
    fixture.event("Container main failed liveness probe, will be restarted").await;
    assert_eq!(condition(&fixture.status("bad"), "Ready"), "False");
}

#[tokio::test]
async fn a_container_waits_for_a_missing_config_map() {
    let fixture = Fixture::start().await;
    let mut spec = one("present");
    spec["containers"][0]["env"] =
        json!([{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "late", "key": "k"}}}]);
    fixture.create_pod("p", spec);
    let reason = |status: &Value| status["containerStatuses"][0]["state"]["waiting"]["reason"].clone();
    fixture.pod("p", "it waits", |status| reason(status) == "CreateContainerConfigError").await;
    let late = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "late", "namespace": "ns"}, "data": {"k": "v"}});
    fixture.api.put("/api/v1/namespaces/ns/configmaps/late", late);
    fixture.pod("p", "it runs", |status| status["phase"] == "Running").await;
    let environment = fixture.cri.with(|inner| inner.containers.values().next().unwrap().1.envs.clone());
    assert!(environment.iter().any(|variable| variable.key == "A" && variable.value == b"v".as_slice()));
}

#[tokio::test]
async fn volumes_are_written_and_follow_their_source() {
    let fixture = Fixture::start().await;
    let data = |value: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "cfg", "namespace": "ns"}, "data": {"key": value}});
    fixture.api.put("/api/v1/namespaces/ns/configmaps/cfg", data("one"));
    let mut spec = one("present");
    spec["volumes"] = json!([{"name": "cfg", "configMap": {"name": "cfg"}}, {"name": "tmp", "emptyDir": {}}]);
    spec["containers"][0]["volumeMounts"] =
        json!([{"name": "cfg", "mountPath": "/cfg"}, {"name": "tmp", "mountPath": "/tmp"}]);
    fixture.create_pod("p", spec);
    fixture.pod("p", "it runs", |status| status["phase"] == "Running").await;
    let mounts = fixture.cri.with(|inner| inner.containers.values().next().unwrap().1.mounts.clone());
    let mount = mounts.iter().find(|mount| mount.container_path == "/cfg").unwrap();
    assert!(mount.readonly);
    assert!(mounts.iter().any(|mount| mount.container_path == "/etc/hosts"));
    let file = Path::new(&mount.host_path).join("key");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "one");
    fixture.api.put("/api/v1/namespaces/ns/configmaps/cfg", data("two"));
    let updated = || std::fs::read_to_string(&file).ok().filter(|text| text == "two");
    eventually("the volume follows", updated, String::new).await;
}

#[tokio::test]
async fn a_bound_claim_and_an_image_are_mounted() {
    let fixture = Fixture::start().await;
    let directory = fixture.root.path().join("disk");
    std::fs::create_dir(&directory).unwrap();
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "claim", "namespace": "ns", "uid": "claim-uid"},
        "spec": {"volumeName": "disk"}, "status": {"phase": "Bound"}});
    let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "disk"},
        "spec": {"local": {"path": directory}, "claimRef": {"name": "claim", "namespace": "ns", "uid": "claim-uid"}}});
    fixture.api.put("/api/v1/namespaces/ns/persistentvolumeclaims/claim", claim);
    fixture.api.put("/api/v1/persistentvolumes/disk", volume);
    let uid = |path: &str| fixture.api.get(path).unwrap()["metadata"]["uid"].clone();
    let uid = uid("/api/v1/namespaces/ns/persistentvolumeclaims/claim");
    fixture.api.change("/api/v1/persistentvolumes/disk", |volume| volume["spec"]["claimRef"]["uid"] = uid);
    let mut spec = one("present");
    spec["volumes"] = json!([
        {"name": "disk", "persistentVolumeClaim": {"claimName": "claim", "readOnly": true}},
        {"name": "files", "image": {"reference": "exits:0"}}]);
    spec["containers"][0]["volumeMounts"] =
        json!([{"name": "disk", "mountPath": "/disk"}, {"name": "files", "mountPath": "/files", "subPath": "sub"}]);
    fixture.create_pod("p", spec);
    fixture.pod("p", "it runs", |status| status["phase"] == "Running").await;
    let mounts = fixture.cri.with(|inner| inner.containers.values().next().unwrap().1.mounts.clone());
    let mount = |path: &str| mounts.iter().find(|mount| mount.container_path == path).unwrap();
    assert_eq!((mount("/disk").host_path.as_str(), mount("/disk").readonly), (directory.to_str().unwrap(), true));
    let files = mount("/files");
    assert_eq!((files.image_sub_path.as_str(), files.host_path.as_str()), ("sub", ""));
    assert!(files.image.as_ref().is_some_and(|image| image.image.contains("exits:0")), "{files:?}");
}

#[tokio::test]
async fn a_pod_that_does_not_fit_is_rejected_and_nothing_is_made() {
    let fixture = Fixture::start().await;
    let mut spec = one("present");
    spec["nodeSelector"] = json!({"disk": "tape"});
    fixture.create_pod("p", spec);
    let status = fixture.pod("p", "it fails", |status| status["phase"] == "Failed").await;
    assert_eq!(status["reason"], "NodeAffinity");
    assert_eq!(
        status["message"],
        "Pod was rejected: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"
    );
    assert_eq!(status["containerStatuses"], Value::Null, "a waiting container would hide the reason");
    fixture.event("NodeAffinity: Predicate NodeAffinity failed").await;
    assert!(fixture.cri.calls().is_empty(), "nothing was started");
}

#[tokio::test]
async fn a_resize_waits_for_room() {
    let fixture = Fixture::start().await;
    let asking = |cpu: &str| {
        let mut spec = one("present");
        spec["containers"][0]["resources"] = json!({"requests": {"cpu": cpu}});
        spec
    };
    fixture.create_pod("small", asking("1m"));
    fixture.create_pod("large", asking("2m"));
    for name in ["small", "large"] {
        fixture.pod(name, "it runs", |status| condition(status, "Ready") == "True").await;
    }
    let allocatable = fixture.api.get("/api/v1/nodes/n1").unwrap()["status"]["allocatable"]["cpu"].clone();
    let allocatable = allocatable.as_str().unwrap().parse::<corten_meta::Quantity>().unwrap();
    let all = format!("{}m", allocatable.as_milli() - 1);
    fixture.api.change(&path("small"), |pod| {
        pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!(all);
        pod["metadata"]["generation"] = json!(2);
    });
    let status = fixture.pod("small", "it waits", |status| condition(status, "PodResizePending") == "True").await;
    assert_eq!(status["containerStatuses"][0]["allocatedResources"]["cpu"], "1m");
    fixture.delete_pod("large", 0);
    let status = fixture
        .pod("small", "it is resized", |status| {
            condition(status, "PodResizePending").is_empty() && condition(status, "PodResizeInProgress").is_empty()
        })
        .await;
    assert_eq!(status["containerStatuses"][0]["allocatedResources"]["cpu"], json!(all));
    fixture.event("ResizeCompleted: Pod resize completed").await;
}

#[tokio::test]
async fn a_hook_that_hangs_does_not_delay_the_termination() {
    let fixture = Fixture::start().await;
    let mut spec = one("present");
    spec["containers"][0]["lifecycle"] = json!({"postStart": {"sleep": {"seconds": 600}}});
    fixture.create_pod("p", spec);
    let started = || fixture.cri.calls().iter().any(|call| call.starts_with("start main")).then_some(());
    eventually("the container starts", started, || fixture.cri.calls().join("\n")).await;
    fixture.delete_pod("p", 0);
    eventually("the pod goes", || fixture.api.get(&path("p")).is_none().then_some(()), String::new).await;
}

#[tokio::test]
async fn an_unsupported_volume_is_refused_by_an_event() {
    let fixture = Fixture::start().await;
    let mut spec = one("present");
    spec["volumes"] = json!([{"name": "data", "glusterfs": {"endpoints": "s", "path": "/"}}]);
    fixture.create_pod("p", spec);
    fixture.event("FailedMount: MountVolume.SetUp failed for volume \"data\"").await;
    assert!(fixture.cri.calls().is_empty(), "nothing was started");
}

#[tokio::test]
async fn a_restarted_kubelet_adopts_its_pods_and_removes_orphans() {
    let mut fixture = Fixture::start().await;
    fixture.create_pod("stays", one("present"));
    fixture.create_pod("goes", one("present"));
    for name in ["stays", "goes"] {
        fixture.pod(name, "it runs", |status| condition(status, "Ready") == "True").await;
    }
    let before = fixture.cri.calls().len();
    fixture.shutdown.cancel();
    (&mut fixture.kubelet).await.unwrap().unwrap();
    let calls_while_stopping = fixture.cri.calls().len();
    assert_eq!(before, calls_while_stopping, "containers outlive the kubelet");
    fixture
        .api
        .client()
        .delete::<corten_api::k8s_openapi::api::core::v1::Pod>("ns", "goes", &Default::default())
        .await
        .unwrap();
    fixture.kubelet = tokio::spawn(async { Ok(()) });
    fixture.restart().await;
    let one_sandbox = || fixture.cri.with(|inner| inner.sandboxes.len() == 1).then_some(());
    eventually("the orphan is removed", one_sandbox, || fixture.cri.calls().join("\n")).await;
    fixture.pod("stays", "it is still ready", |status| condition(status, "Ready") == "True").await;
    let creates = fixture.cri.calls().iter().filter(|call| call.starts_with("create")).count();
    assert_eq!(creates, 2, "nothing was started again");
}

#[tokio::test]
async fn changed_limits_reach_the_running_container() {
    let fixture = Fixture::start().await;
    let mut spec = one("present");
    spec["containers"][0]["resources"] = json!({"limits": {"memory": "64Mi"}});
    fixture.create_pod("p", spec);
    fixture.pod("p", "it runs", |status| condition(status, "Ready") == "True").await;
    fixture.api.change(&path("p"), |pod| {
        pod["spec"]["containers"][0]["resources"]["limits"]["memory"] = json!("128Mi");
    });
    let given = |status: &Value| status["containerStatuses"][0]["resources"]["limits"]["memory"] == "128Mi";
    let status = fixture.pod("p", "it is resized", given).await;
    assert_eq!(status["containerStatuses"][0]["restartCount"], 0);
    assert!(fixture.cri.calls().iter().any(|call| call.starts_with("resize") && call.ends_with("memory=134217728")));
}

#[tokio::test]
async fn changed_limits_of_the_pod_reach_a_container_without_limits() {
    let fixture = Fixture::start().await;
    let mut spec = one("present");
    spec["resources"] = json!({"requests": {"cpu": "10m"}, "limits": {"memory": "64Mi"}});
    fixture.create_pod("p", spec);
    let status = fixture.pod("p", "it runs", |status| condition(status, "Ready") == "True").await;
    assert_eq!(status["allocatedResources"], json!({"cpu": "10m"}));
    assert_eq!(status["resources"], json!({"requests": {"cpu": "10m"}, "limits": {"memory": "64Mi"}}));
    fixture.api.change(&path("p"), |pod| pod["spec"]["resources"]["limits"]["memory"] = json!("128Mi"));
    let given = |status: &Value| status["resources"]["limits"]["memory"] == "128Mi";
    let status = fixture.pod("p", "it is resized", given).await;
    assert_eq!(status["containerStatuses"][0]["resources"], json!({}), "the limit is the pod's");
    assert!(fixture.cri.calls().iter().any(|call| call.starts_with("resize") && call.ends_with("memory=134217728")));
    fixture.event("ResizeCompleted: Pod resize completed").await;
}

#[tokio::test]
async fn an_exit_restarts_all_containers() {
    let fixture = Fixture::start().await;
    let mut spec = one("present");
    spec["restartPolicy"] = json!("Never");
    let mut source = spec["containers"][0].clone();
    source["name"] = json!("source");
    source["restartPolicy"] = json!("Never");
    let codes = json!({"operator": "In", "values": [42]});
    source["restartPolicyRules"] = json!([{"action": "RestartAllContainers", "exitCodes": codes}]);
    spec["containers"].as_array_mut().unwrap().push(source);
    fixture.create_pod("p", spec);
    fixture.pod("p", "it runs", |status| condition(status, "Ready") == "True").await;
    fixture.cri.exit("source", 42);
    let created = || fixture.cri.calls().iter().filter(|call| call.starts_with("create")).count();
    eventually("all are made again", || (created() == 4).then_some(()), || fixture.cri.calls().join("\n")).await;
    let begun_anew = |status: &Value| condition(status, "Ready") == "True" && status["phase"] == "Running";
    let status = fixture.pod("p", "all run again", begun_anew).await;
    assert_eq!(condition(&status, "AllContainersRestarting"), "False");
    assert_eq!(fixture.cri.with(|inner| inner.containers.len()), 2, "what ran before is gone");
}

#[tokio::test]
async fn a_deadline_ends_the_pod() {
    let fixture = Fixture::start().await;
    fixture.create_pod("p", one("present"));
    fixture.pod("p", "it runs", |status| status["phase"] == "Running").await;
    // The deadline is set only now, so that the pod runs before it also on a slow machine.
    fixture.api.change(&path("p"), |pod| pod["spec"]["activeDeadlineSeconds"] = json!(1));
    let status = fixture.pod("p", "it fails", |status| status["phase"] == "Failed").await;
    assert_eq!(status["reason"], "DeadlineExceeded");
    eventually(
        "its container stops",
        || fixture.cri.calls().iter().any(|call| call.starts_with("stop main")).then_some(()),
        String::new,
    )
    .await;
}

#[tokio::test]
async fn a_ready_node_is_found_when_it_exists_already() {
    let root = tempfile::tempdir().unwrap();
    let config = config(root.path());
    let _cri = FakeCri::listen(Path::new(&config.cri_socket), &[]);
    let api = FakeApi::new();
    api.put("/api/v1/nodes/n1", node_object());
    let shutdown = CancellationToken::new();
    let kubelet = tokio::spawn(corten_kubelet::run(config, api.client(), shutdown.clone()));
    let ready = || api.get("/api/v1/nodes/n1").filter(|node| condition(&node["status"], "Ready") == "True");
    eventually("the node is ready", ready, || api.log().join("\n")).await;
    shutdown.cancel();
    kubelet.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_restarted_kubelet_waits_for_the_network_before_it_reports_the_node() {
    let mut fixture = Fixture::start_with(|config| config.require_pod_cidr = false).await;
    let count = |fixture: &Fixture, text: &str| fixture.api.events().iter().filter(|one| one.contains(text)).count();
    let reported = |fixture: &Fixture| (count(fixture, "NodeReady:") > 0).then_some(());
    eventually("the node is ready", || reported(&fixture), || fixture.api.log().join("\n")).await;
    fixture.stop().await;
    fixture.api.forget_events();
    fixture.cri.with(|inner| inner.not_ready = 4);
    fixture.resume();
    eventually("the node is reported", || reported(&fixture), || fixture.api.log().join("\n")).await;
    assert_eq!(fixture.cri.with(|inner| inner.not_ready), 0, "the network came later than the kubelet");
    assert_eq!(count(&fixture, "NodeNotReady:"), 0, "{:?}", fixture.api.events());
}

/// Fails the pod's status as the control plane does for a lost node, and waits until the kubelet corrects it.
#[tokio::test]
async fn a_status_that_another_client_overwrote_is_written_again() {
    let fixture = Fixture::start().await;
    fixture.create_pod("p", one("present"));
    fixture.pod("p", "the pod is ready", |status| condition(status, "Ready") == "True").await;
    fixture.api.change(&path("p"), |pod| {
        pod["status"]["conditions"].as_array_mut().unwrap().push(json!({"type": "Foreign", "status": "True"}));
    });
    for _ in 0..2 {
        fixture.api.change(&path("p"), |pod| {
            for condition in pod["status"]["conditions"].as_array_mut().unwrap() {
                if condition["type"] == "Ready" {
                    condition["status"] = json!("False");
                }
            }
        });
        let status = fixture.pod("p", "the pod is ready again", |status| condition(status, "Ready") == "True").await;
        assert_eq!(condition(&status, "Foreign"), "True", "what is not the kubelet's stays");
    }
}

#[tokio::test]
async fn a_flood_of_logs_is_rotated_and_bounded() {
    use std::io::Write;
    let fixture = Fixture::start_with(|config| {
        (config.log_max_bytes, config.log_max_files) = (1000, 3);
        config.log_monitor_interval = Duration::from_secs(1);
    })
    .await;
    fixture.create_pod("p", one("present"));
    fixture.pod("p", "the pod is ready", |status| condition(status, "Ready") == "True").await;
    let directory = fixture.root.path().join("log/pods/ns_p_uid-p/main");
    let mut seen = std::collections::BTreeSet::new();
    for flood in 0..4 {
        let current = std::fs::OpenOptions::new().create(true).append(true).open(directory.join("0.log"));
        current.unwrap().write_all(&[b'x'; 5000]).unwrap();
        let files = || -> Vec<String> {
            let entries = std::fs::read_dir(&directory).into_iter().flatten().flatten();
            entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| name != "0.log").collect()
        };
        let fresh = || files().into_iter().find(|name| !seen.contains(name));
        let fresh = eventually("the log is rotated", fresh, || format!("{flood}: {:?}", files())).await;
        seen.insert(fresh);
        eventually("the oldest is gone", || (files().len() <= 2).then_some(()), || format!("{:?}", files())).await;
    }
}
