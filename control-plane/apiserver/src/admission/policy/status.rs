//! The status of ValidatingAdmissionPolicies: that a generation was seen, and what its type check found.
//!
//! One task follows the policies. It never judges requests.

use corten_meta::{Status, Value};
use corten_store::Expect;
use futures::future::BoxFuture;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::definition::GROUP;
use super::type_checking::warnings;
use crate::follow::follow;
use crate::registry::Registry;

const PLURAL: &str = "validatingadmissionpolicies";

/// Follows the policies until shutdown.
pub async fn run(registry: &Registry, shutdown: &CancellationToken) {
    let reconcile = || -> BoxFuture<'_, _> { Box::pin(async { check(registry).await.map(|()| Vec::new()) }) };
    follow(registry, GROUP, PLURAL, &reconcile, shutdown).await;
}

/// Checks every policy whose generation was not seen. Doing it twice is harmless.
async fn check(registry: &Registry) -> Result<(), Status> {
    let resource = registry.required(GROUP, "v1", PLURAL)?;
    for object in registry.cached_list(GROUP, "v1", PLURAL, "") {
        let mut policy = object.value();
        let generation = corten_meta::generation(&policy);
        if policy.pointer("/status/observedGeneration").and_then(Value::as_i64) == Some(generation) {
            continue;
        }
        let found = warnings(&policy, &registry.resources());
        let checking = if found.is_empty() { json!({}) } else { json!({ "expressionWarnings": found }) };
        policy["status"]["observedGeneration"] = generation.into();
        policy["status"]["typeChecking"] = checking;
        // Somebody else's write is a change that is seen here again.
        registry.write(&resource, &policy, Expect::ModRevision(object.revision), Vec::new()).await?;
    }
    Ok(())
}
