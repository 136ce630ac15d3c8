//! Reports this node's CSI drivers to the API: the CSINode object, the node's annotation of ids, and the labels of the
//! driver's topology.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use corten_api::k8s_openapi::api::core::v1::Node;
use corten_api::k8s_openapi::api::storage::v1::{CSINode, CSINodeDriver, CSINodeSpec, VolumeNodeResources};
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use corten_client::{DeleteOptions, Patch};
use corten_plugins::csi::NodeGetInfoResponse;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::Csi;
use crate::error::{Error, Result};

const NODE_IDS: &str = "csi.volume.kubernetes.io/nodeid";
const MIGRATED: &str = "storage.alpha.kubernetes.io/migrated-plugins";
/// The former in-tree volume types that are CSI drivers now.
const MIGRATED_PLUGINS: [&str; 7] = [
    "kubernetes.io/aws-ebs",
    "kubernetes.io/azure-disk",
    "kubernetes.io/azure-file",
    "kubernetes.io/cinder",
    "kubernetes.io/gce-pd",
    "kubernetes.io/portworx-volume",
    "kubernetes.io/vsphere-volume",
];
/// The number of attempts of a write that conflicts.
const ATTEMPTS: usize = 5;
const RETRY: Duration = Duration::from_secs(1);

/// Creates the node's CSINode object at start: the scheduler assumes no limits for a node without one.
pub async fn keep_csi_node(csi: Arc<Csi>, stop: CancellationToken) {
    while let Err(error) = change(&csi, |_| {}).await {
        warn!(%error, "CSINode not written");
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(RETRY) => {}
        }
    }
}

/// Adds a driver.
pub async fn install(csi: &Csi, name: &str, info: &NodeGetInfoResponse) -> Result<()> {
    if info.node_id.is_empty() {
        return Err(Error::pod("error adding CSI driver node info: driverNodeID must not be empty"));
    }
    let topology: BTreeMap<String, String> =
        info.accessible_topology.iter().flat_map(|topology| topology.segments.clone()).collect();
    label_node(csi, &topology).await?;
    annotate_node(csi, name, Some(&info.node_id)).await?;
    let driver = CSINodeDriver {
        name: name.to_owned(),
        node_id: info.node_id.clone(),
        topology_keys: Some(topology.into_keys().collect()),
        allocatable: limit(info.max_volumes_per_node),
    };
    change(csi, |drivers| {
        drivers.retain(|known| known.name != name);
        drivers.push(driver.clone());
    })
    .await
}

/// Updates the number of volumes that a driver can attach.
pub async fn set_limit(csi: &Csi, name: &str, most: i64) -> Result<()> {
    change(csi, |drivers| {
        for driver in drivers.iter_mut().filter(|driver| driver.name == name) {
            driver.allocatable = limit(most);
        }
    })
    .await
}

/// Removes a driver.
pub async fn uninstall(csi: &Csi, name: &str) -> Result<()> {
    change(csi, |drivers| drivers.retain(|known| known.name != name)).await?;
    annotate_node(csi, name, None).await
}

/// Returns the number of volumes that the driver can attach to the node; zero is no limit.
fn limit(most: i64) -> Option<VolumeNodeResources> {
    let count = (most > 0).then(|| i32::try_from(most).unwrap_or(i32::MAX));
    count.map(|count| VolumeNodeResources { count: Some(count) })
}

