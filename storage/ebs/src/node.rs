//! The service Node: devices of attached volumes for the pods of this node.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use corten_plugins::csi;
use corten_storage_plugin::access::access;
use corten_storage_plugin::error::{Error, Result};
use corten_storage_plugin::locks::Locks;
use corten_storage_plugin::mounts;
use corten_storage_plugin::requests::{path, required};
use corten_storage_plugin::usage::messages;
use csi::node_server::Node;
use csi::node_service_capability::rpc::Type as Rpc;
use tonic::{Request, Response, Status};

use crate::devices::{Device, Place, Roots};
use crate::instance::Instance;
use crate::staging::{self, Paths};
use crate::topology::of_node;

/// The key of the device name that an attachment got.
pub const DEVICE_PATH: &str = "devicePath";
/// The attribute with the number of a partition, for volumes that users made.
const PARTITION: &str = "partition";
/// The time in which the kernel shows the device of an attached volume, and the pause between two looks.
const DEVICE_DEADLINE: Duration = Duration::from_secs(30);
const DEVICE_PAUSE: Duration = Duration::from_millis(200);

const CAPABILITIES: [Rpc; 4] =
    [Rpc::StageUnstageVolume, Rpc::GetVolumeStats, Rpc::ExpandVolume, Rpc::SingleNodeMultiWriter];

type Answer<T> = std::result::Result<Response<T>, Status>;
type Attributes = std::collections::HashMap<String, String>;

/// The node's half of the driver.
#[derive(Clone)]
pub struct NodeHalf {
    instance: Instance,
    roots: Arc<Roots>,
    locks: Locks,
}

impl NodeHalf {
    /// Returns the half of an instance, with the directories of its devices.
    pub fn new(instance: Instance, roots: Roots) -> NodeHalf {
        NodeHalf { instance, roots: Arc::new(roots), locks: Locks::default() }
    }

    /// Runs a call for a volume on a thread that may block, when no other works on the volume.
    async fn call<T: Send + 'static>(
        &self,
        volume: &str,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> std::result::Result<T, Status> {
        let locks = self.locks.clone();
        let name = volume.to_owned();
        let locked = move || {
            let _held = locks.hold([name])?;
            work()
        };
        let done = tokio::task::spawn_blocking(locked).await;
        let done = done.map_err(|error| Status::internal(format!("the call failed: {error}")))?;
        done.map_err(Status::from)
    }

    fn find(&self, volume: &str, context: &Attributes, attributes: &Attributes) -> Result<Option<Device>> {
        let text = |map: &Attributes, key: &str| map.get(key).cloned().unwrap_or_default();
        let device_path = text(context, DEVICE_PATH);
        let partition = text(attributes, PARTITION);
        self.roots.find(&Place { volume, device_path: &device_path, partition: &partition })
    }

    /// Waits for the device of an attached volume.
    async fn device(&self, volume: &str, context: &Attributes, attributes: &Attributes) -> Result<Device> {
        let deadline = tokio::time::Instant::now() + DEVICE_DEADLINE;
        loop {
            if let Some(device) = self.find(volume, context, attributes)? {
                return Ok(device);
            }
            if tokio::time::Instant::now() >= deadline || !context.contains_key(DEVICE_PATH) {
                return Err(Error::NotFound(format!("volume {volume} has no device on this node")));
            }
            tokio::time::sleep(DEVICE_PAUSE).await;
        }
    }
}

#[tonic::async_trait]
impl Node for NodeHalf {
    async fn node_stage_volume(
        &self,
        request: Request<csi::NodeStageVolumeRequest>,
    ) -> Answer<csi::NodeStageVolumeResponse> {
        let request = request.into_inner();
        let id = required("volume_id", &request.volume_id)?;
        let staging = path("staging_target_path", &request.staging_target_path)?;
        let mut access = access(request.volume_capability.as_ref(), false)?;
        // Readers share the staged volume; each publication is read-only by itself.
        access.read_only = false;
        let device = self.device(id, &request.publish_context, &request.volume_context).await?;
        if !access.block {
            self.call(id, move || staging::stage(&device, &staging, &access)).await?;
        }
        Ok(Response::new(csi::NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<csi::NodeUnstageVolumeRequest>,
    ) -> Answer<csi::NodeUnstageVolumeResponse> {
        let request = request.into_inner();
        let id = required("volume_id", &request.volume_id)?;
        let staging = path("staging_target_path", &request.staging_target_path)?;
        self.call(id, move || mounts::unmount(&staging)).await?;
        Ok(Response::new(csi::NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<csi::NodePublishVolumeRequest>,
    ) -> Answer<csi::NodePublishVolumeResponse> {
        let request = request.into_inner();
        let id = required("volume_id", &request.volume_id)?;
        let target = path("target_path", &request.target_path)?;
        let staging = path("staging_target_path", &request.staging_target_path)?;
        let access = access(request.volume_capability.as_ref(), request.readonly)?;
        let device = self.device(id, &request.publish_context, &request.volume_context).await?;
        let publish = move || staging::publish(&device, &Paths { staging: &staging, target: &target }, &access);
        self.call(id, publish).await?;
        Ok(Response::new(csi::NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<csi::NodeUnpublishVolumeRequest>,
    ) -> Answer<csi::NodeUnpublishVolumeResponse> {
        let request = request.into_inner();
        let id = required("volume_id", &request.volume_id)?;
        let target = path("target_path", &request.target_path)?;
        self.call(id, move || staging::unpublish(&target)).await?;
        Ok(Response::new(csi::NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<csi::NodeGetVolumeStatsRequest>,
    ) -> Answer<csi::NodeGetVolumeStatsResponse> {
        let request = request.into_inner();
        let id = required("volume_id", &request.volume_id)?;
        let at = PathBuf::from(required("volume_path", &request.volume_path)?);
        let roots = Arc::clone(&self.roots);
        let volume = id.to_owned();
        let found = self.call(id, move || staging::usage(&staging::shown(&roots, &volume, &at)?, &at)).await?;
        Ok(Response::new(csi::NodeGetVolumeStatsResponse { usage: messages(&found), volume_condition: None }))
    }

    async fn node_expand_volume(
        &self,
        request: Request<csi::NodeExpandVolumeRequest>,
    ) -> Answer<csi::NodeExpandVolumeResponse> {
        let request = request.into_inner();
        let id = required("volume_id", &request.volume_id)?;
        let at = PathBuf::from(required("volume_path", &request.volume_path)?);
        let roots = Arc::clone(&self.roots);
        let volume = id.to_owned();
        let bytes = self.call(id, move || staging::expand(&staging::shown(&roots, &volume, &at)?, &at)).await?;
        let capacity_bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        Ok(Response::new(csi::NodeExpandVolumeResponse { capacity_bytes }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<csi::NodeGetCapabilitiesRequest>,
    ) -> Answer<csi::NodeGetCapabilitiesResponse> {
        use csi::node_service_capability::{Rpc as Message, Type};
        let capability =
            |rpc: Rpc| csi::NodeServiceCapability { r#type: Some(Type::Rpc(Message { r#type: rpc as i32 })) };
        let capabilities = CAPABILITIES.into_iter().map(capability).collect();
        Ok(Response::new(csi::NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(&self, _: Request<csi::NodeGetInfoRequest>) -> Answer<csi::NodeGetInfoResponse> {
        Ok(Response::new(csi::NodeGetInfoResponse {
            node_id: self.instance.id.clone(),
            max_volumes_per_node: i64::from(self.instance.most_volumes),
            accessible_topology: Some(of_node(&self.instance.zone)),
        }))
    }
}
