//! The query parameters of operations: upstream's names, with a type other than string after a colon.

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

/// The descriptions of the parameters; path parameters have an `@`.
const MEANINGS: &[(&str, &str)] = &[
    ("name@", "The name of the object."),
    ("namespace@", "The namespace of the objects."),
    ("path@", "The path of the proxied request."),
    ("logpath@", "The path to the log."),
    ("allowWatchBookmarks", "Whether a watch also sends bookmarks, which only have a resourceVersion."),
    ("command", "The command to run; one argument per parameter."),
    ("container", "The container of the pod; defaults to its only one."),
    ("continue", "The continue token of the previous page of a list. It is valid for some minutes."),
    ("dryRun", "With All, the request is processed and nothing is stored."),
    ("fieldManager", "The manager that owns the written fields; at most 128 printable characters."),
    ("fieldSelector", "Selects objects by the values of their fields."),
    (
        "fieldValidation",
        "The handling of unknown and duplicate fields: Ignore drops them, Warn also answers with warnings, Strict \
         refuses the request.",
    ),
    ("follow", "Whether the log is followed."),
    ("force", "Whether an apply takes over fields of other managers."),
    ("gracePeriodSeconds", "The grace period of the deletion in seconds; zero deletes at once."),
    (
        "ignoreStoreReadErrorWithClusterBreakingPotential",
        "Whether an object that can no longer be read is deleted, regardless of its finalizers.",
    ),
    ("insecureSkipTLSVerifyBackend", "Whether the certificate of the kubelet is not verified."),
    ("labelSelector", "Selects objects by their labels."),
    ("limit", "The maximum number of objects of one page."),
    ("limitBytes", "The maximum number of bytes of the log."),
    ("orphanDependents", "Whether dependent objects are orphaned; deprecated, use propagationPolicy."),
    ("path", "The path of the proxied request."),
    ("ports", "The ports to forward to."),
    ("pretty", "Whether the response is indented; by default for browsers, curl and wget."),
    ("previous", "Whether the log is that of the previous container instance."),
    ("propagationPolicy", "The deletion of dependent objects: Orphan, Background or Foreground."),
    ("resourceVersion", "The resourceVersion of the state to read, or after which a watch begins."),
    ("resourceVersionMatch", "The match of the resourceVersion: Exact or NotOlderThan."),
    ("sendInitialEvents", "Whether a watch begins with the current objects as events, and a bookmark after them."),
    ("shardSelector", "Selects a part of the objects by a hash of a field."),
    ("sinceSeconds", "The age in seconds at which the log begins."),
    ("stderr", "Whether standard error is streamed."),
    ("stdin", "Whether standard input is streamed."),
    ("stdout", "Whether standard output is streamed."),
    ("stream", "The stream of the log: All, Stdout or Stderr."),
    ("tailLines", "The number of lines at the end of the log."),
    ("timeoutSeconds", "The time limit of the list or watch in seconds."),
    ("timestamps", "Whether every line of the log begins with its time."),
    ("tty", "Whether the streams are those of a terminal."),
    ("watch", "Whether the response is a stream of changes of the objects."),
];

/// Returns query parameters by name and type; path parameters have an `@`.
pub(super) fn parameters(names: &[&str]) -> Value {
    let one = |text: &&str| {
        let (name, kind) = text.split_once(':').unwrap_or((text, "string"));
        let mut parameter = match name.strip_suffix('@') {
            Some(name) => json!({"name": name, "in": "path", "required": true}),
            None => json!({"name": name, "in": "query"}),
        };
        parameter["schema"] = json!({"type": kind, "uniqueItems": true});
        if let Some((_, meaning)) = MEANINGS.iter().find(|(of, _)| *of == name) {
            parameter["description"] = (*meaning).into();
        }
        parameter
    };
    names.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_parameter_has_a_description() {
        for names in [LIST, WRITE, PATCH, DELETE, DELETE_COLLECTION, LOG, &["name@", "namespace@", "path@"]] {
            for parameter in parameters(names).as_array().unwrap() {
                assert!(parameter["description"].is_string(), "{parameter}");
            }
        }
        let name = json!({ "name": "name", "in": "path", "required": true, "description": "The name of the object.",
                           "schema": { "type": "string", "uniqueItems": true } });
        assert_eq!(parameters(&["name@"]), json!([name]));
    }
}
