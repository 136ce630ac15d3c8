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
    ("path@", "The path that is asked for behind the proxy."),
    ("logpath@", "The path to the log."),
    ("allowWatchBookmarks", "Whether a watch is also sent events that only tell how far it has come."),
    ("command", "The command to run, one argument each time it is given."),
    ("container", "The container of the pod; its only one if none is named."),
    ("continue", "Where a list in pages goes on: what the page before it said. It stays valid for some minutes."),
    ("dryRun", "With All, the request is processed as ever and nothing is stored."),
    ("fieldManager", "Under which name the written fields are owned; at most 128 printable characters."),
    ("fieldSelector", "Selects objects by the values of their fields."),
    (
        "fieldValidation",
        "What becomes of unknown and duplicate fields: Ignore drops them, Warn also answers with warnings, Strict \
         refuses the request.",
    ),
    ("follow", "Whether the log is followed while it grows."),
    ("force", "Whether an apply takes over fields that others own."),
    ("gracePeriodSeconds", "How many seconds the object may take to end; zero is at once."),
    (
        "ignoreStoreReadErrorWithClusterBreakingPotential",
        "Whether an object is deleted that can no longer be read, without looking at its finalizers.",
    ),
    ("insecureSkipTLSVerifyBackend", "Whether the certificate of the kubelet is taken for what it says it is."),
    ("labelSelector", "Selects objects by their labels."),
    ("limit", "The most objects of one page."),
    ("limitBytes", "The most bytes of the log."),
    ("orphanDependents", "Whether what the object owns stays; propagationPolicy says it better."),
    ("path", "The path that is asked for behind the proxy."),
    ("ports", "The ports to forward to."),
    ("pretty", "Whether the answer is indented; if it is not said, for browsers, curl and wget."),
    ("previous", "Whether the log is that of the container before it was last restarted."),
    ("propagationPolicy", "What becomes of what the object owns: Orphan, Background or Foreground."),
    ("resourceVersion", "The version of the state that is read, or after which a watch begins."),
    ("resourceVersionMatch", "How the resourceVersion is meant: Exact or NotOlderThan."),
    ("sendInitialEvents", "Whether a watch begins with the state there is, told as events, and a bookmark at its end."),
    ("shardSelector", "Selects a part of the objects by a hash of a field."),
    ("sinceSeconds", "How many seconds back the log begins."),
    ("stderr", "Whether standard error is streamed."),
    ("stdin", "Whether standard input is streamed."),
    ("stdout", "Whether standard output is streamed."),
    ("stream", "Which stream of the log: All, Stdout or Stderr."),
    ("tailLines", "How many lines at the end of the log."),
    ("timeoutSeconds", "After how many seconds the list or watch ends."),
    ("timestamps", "Whether every line of the log begins with its time."),
    ("tty", "Whether the streams are those of a terminal."),
    ("watch", "Whether the answer is a stream of what happens to the objects."),
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
