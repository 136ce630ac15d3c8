//! The interfaces between a node and third-party plugins: plugin registration, storage (CSI v1, all services), devices (device
//! plugins v1beta1, dynamic resources v1 and v1beta1, their health v1alpha1), and the resources of pods (pod resources v1).
//!
//! Like `corten-cri` for runtimes, this package holds messages, clients and servers, and no behaviour of either side.
//! Field numbers are upstream's; plugins are built against them and never against Corten.

use std::path::Path;

use tonic::transport::{Channel, Endpoint};

/// The registration of plugins, v1.
pub mod registration {
    #![allow(clippy::all, missing_docs)]
    tonic::include_proto!("pluginregistration");
}

/// The container storage interface, v1.
pub mod csi {
    #![allow(clippy::all, missing_docs)]
    tonic::include_proto!("csi.v1");
}

/// Device plugins, v1beta1.
pub mod device_plugin {
    #![allow(clippy::all, missing_docs)]
    tonic::include_proto!("v1beta1");
}

/// Drivers of dynamic resources. The generated code of a version refers to that of another by these names.
mod dra {
    pub mod v1 {
        #![allow(clippy::all, missing_docs)]
        tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");
    }
    pub mod v1beta1 {
        #![allow(clippy::all, missing_docs)]
        tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1beta1");
    }
}
/// Drivers of dynamic resources, v1.
pub use dra::v1 as dynamic_resources;
/// Drivers of dynamic resources, v1beta1; the messages are those of v1.
pub use dra::v1beta1 as dynamic_resources_beta;

/// The health of the devices of dynamic resources, v1alpha1.
pub mod dynamic_resources_health {
    #![allow(clippy::all, missing_docs)]
    tonic::include_proto!("v1alpha1");
}

/// The resources of pods, v1.
pub mod pod_resources {
    #![allow(clippy::all, missing_docs)]
    tonic::include_proto!("v1");
}

/// The error of a plugin's socket that cannot be dialled.
#[derive(Debug, thiserror::Error)]
#[error("connect to the plugin at {socket}: {source}")]
pub struct Error {
    socket: String,
    source: tonic::transport::Error,
}

/// Opens a channel to the plugin that listens on `socket`, dialled at its first call and again after every disconnect.
pub fn connect_lazy(socket: &Path) -> Result<Channel, Error> {
    let shown = socket.display().to_string();
    let path = shown.strip_prefix("unix://").unwrap_or(&shown);
    let endpoint = Endpoint::try_from(format!("unix://{path}"));
    endpoint.map(|endpoint| endpoint.connect_lazy()).map_err(|source| Error { socket: shown, source })
}
