//! The flags of the cloud controller manager: alone, and in the process of a server.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;
use corten_cloud::CONTROLLERS;
use corten_cloud::providers::{self, Setup};

use crate::cli::{Component, LeaderElection, Serving};
use crate::files;

/// The default name of a cluster, as upstream's.
const DEFAULT_CLUSTER_NAME: &str = "kubernetes";

/// The flags of the cloud, with upstream's names.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Cloud")]
pub struct CloudOptions {
    /// The configuration file of the cloud provider.
    #[arg(long, value_name = "FILE")]
    pub cloud_config: Option<PathBuf>,
    /// The name of the cluster in the tags of the cloud's objects; clusters in one account need different ones.
    #[arg(long, default_value = DEFAULT_CLUSTER_NAME, value_name = "NAME")]
    pub cluster_name: String,
    /// Let the cloud's network route packets to pods: one route for the pod CIDR of each node.
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_name = "BOOL")]
    pub configure_cloud_routes: bool,
}

impl Default for CloudOptions {
    fn default() -> CloudOptions {
        CloudOptions {
            cloud_config: None,
            cluster_name: DEFAULT_CLUSTER_NAME.to_owned(),
            configure_cloud_routes: false,
        }
    }
}

impl CloudOptions {
    /// Returns the flags as arguments of a server.
    pub fn arguments(&self) -> Vec<OsString> {
        let mut list: Vec<OsString> = Vec::new();
        if let Some(path) = &self.cloud_config {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            list.extend(["--cloud-config".into(), path.into_os_string()]);
        }
        list.extend(["--cluster-name".into(), self.cluster_name.clone().into()]);
        list.push(format!("--configure-cloud-routes={}", self.configure_cloud_routes).into());
        list
    }

    /// Reads the file and the environment for a provider.
    pub fn setup(&self) -> Result<Setup> {
        let config = self.cloud_config.as_deref().map(files::read).transpose()?.unwrap_or_default();
        Ok(Setup {
            config,
            cluster: self.cluster_name.clone(),
            roots: files::trusted_roots(),
            variable: Box::new(|name| std::env::var(name).ok().filter(|value| !value.is_empty())),
        })
    }
}

/// The cloud controller manager alone. Flags have upstream's names.
#[derive(Debug, Clone, Args)]
pub struct CloudControllerManager {
    #[command(flatten)]
    pub component: Component,
    #[command(flatten)]
    pub election: LeaderElection,
    /// The cloud provider: aws or hetzner.
    #[arg(long, value_name = "PROVIDER")]
    pub cloud_provider: String,
    #[command(flatten)]
    pub cloud: CloudOptions,
    /// Whether nodes have pod CIDRs, without which no routes are made.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_name = "BOOL")]
    pub allocate_node_cidrs: bool,
    /// The controllers to run: `foo` enables foo, `-foo` disables it, `*` enables all.
    #[arg(long, value_delimiter = ',', default_value = "*", value_name = "NAMES", allow_hyphen_values = true)]
    pub controllers: Vec<String>,
    #[command(flatten)]
    pub serving: Serving,
}

/// The cloud of a server: its provider and its flags.
#[derive(Clone, Debug)]
pub struct Cloud {
    pub provider: String,
    pub options: CloudOptions,
}

/// Returns the names of the enabled controllers.
pub fn enabled(chosen: &[String]) -> Result<Vec<&'static str>> {
    for choice in chosen {
        let name = choice.strip_prefix('-').unwrap_or(choice);
        let is_known = name == "*" || CONTROLLERS.contains(&name);
        ensure!(
            is_known,
            "--controllers: {name:?} is not in the list of known controllers: {}",
            CONTROLLERS.join(", ")
        );
    }
    let is_named = |choice: &str| chosen.iter().any(|one| one == choice);
    let is_enabled = |name: &&str| !is_named(&format!("-{name}")) && (is_named("*") || is_named(name));
    Ok(CONTROLLERS.into_iter().filter(is_enabled).collect())
}

/// Reports whether a value of `--cloud-provider` names a cloud whose controllers we have.
pub fn is_provider(name: &str) -> bool {
    providers::names().contains(&name)
}

/// Opens the provider of a name.
pub async fn open(name: &str, options: &CloudOptions) -> Result<std::sync::Arc<dyn corten_cloud::provider::Provider>> {
    let opened = providers::open(name, &options.setup()?).await;
    opened.map_err(anyhow::Error::msg).with_context(|| format!("--cloud-provider {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_are_chosen_by_name() {
        let chosen = |names: &[&str]| enabled(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!(chosen(&["*"]).unwrap(), CONTROLLERS);
        assert_eq!(chosen(&["service-lb-controller"]).unwrap(), ["service-lb-controller"]);
        assert_eq!(chosen(&["*", "-node-route-controller"]).unwrap().len(), 3);
        let error = chosen(&["servic"]).unwrap_err().to_string();
        assert!(error.starts_with("--controllers: \"servic\" is not in the list of known controllers"), "{error}");
    }
}
