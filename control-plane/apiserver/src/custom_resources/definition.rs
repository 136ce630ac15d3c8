//! From a CustomResourceDefinition to the kinds it defines. Pure.

use std::sync::Arc;

use corten_api::{Column, Kind, NameRule, ScalePaths};
use corten_meta::Value;
use serde_json::json;

use super::behaviour::{CustomResource, PrinterColumn};

/// Holds a definition until its objects are gone.
pub const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn words(value: &Value, pointer: &str) -> Vec<String> {
    let list = value.pointer(pointer).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Where the objects are stored.
pub fn prefix(definition: &Value) -> String {
    format!("/registry/{}/{}", text(definition, "/spec/group"), text(definition, "/spec/names/plural"))
}

/// The definition with its conditions, accepted names and finalizer; `None` if it has them.
pub fn accepted(definition: &Value, now: jiff::Timestamp) -> Option<Value> {
    let mut new = definition.clone();
    let mut finalizers: Vec<&str> = corten_meta::finalizers(definition);
    if !finalizers.contains(&FINALIZER) {
        finalizers.push(FINALIZER);
        corten_meta::set(&mut new, "/metadata/finalizers", json!(finalizers));
    }
    corten_meta::set(&mut new, "/status/acceptedNames", definition.pointer("/spec/names").cloned().unwrap_or_default());
    let conditions = definition.pointer("/status/conditions").and_then(Value::as_array).cloned().unwrap_or_default();
    let has = |kind: &str| conditions.iter().any(|c| c["type"] == kind && c["status"] == "True");
    if !has("NamesAccepted") || !has("Established") {
        let now = corten_meta::time::rfc3339(now);
        let condition = |kind: &str, reason: &str, message: &str| json!({ "type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": now });
        let others = conditions.iter().filter(|c| c["type"] != "NamesAccepted" && c["type"] != "Established").cloned();
        let own = [
            condition("NamesAccepted", "NoConflicts", "no conflicts found"),
            condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        ];
        corten_meta::set(&mut new, "/status/conditions", json!(others.chain(own).collect::<Vec<_>>()));
    }
    (new != *definition).then_some(new)
}

/// The kinds of the served versions, the one that is stored among them.
pub fn kinds(definition: &Value) -> Vec<Kind> {
    let versions = definition.pointer("/spec/versions").and_then(Value::as_array).cloned().unwrap_or_default();
    let Some(storage) = versions.iter().find(|v| v["storage"] == true) else { return Vec::new() };
    let stored = storage["name"].as_str().unwrap_or_default().to_owned();
    // A version that is stored and not served still says what the others are stored as.
    versions
        .iter()
        .filter(|v| v["served"] == true || v["storage"] == true)
        .map(|version| kind(definition, version, &stored))
        .collect()
}

fn kind(definition: &Value, version: &Value, stored: &str) -> Kind {
    let (group, plural) = (text(definition, "/spec/group"), text(definition, "/spec/names/plural"));
    let name = version["name"].as_str().unwrap_or_default();
    let mut kind = Kind::new(group, name, text(definition, "/spec/names/kind"), plural);
    kind = if name == stored {
        kind.stored_at(&prefix(definition))
    } else {
        kind.stored_as(&prefix(definition), group, stored)
    };
    if text(definition, "/spec/scope") == "Cluster" {
        kind = kind.cluster();
    }
    if version["served"] != true {
        kind = kind.verbs(&[]);
    }
    if version.pointer("/subresources/status").is_some_and(|s| !s.is_null()) {
        kind = kind.status();
    }
    let scale = version.pointer("/subresources/scale").filter(|s| s.is_object()).map(scale_paths);
    if scale.is_some() {
        kind = kind.scale();
    }
    let columns = printer_columns(version);
    kind.columns = std::iter::once(
        Column::new("Name", "string").format("name").describe("Name must be unique within a namespace."),
    )
    .chain(columns.iter().map(PrinterColumn::column))
    .collect();
    kind.list_kind = text(definition, "/spec/names/listKind").to_owned();
    kind.singular = text(definition, "/spec/names/singular").to_owned();
    kind.short_names = words(definition, "/spec/names/shortNames");
    kind.categories = words(definition, "/spec/names/categories");
    kind.schema = String::new();
    kind.rules.generation = true;
    kind.rules.allow_unconditional_update = false;
    kind.rules.name_rule = NameRule::Subdomain;
    let schema = version.pointer("/schema/openAPIV3Schema").cloned().unwrap_or(Value::Null);
    let has_status = kind.rules.has_status;
    kind.behaviour = Arc::new(CustomResource { schema, columns, scale, has_status });
    kind
}

fn scale_paths(scale: &Value) -> ScalePaths {
    let path = |key: &str| scale[key].as_str().unwrap_or_default().to_owned();
    let selector = scale["labelSelectorPath"].as_str().filter(|s| !s.is_empty()).map(str::to_owned);
    ScalePaths { spec_replicas: path("specReplicasPath"), status_replicas: path("statusReplicasPath"), selector }
}

fn printer_columns(version: &Value) -> Vec<PrinterColumn> {
    let given = version["additionalPrinterColumns"].as_array().filter(|list| !list.is_empty());
    let Some(given) = given else {
        return vec![PrinterColumn::new("Age", "date", ".metadata.creationTimestamp", 0, "", "")];
    };
    given
        .iter()
        .map(|c| {
            let word = |key: &str| c[key].as_str().unwrap_or_default();
            let priority = c["priority"].as_i64().unwrap_or(0) as i32;
            PrinterColumn::new(
                word("name"),
                word("type"),
                word("jsonPath"),
                priority,
                word("format"),
                word("description"),
            )
        })
        .collect()
}
