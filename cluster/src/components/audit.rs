//! The audit settings of the API server: reads the files of the flags.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use corten_apiserver::{Audit, AuditLog, AuditWebhook, ProxyClient, RemoteServer};
use corten_client::Kubeconfig;

use crate::cli;
use crate::directories::Directories;
use crate::private;

/// The policy of a cluster without one of its own: the requests that an attacker makes. It logs, at the level Metadata,
/// requests that read or change Secrets, tokens, RBAC and admission, run commands in containers, or change workloads.
/// It leaves out the cluster's own components where they do so all the time.
pub const DEFAULT_POLICY: &str = r#"apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  verbs: [get, list, watch]
  userGroups: ["system:nodes", "system:serviceaccounts:kube-system"]
- level: None
  verbs: [get, list, watch]
  users: ["system:kube-controller-manager", "system:kube-scheduler", "system:kube-proxy", "system:admin"]
- level: None
  resources: [{group: authorization.k8s.io}, {group: coordination.k8s.io}, {group: "", resources: [events]}]
- level: Metadata
  resources:
  - {group: "", resources: [secrets, serviceaccounts, serviceaccounts/token, namespaces, nodes/proxy, services/proxy]}
  - {group: "", resources: [pods/exec, pods/attach, pods/portforward, pods/proxy, pods/ephemeralcontainers]}
  - {group: authentication.k8s.io, resources: [tokenreviews]}
- level: Metadata
  verbs: [create, update, patch, delete, deletecollection]
  resources:
  - group: rbac.authorization.k8s.io
  - group: certificates.k8s.io
  - group: admissionregistration.k8s.io
  - group: apiregistration.k8s.io
  - group: apiextensions.k8s.io
  - {group: "", resources: [persistentvolumes]}
- level: None
  userGroups: ["system:nodes", "system:serviceaccounts:kube-system"]
- level: None
  users: ["system:kube-controller-manager", "system:kube-scheduler"]
- level: Metadata
  verbs: [create, update, patch, delete, deletecollection]
  resources:
  - {group: "", resources: [pods, services, replicationcontrollers]}
  - {group: "", resources: [nodes]}
  - {group: apps, resources: [deployments, daemonsets, statefulsets, replicasets]}
  - {group: batch, resources: [jobs, cronjobs]}
  - group: networking.k8s.io
"#;

/// Returns the settings of the flags; without a policy, the built-in one with a log in the data directory.
pub fn config(flags: &cli::Audit, directories: &Directories) -> Result<Audit> {
    let policy = match &flags.audit_policy_file {
        Some(path) => std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?,
        None => DEFAULT_POLICY.to_owned(),
    };
    let log = match (&flags.audit_log_path, &flags.audit_policy_file) {
        (Some(path), _) => Some(path.clone()),
        (None, Some(_)) => None,
        (None, None) => {
            private::directory(&directories.data.join("audit"))?;
            Some(directories.data.join("audit/audit.log"))
        }
    };
    let log = log.map(|path| AuditLog {
        path,
        max_size_bytes: flags.audit_log_maxsize * 1024 * 1024,
        max_backups: flags.audit_log_maxbackup,
        max_age: Duration::from_secs(flags.audit_log_maxage * 24 * 3600),
    });
    let webhook = flags.audit_webhook_config_file.as_deref().map(remote_server).transpose()?;
    Ok(Audit { policy, log, webhook: webhook.map(|server| AuditWebhook { server }) })
}

/// Returns the server of the current context of a kubeconfig file.
pub fn remote_server(path: &Path) -> Result<RemoteServer> {
    let config = Kubeconfig::load(path)?.https_config(None)?;
    let text = |pem: Option<corten_client::Pem>| -> Result<Option<String>> {
        let bytes = match pem {
            None => return Ok(None),
            Some(corten_client::Pem::Text(text)) => text,
            Some(corten_client::Pem::File(path)) => {
                std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?
            }
        };
        Ok(Some(String::from_utf8(bytes)?))
    };
    let identity = match (text(config.client_certificate)?, text(config.client_key)?) {
        (Some(certificate), Some(key)) => Some(ProxyClient { certificate, key }),
        _ => None,
    };
    Ok(RemoteServer { url: config.server, ca: text(config.ca)?.unwrap_or_default(), identity, token: config.token })
}
