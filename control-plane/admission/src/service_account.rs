//! ServiceAccount: every pod runs as a ServiceAccount, and gets its token, the cluster's CA and its namespace as a
//! volume.

use corten_meta::quote::quote;
use corten_meta::{Status, Value};
use futures::future::BoxFuture;
use serde_json::json;

use super::attributes::Attributes;
use super::mountable_secrets;
use super::operation::Operation;
use super::plugin::Plugin;

const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const VOLUME_PREFIX: &str = "kube-api-access-";
/// One hour and a margin, by which upstream distinguishes these tokens from others.
const TOKEN_SECONDS: i64 = 3607;
const MIRROR: &str = "kubernetes.io/config.mirror";

pub struct ServiceAccount;

impl Plugin for ServiceAccount {
    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            if !a.creates("", "pods") || !a.object["spec"].is_object() {
                return Ok(());
            }
            if !is_mirror(&a.object) {
                admit(a).await?;
            }
            check_references(a).await
        })
    }

    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let is_added = a.operation == Operation::Update && a.is("", "pods", "ephemeralcontainers");
            match a.creates("", "pods") || is_added {
                true => check_references(a).await,
                false => Ok(()),
            }
        })
    }
}

fn is_mirror(pod: &Value) -> bool {
    pod["metadata"]["annotations"].get(MIRROR).is_some_and(Value::is_string)
}

/// Checks that the ServiceAccount allows the pod's references, also after other plugins changed them.
async fn check_references(a: &Attributes<'_>) -> Result<(), Status> {
    let spec = &a.object["spec"];
    let creates = a.operation == Operation::Create;
    if creates && is_mirror(&a.object) {
        return mountable_secrets::refused_mirror(spec).map_or(Ok(()), |why| Err(a.forbidden(why)));
    }
    let name = spec["serviceAccountName"].as_str().unwrap_or_default();
    if name.is_empty() {
        let namespace = a.target.namespace;
        let pod = corten_meta::name(&a.object);
        return Err(a.forbidden(format!("no service account specified for pod {namespace}/{pod}")));
    }
    let account = find_account(a, name).await?;
    match creates {
        true => mountable_secrets::refused(&account, spec).map_or(Ok(()), |why| Err(a.forbidden(why))),
        // Upstream returns a plain error here, and not a 403.
        false => mountable_secrets::refused_later(&account, spec)
            .map_or(Ok(()), |message| Err(Status { code: 500, message, ..Status::default() })),
    }
}

async fn admit(a: &mut Attributes<'_>) -> Result<(), Status> {
    let account_name = a.object.pointer("/spec/serviceAccountName").and_then(Value::as_str).unwrap_or_default();
    let name = if account_name.is_empty() { "default" } else { account_name }.to_owned();
    let account = find_account(a, &name).await?;
    let spec = &mut a.object["spec"];
    spec["serviceAccountName"] = name.clone().into();
    spec["serviceAccount"] = name.into();
    if should_mount(&account, spec) {
        mount_token(spec);
    }
    let pull_secrets = account["imagePullSecrets"].as_array().filter(|list| !list.is_empty());
    let own = spec["imagePullSecrets"].as_array().is_some_and(|list| !list.is_empty());
    if let Some(secrets) = pull_secrets.filter(|_| !own) {
        spec["imagePullSecrets"] = json!(secrets);
    }
    Ok(())
}

async fn find_account(a: &Attributes<'_>, name: &str) -> Result<Value, Status> {
    let core = a.target.core;
    let namespace = a.target.namespace;
    if let Some(account) = core.objects.cached("", "serviceaccounts", namespace, name) {
        return Ok(account.value());
    }
    let wrong = corten_meta::names::path_segment_name(name);
    if !wrong.is_empty() {
        let why = format!("invalid resource name {name}: [{}]", wrong.join(" "), name = quote(name));
        return Err(a.forbidden(format!("error looking up service account {namespace}/{name}: {why}")));
    }
    let account = match namespace {
        "" => None,
        _ => core.objects.read("", "serviceaccounts", namespace, name).await?,
    };
    match account {
        Some(account) => Ok(account.value()),
        None => Err(a.forbidden(format!(
            "error looking up service account {namespace}/{name}: serviceaccount {} not found",
            quote(name)
        ))),
    }
}

fn should_mount(account: &Value, spec: &Value) -> bool {
    let flag = |value: &Value| value["automountServiceAccountToken"].as_bool();
    flag(spec).or_else(|| flag(account)).unwrap_or(true)
}

/// Adds the projected volume, and mounts it in every container that has no mount at that path.
fn mount_token(spec: &mut Value) {
    let volumes = spec["volumes"].as_array().cloned().unwrap_or_default();
    let present =
        volumes.iter().filter_map(|v| v["name"].as_str()).find(|n| n.starts_with(VOLUME_PREFIX)).map(str::to_owned);
    let name = present
        .clone()
        .unwrap_or_else(|| corten_meta::names::generated_name(VOLUME_PREFIX, uuid::Uuid::new_v4().as_bytes()));
    let mut needed = false;
    for list in ["initContainers", "containers"] {
        for container in spec[list].as_array_mut().into_iter().flatten() {
            let mounts = container["volumeMounts"].as_array().cloned().unwrap_or_default();
            if mounts.iter().any(|m| m["mountPath"] == MOUNT_PATH) {
                continue;
            }
            let mount = json!({ "name": name, "readOnly": true, "mountPath": MOUNT_PATH });
            container["volumeMounts"] = mounts.into_iter().chain([mount]).collect();
            needed = true;
        }
    }
    if needed && present.is_none() {
        spec["volumes"] = volumes.into_iter().chain([token_volume(&name)]).collect();
    }
    // An absent list reads as null above; null must not be stored.
    for list in ["initContainers", "containers"] {
        if spec[list].is_null()
            && let Some(spec) = spec.as_object_mut()
        {
            spec.remove(list);
        }
    }
}

fn token_volume(name: &str) -> Value {
    json!({
        "name": name,
        "projected": {
            "defaultMode": 420,
            "sources": [
                { "serviceAccountToken": { "expirationSeconds": TOKEN_SECONDS, "path": "token" } },
                { "configMap": { "name": "kube-root-ca.crt", "items": [{ "key": "ca.crt", "path": "ca.crt" }] } },
                { "downwardAPI": { "items": [
                    { "path": "namespace", "fieldRef": { "apiVersion": "v1", "fieldPath": "metadata.namespace" } } ] } },
            ],
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_mounted_once() {
        let mut spec = json!({ "containers": [{ "name": "a" }, { "name": "b", "volumeMounts": [{ "name": "x", "mountPath": MOUNT_PATH }] }] });
        mount_token(&mut spec);
        let volume = spec["volumes"][0]["name"].as_str().unwrap().to_owned();
        assert!(volume.starts_with(VOLUME_PREFIX) && volume.len() == VOLUME_PREFIX.len() + 5);
        assert_eq!(spec["containers"][0]["volumeMounts"][0]["name"], volume.as_str());
        assert_eq!(spec["containers"][1]["volumeMounts"].as_array().unwrap().len(), 1);
        assert!(spec.get("initContainers").is_none());
        let again = spec.clone();
        mount_token(&mut spec);
        assert_eq!(spec, again);
    }
}
