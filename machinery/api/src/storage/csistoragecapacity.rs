//! CSIStorageCapacity.

use corten_meta::Value;

use crate::check::At;
use crate::kind::{Behaviour, Kind};

struct CsiStorageCapacity;

pub fn kind() -> Kind {
    Kind::new("storage.k8s.io", "v1", "CSIStorageCapacity", "csistoragecapacities")
        .conditional_update()
        .table("Name, Created At:date")
        .behaviour(CsiStorageCapacity)
}

impl Behaviour for CsiStorageCapacity {
    fn rules(&self) -> &'static str {
        ".storage.v1.CSIStorageCapacity"
    }

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
}
