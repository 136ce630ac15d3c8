//! CSIStorageCapacity.

use corten_meta::Value;
use corten_meta::field::FieldError;
use jiff::Timestamp;

use super::validation;
use crate::check::At;
use crate::kind::{Behaviour, Kind};

struct CsiStorageCapacity;

/// Returns the declaration.
pub fn kind() -> Kind {
    Kind::new("storage.k8s.io", "v1", "CSIStorageCapacity", "csistoragecapacities")
        .conditional_update()
        .table("Name, Created At:date")
        .behaviour(CsiStorageCapacity)
}

impl Behaviour for CsiStorageCapacity {
    fn warnings(&self, capacity: &Value, _old: Option<&Value>) -> Vec<String> {
        let topology = At::object(capacity).get("nodeTopology");
        let mut out = Vec::new();
        crate::core::pod_warnings::of_node_selector_term(&topology, false, &mut out);
        for (label, _) in topology.get("matchLabels").entries() {
            let why = crate::core::pod_warnings::old_label(label);
            out.extend(why.map(|why| format!("nodeTopology.matchLabels.{label}: {why}")));
        }
        out
    }

    fn validate(&self, object: &Value) -> Vec<FieldError> {
        validation::validate_capacity(object)
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        let topology = |object: &Value| object.get("nodeTopology").is_some_and(|topology| !topology.is_null());
        let mut errors = validation::validate_fixed(new, old, &["nodeTopology"]);
        // An absent topology selects nothing, an empty one everything.
        if topology(new) != topology(old) && errors.is_empty() {
            errors.push(At::object(new).get("nodeTopology").invalid("field is immutable"));
        }
        errors.extend(validation::validate_fixed(new, old, &["storageClassName"]));
        errors
    }

    fn cells(&self, object: &Value, _now: Timestamp) -> Vec<Value> {
        crate::cells::name_and_creation(object)
    }
}
