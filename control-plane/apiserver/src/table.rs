//! The Table form of objects: the rows that `kubectl get` prints.

use std::sync::Arc;

use corten_api::Kind;
use corten_meta::{Object, Value};
use serde_json::json;

use crate::response::{IncludeObject, ListMeta, partial};

/// Renders objects as a `meta.k8s.io/v1` Table.
pub fn render(kind: &Kind, objects: &[Arc<Object>], include: IncludeObject, meta: &ListMeta, columns: bool) -> Value {
    let now = jiff::Timestamp::now();
    let rows: Vec<Value> = objects.iter().map(|object| row(kind, object, include, now)).collect();
    let definitions: Vec<Value> = if columns { kind.columns.iter().map(column).collect() } else { Vec::new() };
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": meta.to_value(),
        "columnDefinitions": if columns { json!(definitions) } else { Value::Null },
        "rows": rows,
    })
}

fn column(column: &corten_api::Column) -> Value {
    json!({
        "name": column.name,
        "type": column.kind,
        "format": column.format,
        "description": column.description,
        "priority": column.priority,
    })
}

fn row(kind: &Kind, object: &Arc<Object>, include: IncludeObject, now: jiff::Timestamp) -> Value {
    let value = object.value();
    let cells = kind.behaviour.cells(&value, now);
    match include {
        IncludeObject::None => json!({ "cells": cells }),
        IncludeObject::Metadata => json!({ "cells": cells, "object": partial(value) }),
        IncludeObject::Object => json!({ "cells": cells, "object": value }),
    }
}
