//! The four controllers: each decides by a pure function; one place carries out what they decide.

pub mod node;
pub mod node_lifecycle;
pub mod route;
pub mod service;

use corten_meta::Key;
use serde_json::Value;

use crate::objects::{key, list, string};
use crate::provider::{Balancer, Error, Route};

/// A write to the API, or a call to the cloud. They are carried out in order; a failure ends the list, and the next
/// reconcile begins anew.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// A JSON merge patch of a Node or a Service; its precondition is a resourceVersion or uid inside.
    Patch {
        kind: Kind,
        key: Key,
        patch: Value,
        is_status: bool,
    },
    DeleteNode {
        name: String,
        uid: String,
    },
    Event(Event),
    /// Makes a load balancer, and writes its addresses into the Service's status, or the reason why there is none. The
    /// error is the fault of the Service's spec.
    EnsureBalancer {
        wanted: Result<Box<Balancer>, Error>,
        service: Box<Value>,
    },
    DeleteBalancer {
        name: String,
    },
    CreateRoute(Box<NewRoute>),
    DeleteRoute(Route),
}

/// A route to create, and the node whose condition shows a failure.
#[derive(Clone, Debug, PartialEq)]
pub struct NewRoute {
    pub route: Route,
    pub node: Value,
    /// The time of a changed condition.
    pub now: String,
}

/// The kinds that the controllers write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Node,
    Service,
}

/// An event about an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub kind: Kind,
    pub key: Key,
    pub uid: String,
    pub is_warning: bool,
    pub reason: &'static str,
    pub message: String,
}

impl Event {
    /// Returns an event about an object.
    pub fn about(
        kind: Kind,
        object: &Value,
        is_warning: bool,
        reason: &'static str,
        message: impl Into<String>,
    ) -> Event {
        let uid = string(object, "/metadata/uid").to_owned();
        Event { kind, key: key(object), uid, is_warning, reason, message: message.into() }
    }
}

/// Returns the taints of a node without those of a key.
fn taints_without(node: &Value, key: &str) -> Vec<Value> {
    list(node, "/spec/taints").filter(|taint| taint["key"] != key).cloned().collect()
}

fn has_taint(node: &Value, key: &str) -> bool {
    list(node, "/spec/taints").any(|taint| taint["key"] == key)
}
