//! The objects that a ServiceAccount token is bound to: it is good only while they are alive.

use corten_meta::Value;
use corten_meta::quote::quote;

use crate::registry::Registry;
use crate::user::User;

/// Looks the bound objects up and makes the user.
pub(super) async fn check_bindings(registry: &Registry, claims: &Value) -> Result<User, String> {
    let private = &claims["kubernetes.io"];
    let text = |pointer: &str| private.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let namespace = text("/namespace");
    let name = text("/serviceaccount/name");
    check_alive(registry, "serviceaccounts", namespace, name, text("/serviceaccount/uid")).await?;
    if private.get("pod").is_some() {
        check_alive(registry, "pods", namespace, text("/pod/name"), text("/pod/uid")).await?;
    } else if private.get("secret").is_some() {
        check_alive(registry, "secrets", namespace, text("/secret/name"), text("/secret/uid")).await?;
    } else if private.get("node").is_some() {
        check_alive(registry, "nodes", "", text("/node/name"), text("/node/uid")).await?;
    }
    let mut user = User::service_account(namespace, name);
    user.uid = text("/serviceaccount/uid").to_owned();
    let mut extra = |key: &str, value: &str| {
        if !value.is_empty() {
            user.extra.insert(format!("authentication.kubernetes.io/{key}"), vec![value.to_owned()]);
        }
    };
    extra("pod-name", text("/pod/name"));
    extra("pod-uid", text("/pod/uid"));
    extra("node-name", text("/node/name"));
    extra("node-uid", text("/node/uid"));
    if let Some(id) = claims["jti"].as_str() {
        extra("credential-id", &format!("JTI={id}"));
    }
    Ok(user)
}

/// Whether an object is there as the store has it now: a token may be newer than the caches, and is dead at once when
/// what it is bound to is gone.
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
    // A minute of grace lets a terminating pod finish what it is doing.
    let gone =
        object.header.deletion_timestamp.is_some_and(|at| at.as_second() + 60 < jiff::Timestamp::now().as_second());
    match (gone, is_account) {
        (false, _) => Ok(()),
        (true, true) => Err(format!("service account {namespace}/{name} has been deleted")),
        (true, false) => Err(invalidated()),
    }
}
