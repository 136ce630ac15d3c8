//! The options of a request, and their form in a query or a body.

use crate::resource::encode;
use corten_meta::Value;
use serde_json::json;

/// The options of a list or watch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct ListOptions {
    /// The label selector, as in `kubectl -l`; empty selects everything.
    pub label_selector: String,
    /// The field selector, as in `kubectl --field-selector`; empty selects everything.
    pub field_selector: String,
    /// The resource version; `None` requests the newest state, and a watch then starts with synthetic additions.
    pub resource_version: Option<String>,
    /// The match of the resource version: `Exact` or `NotOlderThan`.
    pub resource_version_match: Option<String>,
    /// The most objects per answer; the rest follows with `continue_token`.
    pub limit: Option<u64>,
    pub continue_token: Option<String>,
    /// The time after which the server ends a watch.
    pub timeout_seconds: Option<u64>,
    pub allow_watch_bookmarks: bool,
    /// Whether a watch begins with the existing objects, closed by a marked bookmark.
    pub send_initial_events: bool,
}

impl ListOptions {
    pub fn labels(selector: impl Into<String>) -> ListOptions {
        ListOptions { label_selector: selector.into(), ..ListOptions::default() }
    }

    pub fn fields(selector: impl Into<String>) -> ListOptions {
        ListOptions { field_selector: selector.into(), ..ListOptions::default() }
    }

    /// Returns the query string, with its question mark; empty if there are no options.
    pub(crate) fn query(&self, watch: bool) -> String {
        let mut query = Query::default();
        query.flag("watch", watch);
        query.text("labelSelector", &self.label_selector);
        query.text("fieldSelector", &self.field_selector);
        query.text("resourceVersion", self.resource_version.as_deref().unwrap_or_default());
        query.text("resourceVersionMatch", self.resource_version_match.as_deref().unwrap_or_default());
        query.text("limit", &self.limit.map(|n| n.to_string()).unwrap_or_default());
        query.text("continue", self.continue_token.as_deref().unwrap_or_default());
        query.text("timeoutSeconds", &self.timeout_seconds.map(|n| n.to_string()).unwrap_or_default());
        query.flag("allowWatchBookmarks", self.allow_watch_bookmarks);
        query.flag("sendInitialEvents", self.send_initial_events);
        query.0
    }
}

/// A query string under construction.
#[derive(Default)]
pub(crate) struct Query(pub(crate) String);

impl Query {
    pub(crate) fn text(&mut self, key: &str, value: &str) {
        if !value.is_empty() {
            self.0.push(if self.0.is_empty() { '?' } else { '&' });
            self.0.push_str(key);
            self.0.push('=');
            encode(&mut self.0, value);
        }
    }

    pub(crate) fn flag(&mut self, key: &str, value: bool) {
        if value {
            self.text(key, "true");
        }
    }
}

/// The handling of the dependents of a deleted object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    Orphan,
    Background,
    Foreground,
}

/// The options of a deletion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    pub grace_period_seconds: Option<i64>,
    pub propagation: Option<Propagation>,
    /// The uid that the object must have.
    pub precondition_uid: Option<String>,
    /// The resource version that the object must have.
    pub precondition_resource_version: Option<String>,
    pub dry_run: bool,
}

impl DeleteOptions {
    /// Makes options for an immediate deletion, without grace period.
    pub fn now() -> DeleteOptions {
        DeleteOptions { grace_period_seconds: Some(0), ..DeleteOptions::default() }
    }

    /// Makes options for the deletion of the object with this uid only.
    pub fn uid(uid: impl Into<String>) -> DeleteOptions {
        DeleteOptions { precondition_uid: Some(uid.into()), ..DeleteOptions::default() }
    }

    pub(crate) fn to_value(&self) -> Value {
        let mut options = json!({"apiVersion": "v1", "kind": "DeleteOptions"});
        if let Some(seconds) = self.grace_period_seconds {
            options["gracePeriodSeconds"] = json!(seconds);
        }
        if let Some(propagation) = self.propagation {
            options["propagationPolicy"] = json!(format!("{propagation:?}"));
        }
        if let Some(uid) = &self.precondition_uid {
            options["preconditions"]["uid"] = json!(uid);
        }
        if let Some(version) = &self.precondition_resource_version {
            options["preconditions"]["resourceVersion"] = json!(version);
        }
        if self.dry_run {
            options["dryRun"] = json!(["All"]);
        }
        options
    }
}

/// A partial write.
#[derive(Debug, Clone, PartialEq)]
pub enum Patch {
    /// JSON merge patch, RFC 7396.
    Merge(Value),
    /// JSON patch, RFC 6902.
    Json(Value),
    /// Strategic merge patch, Kubernetes' own merge, which knows list keys.
    Strategic(Value),
    /// Server-side apply.
    Apply { object: Value, manager: String, force: bool },
}

impl Patch {
    pub(crate) fn content_type(&self) -> &'static str {
        match self {
            Patch::Merge(_) => "application/merge-patch+json",
            Patch::Json(_) => "application/json-patch+json",
            Patch::Strategic(_) => "application/strategic-merge-patch+json",
            Patch::Apply { .. } => "application/apply-patch+yaml",
        }
    }

    pub(crate) fn body(&self) -> &Value {
        match self {
            Patch::Merge(value) | Patch::Json(value) | Patch::Strategic(value) => value,
            Patch::Apply { object, .. } => object,
        }
    }

    pub(crate) fn query(&self) -> String {
        let mut query = Query::default();
        if let Patch::Apply { manager, force, .. } = self {
            query.text("fieldManager", manager);
            query.flag("force", *force);
        }
        query.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_and_bodies() {
        let options = ListOptions { limit: Some(500), ..ListOptions::labels("app in (a,b)") };
        assert_eq!(options.query(false), "?labelSelector=app%20in%20%28a%2Cb%29&limit=500");
        assert_eq!(ListOptions::default().query(false), "");
        assert_eq!(ListOptions::default().query(true), "?watch=true");
        let delete = DeleteOptions { propagation: Some(Propagation::Foreground), ..DeleteOptions::uid("u") };
        assert_eq!(
            delete.to_value(),
            json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Foreground", "preconditions": {"uid": "u"}})
        );
        let apply = Patch::Apply { object: json!({}), manager: "me".into(), force: true };
        assert_eq!(apply.query(), "?fieldManager=me&force=true");
    }
}
