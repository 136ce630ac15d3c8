//! Sources of volumes on several nodes: clones, snapshots that exist, and classes of another driver.

use std::time::Duration;

use corten_meta::Value;
use corten_snapshots::names::MANAGED_BY;
use serde_json::json;

use super::{CLAIMS, CONTENTS, Stage, VOLUMES, until};
use crate::Options;

const NODES: &str = "/api/v1/nodes";
const GROUP_CONTENTS: &str = "/apis/groupsnapshot.storage.k8s.io/v1/volumegroupsnapshotcontents";
const ZONE: &str = "example.com/node";

async fn start_on(node: &str) -> Stage {
    let stage = Stage::with(Options { node: Some(node.to_owned()), ..Options::default() }).await;
    for name in ["n1", "n2"] {
        let metadata = json!({"name": name, "labels": {ZONE: name}});
        stage.server.post(NODES, json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata})).await.expect(201);
    }
    stage
}

/// Creates a volume and the claim that is bound to it.
async fn bound_claim(stage: &Stage, node: &str) {
    let term = json!({"matchExpressions": [{"key": ZONE, "operator": "In", "values": [node]}]});
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "v"},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "csi": {"driver": "csi.example.com", "volumeHandle": "h"},
            "claimRef": {"namespace": "default", "name": "data"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
        },
    });
    stage.server.post(VOLUMES, volume).await.expect(201);
    let mut claim = testkit_fixture::object("pvc data size=1Gi volume=v accessModes=ReadWriteOnce class=fast");
    claim["metadata"].as_object_mut().unwrap().remove("uid");
    stage.server.post(CLAIMS, claim).await.expect(201);
    let bound = json!({"status": {"phase": "Bound"}});
    stage.server.patch(&format!("{CLAIMS}/data/status"), "merge", bound).await.expect(200);
}

async fn claim(stage: &Stage, name: &str) -> Value {
    stage.server.get(&format!("{CLAIMS}/{name}")).await.expect(200)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clone_is_made_on_the_node_of_its_source() {
    let stage = start_on("n1").await;
    bound_claim(&stage, "n2").await;
    let mut copy = testkit_fixture::object(
        "pvc copy size=1Gi class=fast accessModes=ReadWriteOnce \
         annotation.volume.kubernetes.io/storage-provisioner=csi.example.com \
         annotation.volume.kubernetes.io/selected-node=n1",
    );
    copy["metadata"].as_object_mut().unwrap().remove("uid");
    copy["spec"]["dataSource"] = json!({"kind": "PersistentVolumeClaim", "name": "data"});
    stage.server.post(CLAIMS, copy).await.expect(201);
    until("the node of the source is selected", async || {
        claim(&stage, "copy").await["metadata"]["annotations"][crate::provision::SELECTED_NODE] == "n2"
    })
    .await;
    assert!(stage.driver.volumes().is_empty());
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_claim_that_was_cloned_is_let_go() {
    let stage = Stage::start(Duration::from_secs(20)).await;
    let mut source = testkit_fixture::object("pvc data size=1Gi volume=v accessModes=ReadWriteOnce");
    source["metadata"].as_object_mut().unwrap().remove("uid");
    source["metadata"]["finalizers"] = json!([crate::provision::CLONE_FINALIZER]);
    stage.server.post(CLAIMS, source).await.expect(201);
    stage.server.delete(&format!("{CLAIMS}/data"), None).await.expect(200);
    until("the claim has no protection", async || {
        let found = stage.server.get(&format!("{CLAIMS}/data")).await;
        let finalizers = found.body["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
        !finalizers.contains(&json!(crate::provision::CLONE_FINALIZER))
    })
    .await;
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_class_of_another_driver_is_infeasible() {
    let stage = start_on("n1").await;
    bound_claim(&stage, "n1").await;
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass", "metadata": {"name": "other"},
        "driverName": "other.example.com", "parameters": {"speed": "1"},
    });
    stage.server.post("/apis/storage.k8s.io/v1/volumeattributesclasses", class).await.expect(201);
    let patch = json!({"spec": {"volumeAttributesClassName": "other"}});
    stage.server.patch(&format!("{CLAIMS}/data"), "merge", patch).await.expect(200);
    until("the modification is infeasible", async || {
        let claim = claim(&stage, "data").await;
        let conditions = claim["status"]["conditions"].as_array().cloned().unwrap_or_default();
        claim["status"]["modifyVolumeStatus"]["status"] == "Infeasible"
            && conditions.iter().any(|one| one["type"] == "ModifyVolumeError")
    })
    .await;
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_content_of_an_existing_snapshot_is_adopted_by_its_node() {
    let stage = start_on("n1").await;
    stage.driver.add_snapshot("here");
    let content = |name: &str| {
        json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent", "metadata": {"name": name},
            "spec": {
                "driver": "csi.example.com", "deletionPolicy": "Delete", "source": {"snapshotHandle": name},
                "volumeSnapshotRef": {"namespace": "default", "name": "s"},
            },
        })
    };
    for name in ["elsewhere", "here"] {
        stage.server.post(CONTENTS, content(name)).await.expect(201);
    }
    until("the content is ready", async || {
        let content = stage.server.get(&format!("{CONTENTS}/here")).await.expect(200);
        content["metadata"]["labels"][MANAGED_BY] == "n1" && content["status"]["readyToUse"] == true
    })
    .await;
    let other = stage.server.get(&format!("{CONTENTS}/elsewhere")).await.expect(200);
    assert!(other["metadata"]["labels"].is_null(), "{other}");
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_content_of_an_existing_group_is_adopted_by_its_node() {
    let stage = start_on("n1").await;
    stage.server.until(GROUP_CONTENTS, 200).await;
    stage.driver.add_snapshot("group");
    let content = json!({
        "apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshotContent",
        "metadata": {"name": "c"},
        "spec": {
            "driver": "csi.example.com", "deletionPolicy": "Delete",
            "source": {
                "groupSnapshotHandles": {"volumeGroupSnapshotHandle": "group", "volumeSnapshotHandles": ["member"]},
            },
            "volumeGroupSnapshotRef": {"namespace": "default", "name": "g"},
        },
    });
    stage.server.post(GROUP_CONTENTS, content).await.expect(201);
    until("the content is ready", async || {
        let content = stage.server.get(&format!("{GROUP_CONTENTS}/c")).await.expect(200);
        content["metadata"]["labels"][MANAGED_BY] == "n1" && content["status"]["readyToUse"] == true
    })
    .await;
    stage.stop().await;
}
