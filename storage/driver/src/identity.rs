//! The service Identity: the driver's name and capabilities.

use std::collections::HashMap;

use corten_plugins::csi;
use csi::identity_server::Identity;
use csi::plugin_capability::service::Type as Service;
use csi::plugin_capability::volume_expansion::Type as Expansion;
use csi::plugin_capability::{Type, VolumeExpansion};
use tonic::Request;

use crate::service::{Answer, Driver};

/// The name of the driver, and of its provisioner.
pub const NAME: &str = "storage.corten.dev";

#[tonic::async_trait]
impl Identity for Driver {
    async fn get_plugin_info(&self, _: Request<csi::GetPluginInfoRequest>) -> Answer<csi::GetPluginInfoResponse> {
        Ok(tonic::Response::new(csi::GetPluginInfoResponse {
            name: NAME.to_owned(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            manifest: HashMap::new(),
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<csi::GetPluginCapabilitiesRequest>,
    ) -> Answer<csi::GetPluginCapabilitiesResponse> {
        let services = [
            Service::ControllerService,
            Service::VolumeAccessibilityConstraints,
            Service::GroupControllerService,
            Service::SnapshotMetadataService,
        ];
        let services = services
            .into_iter()
            .map(|service| Type::Service(csi::plugin_capability::Service { r#type: service as i32 }));
        let expansion = Type::VolumeExpansion(VolumeExpansion { r#type: Expansion::Online as i32 });
        let all = services.chain([expansion]);
        let capabilities = all.map(|one| csi::PluginCapability { r#type: Some(one) }).collect();
        Ok(tonic::Response::new(csi::GetPluginCapabilitiesResponse { capabilities }))
    }

    async fn probe(&self, _: Request<csi::ProbeRequest>) -> Answer<csi::ProbeResponse> {
        Ok(tonic::Response::new(csi::ProbeResponse { ready: Some(true) }))
    }
}
