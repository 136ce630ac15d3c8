//! The objects that belong to a trace.

use std::collections::HashSet;

use corten_meta::Value;

/// The uids of the objects of a trace.
#[derive(Debug, Default)]
pub struct Related(HashSet<String>);

impl Related {
    /// Adds an object.
    pub fn add(&mut self, object: &Value) {
        if let Some(uid) = uid(object) {
            self.0.insert(uid.to_owned());
        }
    }

    pub fn contains(&self, object: &Value) -> bool {
        uid(object).is_some_and(|uid| self.0.contains(uid))
    }

    /// Reports whether an object belongs to one of the trace: by its owner, as an Event of it, or as an EndpointSlice that
    /// names it.
    pub fn leads_to(&self, object: &Value) -> bool {
        let owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        let endpoints = object["endpoints"].as_array().into_iter().flatten();
        let uids = owners.map(|owner| &owner["uid"]).chain(endpoints.map(|endpoint| &endpoint["targetRef"]["uid"]));
        let mut uids = uids.chain([&object["involvedObject"]["uid"]]).filter_map(Value::as_str);
        uids.any(|uid| self.0.contains(uid))
    }
}

pub fn uid(object: &Value) -> Option<&str> {
    object["metadata"]["uid"].as_str()
}
