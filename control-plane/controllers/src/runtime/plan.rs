//! The result of a reconcile: an ordered list of writes, as plain data.
//!
//! A plan is all that passes from a pure `reconcile` to the runtime, so that every decision can be tested without a
//! server. It must never carry a closure or a client.

use std::borrow::Cow;
use std::time::Duration;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use corten_client::Propagation;
use corten_meta::metrics::Family;
use corten_meta::{Key, Value};
use serde_json::json;

use super::count::{Count, Label};
use super::rows::PodRow;
use super::scale::ScaleQuestion;

/// A resource type by its names in the API. Built from a typed kind, so no controller spells them by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceType {
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    pub plural: &'static str,
    pub namespaced: bool,
}

impl ResourceType {
    pub const fn of<K: Typed>() -> ResourceType {
        ResourceType {
            group: K::GROUP,
            version: K::VERSION,
            kind: K::KIND,
            plural: K::PLURAL,
            namespaced: K::NAMESPACED,
        }
    }

    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_owned() } else { format!("{}/{}", self.group, self.version) }
    }
}

/// The object that an event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    pub resource: ResourceType,
    pub key: Key,
    pub uid: String,
    pub resource_version: String,
}

impl Reference {
    pub fn to<K: Typed>(object: &K) -> Reference {
        let meta = object.meta();
        Reference {
            resource: ResourceType::of::<K>(),
            key: key_of(object),
            uid: meta.uid.clone().unwrap_or_default(),
            resource_version: meta.resource_version.clone().unwrap_or_default(),
        }
    }
}

/// An event to record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub about: Reference,
    pub warning: bool,
    pub reason: String,
    pub message: String,
}

/// Events that depend on the result of a write. The name of the written object, or the error, follows the prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub about: Reference,
    pub success: (&'static str, Cow<'static, str>),
    pub failure: (&'static str, Cow<'static, str>),
}

impl Report {
    /// Returns the events of a workload controller that creates a pod.
    pub fn pod_created<K: Typed>(owner: &K) -> Report {
        Report {
            about: Reference::to(owner),
            success: ("SuccessfulCreate", "Created pod: ".into()),
            failure: ("FailedCreate", "Error creating: ".into()),
        }
    }

    /// Returns the events of a workload controller that deletes a pod.
    pub fn pod_deleted<K: Typed>(owner: &K) -> Report {
        Report {
            about: Reference::to(owner),
            success: ("SuccessfulDelete", "Deleted pod: ".into()),
            failure: ("FailedDelete", "Error deleting: ".into()),
        }
    }
}

/// One write. Updates carry `metadata.resourceVersion` and deletions a uid: a decision made on a stale view fails.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// `metadata.generateName` is honoured; an object that already exists is an error, hence a retry.
    Create {
        resource: ResourceType,
        object: Value,
        report: Option<Report>,
    },
    Update {
        resource: ResourceType,
        object: Value,
    },
    UpdateStatus {
        resource: ResourceType,
        object: Value,
    },
    /// A JSON merge patch; the precondition is `metadata.uid` or `metadata.resourceVersion` inside the patch.
    Patch {
        resource: ResourceType,
        key: Key,
        patch: Value,
        subresource: Option<&'static str>,
    },
    Delete {
        resource: ResourceType,
        key: Key,
        uid: String,
        /// The resourceVersion precondition, for a controller that deletes an object because of its content.
        version: Option<String>,
        grace_period_seconds: Option<i64>,
        propagation: Option<Propagation>,
        report: Option<Report>,
    },
    Event(Event),
    /// Removes a directory on a node through its kubelet. The rest of the plan is applied only after success.
    RemoveLocalVolume {
        node: String,
        name: String,
        report: Report,
    },
    /// Removes a directory below `/tmp` on the controllers' machine. The rest of the plan is applied only after
    /// success.
    RemoveDirectory {
        path: String,
        report: Report,
    },
    /// Records the events of a pod again for another object.
    Relay {
        pod: Key,
        uid: String,
        about: Reference,
        reason: &'static str,
        prefix: &'static str,
    },
    /// Checks on the server, not in a cache, that no pod uses the claim. The rest of the plan is applied only if none
    /// does.
    Unused {
        claim: Box<PersistentVolumeClaim>,
    },
    /// Checks on the server that the object does not exist. The rest of the plan is applied only if it does not.
    Absent {
        resource: ResourceType,
        key: Key,
    },
    /// Asks for a scale that the decision depends on; a plan that asks contains no writes.
    AskScale(ScaleQuestion),
}

