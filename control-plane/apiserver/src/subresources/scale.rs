//! `scale`: the number of replicas of anything that has one, in one form.

use corten_api::ScalePaths;
use corten_meta::{Status, Value};
use http::StatusCode;
use serde_json::json;

use crate::body::Reply;
use crate::decode::{Expected, checked, object};
use crate::handlers::Target;
use crate::handlers::patch::Patch;
use crate::handlers::update::{Part, change};
use crate::response;

const SCALE: Expected<'static> =
    Expected { api_version: "autoscaling/v1", kind: "Scale", schema: "io.k8s.api.autoscaling.v1.Scale" };

/// Reads or writes the scale.
pub async fn serve(target: &Target<'_>, bytes: &bytes::Bytes) -> Result<Reply, Status> {
    let paths = target.resource.kind.behaviour.scale().ok_or_else(Status::path_not_found)?;
    let parent = match target.context.info.verb.as_str() {
        "get" => target.server.registry.get(target.resource, target.namespace, target.name).await?,
        "update" => {
            let wanted = object(target.context, bytes, &SCALE)?;
            crate::handlers::update::check_name(target, &wanted)?;
            change(target, Part::Main, None, &|old| apply(&paths, old, &wanted)).await?.object().clone()
        }
        _ => {
            let patch = Patch::decode(target, bytes)?;
            let transform = |old: &Value| {
                let patched = patch.apply(SCALE.schema, &scale_of(&paths, old))?;
                apply(&paths, old, &checked(target.context, patched, Vec::new(), &SCALE)?)
            };
            change(target, Part::Main, None, &transform).await?.object().clone()
        }
    };
    Ok(response::value(target.context.accept, StatusCode::OK, &scale_of(&paths, &parent.value())))
}

/// The parent with the replicas of the scale.
fn apply(paths: &ScalePaths, old: &Value, scale: &Value) -> Result<Value, Status> {
    let replicas = scale.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or(0);
    if replicas < 0 {
        let path = corten_meta::Path::root("spec").child("replicas");
        let error = corten_meta::FieldError::invalid(&path, replicas, "must be greater than or equal to 0");
        let kind = corten_meta::GroupKind { group: "autoscaling".to_owned(), kind: "Scale".to_owned() };
        return Err(Status::invalid(&kind, corten_meta::name(old), vec![error]));
    }
    let mut new = old.clone();
    corten_meta::set(&mut new, &pointer(&paths.spec_replicas), replicas.into());
    corten_meta::set(&mut new, "/metadata/resourceVersion", corten_meta::resource_version(scale).into());
    Ok(new)
}

/// The scale of a parent.
fn scale_of(paths: &ScalePaths, parent: &Value) -> Value {
    let number = |path: &str| parent.pointer(&pointer(path)).and_then(Value::as_i64).unwrap_or(0);
    let mut metadata = serde_json::Map::new();
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = parent["metadata"].get(field) {
            metadata.insert(field.to_owned(), value.clone());
        }
    }
    let mut status = json!({ "replicas": number(&paths.status_replicas) });
    if let Some(selector) = paths.selector.as_deref().and_then(|path| parent.pointer(&pointer(path))) {
        status["selector"] = selector_text(selector).into();
    }
    json!({ "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata,
            "spec": { "replicas": number(&paths.spec_replicas) }, "status": status })
}

/// A selector as text, whether it is text already, a LabelSelector or a plain map.
fn selector_text(selector: &Value) -> String {
    match selector {
        Value::String(text) => text.clone(),
        Value::Object(map) if map.contains_key("matchLabels") || map.contains_key("matchExpressions") => {
            corten_meta::Selector::from_label_selector(selector).map(|s| s.to_string()).unwrap_or_default()
        }
        Value::Object(map) => {
            let terms: Vec<String> =
                map.iter().map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default())).collect();
            terms.join(",")
        }
        _ => String::new(),
    }
}

/// `.spec.replicas` as a JSON pointer.
fn pointer(path: &str) -> String {
    path.replace('.', "/")
}
