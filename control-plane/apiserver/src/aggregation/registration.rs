//! The APIServices of the group versions of custom resources, one each as long as a CRD has the group version.

use std::collections::BTreeSet;
use std::sync::Arc;

use corten_api::Kind;
use corten_meta::{Object, Status, Value};
use corten_store::{Expect, Op};
use serde_json::json;

use super::{GROUP, PLURAL};
use crate::registry::{Registry, store_status};

const MANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";

/// Creates the APIServices of served group versions and deletes those of others.
pub async fn reconcile(registry: &Registry, announced: BTreeSet<(String, String)>) -> Result<(), Status> {
    let resource = registry.required(GROUP, "v1", PLURAL)?;
    // These are the group versions of CRDs, and those of other resources that can be added and removed.
    let resources = registry.resources();
    let is_beside = |kind: &&Arc<Kind>| !kind.serving().is_registered && !kind.verbs.is_empty();
    let beside = resources.ordered.iter().map(|r| &r.kind).filter(is_beside);
    let mut served = announced;
    served.extend(beside.map(|kind| (kind.group.clone(), kind.version.clone())));
    let mut operations: Vec<Op> = Vec::new();
    for (group, version) in &served {
        if registry.cached(GROUP, "v1", PLURAL, "", &format!("{version}.{group}")).is_none() {
            let mut object = api_service(group, version);
            if registry.store.is_shared() && registry.built_in_custom().any(|kind| kind.group == *group) {
                // Upstream's servers on the same store delete the managed APIServices of groups that they do not serve.
                object["metadata"]["labels"] = json!({});
            }
            operations.push(registry.put(&resource, &object, Expect::Absent).await?.0);
        }
    }
    for object in registry.cached_list(GROUP, "v1", PLURAL, "") {
        if is_stale(&object, &served) {
            let name = &object.header.name;
            operations.push(registry.remove(&resource, "", name, Expect::ModRevision(object.revision))?);
        }
    }
    // Each is a commit of its own: another server may have written it first, which is fine.
    for operation in operations {
        registry.commit_all(vec![operation]).await.map_err(store_status)?;
    }
    registry.caches.fresh().await?;
    Ok(())
}

/// Reports whether an APIService was created here for a group version that is no longer served.
fn is_stale(object: &Object, served: &BTreeSet<(String, String)>) -> bool {
    if object.header.labels.get(MANAGED).map(String::as_str) != Some("true") {
        return false;
    }
    let value = object.value();
    // A user has pointed it at a server since.
    if value.pointer("/spec/service").is_some_and(Value::is_object) {
        return false;
    }
    let string = |pointer: &str| value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    !served.contains(&(string("/spec/group"), string("/spec/version")))
}

fn api_service(group: &str, version: &str) -> Value {
    let now = corten_meta::time::rfc3339(jiff::Timestamp::now());
    json!({
        "apiVersion": format!("{GROUP}/v1"),
        "kind": "APIService",
        "metadata": {
            "name": format!("{version}.{group}"), "labels": { MANAGED: "true" },
            "uid": uuid::Uuid::new_v4().to_string(), "creationTimestamp": now,
        },
        "spec": { "group": group, "version": version, "groupPriorityMinimum": 1000, "versionPriority": 100 },
        "status": { "conditions": [{
            "type": "Available", "status": "True", "reason": "Local",
            "message": "Local APIServices are always available", "lastTransitionTime": now,
        }] },
    })
}
