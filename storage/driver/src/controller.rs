//! The services Controller and GroupController: volumes and snapshots of this node's pool.

use std::collections::HashMap;

use corten_plugins::csi;
use corten_storage_plugin::access::access;
use corten_storage_plugin::error::Error;
use corten_storage_plugin::requests::{name, page, required, size};
use csi::controller_server::Controller;
use csi::controller_service_capability::rpc::Type as Rpc;
use csi::group_controller_server::GroupController;
use csi::group_controller_service_capability::rpc::Type as GroupRpc;
use jiff::Timestamp;
use tonic::{Request, Response, Status};

use crate::limits::Limits;
use crate::publishing::Condition;
use crate::record::{Group, Snapshot, Volume, is_id};
use crate::requests::{REPLICA_INTERVAL_ATTRIBUTE, REPLICAS, content_source, wanted};
use crate::roles::is_standby;
use crate::service::{Answer, Driver};

const CAPABILITIES: [Rpc; 12] = [
    Rpc::CreateDeleteVolume,
    Rpc::ListVolumes,
    Rpc::GetCapacity,
    Rpc::CreateDeleteSnapshot,
    Rpc::ListSnapshots,
    Rpc::CloneVolume,
    Rpc::ExpandVolume,
    Rpc::VolumeCondition,
    Rpc::GetVolume,
    Rpc::SingleNodeMultiWriter,
    Rpc::GetSnapshot,
    Rpc::ModifyVolume,
];
const LEAST_VOLUME: i64 = 1 << 20;

impl Driver {
    fn volume_message(&self, volume: &Volume) -> csi::Volume {
        csi::Volume {
            capacity_bytes: signed(volume.bytes),
            volume_id: volume.id.clone(),
            volume_context: context(volume),
            content_source: volume.source.as_ref().map(content_source),
            accessible_topology: vec![self.topology()],
        }
    }

    /// Refuses a volume that must not be on this node.
    fn check_topology(&self, requirement: Option<&csi::TopologyRequirement>) -> Result<(), Error> {
        let requisite = requirement.map(|requirement| requirement.requisite.as_slice()).unwrap_or_default();
        match requisite.is_empty() || requisite.iter().any(|topology| self.is_here(topology)) {
            true => Ok(()),
            false => Err(Error::Exhausted(format!("node {} is not among those that were asked for", self.node_name))),
        }
    }
}

