//! Volume snapshots that are not ready to use.

use corten_client::Resource;
use corten_meta::Value;

use crate::objects::{self, text};
use crate::{Finding, Sources};

const GROUP: &str = "snapshot.storage.k8s.io";
const CLAIM: &str = "/spec/source/persistentVolumeClaimName";

fn contents() -> Resource {
    Resource::new(GROUP, "v1", "volumesnapshotcontents", false)
}

/// Returns the resource of snapshots.
pub fn snapshots() -> Resource {
    Resource::new(GROUP, "v1", "volumesnapshots", true)
}

pub fn is_ready(snapshot: &Value) -> bool {
    snapshot.pointer("/status/readyToUse") == Some(&Value::Bool(true))
}

pub async fn explain(sources: Sources<'_>, snapshot: &Value) -> Vec<Finding> {
    match is_ready(snapshot) {
        true => Vec::new(),
        false => vec![unready(sources, snapshot).await],
    }
}

/// Explains a snapshot that is not ready: by its claim, the driver's error, or the driver that does not answer.
pub async fn unready(sources: Sources<'_>, snapshot: &Value) -> Finding {
    let namespace = corten_meta::namespace(snapshot);
    let claim = text(snapshot, CLAIM);
    if !claim.is_empty() {
        match sources.objects.get(&objects::claims(), namespace, claim).await {
            Ok(None) => {
                return Finding::new(format!("The claim {claim}, of which it is to be taken, does not exist."))
                    .help(format!("kubectl get pvc -n {namespace}"));
            }
            Ok(Some(found)) if text(&found, "/status/phase") != "Bound" => {
                return Finding::new(format!("The claim {claim}, of which it is to be taken, has no volume yet."))
                    .help(format!("corten why pvc/{claim} -n {namespace}"));
            }
            _ => {}
        }
    }
    let name = text(snapshot, "/status/boundVolumeSnapshotContentName");
    let content = match name.is_empty() {
        true => None,
        false => sources.objects.get(&contents(), "", name).await.ok().flatten(),
    };
    let Some(content) = content else {
        let class = text(snapshot, "/spec/volumeSnapshotClassName");
        let error = text(snapshot, "/status/error/message");
        let cause = match error.is_empty() {
            true => "The snapshot controller has not seen it yet.",
            false => "The snapshot controller cannot hand it to a driver.",
        };
        let shown = if class.is_empty() { "it names no class".to_owned() } else { format!("class {class}") };
        return Finding::new(cause).because(error).because(shown).help("kubectl get volumesnapshotclass");
    };
    let driver = text(&content, "/spec/driver");
    let error = text(&content, "/status/error/message");
    if !error.is_empty() {
        return Finding::new(format!("The driver {driver} cannot take it."))
            .because(error)
            .because(format!("content {name}"))
            .help(format!("kubectl describe volumesnapshotcontent {name}"));
    }
    let handle = text(&content, "/status/snapshotHandle");
    if !handle.is_empty() {
        return Finding::new(format!("The driver {driver} has taken it, and is not done with it."))
            .because(format!("content {name}, handle {handle}"));
    }
    Finding::new(format!("It waits for the driver {driver}: nothing has answered for its content yet."))
        .because(format!("content {name} has no status"))
        .help("kubectl get pods -A | grep -i csi")
        .help(format!("kubectl describe volumesnapshotcontent {name}"))
}
