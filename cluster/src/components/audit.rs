//! The audit settings of the API server: files that flags name become values.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use corten_apiserver::{Audit, AuditLog, AuditWebhook, ProxyClient, RemoteServer};
use corten_client::Kubeconfig;

use crate::cli;

/// What the flags ask for; nothing without a policy.
pub fn config(flags: &cli::Audit) -> Result<Option<Audit>> {
    let Some(path) = &flags.audit_policy_file else { return Ok(None) };
    let policy = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let log = flags.audit_log_path.as_ref().map(|path| AuditLog {
        path: path.clone(),
        max_size_bytes: flags.audit_log_maxsize * 1024 * 1024,
        max_backups: flags.audit_log_maxbackup,
        max_age: Duration::from_secs(flags.audit_log_maxage * 24 * 3600),
    });
    let webhook = flags.audit_webhook_config_file.as_deref().map(remote_server).transpose()?;
    Ok(Some(Audit { policy, log, webhook: webhook.map(|server| AuditWebhook { server }) }))
}

/// The server that the current context of a kubeconfig file names.
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
