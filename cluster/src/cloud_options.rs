//! The flags of the cloud controller manager, alone and in the process of a server, and of the EBS driver alone.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;
use corten_cloud::CONTROLLERS;
use corten_cloud::providers::{self, Setup};

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
    /// Serve the volumes of the cloud: those of EBS with AWS. Without it, AWS's own driver can be installed.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_name = "BOOL")]
    pub cloud_volumes: bool,
}

impl Default for CloudOptions {
    fn default() -> CloudOptions {
        CloudOptions {
            cloud_config: None,
            cluster_name: DEFAULT_CLUSTER_NAME.to_owned(),
            configure_cloud_routes: false,
            cloud_volumes: true,
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
        list.push(format!("--cloud-volumes={}", self.cloud_volumes).into());
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

/// The halves of the EBS driver that a process serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum EbsMode {
    /// The controller's half, which calls EC2.
    Controller,
    /// The node's half, which mounts.
    Node,
    /// Both halves.
    All,
}

/// The CSI driver of EBS volumes alone.
#[derive(Debug, Clone, Args)]
pub struct EbsDriver {
    /// The halves to serve.
    #[arg(long, value_enum, default_value = "all", value_name = "MODE")]
    pub mode: EbsMode,
    /// The unix socket of the CSI services.
    #[arg(long, default_value = "unix:///var/lib/kubelet/plugins/ebs.csi.aws.com/csi.sock", value_name = "URL")]
    pub endpoint: String,
    /// The socket by which the kubelet finds the driver; none if another program registers it.
    #[arg(long, value_name = "FILE")]
    pub registration_socket: Option<PathBuf>,
    /// The most volumes of this node, instead of those that follow from its type.
    #[arg(long, value_name = "NUMBER")]
    pub volume_attach_limit: Option<u32>,
    /// The directory with the kernel's view of devices.
    #[arg(long, default_value = "/sys", value_name = "DIRECTORY", hide = true)]
    pub sys_root: PathBuf,
    /// The directory of device nodes.
    #[arg(long, default_value = "/dev", value_name = "DIRECTORY", hide = true)]
    pub dev_root: PathBuf,
    #[command(flatten)]
    pub cloud: CloudOptions,
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
