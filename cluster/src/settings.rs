//! The settings that every node of a cluster must agree on. The server publishes them as the ConfigMap
//! `kube-system/corten-config`, and nodes that join read them.

use anyhow::Result;
use corten_meta::Value;
use serde::{Deserialize, Serialize};

use crate::cli::{self, NetworkBackend};

pub const NAMESPACE: &str = "kube-system";
pub const NAME: &str = "corten-config";
pub const KEY: &str = "cluster";

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
    /// The stable address of all API servers; empty if there is none.
    pub control_plane_endpoint: String,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            cluster_cidr: cli::DEFAULT_CLUSTER_CIDR.to_owned(),
            service_cidr: cli::DEFAULT_SERVICE_CIDR.to_owned(),
            cluster_domain: cli::DEFAULT_CLUSTER_DOMAIN.to_owned(),
            network_backend: NetworkBackend::Vxlan,
            load_balancer_pool: Vec::new(),
            dns_stub_domains: Vec::new(),
            network_policy_host_egress: false,
            control_plane_endpoint: String::new(),
        }
    }
}

impl Settings {
    /// Returns the data of the ConfigMap.
    pub fn data(&self) -> Value {
        serde_json::json!({KEY: serde_json::json!(self).to_string()})
    }
}

/// Parses the published settings.
pub fn parse(text: &str) -> Result<Settings> {
    Ok(serde_json::from_str(text)?)
}
