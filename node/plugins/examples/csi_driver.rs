//! A CSI driver in one file: every volume is a directory of the node, bind-mounted where the kubelet asks for it.
//!
//! It is for testing a node's side of CSI: `csi_driver <kubelet root> <name> <state directory>` registers itself with
//! the kubelet and serves until it is killed. Volume stats are the file system's; an expansion only answers the new
//! size.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use corten_plugins::csi::identity_server::{Identity, IdentityServer};
use corten_plugins::csi::node_server::{Node, NodeServer};
use corten_plugins::csi::node_service_capability::{Rpc, Type, rpc};
use corten_plugins::csi::{self, VolumeUsage, volume_usage::Unit};
use corten_plugins::registration::registration_server::{Registration, RegistrationServer};
use corten_plugins::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

type Answer<T> = Result<Response<T>, Status>;

#[derive(Clone)]
struct Driver {
    name: String,
    node_id: String,
    socket: PathBuf,
    state: PathBuf,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut next =
        || arguments.next().ok_or_else(|| anyhow::anyhow!("usage: csi_driver <kubelet root> <name> <state>"));
    let root = PathBuf::from(next()?);
    let name = next()?;
    let state = PathBuf::from(next()?);
    let own = root.join("plugins").join(&name);
    fs::create_dir_all(&own)?;
    fs::create_dir_all(&state)?;
    let driver = Driver { node_id: format!("{name}-node"), socket: own.join("csi.sock"), name: name.clone(), state };
    let serving = tonic::transport::Server::builder()
        .add_service(IdentityServer::new(driver.clone()))
        .add_service(NodeServer::new(driver.clone()))
        .serve_with_incoming(listen(&driver.socket)?);
    let registration = root.join("plugins_registry").join(format!("{name}-reg.sock"));
    let registering = tonic::transport::Server::builder()
        .add_service(RegistrationServer::new(driver))
        .serve_with_incoming(listen(&registration)?);
    tokio::try_join!(serving, registering)?;
    Ok(())
}

fn listen(socket: &Path) -> std::io::Result<UnixListenerStream> {
    let _ = fs::remove_file(socket);
    Ok(UnixListenerStream::new(UnixListener::bind(socket)?))
}

fn failed(action: &str) -> impl FnOnce(std::io::Error) -> Status + '_ {
    move |error| Status::internal(format!("{action}: {error}"))
}

fn bind(source: &Path, target: &Path, read_only: bool) -> Result<(), Status> {
    let mounted = fs::read_to_string("/proc/self/mountinfo").map_err(failed("mounts"))?;
    if mounted.lines().any(|line| line.split(' ').nth(4) == target.to_str()) {
        return Ok(());
    }
    fs::create_dir_all(target).map_err(failed("target"))?;
    let none = None::<&str>;
    mount(Some(source), target, none, MsFlags::MS_BIND, none).map_err(|errno| failed("bind")(errno.into()))?;
    if read_only {
        let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(none, target, none, flags, none).map_err(|errno| failed("bind read-only")(errno.into()))?;
    }
    Ok(())
}

fn unbind(target: &str) -> Result<(), Status> {
    // An unmounted target is the wanted state.
    let _ = umount2(target, MntFlags::UMOUNT_NOFOLLOW);
    let _ = fs::remove_dir(target);
    Ok(())
}

fn note(call: &str, details: &str) {
    println!("{call} {details}");
}

