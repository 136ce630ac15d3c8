//! The commands with which people look into a cluster: the console, explanations of stuck objects, and traces of changes.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use crate::flag_values::{DirectoryFlags, duration};

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
    /// The object, as `KIND/NAME`: pod/web, deployment/web, pvc/data, service/web, node/n1, ns/old, hpa/web. A name alone is a
    /// pod's. Or `dns/NAME`, a name that does not resolve; `connection`; `can-i VERB RESOURCE[/NAME]`, a request that is
    /// denied; `request/AUDIT-ID`, one of the audit log.
    #[arg(value_name = "OBJECT")]
    pub object: String,
    /// The verb and the resource of `can-i`.
    #[arg(value_name = "WORD")]
    pub words: Vec<String>,
    /// The pod that a connection or the question for a name comes from, as `[NAMESPACE/]POD`.
    #[arg(long, value_name = "POD")]
    pub from: Option<String>,
    /// The other end of a connection: `[NAMESPACE/]POD`, `[NAMESPACE/]service/NAME` or an address.
    #[arg(long, value_name = "TARGET")]
    pub to: Option<String>,
    /// The port of a connection, as `NUMBER[/PROTOCOL]`.
    #[arg(long, value_name = "PORT")]
    pub port: Option<String>,
    /// The user of `can-i`; without it the kubeconfig's own.
    #[arg(long = "as", value_name = "USER")]
    pub user: Option<String>,
    /// A group of that user.
    #[arg(long = "as-group", value_name = "GROUP")]
    pub groups: Vec<String>,
    /// The cluster's domain, for `dns/NAME`.
    #[arg(long, default_value = corten_why::DEFAULT_DOMAIN, value_name = "DOMAIN")]
    pub cluster_domain: String,
    /// The audit log of the API server, for `request/AUDIT-ID`; defaults to that of the data directory.
    #[arg(long, value_name = "FILE")]
    pub audit_log: Option<PathBuf>,
    /// The object's namespace.
    #[arg(short, long, default_value = "default", value_name = "NAME")]
    pub namespace: String,
    /// The kubeconfig file; defaults to $KUBECONFIG or ~/.kube/config.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The way of a request for this URL: listener, host, rule, policies, backends and endpoints. For an Ingress, HTTPRoute
    /// or GRPCRoute.
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// The method of that request.
    #[arg(long, default_value = "GET", value_name = "METHOD")]
    pub method: String,
    /// A header of that request, as `NAME: VALUE`.
    #[arg(long, value_name = "HEADER")]
    pub header: Vec<String>,
    /// The scheduler's KubeSchedulerConfiguration, if it has one.
    #[arg(long, value_name = "FILE")]
    pub scheduler_config: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
pub struct Top {
    /// The namespace of pods and events; all unless given.
    #[arg(short, long, value_name = "NAME")]
    pub namespace: Option<String>,
    /// The kubeconfig file; defaults to $KUBECONFIG or ~/.kube/config.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig; defaults to the current one.
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
}

#[derive(Debug, Clone, Args)]
pub struct Trace {
    /// The object, as `KIND/NAME`: its past steps are shown, as far as objects and Events remember them.
    #[arg(value_name = "OBJECT", required_unless_present = "file", conflicts_with = "file")]
    pub object: Option<String>,
    /// The manifest to apply; the steps are shown live, until its objects are ready.
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Show steps live, until the timeout or Ctrl-C.
    #[arg(short, long)]
    pub watch: bool,
    /// The namespace of the object, and of objects of the manifest that name none.
    #[arg(short, long, default_value = "default", value_name = "NAME")]
    pub namespace: String,
    /// The longest time that steps are awaited.
    #[arg(long, default_value = "5m", value_parser = duration, value_name = "DURATION")]
    pub timeout: Duration,
    /// The form of the output.
    #[arg(short, long, value_enum, default_value_t = TraceOutput::Table)]
    pub output: TraceOutput,
    /// The URL of an OpenTelemetry collector that takes the steps as spans, over HTTP.
    #[arg(long, value_name = "URL")]
    pub otlp: Option<String>,
    /// The kubeconfig file; defaults to $KUBECONFIG or ~/.kube/config.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
}

#[derive(Debug, Clone, Subcommand)]
pub enum Ingress {
    /// Write Ingresses of ingress-nginx as Gateways, routes and policies.
    Import(IngressImport),
}

#[derive(Debug, Clone, Args)]
pub struct IngressImport {
    /// Files with manifests; `-` is the standard input. Without files the Ingresses of the cluster are read.
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Import the Ingresses of this class alone.
    #[arg(long, value_name = "NAME")]
    pub ingress_class: Option<String>,
    /// The Gateway that routes are attached to.
    #[arg(long, default_value = "default/ingress", value_name = "NAMESPACE/NAME")]
    pub gateway: String,
    /// The kubeconfig file; defaults to $KUBECONFIG or ~/.kube/config.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
}

/// The form of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TraceOutput {
    /// Lines, as the steps are seen.
    Table,
    /// A picture, once the trace is whole.
    Svg,
}