impl Action {
    pub fn absent<K: Typed>(key: Key) -> Action {
        Action::Absent { resource: ResourceType::of::<K>(), key }
    }

    pub fn create<K: Typed>(object: &K) -> Action {
        Action::Create { resource: ResourceType::of::<K>(), object: object.to_value(), report: None }
    }

    pub fn create_reported<K: Typed>(object: &K, report: Report) -> Action {
        Action::Create { resource: ResourceType::of::<K>(), object: object.to_value(), report: Some(report) }
    }

    pub fn update<K: Typed>(object: &K) -> Action {
        Action::Update { resource: ResourceType::of::<K>(), object: object.to_value() }
    }

    pub fn update_status<K: Typed>(object: &K) -> Action {
        Action::UpdateStatus { resource: ResourceType::of::<K>(), object: object.to_value() }
    }

    /// Returns a merge patch of the main resource, with the object's uid as precondition.
    pub fn patch<K: Typed>(object: &K, mut patch: Value) -> Action {
        corten_meta::set(&mut patch, "/metadata/uid", json!(object.meta().uid));
        Action::Patch { resource: ResourceType::of::<K>(), key: key_of(object), patch, subresource: None }
    }

    pub fn patch_status<K: Typed>(object: &K, mut patch: Value) -> Action {
        corten_meta::set(&mut patch, "/metadata/uid", json!(object.meta().uid));
        Action::Patch { resource: ResourceType::of::<K>(), key: key_of(object), patch, subresource: Some("status") }
    }

    pub fn delete<K: Typed>(object: &K) -> Action {
        Action::Delete {
            resource: ResourceType::of::<K>(),
            key: key_of(object),
            uid: object.meta().uid.clone().unwrap_or_default(),
            version: None,
            grace_period_seconds: None,
            propagation: None,
            report: None,
        }
    }

    pub fn delete_with<K: Typed>(
        object: &K,
        grace: Option<i64>,
        propagation: Option<Propagation>,
        wanted: Option<Report>,
    ) -> Action {
        let mut action = Action::delete(object);
        if let Action::Delete { grace_period_seconds, propagation: policy, report, .. } = &mut action {
            *grace_period_seconds = grace;
            *policy = propagation;
            *report = wanted;
        }
        action
    }

    /// Deletes an object with its resourceVersion as precondition.
    pub fn delete_unchanged<K: Typed>(object: &K, propagation: Option<Propagation>) -> Action {
        let mut action = Action::delete_with(object, None, propagation, None);
        if let Action::Delete { version, .. } = &mut action {
            version.clone_from(&object.meta().resource_version);
        }
        action
    }

    /// Deletes a pod that was read as a row.
    pub fn delete_pod(pod: &PodRow, report: Report) -> Action {
        Action::Delete {
            resource: ResourceType::of::<Pod>(),
            key: pod.object.key(),
            uid: pod.object.header.uid.clone(),
            version: None,
            grace_period_seconds: None,
            propagation: None,
            report: Some(report),
        }
    }

    pub fn normal<K: Typed>(about: &K, reason: &str, message: impl Into<String>) -> Action {
        Action::event(about, false, reason, message)
    }

    pub fn warning<K: Typed>(about: &K, reason: &str, message: impl Into<String>) -> Action {
        Action::event(about, true, reason, message)
    }

