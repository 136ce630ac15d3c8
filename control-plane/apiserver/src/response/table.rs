//! The Table form of objects: the rows that `kubectl get` prints.

use std::sync::Arc;

use corten_api::Kind;
use corten_meta::{Object, Value};
use serde_json::json;

use super::view::{IncludeObject, ListMeta, partial};
use crate::negotiation::Accept;

/// Renders objects as a Table.
pub fn render(
    accept: Accept,
    kind: &Kind,
    objects: &[Arc<Object>],
    include: IncludeObject,
    meta: &ListMeta,
    columns: bool,
) -> Value {
    let now = jiff::Timestamp::now();
    let mut rows: Vec<Value> = objects.iter().map(|object| row(accept, kind, object, include, now)).collect();
    if let Some(column) = kind.rules.rows_by {
        rows.sort_by_key(|row| row["cells"][column].as_i64());
    }
    let definitions = || kind.columns.iter().map(|c| column(kind, c)).collect::<Vec<Value>>();
    let no_rows = rows.is_empty() && (kind.serving().has_null_rows || kind.is_plainly_shown());
    json!({
        "kind": "Table",
        "apiVersion": accept.meta_version(),
        "metadata": meta.to_value(),
        "columnDefinitions": if columns { json!(definitions()) } else { Value::Null },
        "rows": if no_rows { Value::Null } else { json!(rows) },
    })
}

/// Returns the definition of a column. Custom resources have their own descriptions, except for the standard columns.
fn column(kind: &Kind, column: &corten_api::Column) -> Value {
    let description = match column.description.as_str() {
        "" => corten_descriptions::column(if kind.is_custom() { "" } else { &kind.kind }, &column.name),
        own => own,
    };
    json!({
        "name": column.name,
        "type": column.kind,
        "format": column.format,
        "description": description,
        "priority": column.priority,
    })
}

fn row(accept: Accept, kind: &Kind, object: &Arc<Object>, include: IncludeObject, now: jiff::Timestamp) -> Value {
    let value = object.value();
    let mut row = json!({ "cells": kind.cells(&value, now) });
    if let Some((reason, message)) = kind.behaviour.completion(&value) {
        row["conditions"] = json!([{ "type": "Completed", "status": "True", "reason": reason, "message": message }]);
    }
    row["object"] = match include {
        IncludeObject::None => Value::Null,
        IncludeObject::Metadata => partial(accept, Some(kind), value),
        IncludeObject::Object => value,
    };
    row
}
