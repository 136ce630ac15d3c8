//! The service Identity: the driver's name and capabilities, the same on the controller and on nodes.

use std::collections::HashMap;

use corten_plugins::csi;
use csi::identity_server::Identity;
use csi::plugin_capability::service::Type as Service;
use csi::plugin_capability::volume_expansion::Type as Expansion;
use csi::plugin_capability::{Type, VolumeExpansion};
use tonic::{Request, Response, Status};

/// The name of AWS's driver, which classes and volumes refer to.
pub const NAME: &str = "ebs.csi.aws.com";

/// The identity of the driver.
pub struct Driver;

#[tonic::async_trait]
impl Identity for Driver {
    async fn get_plugin_info(
        &self,
        _: Request<csi::GetPluginInfoRequest>,
    ) -> Result<Response<csi::GetPluginInfoResponse>, Status> {
        Ok(Response::new(csi::GetPluginInfoResponse {
            name: NAME.to_owned(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            manifest: HashMap::new(),
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<csi::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<csi::GetPluginCapabilitiesResponse>, Status> {
        let service = |service: Service| Type::Service(csi::plugin_capability::Service { r#type: service as i32 });
        let all = [
            service(Service::ControllerService),
            service(Service::VolumeAccessibilityConstraints),
            Type::VolumeExpansion(VolumeExpansion { r#type: Expansion::Online as i32 }),
        ];
        let capabilities = all.into_iter().map(|one| csi::PluginCapability { r#type: Some(one) }).collect();
        Ok(Response::new(csi::GetPluginCapabilitiesResponse { capabilities }))
    }

    async fn probe(&self, _: Request<csi::ProbeRequest>) -> Result<Response<csi::ProbeResponse>, Status> {
        Ok(Response::new(csi::ProbeResponse { ready: Some(true) }))
    }
}