    /// Records a warning event for a pod that was read as a row.
    pub fn warning_of_pod(pod: &PodRow, reason: &str, message: String) -> Action {
        let about = Reference {
            resource: ResourceType::of::<Pod>(),
            key: pod.object.key(),
            uid: pod.object.header.uid.clone(),
            resource_version: pod.object.revision.to_string(),
        };
        Action::Event(Event { about, warning: true, reason: reason.to_owned(), message })
    }

    fn event<K: Typed>(about: &K, warning: bool, reason: &str, message: impl Into<String>) -> Action {
        Action::Event(Event {
            about: Reference::to(about),
            warning,
            reason: reason.to_owned(),
            message: message.into(),
        })
    }

    /// Returns the resource that the action writes to.
    pub fn written(&self) -> Option<ResourceType> {
        match self {
            Action::Create { resource, .. }
            | Action::Update { resource, .. }
            | Action::UpdateStatus { resource, .. }
            | Action::Patch { resource, .. }
            | Action::Delete { resource, .. } => Some(*resource),
            Action::Event(_)
            | Action::RemoveLocalVolume { .. }
            | Action::RemoveDirectory { .. }
            | Action::Relay { .. }
            | Action::Unused { .. }
            | Action::Absent { .. }
            | Action::AskScale(_) => None,
        }
    }

    /// Returns whether the action creates (0), updates (1) or deletes (2) an object of this resource.
    fn operation(&self, of: ResourceType) -> Option<usize> {
        match self {
            Action::Create { resource, .. } if *resource == of => Some(0),
            Action::Update { resource, .. } if *resource == of => Some(1),
            Action::Delete { resource, .. } if *resource == of => Some(2),
            _ => None,
        }
    }

    pub fn is_event(&self) -> bool {
        matches!(self, Action::Event(_))
    }
}

/// The writes of a reconcile, and the time of the next reconcile if nothing changes before.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    pub actions: Vec<Action>,
    pub requeue_after: Option<Duration>,
    /// The metrics to count for this reconcile.
    pub counts: Vec<Count>,
}

impl Plan {
    pub fn nothing() -> Plan {
        Plan::default()
    }

    /// Returns a plan that writes nothing and reconciles again after a while.
    pub fn later(after: Duration) -> Plan {
        Plan { requeue_after: Some(after), ..Plan::default() }
    }

    /// Counts a metric when the plan is applied.
    pub fn count(&mut self, family: &'static Family, labels: impl IntoIterator<Item = Label>, value: f64) {
        self.counts.push(Count::new(family, labels, value));
    }

    /// Counts the writes so far to one resource by their operation.
    pub fn count_changes(&mut self, family: &'static Family, resource: ResourceType) {
        for (operation, which) in ["create", "update", "delete"].into_iter().zip(0..) {
            let number = self.actions.iter().filter(|action| action.operation(resource) == Some(which)).count();
            if number > 0 {
                self.count(family, [operation.into()], number as f64);
            }
        }
    }

    pub fn push(&mut self, action: Action) {
        self.actions.push(action);
    }

    /// Reconciles again after the shortest of all requested times.
    pub fn requeue(&mut self, after: Duration) {
        self.requeue_after = Some(self.requeue_after.map_or(after, |already| already.min(after)));
    }

    /// Returns the scales that must be known first.
    pub fn questions(&self) -> impl Iterator<Item = &ScaleQuestion> {
        self.actions.iter().filter_map(|action| match action {
            Action::AskScale(question) => Some(question),
            _ => None,
        })
    }

    /// Reports whether the plan writes nothing: the state is as desired.
    pub fn is_empty(&self) -> bool {
        self.actions.is_empty()
    }
}

impl From<Vec<Action>> for Plan {
    fn from(actions: Vec<Action>) -> Plan {
        Plan { actions, ..Plan::default() }
    }
}

impl From<Action> for Plan {
    fn from(action: Action) -> Plan {
        Plan::from(vec![action])
    }
}

/// Returns the namespace and name of a typed object.
pub fn key_of<K: Typed>(object: &K) -> Key {
    let meta = object.meta();
    Key { namespace: meta.namespace.clone().unwrap_or_default(), name: meta.name.clone().unwrap_or_default() }
}
