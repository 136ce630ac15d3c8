//! The objects that a ServiceAccount token is bound to: the token is valid only while they exist.

use corten_access::User;
use corten_meta::Value;
use corten_meta::quote::quote;

use crate::registry::Registry;

/// Checks the bound objects and returns the user.
pub(super) async fn check_bindings(registry: &Registry, claims: &Value) -> Result<User, String> {
    let private = &claims["kubernetes.io"];
    let string = |pointer: &str| private.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let namespace = string("/namespace");
    let name = string("/serviceaccount/name");
    check_alive(registry, "serviceaccounts", namespace, name, string("/serviceaccount/uid")).await?;
    if private.get("pod").is_some() {
        check_alive(registry, "pods", namespace, string("/pod/name"), string("/pod/uid")).await?;
    } else if private.get("secret").is_some() {
        check_alive(registry, "secrets", namespace, string("/secret/name"), string("/secret/uid")).await?;
    } else if private.get("node").is_some() {
        check_alive(registry, "nodes", "", string("/node/name"), string("/node/uid")).await?;
    }
    let mut user = User::service_account(namespace, name);
    user.uid = string("/serviceaccount/uid").to_owned();
    let mut extra = |key: &str, value: &str| {
        if !value.is_empty() {
            user.extra.insert(format!("authentication.kubernetes.io/{key}"), vec![value.to_owned()]);
        }
    };
    extra("pod-name", string("/pod/name"));
    extra("pod-uid", string("/pod/uid"));
    extra("node-name", string("/node/name"));
    extra("node-uid", string("/node/uid"));
    if let Some(id) = claims["jti"].as_str() {
        extra("credential-id", &format!("JTI={id}"));
    }
    Ok(user)
}

/// Checks that an object exists in the store now: a token may be newer than the caches, and is invalid as soon as a
/// bound object is deleted.
pub(super) async fn check_alive(
    registry: &Registry,
    plural: &str,
    namespace: &str,
    name: &str,
    uid: &str,
) -> Result<(), String> {
    let resource = registry.required("", "v1", plural).map_err(|status| status.message)?;
    let object = registry.read(&resource, namespace, name).await.map_err(|status| status.message)?;
    let is_account = plural == "serviceaccounts";
    let invalidated = || "service account token has been invalidated".to_owned();
    let missing = || match is_account {
        true => format!("{} {name} not found", resource.group_resource(), name = quote(name)),
        false => invalidated(),
    };
    let object = object.ok_or_else(missing)?;
    let is = &object.header.uid;
    if is != uid {
        let kind = &resource.kind.singular;
        return Err(match is_account {
            true => format!("service account UID ({is}) does not match claim ({uid})"),
            false => format!("{kind} UID ({is}) does not match service account {kind} ref claim ({uid})"),
        });
    }
    // A minute of grace lets a terminating pod finish its work.
    let gone =
        object.header.deletion_timestamp.is_some_and(|at| at.as_second() + 60 < jiff::Timestamp::now().as_second());
    match (gone, is_account) {
        (false, _) => Ok(()),
        (true, true) => Err(format!("service account {namespace}/{name} has been deleted")),
        (true, false) => Err(invalidated()),
    }
}
