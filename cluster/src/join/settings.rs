//! What every node of a cluster must agree on, published by the server as the ConfigMap `kube-system/corten-config` and
//! learned by nodes that join.

use std::path::PathBuf;

use anyhow::{Context, Result};
use corten_api::k8s_openapi::api::core::v1::ConfigMap;
use corten_client::Client;
use corten_meta::Value;
use serde::{Deserialize, Serialize};

use crate::cli::NetworkBackend;
use crate::config::Place;
use crate::pki::write_private;

pub const NAMESPACE: &str = "kube-system";
pub const NAME: &str = "corten-config";
const KEY: &str = "cluster";

/// The settings of a cluster; the defaults are those of the flags.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Settings {
    pub cluster_cidr: String,
    pub service_cidr: String,
    pub cluster_domain: String,
    pub network_backend: NetworkBackend,
    pub load_balancer_pool: Vec<String>,
    pub dns_stub_domains: Vec<String>,
    pub network_policy_host_egress: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            cluster_cidr: crate::cli::DEFAULT_CLUSTER_CIDR.to_owned(),
            service_cidr: crate::cli::DEFAULT_SERVICE_CIDR.to_owned(),
            cluster_domain: crate::cli::DEFAULT_CLUSTER_DOMAIN.to_owned(),
            network_backend: NetworkBackend::Vxlan,
            load_balancer_pool: Vec::new(),
            dns_stub_domains: Vec::new(),
            network_policy_host_egress: false,
        }
    }
}

impl Settings {
    /// The data of the ConfigMap.
    pub fn data(&self) -> Value {
        serde_json::json!({KEY: serde_json::json!(self).to_string()})
    }
}

/// The cluster's settings, or what was last known of them while the API server cannot be reached.
pub async fn learn(client: &Client, place: &Place) -> Result<Settings> {
    let remembered = file(place);
    match client.get::<ConfigMap>(NAMESPACE, NAME).await {
        Ok(config) => {
            let text = config.data.and_then(|mut data| data.remove(KEY)).context("the cluster's settings are empty")?;
            let settings = parse(&text).context("the cluster's settings cannot be read")?;
            write_private(&remembered, text.as_bytes())?;
            Ok(settings)
        }
        Err(error) => {
            let text = std::fs::read(&remembered).map_err(|_| error).context("the cluster's settings are not known")?;
            tracing::warn!("the API server does not answer; going on with the settings of the last start");
            serde_json::from_slice(&text).with_context(|| format!("{} is damaged", remembered.display()))
        }
    }
}

/// Reads what a cluster publishes.
pub fn parse(text: &str) -> Result<Settings> {
    Ok(serde_json::from_str(text)?)
}

fn file(place: &Place) -> PathBuf {
    place.data.join("cluster.json")
}
