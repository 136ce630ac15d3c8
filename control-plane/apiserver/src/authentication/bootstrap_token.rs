//! Bootstrap tokens: `id.secret`, stored as a Secret in kube-system, with which a node joins.

use base64::Engine;
use corten_access::User;
use corten_meta::Value;

use crate::registry::Registry;

/// Returns the user of a bootstrap token; `None` if the token is no bootstrap token, an error if it is invalid.
pub(super) fn authenticate(registry: &Registry, token: &str) -> Option<Result<User, String>> {
    let (id, secret) = token.split_once('.')?;
    let alphanumeric = |s: &str| s.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    if id.len() != 6 || secret.len() != 16 || !alphanumeric(id) || !alphanumeric(secret) {
        return None;
    }
    Some(check(registry, id, secret))
}

fn check(registry: &Registry, id: &str, secret: &str) -> Result<User, String> {
    let object = registry
        .cached("", "v1", "secrets", "kube-system", &format!("bootstrap-token-{id}"))
        .ok_or_else(|| "no such bootstrap token".to_owned())?
        .value();
    if object["type"] != "bootstrap.kubernetes.io/token" || object.pointer("/metadata/deletionTimestamp").is_some() {
        return Err("not a bootstrap token Secret".to_owned());
    }
    let same = crate::constant_time_eq(field(&object, "token-secret").as_bytes(), secret.as_bytes());
    if field(&object, "token-id") != id || !same {
        return Err("the bootstrap token does not match".to_owned());
    }
    let expiration = field(&object, "expiration");
    let expired =
        !expiration.is_empty() && expiration.parse::<jiff::Timestamp>().map_or(true, |at| at <= jiff::Timestamp::now());
    if expired || field(&object, "usage-bootstrap-authentication") != "true" {
        return Err("the bootstrap token is expired or not for authentication".to_owned());
    }
    let extra = field(&object, "auth-extra-groups");
    let groups: Vec<&str> = std::iter::once("system:bootstrappers")
        .chain(extra.split(',').map(str::trim).filter(|g| g.starts_with("system:bootstrappers:")))
        .collect();
    Ok(User::new(&format!("system:bootstrap:{id}"), &groups))
}

fn field(secret: &Value, key: &str) -> String {
    let encoded = secret["data"][key].as_str().unwrap_or_default();
    let decoded = base64::engine::general_purpose::STANDARD.decode(encoded).unwrap_or_default();
    String::from_utf8(decoded).unwrap_or_default()
}
