//! NodeMetrics: the resource usage of a node.

use std::sync::LazyLock;

use corten_meta::Value;
use jiff::Timestamp;

use super::{measured, schema, total, usage_schema};
use crate::cells::{name, text};
use crate::kind::{Behaviour, Kind};

static SCHEMA: LazyLock<Value> = LazyLock::new(|| schema("usage", usage_schema()));

struct NodeMetrics;

pub fn kind() -> Kind {
    measured("NodeMetrics", "nodes").cluster().behaviour(NodeMetrics)
}

impl Behaviour for NodeMetrics {
    fn cells(&self, object: &Value, _now: Timestamp) -> Vec<Value> {
        let usage = [&object["usage"]];
        vec![name(object), total(&usage, "cpu"), total(&usage, "memory"), text(object, "/window").into()]
    }

    fn structural_schema(&self) -> Option<&Value> {
        Some(&SCHEMA)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_row_shows_the_usage_of_the_node() {
        let object =
            json!({"metadata": {"name": "n"}, "window": "10s", "usage": {"cpu": "1500000001n", "memory": "2048Ki"}});
        let cells = NodeMetrics.cells(&object, Timestamp::UNIX_EPOCH);
        assert_eq!(cells, [json!("n"), json!("1501m"), json!("2Mi"), json!("10s")]);
    }
}
