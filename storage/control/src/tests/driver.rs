//! A driver for tests, in memory: it makes volumes and snapshots, and fails or hangs on demand.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use corten_plugins::csi::controller_server::{Controller, ControllerServer};
use corten_plugins::csi::controller_service_capability::rpc::Type as Rpc;
use corten_plugins::csi::group_controller_server::{GroupController, GroupControllerServer};
use corten_plugins::csi::group_controller_service_capability::rpc::Type as GroupRpc;
use corten_plugins::csi::identity_server::{Identity, IdentityServer};
use corten_plugins::csi::plugin_capability::service::Type as Service;
use corten_plugins::csi::{
    ControllerExpandVolumeRequest, ControllerExpandVolumeResponse, ControllerGetCapabilitiesRequest,
    ControllerGetCapabilitiesResponse, ControllerGetVolumeRequest, ControllerGetVolumeResponse,
    ControllerModifyVolumeRequest, ControllerModifyVolumeResponse, ControllerPublishVolumeRequest,
    ControllerPublishVolumeResponse, ControllerServiceCapability, ControllerUnpublishVolumeRequest,
    ControllerUnpublishVolumeResponse, CreateSnapshotRequest, CreateSnapshotResponse, CreateVolumeGroupSnapshotRequest,
    CreateVolumeGroupSnapshotResponse, CreateVolumeRequest, CreateVolumeResponse, DeleteSnapshotRequest,
    DeleteSnapshotResponse, DeleteVolumeGroupSnapshotRequest, DeleteVolumeGroupSnapshotResponse, DeleteVolumeRequest,
    DeleteVolumeResponse, GetCapacityRequest, GetCapacityResponse, GetPluginCapabilitiesRequest,
    GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse, GetSnapshotRequest,
    GetSnapshotResponse, GetVolumeGroupSnapshotRequest, GetVolumeGroupSnapshotResponse,
    GroupControllerGetCapabilitiesRequest, GroupControllerGetCapabilitiesResponse, GroupControllerServiceCapability,
    ListSnapshotsRequest, ListSnapshotsResponse, ListVolumesRequest, ListVolumesResponse, PluginCapability,
    ProbeRequest, ProbeResponse, Snapshot, ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse,
    Volume, VolumeGroupSnapshot, controller_service_capability, group_controller_service_capability,
    list_snapshots_response, plugin_capability,
};
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

/// The behaviour of the next calls.
#[derive(Clone, Copy, Debug, Default)]
pub enum Fault {
    #[default]
    None,
    /// The call fails, and nothing is made.
    Error(&'static str),
    /// The call is carried out, and never answered.
    Hang,
}

#[derive(Default)]
struct State {
    fault: Fault,
    volumes: BTreeSet<String>,
    snapshots: BTreeSet<String>,
}

#[derive(Default)]
pub struct TestDriver {
    state: Mutex<State>,
}

impl TestDriver {
    pub fn fail(&self, fault: Fault) {
        self.state.lock().unwrap().fault = fault;
    }

    pub fn volumes(&self) -> BTreeSet<String> {
        self.state.lock().unwrap().volumes.clone()
    }

    /// Gives the driver a snapshot that the loops did not take.
    pub fn add_snapshot(&self, handle: &str) {
        self.state.lock().unwrap().snapshots.insert(handle.to_owned());
    }

    pub fn snapshots(&self) -> BTreeSet<String> {
        self.state.lock().unwrap().snapshots.clone()
    }

