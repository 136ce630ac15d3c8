//! The driver: its name, its capabilities, and calls with a deadline.

use std::collections::BTreeSet;
use std::time::Duration;

use corten_plugins::csi;
use corten_plugins::csi::controller_client::ControllerClient;
use corten_plugins::csi::controller_service_capability::rpc::Type as Rpc;
use corten_plugins::csi::group_controller_client::GroupControllerClient;
use corten_plugins::csi::group_controller_service_capability::rpc::Type as GroupRpc;
use corten_plugins::csi::identity_client::IdentityClient;
use corten_plugins::csi::node_client::NodeClient;
use corten_plugins::csi::node_service_capability::rpc::Type as NodeRpc;
use corten_plugins::csi::plugin_capability::service::Type as Service;
use tonic::transport::Channel;
use tonic::{Code, Response, Status};

/// The most characters of a driver's message that users see.
const MAX_MESSAGE: usize = 1000;

/// The failure of a call.
#[derive(Clone, Debug)]
pub struct CallError {
    pub code: Code,
    message: String,
}

impl CallError {
    pub fn new(code: Code, message: &str) -> CallError {
        CallError { code, message: message.chars().take(MAX_MESSAGE).collect() }
    }

    /// Reports whether the driver has certainly ended the operation. Otherwise it may still be going on, or may have
    /// succeeded, and must be repeated.
    pub fn is_final(&self) -> bool {
        !matches!(
            self.code,
            Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::Aborted | Code::ResourceExhausted
        )
    }

    /// Reports whether the operation cannot succeed with these arguments.
    pub fn is_infeasible(&self) -> bool {
        matches!(self.code, Code::InvalidArgument | Code::OutOfRange | Code::NotFound)
    }
}

impl std::fmt::Display for CallError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "rpc error: code = {:?} desc = {}", self.code, self.message)
    }
}

impl From<Status> for CallError {
    fn from(status: Status) -> CallError {
        CallError::new(status.code(), status.message())
    }
}

/// Waits for the answer to a call, no longer than the deadline.
async fn within<T>(limit: Duration, call: impl Future<Output = Result<Response<T>, Status>>) -> Result<T, CallError> {
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => answer.map(Response::into_inner).map_err(CallError::from),
        Err(_) => {
            let message = format!("the driver did not answer within {} s", limit.as_secs());
            Err(CallError::new(Code::DeadlineExceeded, &message))
        }
    }
}

/// A driver, by its socket.
pub struct Driver {
    pub name: String,
    channel: Channel,
    timeout: Duration,
    services: BTreeSet<i32>,
    controller: BTreeSet<i32>,
    group: BTreeSet<i32>,
    node: BTreeSet<i32>,
}

impl Driver {
    /// Asks a driver for its name and capabilities.
    pub async fn open(channel: Channel, timeout: Duration) -> Result<Driver, CallError> {
        let mut identity = IdentityClient::new(channel.clone());
        let info = within(timeout, identity.get_plugin_info(csi::GetPluginInfoRequest {})).await?;
        let request = csi::GetPluginCapabilitiesRequest {};
        let services = within(timeout, identity.get_plugin_capabilities(request)).await?.capabilities;
        let services = services.into_iter().filter_map(|one| match one.r#type {
            Some(csi::plugin_capability::Type::Service(service)) => Some(service.r#type),
            _ => None,
        });
        let mut driver = Driver {
            name: info.name,
            channel,
            timeout,
            services: services.collect(),
            controller: BTreeSet::new(),
            group: BTreeSet::new(),
            node: BTreeSet::new(),
        };
        driver.read_capabilities().await?;
        Ok(driver)
    }

