//! Tokens that live in a Secret: when each was last used is written on its Secret, and one that was marked invalid is
//! refused. The controller that cleans up unused tokens believes these labels, so a use must never go unmarked for a day.
//! Those that another controller manager signed with the cluster's key are known by their issuer, and never expire.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use corten_meta::{Status, Value};
use corten_store::Expect;

use super::bound_objects::check_alive;
use crate::registry::Registry;
use crate::user::User;

/// The issuer that tokens of Secrets name.
pub const ISSUER: &str = "kubernetes/serviceaccount";

const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";
/// How often a mark is tried while others write the Secret.
const ATTEMPTS: usize = 5;

/// Whose token this is: it is good while its Secret holds it and its account lives.
pub async fn authenticate(registry: &Registry, token: &str, claims: &Value) -> Result<User, String> {
    let text =
        |name: &str| claims[format!("kubernetes.io/serviceaccount/{name}").as_str()].as_str().unwrap_or_default();
    let namespace = text("namespace");
    let secret = text("secret.name");
    let name = text("service-account.name");
    let uid = text("service-account.uid");
    let mut user = User::service_account(namespace, name);
    if claims["sub"] != user.name.as_str() {
        return Err("the subject is not the account that the token names".to_owned());
    }
    let secrets = registry.required("", "v1", "secrets").map_err(|status| status.message)?;
    let stored = registry.read(&secrets, namespace, secret).await.map_err(|status| status.message)?;
    let stored = stored.filter(|secret| secret.header.deletion_timestamp.is_none());
    let held = stored.and_then(|secret| BASE64.decode(secret.value()["data"]["token"].as_str()?).ok());
    if held.is_none_or(|held| held != token.as_bytes()) {
        return Err("the token is not the one in its secret".to_owned());
    }
    check_alive(registry, "serviceaccounts", namespace, name, uid).await?;
    used(registry, namespace, secret).await?;
    user.uid = uid.to_owned();
    Ok(user)
}

/// Marks the Secret as used today; once a day is enough. An error is the reason for which the token is not good.
pub async fn used(registry: &Registry, namespace: &str, name: &str) -> Result<(), String> {
    let secrets = registry.required("", "v1", "secrets").map_err(|status| status.message)?;
    // As the store has it now: a mark counts from the moment at which it was acknowledged.
    let secret = registry.read(&secrets, namespace, name).await.map_err(|status| status.message)?;
    let Some(secret) = secret else { return Ok(()) };
    let today = today();
    if secret.header.labels.get(LAST_USED) != Some(&today)
        && let Err(why) = mark(registry, namespace, name, &today).await
    {
        // The store is busy: the next use will be marked.
        tracing::debug!(why = why.message, namespace, name, "the use of a token could not be marked");
    }
    match secret.header.labels.get(INVALID_SINCE).filter(|since| !since.is_empty()) {
        None => Ok(()),
        Some(_) => Err(format!(
            "the token in secret {namespace}/{name} has been marked invalid. Use tokens from the TokenRequest API or \
             manually created secret-based tokens, or remove the '{INVALID_SINCE}' label from the secret to temporarily \
             allow use of this token"
        )),
    }
}

/// The day, as the labels and the tracking ConfigMap write it.
pub fn today() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%d").to_string()
}

async fn mark(registry: &Registry, namespace: &str, name: &str, today: &str) -> Result<(), Status> {
    let resource = registry.required("", "v1", "secrets")?;
    let mut outcome = Ok(());
    for _ in 0..ATTEMPTS {
        let Some(secret) = registry.read(&resource, namespace, name).await? else { return Ok(()) };
        let mut value = secret.value();
        // A short token may be bound to any Secret, which is then none of the cleaner's.
        if value["type"] != "kubernetes.io/service-account-token" {
            return Ok(());
        }
        value["metadata"]["labels"][LAST_USED] = today.into();
        let written = registry.write(&resource, &value, Expect::ModRevision(secret.revision), Vec::new());
        outcome = written.await.map(drop);
        if !outcome.as_ref().is_err_and(Status::is_conflict) {
            break;
        }
    }
    outcome
}
