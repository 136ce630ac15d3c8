//! One CSI driver of this node: the calls of the kubelet, each with upstream's time limit.

use std::path::Path;
use std::time::Duration;

use corten_plugins::csi::node_client::NodeClient;
use corten_plugins::csi::{self};
use tonic::Code;
use tonic::transport::Channel;

use super::capability::Abilities;
use crate::error::{Error, Result};
use crate::volumes::expansion::Outcome;

/// Upstream's time limit of a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Clone)]
pub struct Driver {
    client: NodeClient<Channel>,
}

/// Makes a request with its time limit.
fn timed<T>(message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(CALL_TIMEOUT);
    request
}

/// The error of a driver.
#[derive(Debug)]
pub struct Refusal {
    code: Code,
    message: String,
}

impl Refusal {
    /// Returns the outcome of the failed call.
    pub fn outcome(&self) -> Outcome {
        match self.code {
            Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::ResourceExhausted | Code::Aborted => {
                Outcome::Uncertain
            }
            Code::InvalidArgument | Code::OutOfRange | Code::NotFound => Outcome::Infeasible,
            Code::FailedPrecondition => Outcome::NotNow,
            _ => Outcome::Final,
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "rpc error: code = {:?} desc = {}", self.code, self.message)
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Error {
        Error::pod(refusal.to_string())
    }
}

/// Formats the driver's error as upstream does.
fn refused(status: tonic::Status) -> Error {
    refusal(status).into()
}

fn refusal(status: tonic::Status) -> Refusal {
    Refusal { code: status.code(), message: status.message().to_owned() }
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

    pub async fn stage(&self, request: csi::NodeStageVolumeRequest) -> std::result::Result<(), Refusal> {
        self.client.clone().node_stage_volume(timed(request)).await.map(drop).map_err(refusal)
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

    pub async fn expand(&self, request: csi::NodeExpandVolumeRequest) -> std::result::Result<(), Refusal> {
        self.client.clone().node_expand_volume(timed(request)).await.map(drop).map_err(refusal)
    }

    pub async fn stats(&self, request: csi::NodeGetVolumeStatsRequest) -> Result<Vec<csi::VolumeUsage>> {
        let answer = self.client.clone().node_get_volume_stats(timed(request)).await;
        Ok(answer.map_err(refused)?.into_inner().usage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_of_an_error_decides_whether_the_call_ended() {
        for (code, outcome) in [
            (Code::DeadlineExceeded, Outcome::Uncertain),
            (Code::Aborted, Outcome::Uncertain),
            (Code::InvalidArgument, Outcome::Infeasible),
            (Code::FailedPrecondition, Outcome::NotNow),
            (Code::Internal, Outcome::Final),
        ] {
            let refusal = refusal(tonic::Status::new(code, "no"));
            assert_eq!(refusal.outcome(), outcome, "{code:?}");
            assert_eq!(refusal.to_string(), format!("rpc error: code = {code:?} desc = no"));
        }
    }
}
