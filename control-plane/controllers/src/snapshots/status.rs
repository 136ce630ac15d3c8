//! The parts of plans that all controllers of snapshots share: finalizers, and errors in a status.

use corten_api::Typed;
use corten_meta::time::rfc3339;
use corten_snapshots::StatusError;
use jiff::Timestamp;
use serde_json::json;

use crate::runtime::Action;

/// The reason why a snapshot cannot be taken or bound. It becomes an event and the error of the status.
pub struct Problem {
    pub reason: &'static str,
    pub message: String,
    /// Whether the snapshot cannot be used at all: `readyToUse` becomes false.
    pub is_unusable: bool,
}

impl Problem {
    pub fn unusable(reason: &'static str, message: impl Into<String>) -> Problem {
        Problem { reason, message: message.into(), is_unusable: true }
    }

    pub fn passing(reason: &'static str, message: impl Into<String>) -> Problem {
        Problem { reason, message: message.into(), is_unusable: false }
    }

    /// Returns the event and the change of the status; nothing if the status has the error already.
    pub fn report<K: Typed>(self, object: &K, current: Option<&StatusError>, now: Timestamp) -> Vec<Action> {
        if current.and_then(|error| error.message.as_ref()) == Some(&self.message) {
            return Vec::new();
        }
        let mut status = json!({"error": {"message": self.message, "time": rfc3339(now)}});
        if self.is_unusable {
            status["readyToUse"] = json!(false);
        }
        vec![
            Action::warning(object, self.reason, self.message),
            Action::patch_status(object, json!({"status": status})),
        ]
    }
}

pub fn has_finalizer<K: Typed>(object: &K, finalizer: &str) -> bool {
    object.meta().finalizers.iter().flatten().any(|one| one == finalizer)
}

/// Adds and removes finalizers of an object; nothing if it has those of the one list and none of the other.
pub fn finalizers<K: Typed>(object: &K, add: &[&str], remove: &[&str]) -> Option<Action> {
    let current = object.meta().finalizers.clone().unwrap_or_default();
    let mut wanted: Vec<String> = current.iter().filter(|one| !remove.contains(&one.as_str())).cloned().collect();
    wanted.extend(add.iter().filter(|one| !has_finalizer(object, one)).map(|one| (*one).to_owned()));
    if wanted == current {
        return None;
    }
    // The version guards the list, which is replaced as a whole.
    let version = &object.meta().resource_version;
    Some(Action::patch(object, json!({"metadata": {"resourceVersion": version, "finalizers": wanted}})))
}

/// Sets an annotation to `yes`; nothing if the object has it.
pub fn annotate<K: Typed>(object: &K, annotation: &str) -> Option<Action> {
    let annotations = object.meta().annotations.as_ref();
    let is_set = annotations.is_some_and(|all| all.contains_key(annotation));
    (!is_set).then(|| Action::patch(object, json!({"metadata": {"annotations": {annotation: "yes"}}})))
}