/// Returns the attributes of a volume, which its PersistentVolume keeps.
fn context(volume: &Volume) -> HashMap<String, String> {
    let Some(replica) = &volume.replica else { return HashMap::new() };
    let interval = replica.interval_seconds.to_string();
    HashMap::from([(REPLICAS.to_owned(), "2".to_owned()), (REPLICA_INTERVAL_ATTRIBUTE.to_owned(), interval)])
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn timestamp(nanoseconds: i64) -> csi::Timestamp {
    let nanos = i32::try_from(nanoseconds.rem_euclid(1_000_000_000)).unwrap_or_default();
    csi::Timestamp { seconds: nanoseconds.div_euclid(1_000_000_000), nanos }
}

fn snapshot_message(snapshot: &Snapshot) -> csi::Snapshot {
    csi::Snapshot {
        size_bytes: signed(snapshot.bytes),
        snapshot_id: snapshot.id.clone(),
        source_volume_id: snapshot.source.clone(),
        creation_time: Some(timestamp(snapshot.created)),
        ready_to_use: true,
        group_snapshot_id: snapshot.group.clone().unwrap_or_default(),
    }
}

fn group_message(group: &Group, snapshots: &[Snapshot]) -> csi::VolumeGroupSnapshot {
    csi::VolumeGroupSnapshot {
        group_snapshot_id: group.id.clone(),
        snapshots: snapshots.iter().map(snapshot_message).collect(),
        creation_time: Some(timestamp(group.created)),
        ready_to_use: true,
    }
}

fn condition_message(condition: Condition) -> csi::VolumeCondition {
    csi::VolumeCondition { abnormal: condition.abnormal, message: condition.message }
}

#[tonic::async_trait]
impl Controller for Driver {
    async fn create_volume(&self, request: Request<csi::CreateVolumeRequest>) -> Answer<csi::CreateVolumeResponse> {
        let request = request.into_inner();
        let wanted = wanted(&request)?;
        self.check_topology(request.accessibility_requirements.as_ref())?;
        let volume = self.call(move |storage| storage.create_volume(&wanted)).await?;
        Ok(Response::new(csi::CreateVolumeResponse { volume: Some(self.volume_message(&volume)) }))
    }

    async fn delete_volume(&self, request: Request<csi::DeleteVolumeRequest>) -> Answer<csi::DeleteVolumeResponse> {
        let id = required("volume_id", &request.get_ref().volume_id)?.to_owned();
        self.call(move |storage| storage.delete_volume(&id)).await?;
        Ok(Response::new(csi::DeleteVolumeResponse {}))
    }

    async fn controller_publish_volume(
        &self,
        _: Request<csi::ControllerPublishVolumeRequest>,
    ) -> Answer<csi::ControllerPublishVolumeResponse> {
        Err(Status::unimplemented("volumes need no attachment"))
    }

    async fn controller_unpublish_volume(
        &self,
        _: Request<csi::ControllerUnpublishVolumeRequest>,
    ) -> Answer<csi::ControllerUnpublishVolumeResponse> {
        Err(Status::unimplemented("volumes need no attachment"))
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
        let volume = self.storage.volume(id)?;
        let refusal = request.volume_capabilities.iter().find_map(|capability| match access(Some(capability), false) {
            Err(error) => Some(error.to_string()),
            Ok(access) if access.block != volume.block => Some("the volume has another access type".to_owned()),
            Ok(_) => None,
        });
        let confirmed = csi::validate_volume_capabilities_response::Confirmed {
            volume_context: request.volume_context,
            volume_capabilities: request.volume_capabilities,
            parameters: request.parameters,
            mutable_parameters: request.mutable_parameters,
        };
        let confirmed = Some(confirmed).filter(|_| refusal.is_none());
        let message = refusal.unwrap_or_default();
        Ok(Response::new(csi::ValidateVolumeCapabilitiesResponse { confirmed, message }))
    }

    async fn list_volumes(&self, request: Request<csi::ListVolumesRequest>) -> Answer<csi::ListVolumesResponse> {
        let request = request.into_inner();
        let entries = move |storage: &crate::storage::Storage| {
            let catalog = storage.catalog();
            let volumes = catalog.volumes.values().filter(|volume| !volume.ephemeral && !is_standby(volume)).cloned();
            let found = page(volumes, |volume| &volume.id, request.max_entries, &request.starting_token, is_id)?;
            drop(catalog);
            let conditions = found.entries.iter().map(|volume| storage.condition(volume)).collect::<Vec<_>>();
            Ok((found, conditions))
        };
        let (found, conditions) = self.call(entries).await?;
        let entries = found.entries.iter().zip(conditions).map(|(volume, condition)| {
            let volume_condition = Some(condition_message(condition));
            let status = csi::list_volumes_response::VolumeStatus { published_node_ids: Vec::new(), volume_condition };
            csi::list_volumes_response::Entry { volume: Some(self.volume_message(volume)), status: Some(status) }
        });
        Ok(Response::new(csi::ListVolumesResponse { entries: entries.collect(), next_token: found.next }))
    }

    async fn get_capacity(&self, request: Request<csi::GetCapacityRequest>) -> Answer<csi::GetCapacityResponse> {
        let request = request.into_inner();
        let here = request.accessible_topology.as_ref().is_none_or(|topology| self.is_here(topology));
        let supported = request.volume_capabilities.iter().all(|capability| access(Some(capability), false).is_ok());
        let room = match here && supported {
            true => self.call(|storage| storage.expected_room()).await?,
            false => 0,
        };
        Ok(Response::new(csi::GetCapacityResponse {
            available_capacity: signed(room),
            maximum_volume_size: Some(signed(room)),
            minimum_volume_size: Some(LEAST_VOLUME),
        }))
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
        let source = required("source_volume_id", &request.source_volume_id)?.to_owned();
        let now = Timestamp::now();
        let snapshot = self.call(move |storage| storage.create_snapshot(&name, &source, now)).await?;
        Ok(Response::new(csi::CreateSnapshotResponse { snapshot: Some(snapshot_message(&snapshot)) }))
    }

    async fn delete_snapshot(
        &self,
        request: Request<csi::DeleteSnapshotRequest>,
    ) -> Answer<csi::DeleteSnapshotResponse> {
        let id = required("snapshot_id", &request.get_ref().snapshot_id)?.to_owned();
        self.call(move |storage| storage.delete_snapshot(&id)).await?;
        Ok(Response::new(csi::DeleteSnapshotResponse {}))
    }

    async fn list_snapshots(&self, request: Request<csi::ListSnapshotsRequest>) -> Answer<csi::ListSnapshotsResponse> {
        let request = request.into_inner();
        let catalog = self.storage.catalog();
        let wanted = |filter: &str, value: &str| filter.is_empty() || filter == value;
        let all = catalog.snapshots.values().filter(|snapshot| {
            wanted(&request.snapshot_id, &snapshot.id) && wanted(&request.source_volume_id, &snapshot.source)
        });
        let found = page(all, |snapshot| &snapshot.id, request.max_entries, &request.starting_token, is_id)?;
        let entry =
            |snapshot: &&Snapshot| csi::list_snapshots_response::Entry { snapshot: Some(snapshot_message(snapshot)) };
        let entries = found.entries.iter().map(entry).collect();
        Ok(Response::new(csi::ListSnapshotsResponse { entries, next_token: found.next }))
    }

    async fn get_snapshot(&self, request: Request<csi::GetSnapshotRequest>) -> Answer<csi::GetSnapshotResponse> {
        let id = required("snapshot_id", &request.get_ref().snapshot_id)?.to_owned();
        let snapshot = self.storage.snapshot(&id)?;
        Ok(Response::new(csi::GetSnapshotResponse { snapshot: Some(snapshot_message(&snapshot)) }))
    }

    async fn controller_expand_volume(
        &self,
        request: Request<csi::ControllerExpandVolumeRequest>,
    ) -> Answer<csi::ControllerExpandVolumeResponse> {
        let request = request.into_inner();
        let id = required("volume_id", &request.volume_id)?.to_owned();
        if request.capacity_range.is_none() {
            return Err(Status::invalid_argument("capacity_range is missing"));
        }
        let size = size(request.capacity_range.as_ref())?;
        let volume = self.call(move |storage| storage.expand_volume(&id, size)).await?;
        Ok(Response::new(csi::ControllerExpandVolumeResponse {
            capacity_bytes: signed(volume.bytes),
            node_expansion_required: true,
        }))
    }

    async fn controller_get_volume(
        &self,
        request: Request<csi::ControllerGetVolumeRequest>,
    ) -> Answer<csi::ControllerGetVolumeResponse> {
        let id = required("volume_id", &request.get_ref().volume_id)?.to_owned();
        let found = move |storage: &crate::storage::Storage| {
            let volume = storage.volume(&id)?;
            let condition = storage.condition(&volume);
            Ok((volume, condition))
        };
        let (volume, condition) = self.call(found).await?;
        let volume_condition = Some(condition_message(condition));
        let status =
            csi::controller_get_volume_response::VolumeStatus { published_node_ids: Vec::new(), volume_condition };
        let volume = Some(self.volume_message(&volume));
        Ok(Response::new(csi::ControllerGetVolumeResponse { volume, status: Some(status) }))
    }

    async fn controller_modify_volume(
        &self,
        request: Request<csi::ControllerModifyVolumeRequest>,
    ) -> Answer<csi::ControllerModifyVolumeResponse> {
        let request = request.into_inner();
        let id = required("volume_id", &request.volume_id)?.to_owned();
        let limits = Limits::parse(&request.mutable_parameters)?;
        self.call(move |storage| storage.limit_volume(&id, limits)).await?;
        Ok(Response::new(csi::ControllerModifyVolumeResponse {}))
    }
}

#[tonic::async_trait]
impl GroupController for Driver {
    async fn group_controller_get_capabilities(
        &self,
        _: Request<csi::GroupControllerGetCapabilitiesRequest>,
    ) -> Answer<csi::GroupControllerGetCapabilitiesResponse> {
        use csi::group_controller_service_capability::{Rpc, Type};
        let rpc = Rpc { r#type: GroupRpc::CreateDeleteGetVolumeGroupSnapshot as i32 };
        let capabilities = vec![csi::GroupControllerServiceCapability { r#type: Some(Type::Rpc(rpc)) }];
        Ok(Response::new(csi::GroupControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn create_volume_group_snapshot(
        &self,
        request: Request<csi::CreateVolumeGroupSnapshotRequest>,
    ) -> Answer<csi::CreateVolumeGroupSnapshotResponse> {
        let request = request.into_inner();
        let name = name(&request.name)?;
        let sources = request.source_volume_ids;
        let now = Timestamp::now();
        let create = move |storage: &crate::storage::Storage| {
            let group = storage.create_group(&name, &sources, now)?;
            storage.group_with_members(&group.id, &[])
        };
        let (group, snapshots) = self.call(create).await?;
        let group_snapshot = Some(group_message(&group, &snapshots));
        Ok(Response::new(csi::CreateVolumeGroupSnapshotResponse { group_snapshot }))
    }

    async fn delete_volume_group_snapshot(
        &self,
        request: Request<csi::DeleteVolumeGroupSnapshotRequest>,
    ) -> Answer<csi::DeleteVolumeGroupSnapshotResponse> {
        let request = request.into_inner();
        let id = required("group_snapshot_id", &request.group_snapshot_id)?.to_owned();
        self.call(move |storage| storage.delete_group(&id, &request.snapshot_ids)).await?;
        Ok(Response::new(csi::DeleteVolumeGroupSnapshotResponse {}))
    }

    async fn get_volume_group_snapshot(
        &self,
        request: Request<csi::GetVolumeGroupSnapshotRequest>,
    ) -> Answer<csi::GetVolumeGroupSnapshotResponse> {
        let request = request.into_inner();
        let id = required("group_snapshot_id", &request.group_snapshot_id)?;
        let (group, snapshots) = self.storage.group_with_members(id, &request.snapshot_ids)?;
        let group_snapshot = Some(group_message(&group, &snapshots));
        Ok(Response::new(csi::GetVolumeGroupSnapshotResponse { group_snapshot }))
    }
}
