//! CSINode.

use corten_meta::Value;
use jiff::Timestamp;

use crate::cells::{age, count, list, name};
use crate::kind::{Behaviour, Kind};

struct CsiNode;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("storage.k8s.io", "v1", "CSINode", "csinodes")
        .cluster()
        .conditional_update()
        .table("Name, Drivers:integer, Age")
        .behaviour(CsiNode)
}

impl Behaviour for CsiNode {
    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![name(object), count(list(object, "/spec/drivers")), age(object, now)]
    }
}
