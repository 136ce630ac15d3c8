//! The group `metrics.k8s.io`, one file per kind: the current resource usage of nodes and pods. It is not part of the
//! default API: upstream's clusters get it from an add-on, ours from the API server, which connects to the kubelets.

use corten_meta::{Quantity, Value};
use serde_json::{Value as Json, json};

use crate::kind::{Column, Kind, Storage};

mod nodemetrics;
mod podmetrics;

/// Returns its kinds, in the order of discovery.
pub fn metrics_kinds() -> Vec<Kind> {
    vec![nodemetrics::kind(), podmetrics::kind()]
}

/// Returns the common declaration of both kinds: read-only, and computed at each request.
fn measured(kind: &str, plural: &str) -> Kind {
    let mut kind = Kind::new("metrics.k8s.io", "v1beta1", kind, plural).singular("").verbs(&["get", "list"]);
    kind.storage = Storage::Virtual;
    // The schema table has the default API only; these kinds have their own schema.
    kind.schema = String::new();
    kind.columns = vec![
        Column::new("Name", "string").format("name"),
        Column::new("cpu", "string"),
        Column::new("memory", "string"),
        Column::new("Window", "string").format("duration"),
    ];
    kind
}

/// Returns the schema with the fields beside the usage itself.
fn schema(own: &str, of: Json) -> Value {
    json!({
        "type": "object",
        "required": ["timestamp", "window", own],
        "properties": {
            "timestamp": {"type": "string", "format": "date-time"},
            "window": {"type": "string"},
            own: of,
        },
    })
}

fn usage_schema() -> Json {
    json!({"type": "object", "additionalProperties": {"type": "string"}})
}

/// Returns the cell of a resource: the sum over the lists that have it.
fn total(lists: &[&Value], resource: &str) -> Value {
    let quantities = lists.iter().filter_map(|list| Quantity::from_json(list.get(resource)?).ok());
    let text = match resource {
        "cpu" => {
            let milli: i128 = quantities.map(|quantity| quantity.as_milli()).sum();
            Quantity::from_milli(milli, corten_meta::quantity::Format::DecimalSi).to_string()
        }
        _ => Quantity::from_bytes(quantities.map(|quantity| quantity.as_i64()).sum()).to_string(),
    };
    text.into()
}
