//! ServiceAccount tokens in Secrets: a label of the Secret records the date of the last use, and a token whose Secret
//! is marked invalid is refused. The controller that cleans up unused tokens relies on these labels, so each day's use
//! must be recorded. Tokens that another controller manager signed with the cluster's key are recognized by their
//! issuer, and never expire.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use corten_access::User;
use corten_meta::{Status, Value};
use corten_store::Expect;

use super::bound_objects::check_alive;
use crate::registry::Registry;

/// The issuer in the tokens of Secrets.
pub const ISSUER: &str = "kubernetes/serviceaccount";

const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";
/// The maximum number of attempts to label the Secret while other clients write it.
const ATTEMPTS: usize = 5;

/// Returns the user of a token: it is valid while its Secret holds it and its ServiceAccount exists.
pub async fn authenticate(registry: &Registry, token: &str, claims: &Value) -> Result<User, String> {
    let string =
        |name: &str| claims[format!("kubernetes.io/serviceaccount/{name}").as_str()].as_str().unwrap_or_default();
    let namespace = string("namespace");
    let secret = string("secret.name");
    let name = string("service-account.name");
    let uid = string("service-account.uid");
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

/// Labels the Secret as used today; once a day is enough. An error is the reason why the token is invalid.
pub async fn used(registry: &Registry, namespace: &str, name: &str) -> Result<(), String> {
    let secrets = registry.required("", "v1", "secrets").map_err(|status| status.message)?;
    // Read from the store: the invalid label counts from the moment when it was acknowledged.
    let secret = registry.read(&secrets, namespace, name).await.map_err(|status| status.message)?;
    let Some(secret) = secret else { return Ok(()) };
    let today = today();
    if secret.header.labels.get(LAST_USED) != Some(&today)
        && let Err(why) = mark(registry, namespace, name, &today).await
    {
        // The store is busy: the next use sets the label.
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

/// Returns the date, in the format of the labels and the tracking ConfigMap.
pub fn today() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%d").to_string()
}

async fn mark(registry: &Registry, namespace: &str, name: &str, today: &str) -> Result<(), Status> {
    let resource = registry.required("", "v1", "secrets")?;
    let mut outcome = Ok(());
    for _ in 0..ATTEMPTS {
        let Some(secret) = registry.read(&resource, namespace, name).await? else { return Ok(()) };
        let mut value = secret.value();
        // A short-lived token may be bound to any Secret, which the cleaner does not handle.
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
