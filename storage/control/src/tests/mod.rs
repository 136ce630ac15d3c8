//! The loops against an API server in this process and a driver on a socket, which can be told to fail or to hang.

mod backup;
mod driver;
mod sources;

use std::sync::Arc;
use std::time::Duration;

use corten_client::Client;
use corten_meta::Value;
use serde_json::json;
use testkit::eventually::eventually;
use testkit::server::TestServer;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::Options;
use driver::{Fault, TestDriver};

const VOLUMES: &str = "/api/v1/persistentvolumes";
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const CONTENTS: &str = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents";

/// A server, a driver and the loops between them.
struct Stage {
    server: TestServer,
    driver: Arc<TestDriver>,
    shutdown: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
    _directory: tempfile::TempDir,
}

impl Stage {
    async fn start(timeout: Duration) -> Stage {
        Stage::with(Options { timeout, node: None, ..Options::default() }).await
    }

    async fn with(options: Options) -> Stage {
        let server = TestServer::start().await;
        let admin = server.admin();
        for definition in corten_snapshots::definitions().into_iter().chain(corten_snapshots::backup_definitions()) {
            server.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition).await.expect(201);
        }
        server.until(CONTENTS, 200).await;
        for object in testkit_fixture::objects(
            "sc fast provisioner=csi.example.com reclaimPolicy=Delete\n\
             vsclass daily driver=csi.example.com deletionPolicy=Delete",
        ) {
            create(&admin, object).await;
        }
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("csi.sock");
        let driver = Arc::new(TestDriver::default());
        let shutdown = CancellationToken::new();
        let served = driver::serve(driver.clone(), socket.clone(), shutdown.clone());
        let token = shutdown.clone();
        let running = tokio::spawn(async move {
            crate::run(&socket, admin, options, token).await.expect("the socket has a path");
        });
        Stage { server, driver, shutdown, tasks: vec![served, running], _directory: directory }
    }

    async fn stop(self) {
        self.shutdown.cancel();
        for task in self.tasks {
            task.await.unwrap();
        }
        self.server.stop().await;
    }

    /// Creates a claim as the binder leaves it: with the name of its provisioner.
    async fn claim(&self, name: &str) -> Value {
        let line = format!(
            "pvc {name} size=1Gi class=fast accessModes=ReadWriteOnce \
             annotation.volume.kubernetes.io/storage-provisioner=csi.example.com"
        );
        let mut claim = testkit_fixture::object(&line);
        claim["metadata"].as_object_mut().unwrap().remove("uid");
        self.server.post(CLAIMS, claim).await.expect(201)
    }

    async fn volumes(&self) -> Vec<Value> {
        self.server.get(VOLUMES).await.expect(200)["items"].as_array().cloned().unwrap_or_default()
    }

    async fn events(&self, reason: &str) -> Vec<String> {
        let events = self.server.get("/api/v1/events").await.expect(200);
        let items = events["items"].as_array().cloned().unwrap_or_default();
        let ours = items.iter().filter(|event| event["reason"] == reason);
        ours.map(|event| event["message"].as_str().unwrap_or_default().to_owned()).collect()
    }
}

/// Waits until a condition holds.
async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    eventually(what, async || if holds().await { Ok(()) } else { Err("it does not hold".to_owned()) }).await;
}

