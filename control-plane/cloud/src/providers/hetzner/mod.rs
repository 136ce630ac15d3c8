//! Hetzner Cloud: servers, load balancers, and routes of a network.
//!
//! The load balancers of the cluster have the label `kubernetes.io/cluster: NAME`; no other is changed or deleted.

mod api;
mod balancer;
mod options;
mod routes;
mod servers;

use std::sync::Arc;

use corten_outbound::https::Endpoint;
use serde_json::Value;

use self::api::Api;
use super::batch::Batch;
use super::{Setup, ini};
use crate::provider::{Answer, Balancers, Instance, NodeReference, Provider, Routes};

const URL: &str = "https://api.hetzner.cloud/v1";
/// The label of the cluster's objects.
const CLUSTER_LABEL: &str = "kubernetes.io/cluster";

pub struct Hetzner {
    api: Api,
    cluster: String,
    /// The ID or name of the private network; empty if the servers have none.
    network: String,
    /// The location of load balancers without an annotation.
    location: String,
    /// Servers by ID and by name.
    servers: Batch<Value>,
    /// The ID of the private network by its name.
    networks: Batch<u64>,
}

/// Opens the provider.
pub async fn open(setup: &Setup) -> Result<Arc<dyn Provider>, String> {
    let variable = |name: &str| (setup.variable)(name).unwrap_or_default();
    let mut token = variable("HCLOUD_TOKEN");
    let mut network = variable("HCLOUD_NETWORK");
    let mut location = variable("HCLOUD_LOAD_BALANCERS_LOCATION");
    let mut url = (setup.variable)("HCLOUD_ENDPOINT").unwrap_or_else(|| URL.to_owned());
    for line in ini::parse(&setup.config)? {
        let value = line.value.clone();
        match line.key.as_str() {
            "Token" => token = value,
            "Network" => network = value,
            "Location" => location = value,
            "Endpoint" => url = value,
            _ => return Err(ini::unknown(&line)),
        }
    }
    if token.is_empty() {
        return Err("Hetzner Cloud needs a token: set HCLOUD_TOKEN, or Token in the cloud configuration".to_owned());
    }
    let is_label = |one: char| one.is_ascii_alphanumeric() || ['-', '_', '.'].contains(&one);
    if setup.cluster.len() > 63 || !setup.cluster.chars().all(is_label) {
        return Err(format!("the cluster's name {:?} cannot be a label at Hetzner Cloud", setup.cluster));
    }
    let api = Api { endpoint: Endpoint::new(&url, &setup.roots)?, token };
    let (servers, networks) = (Batch::new(usize::MAX), Batch::new(1));
    Ok(Arc::new(Hetzner { api, cluster: setup.cluster.clone(), network, location, servers, networks }))
}

impl Provider for Hetzner {
    fn name(&self) -> &'static str {
        "hetzner"
    }

    fn forget(&self) {
        self.servers.forget();
        self.networks.forget();
    }

    fn instance<'a>(&'a self, node: &'a NodeReference) -> Answer<'a, Option<Instance>> {
        Box::pin(self.server_of(node))
    }

    fn balancers(&self) -> Option<&dyn Balancers> {
        Some(self)
    }

    fn routes(&self) -> Option<&dyn Routes> {
        Some(self).filter(|this| !this.network.is_empty()).map(|this| this as &dyn Routes)
    }
}
