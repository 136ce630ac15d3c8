//! CSINode.

use corten_meta::Value;
use corten_meta::field::FieldError;
use jiff::Timestamp;

use super::validation;
use crate::cells::{age, count, list, name};
use crate::kind::{Behaviour, Kind};

struct CsiNode;

/// Returns the declaration.
pub fn kind() -> Kind {
    Kind::new("storage.k8s.io", "v1", "CSINode", "csinodes")
        .cluster()
        .conditional_update()
        .table("Name, Drivers:integer, Age")
        .returns_deleted()
        .behaviour(CsiNode)
}

impl Behaviour for CsiNode {
    fn rules(&self) -> &'static str {
        ".storage.v1.CSINode"
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        validation::validate_csi_node_update(new, old)
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![name(object), count(list(object, "/spec/drivers")), age(object, now)]
    }
}
