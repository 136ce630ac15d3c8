//! Tokens that live in a Secret: when each was last used is written on its Secret, and one that was marked invalid is
//! refused. The controller that cleans up unused tokens believes these labels, so a use must never go unmarked for a day.

use corten_meta::Object;
use corten_store::Expect;

use crate::server::Server;

const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";

/// Marks the Secret as used today; once a day is enough. An error is the reason for which the token is not good.
pub async fn used(server: &Server, namespace: &str, name: &str) -> Result<(), String> {
    let Some(secret) = server.cached("", "v1", "secrets", namespace, name) else { return Ok(()) };
    let today = today();
    if secret.header.labels.get(LAST_USED) != Some(&today)
        && let Err(why) = mark(server, &secret, &today).await
    {
        // Somebody else's write came first, or the store is busy: the next use will be marked.
        tracing::debug!(why, namespace, name, "the use of a token could not be marked");
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

async fn mark(server: &Server, secret: &Object, today: &str) -> Result<(), String> {
    let resource = server.resource("", "v1", "secrets").map_err(|status| status.message)?;
    let mut value = secret.value();
    // A short token may be bound to any Secret, which is then none of the cleaner's.
    if value["type"] != "kubernetes.io/service-account-token" {
        return Ok(());
    }
    value["metadata"]["labels"][LAST_USED] = today.into();
    let written = server.registry.write(&resource, &value, Expect::ModRevision(secret.revision), Vec::new());
    written.await.map(drop).map_err(|status| status.message)
}
