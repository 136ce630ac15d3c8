//! PodMetrics: the resource usage of a pod's containers.

use std::sync::LazyLock;

use corten_meta::Value;
use jiff::Timestamp;
use serde_json::json;

use super::{measured, schema, total, usage_schema};
use crate::cells::{list, name, text};
use crate::kind::{Behaviour, Kind};

static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    let container = json!({
        "type": "object",
        "required": ["name", "usage"],
        "properties": {"name": {"type": "string"}, "usage": usage_schema()},
    });
    schema("containers", json!({"type": "array", "items": container}))
});

struct PodMetrics;

pub fn kind() -> Kind {
    measured("PodMetrics", "pods").behaviour(PodMetrics)
}

impl Behaviour for PodMetrics {
    fn cells(&self, object: &Value, _now: Timestamp) -> Vec<Value> {
        let usages: Vec<&Value> = list(object, "/containers").iter().map(|container| &container["usage"]).collect();
        vec![name(object), total(&usages, "cpu"), total(&usages, "memory"), text(object, "/window").into()]
    }

    fn structural_schema(&self) -> Option<&Value> {
        Some(&SCHEMA)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_adds_the_containers_up() {
        let object = json!({"metadata": {"name": "p"}, "window": "10s", "containers": [
            {"name": "a", "usage": {"cpu": "1m", "memory": "1Ki"}},
            {"name": "b", "usage": {"cpu": "2m", "memory": "3Ki"}},
        ]});
        let cells = PodMetrics.cells(&object, Timestamp::UNIX_EPOCH);
        assert_eq!(cells, [json!("p"), json!("3m"), json!("4Ki"), json!("10s")]);
    }
}