/// Creates an object, as soon as its kind is served.
async fn create(client: &Client, mut object: Value) {
    object["metadata"].as_object_mut().unwrap().remove("uid");
    let kind = object["kind"].as_str().unwrap().to_lowercase();
    let (group, version) = object["apiVersion"].as_str().unwrap().split_once('/').unwrap();
    let plural = format!("{}es", kind);
    let resource = corten_client::Resource::new(group, version, &plural, false);
    let posting = async || client.dynamic(&resource).post("", &object).await;
    eventually("the kind is served", async || match posting().await {
        Err(error) if error.is_not_found() => Err(error.to_string()),
        created => created.map_err(|error| panic!("{error}")),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_gets_a_volume_and_a_released_volume_is_deleted() {
    let stage = Stage::start(Duration::from_secs(20)).await;
    let claim = stage.claim("data").await;
    let name = format!("pvc-{}", claim["metadata"]["uid"].as_str().unwrap());
    let volume = stage.server.until(&format!("{VOLUMES}/{name}"), 200).await;
    assert_eq!(volume["spec"]["csi"]["driver"], "csi.example.com");
    assert_eq!(volume["spec"]["csi"]["volumeHandle"], format!("handle-{name}"));
    assert_eq!(volume["spec"]["capacity"]["storage"], "1Gi");
    assert_eq!(volume["spec"]["claimRef"]["name"], "data");
    until("the success is reported", async || !stage.events("ProvisioningSucceeded").await.is_empty()).await;
    // The binder's part: the claim is gone.
    stage.server.delete(&format!("{CLAIMS}/data"), None).await.expect(200);
    let released = json!({"status": {"phase": "Released"}});
    stage.server.patch(&format!("{VOLUMES}/{name}/status"), "merge", released).await.expect(200);
    // The protection of volumes is removed by a controller that does not run here.
    until("the volume is let go", async || {
        let volumes = stage.volumes().await;
        volumes.iter().all(|volume| {
            let finalizers = volume["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
            !volume["metadata"]["deletionTimestamp"].is_null()
                && !finalizers.contains(&json!(crate::reclaim::FINALIZER))
        })
    })
    .await;
    assert!(stage.driver.volumes().is_empty());
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_fails_is_reported_and_asked_again() {
    let stage = Stage::start(Duration::from_secs(20)).await;
    stage.driver.fail(Fault::Error("out of disks"));
    stage.claim("data").await;
    until("the error is reported", async || {
        let events = stage.events("ProvisioningFailed").await;
        events.iter().any(|message| message.contains("code = Internal desc = out of disks"))
    })
    .await;
    stage.driver.fail(Fault::None);
    until("the claim is provisioned", async || stage.volumes().await.len() == 1).await;
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_of_a_claim_that_went_while_the_driver_hung_is_not_left_behind() {
    let stage = Stage::start(Duration::from_millis(500)).await;
    // The volume is made, but the answer is lost.
    stage.driver.fail(Fault::Hang);
    stage.claim("data").await;
    until("the deadline is reported", async || {
        let events = stage.events("ProvisioningFailed").await;
        events.iter().any(|message| message.contains("code = DeadlineExceeded"))
    })
    .await;
    assert_eq!(stage.driver.volumes().len(), 1);
    stage.server.delete(&format!("{CLAIMS}/data"), None).await.expect(200);
    stage.driver.fail(Fault::None);
    until("the volume is deleted", async || stage.driver.volumes().is_empty()).await;
    assert!(stage.volumes().await.is_empty());
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_content_gets_a_snapshot_and_loses_it_again() {
    let stage = Stage::start(Duration::from_secs(20)).await;
    let content = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshotContent",
        "metadata": {
            "name": "c",
            "finalizers": [corten_snapshots::names::CONTENT_FINALIZER],
        },
        "spec": {
            "driver": "csi.example.com", "deletionPolicy": "Delete", "volumeSnapshotClassName": "daily",
            "source": {"volumeHandle": "v"},
            "volumeSnapshotRef": {"namespace": "default", "name": "s", "uid": "u"},
        },
    });
    stage.driver.fail(Fault::Error("busy"));
    stage.server.post(CONTENTS, content).await.expect(201);
    let path = format!("{CONTENTS}/c");
    until("the error is in the status", async || {
        let content = stage.server.get(&path).await.expect(200);
        content["status"]["error"]["message"].as_str().is_some_and(|message| message.contains("busy"))
    })
    .await;
    stage.driver.fail(Fault::None);
    until("the snapshot is ready", async || stage.server.get(&path).await.expect(200)["status"]["readyToUse"] == true)
        .await;
    let taken = stage.server.get(&path).await.expect(200);
    assert_eq!(taken["status"]["snapshotHandle"], "handle-snapshot-u");
    assert!(taken["status"]["error"].is_null());
    let annotated = json!({"metadata": {"annotations": {corten_snapshots::names::BEING_DELETED: "yes"}}});
    stage.server.patch(&path, "merge", annotated).await.expect(200);
    stage.server.delete(&path, None).await.expect(200);
    stage.server.until(&path, 404).await;
    assert!(stage.driver.snapshots().is_empty());
    stage.stop().await;
}
