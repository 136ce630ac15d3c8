//! The service Node: volumes for the pods of this node.

use std::path::PathBuf;

use corten_plugins::csi;
use corten_storage_plugin::access::access;
use corten_storage_plugin::requests::{path, required};
use corten_storage_plugin::usage::messages;
use csi::node_server::Node;
use csi::node_service_capability::rpc::Type as Rpc;
use tonic::{Request, Response};

use crate::publishing::Paths;
use crate::requests::{is_ephemeral, wanted_inline};
use crate::service::{Answer, Driver};

const CAPABILITIES: [Rpc; 5] =
    [Rpc::StageUnstageVolume, Rpc::GetVolumeStats, Rpc::ExpandVolume, Rpc::VolumeCondition, Rpc::SingleNodeMultiWriter];

#[tonic::async_trait]
impl Node for Driver {
    async fn node_stage_volume(
        &self,
        request: Request<csi::NodeStageVolumeRequest>,
    ) -> Answer<csi::NodeStageVolumeResponse> {
        let request = request.into_inner();
        let id = required("volume_id", &request.volume_id)?.to_owned();
        let staging = path("staging_target_path", &request.staging_target_path)?;
        let mut access = access(request.volume_capability.as_ref(), false)?;
        // Readers share the staged volume; each publication is read-only by itself.
        access.read_only = false;
        let epoch = self.held_epoch(&id).await?;
        self.call(move |storage| storage.stage(&id, &staging, &access, epoch)).await?;
        Ok(Response::new(csi::NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<csi::NodeUnstageVolumeRequest>,
    ) -> Answer<csi::NodeUnstageVolumeResponse> {
        let request = request.into_inner();
        let id = required("volume_id", &request.volume_id)?.to_owned();
        let staging = path("staging_target_path", &request.staging_target_path)?;
        self.call(move |storage| storage.unstage(&id, &staging)).await?;
        Ok(Response::new(csi::NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<csi::NodePublishVolumeRequest>,
    ) -> Answer<csi::NodePublishVolumeResponse> {
        let request = request.into_inner();
        let id = required("volume_id", &request.volume_id)?.to_owned();
        let target = path("target_path", &request.target_path)?;
        let access = access(request.volume_capability.as_ref(), request.readonly)?;
        if is_ephemeral(&request.volume_context) {
            let wanted = wanted_inline(&id, &request.volume_context, &access)?;
            self.call(move |storage| storage.publish_ephemeral(&wanted, &target, &access)).await?;
        } else {
            let staging = path("staging_target_path", &request.staging_target_path)?;
            let publish = move |storage: &crate::storage::Storage| {
                storage.publish(&id, &Paths { staging: &staging, target: &target }, &access)
            };
            self.call(publish).await?;
        }
        Ok(Response::new(csi::NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<csi::NodeUnpublishVolumeRequest>,
    ) -> Answer<csi::NodeUnpublishVolumeResponse> {
        let request = request.into_inner();
        let id = required("volume_id", &request.volume_id)?.to_owned();
        let target = path("target_path", &request.target_path)?;
        self.call(move |storage| storage.unpublish(&id, &target)).await?;
        Ok(Response::new(csi::NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<csi::NodeGetVolumeStatsRequest>,
    ) -> Answer<csi::NodeGetVolumeStatsResponse> {
        let request = request.into_inner();
        let id = required("volume_id", &request.volume_id)?.to_owned();
        let at = PathBuf::from(required("volume_path", &request.volume_path)?);
        let measure = move |storage: &crate::storage::Storage| {
            let volume = storage.node_volume(&id)?;
            Ok((storage.usage(&id, &at)?, storage.condition(&volume)))
        };
        let (found, condition) = self.call(measure).await?;
        Ok(Response::new(csi::NodeGetVolumeStatsResponse {
            usage: messages(&found),
            volume_condition: Some(csi::VolumeCondition { abnormal: condition.abnormal, message: condition.message }),
        }))
    }

    async fn node_expand_volume(
        &self,
        request: Request<csi::NodeExpandVolumeRequest>,
    ) -> Answer<csi::NodeExpandVolumeResponse> {
        let request = request.into_inner();
        let id = required("volume_id", &request.volume_id)?.to_owned();
        let at = PathBuf::from(required("volume_path", &request.volume_path)?);
        let bytes = self.call(move |storage| storage.expand_on_node(&id, &at)).await?;
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
            node_id: self.node_name.to_string(),
            max_volumes_per_node: 0,
            accessible_topology: Some(self.topology()),
        }))
    }
}