    async fn read_capabilities(&mut self) -> Result<(), CallError> {
        if self.has_service(Service::ControllerService) {
            let request = csi::ControllerGetCapabilitiesRequest {};
            let answer = within(self.timeout, self.controller().controller_get_capabilities(request)).await?;
            let types = answer
                .capabilities
                .into_iter()
                .filter_map(|one| one.r#type.map(|csi::controller_service_capability::Type::Rpc(rpc)| rpc.r#type));
            self.controller = types.collect();
        }
        if self.has_service(Service::GroupControllerService) {
            let request = csi::GroupControllerGetCapabilitiesRequest {};
            let answer = within(self.timeout, self.group().group_controller_get_capabilities(request)).await?;
            let types = answer.capabilities.into_iter().filter_map(|one| {
                one.r#type.map(|csi::group_controller_service_capability::Type::Rpc(rpc)| rpc.r#type)
            });
            self.group = types.collect();
        }
        // The node's part may listen on another socket.
        let mut node = NodeClient::new(self.channel.clone());
        match within(self.timeout, node.node_get_capabilities(csi::NodeGetCapabilitiesRequest {})).await {
            Ok(answer) => {
                let types = answer
                    .capabilities
                    .into_iter()
                    .filter_map(|one| one.r#type.map(|csi::node_service_capability::Type::Rpc(rpc)| rpc.r#type));
                self.node = types.collect();
            }
            Err(error) if error.code == Code::Unimplemented => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn has_service(&self, service: Service) -> bool {
        self.services.contains(&(service as i32))
    }

    pub fn has(&self, rpc: Rpc) -> bool {
        self.controller.contains(&(rpc as i32))
    }

    pub fn creates_volumes(&self) -> bool {
        self.has(Rpc::CreateDeleteVolume)
    }

    /// Reports whether volumes are attached to nodes by the driver.
    pub fn publishes_volumes(&self) -> bool {
        self.has(Rpc::PublishUnpublishVolume)
    }

    pub fn has_capacity(&self) -> bool {
        self.has(Rpc::GetCapacity)
    }

    pub fn expands_on_node(&self) -> bool {
        self.node.contains(&(NodeRpc::ExpandVolume as i32))
    }

    pub fn expands_volumes(&self) -> bool {
        self.has(Rpc::ExpandVolume) || self.expands_on_node()
    }

    pub fn modifies_volumes(&self) -> bool {
        self.has(Rpc::ModifyVolume)
    }

    pub fn takes_snapshots(&self) -> bool {
        self.has(Rpc::CreateDeleteSnapshot)
    }

    pub fn takes_group_snapshots(&self) -> bool {
        self.group.contains(&(GroupRpc::CreateDeleteGetVolumeGroupSnapshot as i32))
    }

    /// Reports whether volumes can be reached from some nodes only.
    pub fn has_topology(&self) -> bool {
        self.has_service(Service::VolumeAccessibilityConstraints)
    }

    fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.channel.clone())
    }

    fn group(&self) -> GroupControllerClient<Channel> {
        GroupControllerClient::new(self.channel.clone())
    }

    pub async fn create_volume(&self, request: csi::CreateVolumeRequest) -> Result<csi::Volume, CallError> {
        let answer = within(self.timeout, self.controller().create_volume(request)).await?;
        answer.volume.ok_or_else(|| CallError::new(Code::Internal, "the answer has no volume"))
    }

    pub async fn delete_volume(&self, request: csi::DeleteVolumeRequest) -> Result<(), CallError> {
        within(self.timeout, self.controller().delete_volume(request)).await.map(drop)
    }

    pub async fn publish_volume(
        &self,
        request: csi::ControllerPublishVolumeRequest,
    ) -> Result<csi::ControllerPublishVolumeResponse, CallError> {
        within(self.timeout, self.controller().controller_publish_volume(request)).await
    }

    pub async fn unpublish_volume(&self, request: csi::ControllerUnpublishVolumeRequest) -> Result<(), CallError> {
        within(self.timeout, self.controller().controller_unpublish_volume(request)).await.map(drop)
    }

    pub async fn expand_volume(
        &self,
        request: csi::ControllerExpandVolumeRequest,
    ) -> Result<csi::ControllerExpandVolumeResponse, CallError> {
        within(self.timeout, self.controller().controller_expand_volume(request)).await
    }

    pub async fn modify_volume(&self, request: csi::ControllerModifyVolumeRequest) -> Result<(), CallError> {
        within(self.timeout, self.controller().controller_modify_volume(request)).await.map(drop)
    }

    pub async fn capacity(&self, request: csi::GetCapacityRequest) -> Result<csi::GetCapacityResponse, CallError> {
        within(self.timeout, self.controller().get_capacity(request)).await
    }

    pub async fn create_snapshot(&self, request: csi::CreateSnapshotRequest) -> Result<csi::Snapshot, CallError> {
        let answer = within(self.timeout, self.controller().create_snapshot(request)).await?;
        answer.snapshot.ok_or_else(|| CallError::new(Code::Internal, "the answer has no snapshot"))
    }

    pub async fn delete_snapshot(&self, request: csi::DeleteSnapshotRequest) -> Result<(), CallError> {
        within(self.timeout, self.controller().delete_snapshot(request)).await.map(drop)
    }

    /// Returns a snapshot by its handle; none if the driver cannot list snapshots, and so must be believed.
    pub async fn find_snapshot(&self, request: csi::ListSnapshotsRequest) -> Result<Option<csi::Snapshot>, CallError> {
        if !self.has(Rpc::ListSnapshots) {
            return Ok(None);
        }
        let handle = request.snapshot_id.clone();
        let answer = within(self.timeout, self.controller().list_snapshots(request)).await?;
        let mut entries = answer.entries.into_iter().filter_map(|entry| entry.snapshot);
        let found = entries.find(|snapshot| snapshot.snapshot_id == handle);
        let missing = || CallError::new(Code::NotFound, &format!("can not find snapshot for snapshotID {handle}"));
        found.map(Some).ok_or_else(missing)
    }

    pub async fn create_group_snapshot(
        &self,
        request: csi::CreateVolumeGroupSnapshotRequest,
    ) -> Result<csi::VolumeGroupSnapshot, CallError> {
        let answer = within(self.timeout, self.group().create_volume_group_snapshot(request)).await?;
        answer.group_snapshot.ok_or_else(|| CallError::new(Code::Internal, "the answer has no group snapshot"))
    }

    pub async fn delete_group_snapshot(&self, request: csi::DeleteVolumeGroupSnapshotRequest) -> Result<(), CallError> {
        within(self.timeout, self.group().delete_volume_group_snapshot(request)).await.map(drop)
    }

    pub async fn group_snapshot(
        &self,
        request: csi::GetVolumeGroupSnapshotRequest,
    ) -> Result<csi::VolumeGroupSnapshot, CallError> {
        let answer = within(self.timeout, self.group().get_volume_group_snapshot(request)).await?;
        answer.group_snapshot.ok_or_else(|| CallError::new(Code::Internal, "the answer has no group snapshot"))
    }
}