/// Changes the drivers of the node's CSINode, and creates it if it does not exist.
async fn change(csi: &Csi, change: impl Fn(&mut Vec<CSINodeDriver>)) -> Result<()> {
    let node = csi.client.get::<Node>("", &csi.node_name).await?;
    let owner = node.metadata.uid.clone().unwrap_or_default();
    for _ in 0..ATTEMPTS {
        let found = csi.client.find::<CSINode>("", &csi.node_name).await?;
        let written = match found {
            None => {
                let mut new = csi_node(&csi.node_name, &owner);
                change(&mut new.spec.drivers);
                csi.client.create(&new).await.map(drop)
            }
            Some(old) if !is_owned(&old, &owner) => {
                // The object belongs to an earlier node of this name.
                csi.client.delete::<CSINode>("", &csi.node_name, &DeleteOptions::default()).await?;
                continue;
            }
            Some(old) => {
                let mut new = old.clone();
                change(&mut new.spec.drivers);
                let annotations = new.metadata.annotations.get_or_insert_default();
                annotations.insert(MIGRATED.to_owned(), MIGRATED_PLUGINS.join(","));
                if new == old {
                    return Ok(());
                }
                csi.client.update(&new).await.map(drop)
            }
        };
        match written {
            Err(error) if error.is_conflict() || error.is_already_exists() => {}
            other => return Ok(other?),
        }
    }
    Err(Error::pod("error updating CSINode: others write it at the same time"))
}

fn is_owned(csi_node: &CSINode, uid: &str) -> bool {
    csi_node.metadata.owner_references.iter().flatten().any(|owner| owner.kind == "Node" && owner.uid == uid)
}

fn csi_node(name: &str, uid: &str) -> CSINode {
    let owner = OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: name.to_owned(),
        uid: uid.to_owned(),
        ..OwnerReference::default()
    };
    CSINode {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            owner_references: Some(vec![owner]),
            annotations: Some([(MIGRATED.to_owned(), MIGRATED_PLUGINS.join(","))].into()),
            ..ObjectMeta::default()
        },
        spec: CSINodeSpec { drivers: Vec::new() },
    }
}

/// Sets the labels of the driver's topology; a label with another value is not changed.
async fn label_node(csi: &Csi, topology: &BTreeMap<String, String>) -> Result<()> {
    if topology.is_empty() {
        return Ok(());
    }
    let node = csi.client.get::<Node>("", &csi.node_name).await?;
    let labels = node.metadata.labels.unwrap_or_default();
    for (key, value) in topology {
        if let Some(other) = labels.get(key).filter(|other| *other != value) {
            return Err(Error::pod(format!(
                "detected topology value collision: driver reported {key:?}:{value:?} but existing label is {key:?}:{other:?}"
            )));
        }
    }
    if topology.iter().all(|(key, value)| labels.get(key) == Some(value)) {
        return Ok(());
    }
    let patch = Patch::Strategic(json!({"metadata": {"labels": topology}}));
    csi.client.patch::<Node>("", &csi.node_name, &patch, None).await?;
    Ok(())
}

/// Sets the id by which the driver knows the node.
async fn annotate_node(csi: &Csi, driver: &str, id: Option<&str>) -> Result<()> {
    let node = csi.client.get::<Node>("", &csi.node_name).await?;
    let before = node.metadata.annotations.and_then(|annotations| annotations.get(NODE_IDS).cloned());
    let after = ids(before.as_deref(), driver, id);
    if after == before {
        return Ok(());
    }
    let patch = Patch::Strategic(json!({"metadata": {"annotations": {NODE_IDS: after}}}));
    csi.client.patch::<Node>("", &csi.node_name, &patch, None).await?;
    Ok(())
}

fn ids(before: Option<&str>, driver: &str, id: Option<&str>) -> Option<String> {
    let mut ids: BTreeMap<String, String> = before.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    match id {
        Some(id) => ids.insert(driver.to_owned(), id.to_owned()),
        None => ids.remove(driver),
    };
    (!ids.is_empty()).then(|| serde_json::to_string(&ids).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_kept_beside_those_of_other_drivers() {
        let one = ids(None, "a", Some("1"));
        assert_eq!(one.as_deref(), Some(r#"{"a":"1"}"#));
        let two = ids(one.as_deref(), "b", Some("2"));
        assert_eq!(two.as_deref(), Some(r#"{"a":"1","b":"2"}"#));
        assert_eq!(ids(two.as_deref(), "a", None).as_deref(), Some(r#"{"b":"2"}"#));
        assert_eq!(ids(Some(r#"{"b":"2"}"#), "b", None), None);
    }

    #[test]
    fn zero_volumes_is_no_limit() {
        assert_eq!(limit(0), None);
        assert_eq!(limit(5).unwrap().count, Some(5));
    }
}
