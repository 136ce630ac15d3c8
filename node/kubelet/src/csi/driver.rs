//! One CSI driver of this node: the calls the kubelet makes to it, each with upstream's time limit.

use std::path::Path;
use std::time::Duration;

use corten_plugins::csi::node_client::NodeClient;
use corten_plugins::csi::{self};
use tonic::transport::Channel;

use super::capability::Abilities;
use crate::error::{Error, Result};

/// As long as upstream waits for a driver.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Clone)]
pub struct Driver {
    client: NodeClient<Channel>,
}

/// A request with its time limit.
fn timed<T>(message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(CALL_TIMEOUT);
    request
}

/// The driver's refusal as upstream shows it.
fn refused(status: tonic::Status) -> Error {
    Error::pod(format!("rpc error: code = {:?} desc = {}", status.code(), status.message()))
}

impl Driver {
    pub fn new(endpoint: &Path) -> Result<Driver> {
        let channel = corten_plugins::connect_lazy(endpoint).map_err(|error| Error::pod(error.to_string()))?;
        Ok(Driver { client: NodeClient::new(channel) })
    }

    pub async fn info(&self) -> Result<csi::NodeGetInfoResponse> {
        let answer = self.client.clone().node_get_info(timed(csi::NodeGetInfoRequest {})).await;
        Ok(answer.map_err(refused)?.into_inner())
    }

    pub async fn abilities(&self) -> Result<Abilities> {
        let answer = self.client.clone().node_get_capabilities(timed(csi::NodeGetCapabilitiesRequest {})).await;
        Ok(Abilities::new(answer.map_err(refused)?.get_ref()))
    }

    pub async fn stage(&self, request: csi::NodeStageVolumeRequest) -> Result<()> {
        self.client.clone().node_stage_volume(timed(request)).await.map(drop).map_err(refused)
    }

    pub async fn unstage(&self, volume_id: &str, staging: &Path) -> Result<()> {
        let staging_target_path = staging.display().to_string();
        let request = csi::NodeUnstageVolumeRequest { volume_id: volume_id.to_owned(), staging_target_path };
        self.client.clone().node_unstage_volume(timed(request)).await.map(drop).map_err(refused)
    }

    pub async fn publish(&self, request: csi::NodePublishVolumeRequest) -> Result<()> {
        self.client.clone().node_publish_volume(timed(request)).await.map(drop).map_err(refused)
    }

    pub async fn unpublish(&self, volume_id: &str, target: &Path) -> Result<()> {
        let target_path = target.display().to_string();
        let request = csi::NodeUnpublishVolumeRequest { volume_id: volume_id.to_owned(), target_path };
        self.client.clone().node_unpublish_volume(timed(request)).await.map(drop).map_err(refused)
    }

    /// The size that the volume has afterwards.
    pub async fn expand(&self, request: csi::NodeExpandVolumeRequest) -> Result<i64> {
        let answer = self.client.clone().node_expand_volume(timed(request)).await;
        Ok(answer.map_err(refused)?.into_inner().capacity_bytes)
    }

    pub async fn stats(&self, request: csi::NodeGetVolumeStatsRequest) -> Result<Vec<csi::VolumeUsage>> {
        let answer = self.client.clone().node_get_volume_stats(timed(request)).await;
        Ok(answer.map_err(refused)?.into_inner().usage)
    }
}
