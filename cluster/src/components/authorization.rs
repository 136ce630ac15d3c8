//! The authorizers of the flags: a configuration file, or one that is made from upstream's older flags.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, ensure};
use corten_apiserver::{Authorization, KubeconfigReader};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::audit;
use crate::access_options::AccessOptions;
use crate::files;
use crate::tasks::Tasks;

/// Returns the configuration; none without flags: then the Node authorizer and RBAC decide.
pub fn config(options: &AccessOptions, tasks: &mut Tasks) -> Result<Option<Authorization>> {
    let read = |path: &Path| audit::remote_server(path).map_err(|error| format!("{error:#}"));
    let kubeconfig = KubeconfigReader(Arc::new(read));
    if let Some(path) = &options.authorization_config {
        return Ok(Some(Authorization { configuration: files::follow(path, tasks)?, kubeconfig }));
    }
    if options.authorization_mode.is_empty() {
        return Ok(None);
    }
    let configuration = watch::channel(of_flags(options)?.to_string()).1;
    Ok(Some(Authorization { configuration, kubeconfig }))
}

/// Returns the configuration that the older flags mean.
fn of_flags(options: &AccessOptions) -> Result<Value> {
    let webhook_file = &options.authorization_webhook_config_file;
    let modes = &options.authorization_mode;
    let has_webhook = modes.iter().any(|mode| mode == "Webhook");
    ensure!(
        has_webhook == webhook_file.is_some(),
        "--authorization-mode Webhook and --authorization-webhook-config-file need each other"
    );
    let authorizer = |mode: &String| {
        let mut authorizer = json!({ "type": mode, "name": mode.to_lowercase() });
        if let Some(file) = webhook_file.as_ref().filter(|_| mode == "Webhook") {
            authorizer["name"] = "default".into();
            authorizer["webhook"] = json!({
                "timeout": "30s",
                "subjectAccessReviewVersion": options.authorization_webhook_version,
                "failurePolicy": "NoOpinion",
                "authorizedTTL": options.authorization_webhook_cache_authorized_ttl,
                "unauthorizedTTL": options.authorization_webhook_cache_unauthorized_ttl,
                "connectionInfo": { "type": "KubeConfigFile", "kubeConfigFile": std::path::absolute(file).ok() },
            });
        }
        authorizer
    };
    let authorizers: Vec<Value> = modes.iter().map(authorizer).collect();
    let version = "apiserver.config.k8s.io/v1";
    Ok(json!({ "apiVersion": version, "kind": "AuthorizationConfiguration", "authorizers": authorizers }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_become_a_configuration() {
        let modes = |modes: &[&str]| modes.iter().map(|mode| (*mode).to_owned()).collect();
        let options = AccessOptions {
            authorization_mode: modes(&["Node", "Webhook"]),
            authorization_webhook_config_file: Some("/etc/hook.yaml".into()),
            authorization_webhook_version: "v1".to_owned(),
            authorization_webhook_cache_authorized_ttl: "5m".to_owned(),
            authorization_webhook_cache_unauthorized_ttl: "30s".to_owned(),
            ..AccessOptions::default()
        };
        let made = of_flags(&options).unwrap();
        let authorizers = made["authorizers"].as_array().unwrap();
        assert_eq!((&authorizers[0]["type"], &authorizers[1]["name"]), (&json!("Node"), &json!("default")));
        assert_eq!(authorizers[1]["webhook"]["connectionInfo"]["kubeConfigFile"], "/etc/hook.yaml");
        let lonely = AccessOptions { authorization_mode: modes(&["Webhook"]), ..AccessOptions::default() };
        assert!(of_flags(&lonely).is_err());
    }
}
