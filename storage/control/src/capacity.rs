//! Capacity: CSIStorageCapacities, by which the scheduler knows the nodes where a volume of a class finds room.
//!
//! There is one object for each class of the driver and each segment of its topology. Objects of classes and segments
//! that are gone are deleted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{Node, PersistentVolume};
use corten_api::k8s_openapi::api::storage::v1::{CSINode, CSIStorageCapacity, StorageClass};
use corten_client::{DeleteOptions, Error, ListOptions, Patch};
use corten_meta::{Quantity, Value};
use corten_plugins::csi;
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::secrets;
use crate::topology::{self, Segment};
use crate::world::World;

const DRIVER_LABEL: &str = "csi.storage.k8s.io/drivername";
const MANAGER_LABEL: &str = "csi.storage.k8s.io/managed-by";
/// Changes that come within this time are answered together.
const SETTLE: Duration = Duration::from_secs(1);

/// Writes the objects until shutdown: at changes of classes, nodes and volumes, and periodically.
pub async fn run(world: Arc<World>, shutdown: CancellationToken) {
    let bell = Arc::new(Notify::new());
    let caches = [
        world.cache::<StorageClass>(),
        world.cache::<Node>(),
        world.cache::<CSINode>(),
        world.cache::<PersistentVolume>(),
    ];
    for cache in &caches {
        if shutdown.run_until_cancelled(cache.synced()).await.is_none() {
            return;
        }
    }
    let mut subscriptions = caches.map(|cache| cache.subscribe_with(&bell));
    while !shutdown.is_cancelled() {
        for subscription in &mut subscriptions {
            while subscription.try_next().is_some() {}
        }
        if let Err(error) = publish(&world).await {
            tracing::info!(%error, "cannot publish the capacity of the storage driver");
        }
        tokio::select! {
            () = bell.notified() => tokio::time::sleep(SETTLE).await,
            () = tokio::time::sleep(world.options.capacity_poll) => {}
            () = shutdown.cancelled() => {}
        }
    }
}

/// Asks the driver for each class and segment, and writes the objects that differ.
async fn publish(world: &World) -> Result<(), Error> {
    let manager = world.options.node.clone().unwrap_or_else(|| "central".to_owned());
    let driver = &world.driver.name;
    let selector = format!("{DRIVER_LABEL}={driver},{MANAGER_LABEL}={manager}");
    let client = world.client.of::<CSIStorageCapacity>();
    let namespace = &world.options.namespace;
    let listed = client.list(namespace, &ListOptions::labels(selector)).await?;
    let mut stale: BTreeMap<String, Value> =
        listed.items.into_iter().map(|one| (corten_meta::name(&one).to_owned(), one)).collect();
    for class in world.all::<StorageClass>().iter().filter(|class| class.provisioner == *driver) {
        for segment in segments(world) {
            let name = object_name(driver, class.name(), &segment);
            let Some(wanted) = answer(world, class, &segment, &name, &manager).await else {
                // Without an answer the object stays as it is: it may be right.
                stale.remove(&name);
                continue;
            };
            match stale.remove(&name) {
                None => client.post(namespace, &wanted).await?,
                Some(current)
                    if current["capacity"] == wanted["capacity"]
                        && current["maximumVolumeSize"] == wanted["maximumVolumeSize"] => {}
                Some(_) => client.send_patch(namespace, &name, &Patch::Merge(wanted)).await?,
            }
        }
    }
    for (name, object) in stale {
        let uid = object["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        match client.delete(namespace, &name, &DeleteOptions::uid(uid)).await {
            Err(error) if !error.is_not_found() => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Returns the segments of these loops: that of their node, or all.
fn segments(world: &World) -> Vec<Segment> {
    if !world.driver.has_topology() {
        return vec![Segment::new()];
    }
    let nodes = topology::nodes(world).into_iter();
    let ours = nodes.filter(|node| world.options.node.as_ref().is_none_or(|name| *name == node.name));
    let mut segments: Vec<Segment> = ours.map(|node| node.segment).filter(|segment| !segment.is_empty()).collect();
    segments.sort_unstable();
    segments.dedup();
    segments
}

/// Returns the name of the object of a class and a segment.
fn object_name(driver: &str, class: &str, segment: &Segment) -> String {
    let digest = Sha256::digest(format!("{driver}\n{class}\n{segment:?}"));
    let hash: String = digest.iter().take(10).map(|byte| format!("{byte:02x}")).collect();
    format!("csisc-{hash}")
}

async fn answer(world: &World, class: &StorageClass, segment: &Segment, name: &str, manager: &str) -> Option<Value> {
    let parameters = secrets::for_driver(&class.parameters.clone().unwrap_or_default()).ok()?;
    let topology = (!segment.is_empty()).then(|| topology::topology(segment));
    let request =
        csi::GetCapacityRequest { volume_capabilities: Vec::new(), parameters, accessible_topology: topology };
    match world.driver.capacity(request).await {
        Ok(answer) => Some(object(world, class.name(), segment, name, manager, &answer)),
        Err(error) => {
            tracing::debug!(%error, class = class.name(), "the driver does not report its capacity");
            None
        }
    }
}

/// Returns the owner of the objects of a node's loops: the node. They are deleted with it.
fn owner(world: &World) -> Option<Value> {
    let node: Node = world.get("", world.options.node.as_ref()?)?;
    Some(json!({"apiVersion": Node::API_VERSION, "kind": Node::KIND, "name": node.name(), "uid": node.metadata.uid}))
}

fn object(
    world: &World,
    class: &str,
    segment: &Segment,
    name: &str,
    manager: &str,
    answer: &csi::GetCapacityResponse,
) -> Value {
    let bytes = |number: i64| Quantity::from_bytes(number).to_string();
    let mut object = json!({
        "apiVersion": CSIStorageCapacity::API_VERSION,
        "kind": CSIStorageCapacity::KIND,
        "metadata": {
            "name": name,
            "namespace": world.options.namespace,
            "labels": {DRIVER_LABEL: world.driver.name, MANAGER_LABEL: manager},
        },
        "storageClassName": class,
        "nodeTopology": {"matchLabels": segment},
        "capacity": bytes(answer.available_capacity),
    });
    if let Some(owner) = owner(world) {
        object["metadata"]["ownerReferences"] = json!([owner]);
    }
    if segment.is_empty() {
        object["nodeTopology"] = json!({});
    }
    if let Some(largest) = answer.maximum_volume_size.filter(|size| *size > 0) {
        object["maximumVolumeSize"] = json!(bytes(largest));
    }
    object
}
