//! The commands with which people look into a cluster: the console, and explanations of stuck objects.

use std::path::PathBuf;

use clap::Args;

use crate::flag_values::DirectoryFlags;

#[derive(Debug, Clone, Args)]
pub struct Console {
    /// The kubeconfig file; defaults to $KUBECONFIG or ~/.kube/config.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig; defaults to the current one.
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
    /// The ServiceAccount to sign in as; without it the kubeconfig's own token, or an administrator.
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pub service_account: Option<String>,
    /// The port on 127.0.0.1; defaults to a free one.
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
    /// Print the link, and open no browser.
    #[arg(long)]
    pub no_browser: bool,
}

#[derive(Debug, Clone, Args)]
pub struct Support {
    #[command(flatten)]
    pub directories: DirectoryFlags,
    /// The new file; defaults to corten-support-TIME.tar.gz in the working directory.
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
pub struct Why {
    /// The object, as `KIND/NAME`: pod/web, deployment/web, pvc/data, service/web, node/n1, ns/old. A name alone is a pod's.
    #[arg(value_name = "OBJECT")]
    pub object: String,
    /// The object's namespace.
    #[arg(short, long, default_value = "default", value_name = "NAME")]
    pub namespace: String,
    /// The kubeconfig file; defaults to $KUBECONFIG or ~/.kube/config.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The scheduler's KubeSchedulerConfiguration, if it has one.
    #[arg(long, value_name = "FILE")]
    pub scheduler_config: Option<PathBuf>,
}
