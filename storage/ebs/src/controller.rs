//! The service Controller: reads requests of CSI and answers them by EC2.

use std::collections::HashMap;
use std::sync::Arc;

use corten_plugins::csi;
use corten_storage_plugin::access::access;
use corten_storage_plugin::error::{Error, Result};
use corten_storage_plugin::requests::{name, page, required, size};
use csi::controller_server::Controller;
use csi::controller_service_capability::rpc::Type as Rpc;
use csi::volume_content_source::{SnapshotSource, Type as Source};
use tonic::{Request, Response, Status};

use crate::cloud::{Cloud, Volume, is_id};
use crate::node::DEVICE_PATH;
use crate::parameters::{Parameters, modification};
use crate::snapshots::{Selection, Snapshot};
use crate::topology::{Zones, of_volume};
use crate::volumes::{GIB, Wanted, tags_of};

type Answer<T> = std::result::Result<Response<T>, Status>;

const CAPABILITIES: [Rpc; 7] = [
    Rpc::CreateDeleteVolume,
    Rpc::PublishUnpublishVolume,
    Rpc::CreateDeleteSnapshot,
    Rpc::ListSnapshots,
    Rpc::ExpandVolume,
    Rpc::ModifyVolume,
    Rpc::SingleNodeMultiWriter,
];

/// The controller's half of the driver.
#[derive(Clone)]
pub struct ControllerHalf {
    pub cloud: Arc<Cloud>,
}