    /// Carries out a call as the fault says.
    async fn carry_out(&self, change: impl FnOnce(&mut State) -> bool) -> Result<(), Status> {
        let fault = {
            let mut state = self.state.lock().unwrap();
            if !matches!(state.fault, Fault::Error(_)) {
                change(&mut state);
            }
            state.fault
        };
        match fault {
            Fault::None => Ok(()),
            Fault::Error(message) => Err(Status::internal(message)),
            Fault::Hang => std::future::pending().await,
        }
    }
}

/// Serves the driver on a socket until shutdown.
pub fn serve(driver: Arc<TestDriver>, socket: PathBuf, shutdown: CancellationToken) -> JoinHandle<()> {
    let listener = UnixListener::bind(&socket).unwrap();
    let server = tonic::transport::Server::builder()
        .add_service(IdentityServer::from_arc(driver.clone()))
        .add_service(GroupControllerServer::from_arc(driver.clone()))
        .add_service(ControllerServer::from_arc(driver));
    tokio::spawn(async move {
        let serving = server.serve_with_incoming(UnixListenerStream::new(listener));
        // Calls that hang are dropped with the server.
        if let Some(ended) = shutdown.run_until_cancelled(serving).await {
            ended.unwrap();
        }
    })
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Identity for TestDriver {
    async fn get_plugin_info(&self, _: Request<GetPluginInfoRequest>) -> Answer<GetPluginInfoResponse> {
        let name = "csi.example.com".to_owned();
        Ok(Response::new(GetPluginInfoResponse { name, ..GetPluginInfoResponse::default() }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Answer<GetPluginCapabilitiesResponse> {
        let capability = |service: Service| {
            let service = plugin_capability::Service { r#type: service as i32 };
            PluginCapability { r#type: Some(plugin_capability::Type::Service(service)) }
        };
        let capabilities = [Service::ControllerService, Service::GroupControllerService].map(capability).to_vec();
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities }))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Answer<ProbeResponse> {
        Ok(Response::new(ProbeResponse::default()))
    }
}

#[tonic::async_trait]
impl Controller for TestDriver {
    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Answer<ControllerGetCapabilitiesResponse> {
        let capability = |rpc: Rpc| {
            let rpc = controller_service_capability::Rpc { r#type: rpc as i32 };
            ControllerServiceCapability { r#type: Some(controller_service_capability::Type::Rpc(rpc)) }
        };
        let all = [
            Rpc::CreateDeleteVolume,
            Rpc::CloneVolume,
            Rpc::ModifyVolume,
            Rpc::CreateDeleteSnapshot,
            Rpc::ListSnapshots,
        ];
        let capabilities = all.map(capability).to_vec();
        Ok(Response::new(ControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn create_volume(&self, request: Request<CreateVolumeRequest>) -> Answer<CreateVolumeResponse> {
        let request = request.into_inner();
        let volume_id = format!("handle-{}", request.name);
        self.carry_out(|state| state.volumes.insert(volume_id.clone())).await?;
        let volume = Volume { volume_id, ..Volume::default() };
        Ok(Response::new(CreateVolumeResponse { volume: Some(volume) }))
    }

    async fn delete_volume(&self, request: Request<DeleteVolumeRequest>) -> Answer<DeleteVolumeResponse> {
        let volume = request.into_inner().volume_id;
        self.carry_out(|state| state.volumes.remove(&volume)).await?;
        Ok(Response::new(DeleteVolumeResponse {}))
    }

    async fn create_snapshot(&self, request: Request<CreateSnapshotRequest>) -> Answer<CreateSnapshotResponse> {
        let request = request.into_inner();
        let snapshot_id = format!("handle-{}", request.name);
        self.carry_out(|state| state.snapshots.insert(snapshot_id.clone())).await?;
        let snapshot = Snapshot { snapshot_id, ready_to_use: true, ..Snapshot::default() };
        Ok(Response::new(CreateSnapshotResponse { snapshot: Some(snapshot) }))
    }

    async fn delete_snapshot(&self, request: Request<DeleteSnapshotRequest>) -> Answer<DeleteSnapshotResponse> {
        let snapshot = request.into_inner().snapshot_id;
        self.carry_out(|state| state.snapshots.remove(&snapshot)).await?;
        Ok(Response::new(DeleteSnapshotResponse {}))
    }

    async fn controller_publish_volume(
        &self,
        _: Request<ControllerPublishVolumeRequest>,
    ) -> Answer<ControllerPublishVolumeResponse> {
        Err(Status::unimplemented("publish"))
    }

    async fn controller_unpublish_volume(
        &self,
        _: Request<ControllerUnpublishVolumeRequest>,
    ) -> Answer<ControllerUnpublishVolumeResponse> {
        Err(Status::unimplemented("unpublish"))
    }

    async fn validate_volume_capabilities(
        &self,
        _: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Answer<ValidateVolumeCapabilitiesResponse> {
        Err(Status::unimplemented("validate"))
    }

    async fn list_volumes(&self, _: Request<ListVolumesRequest>) -> Answer<ListVolumesResponse> {
        Err(Status::unimplemented("list"))
    }

    async fn get_capacity(&self, _: Request<GetCapacityRequest>) -> Answer<GetCapacityResponse> {
        Err(Status::unimplemented("capacity"))
    }

    async fn list_snapshots(&self, request: Request<ListSnapshotsRequest>) -> Answer<ListSnapshotsResponse> {
        let wanted = request.into_inner().snapshot_id;
        let found = self.snapshots().into_iter().filter(|snapshot_id| *snapshot_id == wanted);
        let entries = found.map(|snapshot_id| {
            let snapshot = Snapshot { snapshot_id, ready_to_use: true, ..Snapshot::default() };
            list_snapshots_response::Entry { snapshot: Some(snapshot) }
        });
        Ok(Response::new(ListSnapshotsResponse { entries: entries.collect(), ..ListSnapshotsResponse::default() }))
    }

    async fn get_snapshot(&self, _: Request<GetSnapshotRequest>) -> Answer<GetSnapshotResponse> {
        Err(Status::unimplemented("get"))
    }

    async fn controller_expand_volume(
        &self,
        _: Request<ControllerExpandVolumeRequest>,
    ) -> Answer<ControllerExpandVolumeResponse> {
        Err(Status::unimplemented("expand"))
    }

    async fn controller_get_volume(
        &self,
        _: Request<ControllerGetVolumeRequest>,
    ) -> Answer<ControllerGetVolumeResponse> {
        Err(Status::unimplemented("get"))
    }

    async fn controller_modify_volume(
        &self,
        _: Request<ControllerModifyVolumeRequest>,
    ) -> Answer<ControllerModifyVolumeResponse> {
        Ok(Response::new(ControllerModifyVolumeResponse {}))
    }
}

#[tonic::async_trait]
impl GroupController for TestDriver {
    async fn group_controller_get_capabilities(
        &self,
        _: Request<GroupControllerGetCapabilitiesRequest>,
    ) -> Answer<GroupControllerGetCapabilitiesResponse> {
        use group_controller_service_capability::{Rpc, Type};
        let rpc = Rpc { r#type: GroupRpc::CreateDeleteGetVolumeGroupSnapshot as i32 };
        let capabilities = vec![GroupControllerServiceCapability { r#type: Some(Type::Rpc(rpc)) }];
        Ok(Response::new(GroupControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn create_volume_group_snapshot(
        &self,
        _: Request<CreateVolumeGroupSnapshotRequest>,
    ) -> Answer<CreateVolumeGroupSnapshotResponse> {
        Err(Status::unimplemented("create"))
    }

    async fn delete_volume_group_snapshot(
        &self,
        _: Request<DeleteVolumeGroupSnapshotRequest>,
    ) -> Answer<DeleteVolumeGroupSnapshotResponse> {
        Err(Status::unimplemented("delete"))
    }

    /// A group exists if a snapshot has its name.
    async fn get_volume_group_snapshot(
        &self,
        request: Request<GetVolumeGroupSnapshotRequest>,
    ) -> Answer<GetVolumeGroupSnapshotResponse> {
        let group_snapshot_id = request.into_inner().group_snapshot_id;
        if !self.snapshots().contains(&group_snapshot_id) {
            return Err(Status::not_found("no such group"));
        }
        let group = VolumeGroupSnapshot { group_snapshot_id, ready_to_use: true, ..VolumeGroupSnapshot::default() };
        Ok(Response::new(GetVolumeGroupSnapshotResponse { group_snapshot: Some(group) }))
    }
}