#[tonic::async_trait]
impl Registration for Driver {
    async fn get_info(&self, _: Request<InfoRequest>) -> Answer<PluginInfo> {
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".into(),
            name: self.name.clone(),
            endpoint: self.socket.display().to_string(),
            supported_versions: vec!["1.0.0".into()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Answer<RegistrationStatusResponse> {
        note("Registered", &format!("{:?}", request.into_inner()));
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[tonic::async_trait]
impl Identity for Driver {
    async fn get_plugin_info(&self, _: Request<csi::GetPluginInfoRequest>) -> Answer<csi::GetPluginInfoResponse> {
        let manifest = HashMap::new();
        Ok(Response::new(csi::GetPluginInfoResponse { name: self.name.clone(), vendor_version: "1".into(), manifest }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<csi::GetPluginCapabilitiesRequest>,
    ) -> Answer<csi::GetPluginCapabilitiesResponse> {
        Ok(Response::new(csi::GetPluginCapabilitiesResponse::default()))
    }

    async fn probe(&self, _: Request<csi::ProbeRequest>) -> Answer<csi::ProbeResponse> {
        Ok(Response::new(csi::ProbeResponse { ready: Some(true) }))
    }
}

#[tonic::async_trait]
impl Node for Driver {
    async fn node_stage_volume(
        &self,
        request: Request<csi::NodeStageVolumeRequest>,
    ) -> Answer<csi::NodeStageVolumeResponse> {
        let request = request.into_inner();
        note("NodeStageVolume", &request.volume_id);
        let source = self.state.join(&request.volume_id);
        fs::create_dir_all(&source).map_err(failed("volume"))?;
        bind(&source, Path::new(&request.staging_target_path), false)?;
        Ok(Response::new(csi::NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<csi::NodeUnstageVolumeRequest>,
    ) -> Answer<csi::NodeUnstageVolumeResponse> {
        let request = request.into_inner();
        note("NodeUnstageVolume", &request.volume_id);
        let _ = umount2(request.staging_target_path.as_str(), MntFlags::UMOUNT_NOFOLLOW);
        Ok(Response::new(csi::NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<csi::NodePublishVolumeRequest>,
    ) -> Answer<csi::NodePublishVolumeResponse> {
        let request = request.into_inner();
        note("NodePublishVolume", &format!("{} {:?}", request.volume_id, request.volume_context));
        // An inline volume was never staged: it begins here.
        let source = match request.staging_target_path.as_str() {
            "" => self.state.join(&request.volume_id),
            staging => PathBuf::from(staging),
        };
        fs::create_dir_all(&source).map_err(failed("volume"))?;
        bind(&source, Path::new(&request.target_path), request.readonly)?;
        Ok(Response::new(csi::NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<csi::NodeUnpublishVolumeRequest>,
    ) -> Answer<csi::NodeUnpublishVolumeResponse> {
        let request = request.into_inner();
        note("NodeUnpublishVolume", &request.volume_id);
        unbind(&request.target_path)?;
        Ok(Response::new(csi::NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<csi::NodeGetVolumeStatsRequest>,
    ) -> Answer<csi::NodeGetVolumeStatsResponse> {
        let path = request.into_inner().volume_path;
        let room = nix::sys::statvfs::statvfs(path.as_str()).map_err(|errno| failed("stat")(errno.into()))?;
        let block = i64::try_from(room.fragment_size()).unwrap_or(0);
        let bytes = |blocks: u64| i64::try_from(blocks).unwrap_or(0) * block;
        let total = bytes(room.blocks());
        let usage = VolumeUsage {
            available: bytes(room.blocks_available()),
            total,
            used: total - bytes(room.blocks_free()),
            unit: Unit::Bytes as i32,
        };
        Ok(Response::new(csi::NodeGetVolumeStatsResponse { usage: vec![usage], volume_condition: None }))
    }

    async fn node_expand_volume(
        &self,
        request: Request<csi::NodeExpandVolumeRequest>,
    ) -> Answer<csi::NodeExpandVolumeResponse> {
        let request = request.into_inner();
        let capacity_bytes = request.capacity_range.unwrap_or_default().required_bytes;
        note("NodeExpandVolume", &format!("{} {capacity_bytes}", request.volume_id));
        Ok(Response::new(csi::NodeExpandVolumeResponse { capacity_bytes }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<csi::NodeGetCapabilitiesRequest>,
    ) -> Answer<csi::NodeGetCapabilitiesResponse> {
        let kinds = [rpc::Type::StageUnstageVolume, rpc::Type::GetVolumeStats, rpc::Type::ExpandVolume];
        let capabilities = kinds
            .map(|kind| csi::NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: kind as i32 })) })
            .to_vec();
        Ok(Response::new(csi::NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(&self, _: Request<csi::NodeGetInfoRequest>) -> Answer<csi::NodeGetInfoResponse> {
        let segments = HashMap::from([(format!("topology.{}/node", self.name), self.node_id.clone())]);
        Ok(Response::new(csi::NodeGetInfoResponse {
            node_id: self.node_id.clone(),
            max_volumes_per_node: 8,
            accessible_topology: Some(csi::Topology { segments }),
        }))
    }
}
