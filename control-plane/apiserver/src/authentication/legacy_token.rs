//! Tokens that live in a Secret: when each was last used is written on its Secret, and one that was marked invalid is
//! refused. The controller that cleans up unused tokens believes these labels, so a use must never go unmarked for a day.

use corten_meta::Status;
use corten_store::Expect;

use crate::server::Server;

const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";
/// How often a mark is tried while others write the Secret.
const ATTEMPTS: usize = 5;

/// Marks the Secret as used today; once a day is enough. An error is the reason for which the token is not good.
pub async fn used(server: &Server, namespace: &str, name: &str) -> Result<(), String> {
    let Some(secret) = server.cached("", "v1", "secrets", namespace, name) else { return Ok(()) };
    let today = today();
    if secret.header.labels.get(LAST_USED) != Some(&today)
        && let Err(why) = mark(server, namespace, name, &today).await
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

async fn mark(server: &Server, namespace: &str, name: &str, today: &str) -> Result<(), Status> {
    let resource = server.resource("", "v1", "secrets")?;
    let mut outcome = Ok(());
    for _ in 0..ATTEMPTS {
        let Some(secret) = server.registry.read(&resource, namespace, name).await? else { return Ok(()) };
        let mut value = secret.value();
        // A short token may be bound to any Secret, which is then none of the cleaner's.
        if value["type"] != "kubernetes.io/service-account-token" {
            return Ok(());
        }
        value["metadata"]["labels"][LAST_USED] = today.into();
        let written = server.registry.write(&resource, &value, Expect::ModRevision(secret.revision), Vec::new());
        outcome = written.await.map(drop);
        if !outcome.as_ref().is_err_and(Status::is_conflict) {
            break;
        }
    }
    outcome
}
