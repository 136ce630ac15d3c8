//! The status of ValidatingAdmissionPolicies: that a generation was seen, and what its type check found.
//!
//! One task follows the policies. It never judges requests.

use std::sync::Weak;
use std::time::Duration;

use corten_meta::{Status, Value};
use corten_store::Expect;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::definition::GROUP;
use super::type_checking::warnings;
use crate::server::Server;

const PLURAL: &str = "validatingadmissionpolicies";

/// Follows the policies until shutdown.
pub async fn run(server: Weak<Server>, shutdown: CancellationToken) {
    let Some(mut changes) = server.upgrade().and_then(|s| {
        let resource = s.registry.resource(GROUP, "v1", PLURAL)?;
        resource.stored.as_ref().map(|stored| stored.cache.changes())
    }) else {
        return;
    };
    loop {
        changes.mark_unchanged();
        let checked = match server.upgrade() {
            Some(server) => check(&server).await,
            None => return,
        };
        let again = checked.is_err();
        if let Err(status) = checked {
            tracing::warn!(message = status.message, "policies could not be type-checked; trying again");
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            changed = changes.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(Duration::from_secs(1)), if again => {}
        }
    }
}

/// Checks every policy whose generation was not seen. Doing it twice is harmless.
async fn check(server: &Server) -> Result<(), Status> {
    let resource = server.resource(GROUP, "v1", PLURAL)?;
    for object in server.cached_list(GROUP, "v1", PLURAL, "") {
        let mut policy = object.value();
        let generation = corten_meta::generation(&policy);
        if policy.pointer("/status/observedGeneration").and_then(Value::as_i64) == Some(generation) {
            continue;
        }
        let found = warnings(&policy, &server.registry.resources());
        let checking = if found.is_empty() { json!({}) } else { json!({ "expressionWarnings": found }) };
        policy["status"]["observedGeneration"] = generation.into();
        policy["status"]["typeChecking"] = checking;
        // Somebody else's write is a change that is seen here again.
        server.registry.write(&resource, &policy, Expect::ModRevision(object.revision), Vec::new()).await?;
    }
    Ok(())
}
