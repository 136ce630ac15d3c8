//! The flags of the API server that say who may do what, and how what is stored is sealed. Their names are upstream's.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use corten_api::MinorVersion;

#[derive(Debug, Clone, Default, Args)]
pub struct AccessOptions {
    /// The AuthenticationConfiguration (apiserver.config.k8s.io) with the trusted JWT issuers; reloaded when it
    /// changes.
    #[arg(long, value_name = "FILE")]
    pub authentication_config: Option<PathBuf>,
    /// The kubeconfig file of the webhook that authenticates bearer tokens by TokenReview (authentication.k8s.io/v1).
    #[arg(long, value_name = "FILE")]
    pub authentication_token_webhook_config_file: Option<PathBuf>,
    /// The AuthorizationConfiguration (apiserver.config.k8s.io) with the chain of authorizers; reloaded when
    /// it changes.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["authorization_mode", "authorization_webhook_config_file"])]
    pub authorization_config: Option<PathBuf>,
    /// The ordered list of authorizers: Node, RBAC, Webhook, AlwaysAllow, AlwaysDeny. Defaults to Node and
    /// RBAC.
    #[arg(long, value_name = "MODES", value_delimiter = ',')]
    pub authorization_mode: Vec<String>,
    /// The kubeconfig file of the authorization webhook.
    #[arg(long, value_name = "FILE", requires = "authorization_mode")]
    pub authorization_webhook_config_file: Option<PathBuf>,
    /// The version of SubjectAccessReview that the webhook gets: v1 or v1beta1.
    #[arg(long, value_name = "VERSION", default_value = "v1beta1")]
    pub authorization_webhook_version: String,
    /// How long to cache an allowed answer of the webhook.
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    pub authorization_webhook_cache_authorized_ttl: String,
    /// How long to cache a denied answer of the webhook.
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    pub authorization_webhook_cache_unauthorized_ttl: String,
    /// Admission plugins to disable, such as ServiceAccount, PodSecurity or LimitRanger.
    #[arg(long, value_name = "PLUGINS", value_delimiter = ',')]
    pub disable_admission_plugins: Vec<String>,
    /// The EncryptionConfiguration (apiserver.config.k8s.io/v1) for encryption at rest; reloaded
    /// when it changes. Without it, Secrets are encrypted with a generated key.
    #[arg(long, value_name = "FILE")]
    pub encryption_provider_config: Option<PathBuf>,
    /// The version of Kubernetes, 1.33 to 1.36, whose kinds, fields and rules are served: a cluster that emulates the
    /// version before can still return to it.
    #[arg(long, value_name = "VERSION", default_value_t)]
    pub emulated_version: MinorVersion,
    /// The TracingConfiguration (apiserver.config.k8s.io/v1): the collector of OpenTelemetry spans of requests, over OTLP and
    /// gRPC, and the number of requests that are sampled of a million.
    #[arg(long, value_name = "FILE")]
    pub tracing_config_file: Option<PathBuf>,
    /// The labels that /metrics/state shows as families such as kube_pod_labels, in the format of kube-state-metrics:
    /// pods=[app,team-*],nodes=[*].
    #[arg(long, value_name = "LIST")]
    pub metric_labels_allowlist: Option<String>,
    /// The annotations that it shows likewise, such as kube_pod_annotations.
    #[arg(long, value_name = "LIST")]
    pub metric_annotations_allowlist: Option<String>,
    /// Do not show the console below /console/.
    #[arg(long)]
    pub disable_console: bool,
    /// The OpenID Connect issuer by which users of the console sign in. The API server must trust it too.
    #[arg(long, value_name = "URL", requires = "console_oidc_client_id")]
    pub console_oidc_issuer_url: Option<String>,
    /// The client id of the console at that issuer.
    #[arg(long, value_name = "ID", requires = "console_oidc_issuer_url")]
    pub console_oidc_client_id: Option<String>,
}

impl AccessOptions {
    /// Returns the flags as arguments of another process.
    pub fn arguments(&self) -> Vec<OsString> {
        let mut list: Vec<OsString> = Vec::new();
        for (name, path) in [
            ("--authentication-config", &self.authentication_config),
            ("--authentication-token-webhook-config-file", &self.authentication_token_webhook_config_file),
            ("--authorization-config", &self.authorization_config),
            ("--authorization-webhook-config-file", &self.authorization_webhook_config_file),
            ("--encryption-provider-config", &self.encryption_provider_config),
            ("--tracing-config-file", &self.tracing_config_file),
        ] {
            if let Some(path) = path {
                // The other process has another working directory.
                let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                list.extend([name.into(), path.into()]);
            }
        }
        for (name, values) in [
            ("--authorization-mode", &self.authorization_mode),
            ("--disable-admission-plugins", &self.disable_admission_plugins),
        ] {
            if !values.is_empty() {
                list.extend([name.into(), values.join(",").into()]);
            }
        }
        for (name, value) in [
            ("--authorization-webhook-version", &self.authorization_webhook_version),
            ("--authorization-webhook-cache-authorized-ttl", &self.authorization_webhook_cache_authorized_ttl),
            ("--authorization-webhook-cache-unauthorized-ttl", &self.authorization_webhook_cache_unauthorized_ttl),
        ] {
            list.extend([name.into(), value.into()]);
        }
        list.extend(["--emulated-version".into(), self.emulated_version.to_string().into()]);
        for (name, value) in [
            ("--metric-labels-allowlist", &self.metric_labels_allowlist),
            ("--metric-annotations-allowlist", &self.metric_annotations_allowlist),
            ("--console-oidc-issuer-url", &self.console_oidc_issuer_url),
            ("--console-oidc-client-id", &self.console_oidc_client_id),
        ] {
            if let Some(value) = value {
                list.extend([name.into(), value.into()]);
            }
        }
        if self.disable_console {
            list.push("--disable-console".into());
        }
        list
    }
}
