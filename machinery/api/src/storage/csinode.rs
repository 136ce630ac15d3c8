//! CSINode.

use corten_meta::Value;
use corten_meta::field::FieldError;

use super::validation;
use crate::kind::{Behaviour, Kind};

struct CsiNode;

pub fn kind() -> Kind {
    Kind::new("storage.k8s.io", "v1", "CSINode", "csinodes")
        .cluster()
        .conditional_update()
        .table("Name, Drivers:integer=count(/spec/drivers), Age")
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
}
