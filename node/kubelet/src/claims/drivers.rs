//! The registered DRA drivers. A driver that is being updated registers twice, under one name and two sockets: the
//! newest is called, and the driver is removed only with its last socket.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use corten_plugins::dynamic_resources as api;
use corten_plugins::dynamic_resources::dra_plugin_client::DraPluginClient;
use corten_plugins::dynamic_resources_beta::dra_plugin_client::DraPluginClient as BetaClient;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::Channel;
use tonic::{Request, Response};

use crate::error::{Error, Result};

/// The services that drivers name at registration, the best first.
const SERVICES: [&str; 2] = ["v1.DRAPlugin", "v1beta1.DRAPlugin"];

/// A driver's service, in one of its versions.
#[derive(Clone)]
pub enum Driver {
    V1(DraPluginClient<Channel>),
    V1Beta1(BetaClient<Channel>),
}

impl Driver {
    pub async fn prepare(
        &mut self,
        request: Request<api::NodePrepareResourcesRequest>,
    ) -> tonic::Result<Response<api::NodePrepareResourcesResponse>> {
        match self {
            Driver::V1(client) => client.node_prepare_resources(request).await,
            Driver::V1Beta1(client) => client.node_prepare_resources(request).await,
        }
    }

    pub async fn unprepare(
        &mut self,
        request: Request<api::NodeUnprepareResourcesRequest>,
    ) -> tonic::Result<Response<api::NodeUnprepareResourcesResponse>> {
        match self {
            Driver::V1(client) => client.node_unprepare_resources(request).await,
            Driver::V1Beta1(client) => client.node_unprepare_resources(request).await,
        }
    }
}

/// A socket at which a driver listens.
struct Socket {
    path: PathBuf,
    driver: Driver,
    /// Ends what follows the driver at this socket.
    _followers: DropGuard,
}

/// The drivers by name, each with its sockets in the order of registration.
#[derive(Default)]
pub struct Drivers(HashMap<String, Vec<Socket>>);

impl Drivers {
    /// Adds a socket of a driver; returns the token that is cancelled when it is removed.
    pub fn register(&mut self, name: &str, endpoint: &Path, services: &[String]) -> Result<CancellationToken> {
        let Some(service) = SERVICES.into_iter().find(|known| services.iter().any(|service| service == known)) else {
            return Err(Error::pod(format!(
                "none of services supported by the plugin ({services:?}) are supported by the kubelet ({SERVICES:?})"
            )));
        };
        let channel = corten_plugins::connect_lazy(endpoint).map_err(|error| Error::pod(error.to_string()))?;
        let driver = match service {
            "v1.DRAPlugin" => Driver::V1(DraPluginClient::new(channel)),
            _ => Driver::V1Beta1(BetaClient::new(channel)),
        };
        self.deregister(name, endpoint);
        let gone = CancellationToken::new();
        let socket = Socket { path: endpoint.to_owned(), driver, _followers: gone.clone().drop_guard() };
        self.0.entry(name.to_owned()).or_default().push(socket);
        Ok(gone)
    }

    /// Removes one socket of a driver; returns whether it was the last.
    pub fn deregister(&mut self, name: &str, endpoint: &Path) -> bool {
        let Some(sockets) = self.0.get_mut(name) else { return true };
        sockets.retain(|socket| socket.path != endpoint);
        let is_gone = sockets.is_empty();
        if is_gone {
            self.0.remove(name);
        }
        is_gone
    }

    pub fn get(&self, name: &str) -> Option<Driver> {
        self.0.get(name).and_then(|sockets| sockets.last()).map(|socket| socket.driver.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_driver_that_is_updated_is_known_by_its_newest_socket() {
        let services = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let mut drivers = Drivers::default();
        let refused = drivers.register("d", Path::new("/old"), &services(&["v1alpha4.Node"])).unwrap_err().to_string();
        assert!(refused.contains(r#"["v1.DRAPlugin", "v1beta1.DRAPlugin"]"#), "{refused}");
        let old = drivers.register("d", Path::new("/old"), &services(&["v1beta1.DRAPlugin"])).unwrap();
        assert!(matches!(drivers.get("d"), Some(Driver::V1Beta1(_))));
        let new = drivers.register("d", Path::new("/new"), &services(&["v1beta1.DRAPlugin", "v1.DRAPlugin"])).unwrap();
        assert!(matches!(drivers.get("d"), Some(Driver::V1(_))));
        assert!(!drivers.deregister("d", Path::new("/old")), "the new one is there");
        assert!(old.is_cancelled() && !new.is_cancelled());
        assert!(matches!(drivers.get("d"), Some(Driver::V1(_))));
        assert!(drivers.deregister("d", Path::new("/new")));
        assert!(drivers.get("d").is_none());
    }
}