fn volume_message(volume: &Volume) -> csi::Volume {
    let source = |snapshot_id: String| csi::VolumeContentSource {
        r#type: Some(Source::Snapshot(SnapshotSource { snapshot_id })),
    };
    csi::Volume {
        capacity_bytes: signed(volume.gib.saturating_mul(GIB)),
        volume_id: volume.id.clone(),
        volume_context: HashMap::new(),
        content_source: Some(volume.snapshot.clone()).filter(|id| !id.is_empty()).map(source),
        accessible_topology: vec![of_volume(&volume.zone)],
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Returns the volume that a call to create one wants.
fn wanted(cloud: &Cloud, request: &csi::CreateVolumeRequest) -> Result<Wanted> {
    let name = name(&request.name)?;
    if request.volume_capabilities.is_empty() {
        return Err(Error::Invalid("volume_capabilities are missing".to_owned()));
    }
    for capability in &request.volume_capabilities {
        access(Some(capability), false)?;
    }
    let mut all = request.parameters.clone();
    all.extend(request.mutable_parameters.clone());
    Ok(Wanted {
        size: size(request.capacity_range.as_ref())?,
        zones: Zones::read(request.accessibility_requirements.as_ref()),
        parameters: Parameters::parse(&request.parameters, &request.mutable_parameters)?,
        tags: tags_of(cloud, &name, &all)?,
        snapshot: request.volume_content_source.as_ref().map(source).transpose()?,
        name,
    })
}

/// Returns the snapshot that a volume is made of.
fn source(source: &csi::VolumeContentSource) -> Result<String> {
    match source.r#type.as_ref() {
        Some(Source::Snapshot(snapshot)) => Ok(snapshot.snapshot_id.clone()),
        Some(Source::Volume(_)) => {
            Err(Error::Invalid("EBS clones no volumes: take a snapshot, and restore it".to_owned()))
        }
        None => Err(Error::Invalid("the type of the volume's source is not known".to_owned())),
    }
}

#[tonic::async_trait]
impl Controller for ControllerHalf {
    async fn create_volume(&self, request: Request<csi::CreateVolumeRequest>) -> Answer<csi::CreateVolumeResponse> {
        let wanted = wanted(&self.cloud, request.get_ref())?;
        let volume = self.cloud.create_volume(&wanted).await?;
        Ok(Response::new(csi::CreateVolumeResponse { volume: Some(volume_message(&volume)) }))
    }

    async fn delete_volume(&self, request: Request<csi::DeleteVolumeRequest>) -> Answer<csi::DeleteVolumeResponse> {
        let id = required("volume_id", &request.get_ref().volume_id)?;
        self.cloud.delete_volume(id).await?;
        Ok(Response::new(csi::DeleteVolumeResponse {}))
    }

    async fn controller_publish_volume(
        &self,
        request: Request<csi::ControllerPublishVolumeRequest>,
    ) -> Answer<csi::ControllerPublishVolumeResponse> {
        let request = request.into_inner();
        let id = required("volume_id", &request.volume_id)?;
        let instance = required("node_id", &request.node_id)?;
        access(request.volume_capability.as_ref(), false)?;
        let device = self.cloud.attach(id, instance).await?;
        let publish_context = HashMap::from([(DEVICE_PATH.to_owned(), device)]);
        Ok(Response::new(csi::ControllerPublishVolumeResponse { publish_context }))
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<csi::ControllerUnpublishVolumeRequest>,
    ) -> Answer<csi::ControllerUnpublishVolumeResponse> {
        let request = request.into_inner();
        self.cloud.detach(required("volume_id", &request.volume_id)?, &request.node_id).await?;
        Ok(Response::new(csi::ControllerUnpublishVolumeResponse {}))
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<csi::ValidateVolumeCapabilitiesRequest>,
    ) -> Answer<csi::ValidateVolumeCapabilitiesResponse> {
        let request = request.into_inner();
        let id = required("volume_id", &request.volume_id)?;
        if request.volume_capabilities.is_empty() {
            return Err(Status::invalid_argument("volume_capabilities are missing"));
        }
        self.cloud.volume(id).await?;
        let refusal = request.volume_capabilities.iter().find_map(|one| access(Some(one), false).err());
        let confirmed = csi::validate_volume_capabilities_response::Confirmed {
            volume_context: request.volume_context,
            volume_capabilities: request.volume_capabilities,
            parameters: request.parameters,
            mutable_parameters: request.mutable_parameters,
        };
        let confirmed = Some(confirmed).filter(|_| refusal.is_none());
        let message = refusal.map(|error| error.to_string()).unwrap_or_default();
        Ok(Response::new(csi::ValidateVolumeCapabilitiesResponse { confirmed, message }))
    }

    async fn list_volumes(&self, _: Request<csi::ListVolumesRequest>) -> Answer<csi::ListVolumesResponse> {
        Err(Status::unimplemented("the driver does not list volumes"))
    }

    async fn get_capacity(&self, _: Request<csi::GetCapacityRequest>) -> Answer<csi::GetCapacityResponse> {
        Err(Status::unimplemented("EBS has no capacity that could be asked for"))
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<csi::ControllerGetCapabilitiesRequest>,
    ) -> Answer<csi::ControllerGetCapabilitiesResponse> {
        use csi::controller_service_capability::{Rpc as Message, Type};
        let capability =
            |rpc: Rpc| csi::ControllerServiceCapability { r#type: Some(Type::Rpc(Message { r#type: rpc as i32 })) };
        let capabilities = CAPABILITIES.into_iter().map(capability).collect();
        Ok(Response::new(csi::ControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn create_snapshot(
        &self,
        request: Request<csi::CreateSnapshotRequest>,
    ) -> Answer<csi::CreateSnapshotResponse> {
        let request = request.into_inner();
        let name = name(&request.name)?;
        let volume = required("source_volume_id", &request.source_volume_id)?;
        let snapshot = self.cloud.create_snapshot(&name, volume, &request.parameters).await?;
        Ok(Response::new(csi::CreateSnapshotResponse { snapshot: Some(snapshot.message()) }))
    }

    async fn delete_snapshot(
        &self,
        request: Request<csi::DeleteSnapshotRequest>,
    ) -> Answer<csi::DeleteSnapshotResponse> {
        self.cloud.delete_snapshot(required("snapshot_id", &request.get_ref().snapshot_id)?).await?;
        Ok(Response::new(csi::DeleteSnapshotResponse {}))
    }

    async fn list_snapshots(&self, request: Request<csi::ListSnapshotsRequest>) -> Answer<csi::ListSnapshotsResponse> {
        let request = request.into_inner();
        let selection = Selection { id: &request.snapshot_id, volume: &request.source_volume_id };
        let all = self.cloud.list_snapshots(&selection).await?;
        let is_token = |token: &str| is_id("snap-", token);
        let found =
            page(all.into_iter(), |snapshot| &snapshot.id, request.max_entries, &request.starting_token, is_token)?;
        let entry = |snapshot: &Snapshot| csi::list_snapshots_response::Entry { snapshot: Some(snapshot.message()) };
        let entries = found.entries.iter().map(entry).collect();
        Ok(Response::new(csi::ListSnapshotsResponse { entries, next_token: found.next }))
    }

    async fn get_snapshot(&self, _: Request<csi::GetSnapshotRequest>) -> Answer<csi::GetSnapshotResponse> {
        Err(Status::unimplemented("snapshots are found by ListSnapshots"))
    }

    async fn controller_expand_volume(
        &self,
        request: Request<csi::ControllerExpandVolumeRequest>,
    ) -> Answer<csi::ControllerExpandVolumeResponse> {
        use csi::volume_capability::AccessType;
        let request = request.into_inner();
        let id = required("volume_id", &request.volume_id)?;
        if request.capacity_range.is_none() {
            return Err(Status::invalid_argument("capacity_range is missing"));
        }
        let bytes = self.cloud.expand_volume(id, size(request.capacity_range.as_ref())?).await?;
        let access_type = request.volume_capability.and_then(|capability| capability.access_type);
        let is_block = matches!(access_type, Some(AccessType::Block(_)));
        Ok(Response::new(csi::ControllerExpandVolumeResponse {
            capacity_bytes: signed(bytes),
            node_expansion_required: !is_block,
        }))
    }

    async fn controller_get_volume(
        &self,
        _: Request<csi::ControllerGetVolumeRequest>,
    ) -> Answer<csi::ControllerGetVolumeResponse> {
        Err(Status::unimplemented("the driver reports no condition of volumes"))
    }

    async fn controller_modify_volume(
        &self,
        request: Request<csi::ControllerModifyVolumeRequest>,
    ) -> Answer<csi::ControllerModifyVolumeResponse> {
        let request = request.into_inner();
        let id = required("volume_id", &request.volume_id)?;
        let wanted = modification(&request.mutable_parameters)?;
        self.cloud.modify_volume(id, &wanted, &request.mutable_parameters).await?;
        Ok(Response::new(csi::ControllerModifyVolumeResponse {}))
    }
}
