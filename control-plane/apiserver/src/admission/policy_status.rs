//! The status of ValidatingAdmissionPolicies: the observed generation, and the warnings of the type check.
//!
//! One task watches the policies. It never decides about requests.

use std::sync::Arc;

use corten_admission::type_warnings;
use corten_api::Kind;
use corten_meta::{Status, Value};
use corten_store::Expect;
use futures::future::BoxFuture;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::follow::follow;
use crate::registry::Registry;

const GROUP: &str = "admissionregistration.k8s.io";
const PLURAL: &str = "validatingadmissionpolicies";

/// Watches the policies until shutdown.
pub async fn run(registry: &Registry, shutdown: &CancellationToken) {
    let reconcile = || -> BoxFuture<'_, _> { Box::pin(async { check(registry).await.map(|()| Vec::new()) }) };
    follow(registry, GROUP, PLURAL, &reconcile, shutdown).await;
}

/// Checks every policy whose generation was not observed. Doing it twice is harmless.
async fn check(registry: &Registry) -> Result<(), Status> {
    let resource = registry.required(GROUP, "v1", PLURAL)?;
    let kinds: Vec<Arc<Kind>> = registry.resources().ordered.iter().map(|r| Arc::clone(&r.kind)).collect();
    for object in registry.cached_list(GROUP, "v1", PLURAL, "") {
        let mut policy = object.value();
        let generation = corten_meta::generation(&policy);
        if policy.pointer("/status/observedGeneration").and_then(Value::as_i64) == Some(generation) {
            continue;
        }
        let found = type_warnings(&policy, &kinds);
        let checking = if found.is_empty() { json!({}) } else { json!({ "expressionWarnings": found }) };
        policy["status"]["observedGeneration"] = generation.into();
        policy["status"]["typeChecking"] = checking;
        // A conflicting write of another client is a change that this task observes again.
        registry.write(&resource, &policy, Expect::ModRevision(object.revision), Vec::new()).await?;
    }
    Ok(())
}
