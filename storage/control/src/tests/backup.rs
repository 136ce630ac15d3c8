//! Volume backups of a node: a directory as the repository, files as volumes. The control plane's part is played by the
//! test, which names the node.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::{CLAIMS, Stage, VOLUMES, until};
use crate::{Filling, Image, Options, VolumeData};

const REPOSITORIES: &str = "/apis/storage.corten.dev/v1alpha1/volumebackuprepositories";
const BACKUPS: &str = "/apis/storage.corten.dev/v1alpha1/namespaces/default/volumebackups";
const SECRETS: &str = "/api/v1/namespaces/corten-backup/secrets";

/// Volumes as files, by their handles.
#[derive(Default)]
struct Files(Mutex<HashMap<String, File>>);

impl VolumeData for Files {
    fn open(&self, volume: &str) -> Result<Image, String> {
        let volumes = self.0.lock().unwrap();
        let file = volumes.get(volume).ok_or("the volume is in use")?.try_clone().unwrap();
        let bytes = file.metadata().unwrap().len();
        Ok(Image { file, bytes, block: false, file_system: Some("ext4".to_owned()), guard: Box::new(()) })
    }

    fn fill(&self, _: &str) -> Result<Option<Filling>, String> {
        Ok(None)
    }
}

fn volume() -> File {
    let file = tempfile::tempfile().unwrap();
    file.set_len(3 << 20).unwrap();
    file.write_all_at(b"content", 1 << 20).unwrap();
    file
}

async fn start(data: Arc<Files>) -> Stage {
    let options = Options { node: Some("n1".to_owned()), data: Some(data), ..Options::default() };
    let stage = Stage::with(options).await;
    stage.server.until(REPOSITORIES, 200).await;
    stage.server.until(BACKUPS, 200).await;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "corten-backup"}});
    stage.server.post("/api/v1/namespaces", namespace).await.expect(201);
    let volume = testkit_fixture::object(
        "pv v csi.driver=csi.example.com csi.volumeHandle=h capacity.storage=3Mi accessModes=ReadWriteOnce \
         claimRef.namespace=default claimRef.name=data",
    );
    let claim = testkit_fixture::object("pvc data size=3Mi volume=v accessModes=ReadWriteOnce");
    for (path, mut object) in [(VOLUMES, volume), (CLAIMS, claim)] {
        object["metadata"].as_object_mut().unwrap().remove("uid");
        stage.server.post(path, object).await.expect(201);
    }
    stage
}

fn secret(name: &str, passphrase: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "corten-backup"},
        "stringData": {"passphrase": passphrase},
    })
}

fn repository(name: &str, secret: &str, directory: &Path) -> Value {
    json!({
        "apiVersion": "storage.corten.dev/v1alpha1", "kind": "VolumeBackupRepository", "metadata": {"name": name},
        "spec": {"secretName": secret, "directory": {"path": directory}},
    })
}

fn backup(name: &str, source: Value) -> Value {
    json!({
        "apiVersion": "storage.corten.dev/v1alpha1", "kind": "VolumeBackup",
        "metadata": {"name": name, "finalizers": [corten_snapshots::BACKUP_FINALIZER]},
        "spec": {"repositoryName": "main", "source": source},
    })
}

/// Creates an object, and gives it to the node.
async fn give(stage: &Stage, collection: &str, object: Value) -> String {
    let name = object["metadata"]["name"].as_str().unwrap().to_owned();
    stage.server.post(collection, object).await.expect(201);
    let path = format!("{collection}/{name}");
    let status = json!({"status": {"nodeName": "n1"}});
    stage.server.patch(&format!("{path}/status"), "merge", status).await.expect(200);
    path
}

/// Waits until the condition Ready of an object has a reason, and returns the object.
async fn reason(stage: &Stage, path: &str, wanted: &str) -> Value {
    let found = async || stage.server.get(path).await.expect(200);
    until(&format!("{path} is {wanted}"), async || {
        let object = found().await;
        let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|one| one["type"] == "Ready" && one["reason"] == wanted)
    })
    .await;
    found().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_is_backed_up_imported_and_deleted_from_the_repository() {
    let data = Arc::new(Files::default());
    let stage = start(data.clone()).await;
    let directory = tempfile::tempdir().unwrap();
    let main = give(&stage, REPOSITORIES, repository("main", "main", directory.path())).await;
    reason(&stage, &main, "SecretNotFound").await;
    stage.server.post(SECRETS, secret("main", "correct horse")).await.expect(201);
    reason(&stage, &main, "Opened").await;
    // The wrong key opens nothing.
    stage.server.post(SECRETS, secret("other", "wrong horse")).await.expect(201);
    let other = give(&stage, REPOSITORIES, repository("other", "other", directory.path())).await;
    reason(&stage, &other, "WrongKey").await;

    let source = json!({"persistentVolumeClaimName": "data"});
    let one = give(&stage, BACKUPS, backup("one", source.clone())).await;
    let failed = reason(&stage, &one, "VolumeUnavailable").await;
    assert_eq!(failed["status"]["conditions"][0]["message"], "the volume is in use");
    data.0.lock().unwrap().insert("h".to_owned(), volume());
    let done = reason(&stage, &one, "Completed").await;
    let uid = done["metadata"]["uid"].as_str().unwrap().to_owned();
    assert_eq!(done["status"]["backupID"], uid.as_str());
    assert_eq!(done["status"]["volumeBytes"], 3 << 20);
    assert_eq!(done["status"]["dataBytes"], 1 << 20);
    let manifest = directory.path().join("backups").join(&uid);
    assert!(manifest.exists());
    let two = give(&stage, BACKUPS, backup("two", source)).await;
    let second = reason(&stage, &two, "Completed").await;
    assert!(second["status"]["sentBytes"].as_u64() < done["status"]["sentBytes"].as_u64(), "{second}");

    let copy = give(&stage, BACKUPS, backup("copy", json!({"backupID": uid}))).await;
    let copied = reason(&stage, &copy, "Completed").await;
    assert_eq!(copied["status"]["volumeMode"], "Filesystem");
    let none = give(&stage, BACKUPS, backup("none", json!({"backupID": "none"}))).await;
    reason(&stage, &none, "BackupNotFound").await;

    // Of the objects only the one that made the backup deletes it.
    let gone = give(&stage, BACKUPS, backup("gone", json!({"persistentVolumeClaimName": "gone"}))).await;
    reason(&stage, &gone, "ClaimNotFound").await;
    stage.server.delete(&gone, None).await.expect(200);
    stage.server.until(&gone, 404).await;
    assert!(manifest.exists());
    stage.server.delete(&one, None).await.expect(200);
    stage.server.until(&one, 404).await;
    assert!(!manifest.exists());
    stage.stop().await;
}
