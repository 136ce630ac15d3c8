//! The query parameters of operations: names as upstream publishes them, a type other than string after a colon.

use corten_meta::Value;
use serde_json::json;

pub(super) const LIST: &[&str] = &[
    "allowWatchBookmarks:boolean",
    "continue",
    "fieldSelector",
    "labelSelector",
    "limit:integer",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents:boolean",
    "shardSelector",
    "timeoutSeconds:integer",
    "watch:boolean",
];
pub(super) const WRITE: &[&str] = &["dryRun", "fieldManager", "fieldValidation"];
pub(super) const PATCH: &[&str] = &["dryRun", "fieldManager", "fieldValidation", "force:boolean"];
pub(super) const DELETE: &[&str] = &[
    "dryRun",
    "gracePeriodSeconds:integer",
    "ignoreStoreReadErrorWithClusterBreakingPotential:boolean",
    "orphanDependents:boolean",
    "propagationPolicy",
];
pub(super) const DELETE_COLLECTION: &[&str] = &[
    "continue",
    "dryRun",
    "fieldSelector",
    "gracePeriodSeconds:integer",
    "ignoreStoreReadErrorWithClusterBreakingPotential:boolean",
    "labelSelector",
    "limit:integer",
    "orphanDependents:boolean",
    "propagationPolicy",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents:boolean",
    "shardSelector",
    "timeoutSeconds:integer",
];
pub(super) const LOG: &[&str] = &[
    "container",
    "follow:boolean",
    "insecureSkipTLSVerifyBackend:boolean",
    "limitBytes:integer",
    "pretty",
    "previous:boolean",
    "sinceSeconds:integer",
    "stream",
    "tailLines:integer",
    "timestamps:boolean",
];

/// Query parameters by name and type, path parameters with an `@`.
pub(super) fn parameters(names: &[&str]) -> Value {
    let one = |text: &&str| match text.strip_suffix('@') {
        Some(name) => {
            json!({"name": name, "in": "path", "required": true, "schema": {"type": "string", "uniqueItems": true}})
        }
        None => {
            let (name, kind) = text.split_once(':').unwrap_or((text, "string"));
            json!({"name": name, "in": "query", "schema": {"type": kind, "uniqueItems": true}})
        }
    };
    names.iter().map(one).collect()
}
