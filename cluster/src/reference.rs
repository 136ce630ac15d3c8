//! The facts of the manual's reference pages: the package `manual` reads them, the binary does not.

use corten_meta::Value;
use corten_meta::metrics::Family;

pub use crate::listeners::{Listener, listeners};
pub use crate::registries::FIELDS as REGISTRY_FIELDS;

/// Returns the command line with every subcommand and flag.
pub fn command() -> clap::Command {
    <crate::cli::Cli as clap::CommandFactory>::command()
}

/// Returns the settings that a server publishes to the nodes that join, with their defaults.
pub fn cluster_settings() -> Value {
    serde_json::json!(crate::settings::Settings::default())
}

/// A list of metric families, and the endpoints that serve it.
pub struct Metrics {
    pub endpoints: &'static [&'static str],
    pub families: &'static [&'static Family],
}

/// Returns the metrics of all components.
pub fn metrics() -> [Metrics; 15] {
    const API_SERVER: &str = "API server";
    const CONTROLLER_MANAGER: &str = "controller manager";
    const SCHEDULER: &str = "scheduler";
    let list = |endpoints, families| Metrics { endpoints, families };
    [
        list(&[API_SERVER], corten_apiserver::METRICS),
        list(&[API_SERVER], corten_apiserver::ADMISSION_METRICS),
        list(&[API_SERVER], corten_apiserver::CEL_METRICS),
        list(&[API_SERVER, CONTROLLER_MANAGER, SCHEDULER], corten_apiserver::PROCESS_METRICS),
        list(&[CONTROLLER_MANAGER, SCHEDULER], corten_client::metrics::FAMILIES),
        list(&[CONTROLLER_MANAGER], corten_controllers::METRICS),
        list(&[CONTROLLER_MANAGER], crate::components::backups::METRICS),
        list(&[CONTROLLER_MANAGER], crate::components::server_metrics::FAMILIES),
        list(&[SCHEDULER], corten_scheduler::METRICS),
        list(&["kubelet"], corten_kubelet::metrics::FAMILIES),
        list(&["kubelet, `/metrics/cadvisor`"], corten_kubelet::metrics::cadvisor::FAMILIES),
        list(&["kubelet, `/metrics/resource`"], corten_kubelet::metrics::resource::FAMILIES),
        list(&["kubelet, `/metrics/probes`"], corten_kubelet::metrics::probes::FAMILIES),
        list(&["cluster DNS"], corten_dns::METRICS),
        list(&["`/metrics/slis`"], corten_meta::metrics::FAMILIES),
    ]
}
