//! The parts of objects and lists in a response.

use corten_api::Kind;
use corten_meta::Value;
use serde_json::json;

use crate::negotiation::Accept;

/// `?includeObject=` of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IncludeObject {
    None,
    Metadata,
    Object,
}

impl IncludeObject {
    pub fn parse(value: Option<&str>) -> IncludeObject {
        match value {
            Some("None") => IncludeObject::None,
            Some("Object") => IncludeObject::Object,
            _ => IncludeObject::Metadata,
        }
    }
}

/// The metadata of a list.
#[derive(Clone, Debug, Default)]
pub struct ListMeta {
    pub resource_version: u64,
    pub continue_token: String,
    pub remaining: Option<u64>,
}

impl ListMeta {
    pub fn to_value(&self) -> Value {
        let mut meta = json!({});
        // A list of objects that are not stored has no resourceVersion.
        if self.resource_version > 0 {
            meta["resourceVersion"] = self.resource_version.to_string().into();
        }
        if !self.continue_token.is_empty() {
            meta["continue"] = self.continue_token.clone().into();
        }
        if let Some(remaining) = self.remaining {
            meta["remainingItemCount"] = remaining.into();
        }
        meta
    }
}

/// Returns an object reduced to its metadata, without the annotations that stand for fields that its version lacks.
pub fn partial(accept: Accept, kind: Option<&Kind>, mut object: Value) -> Value {
    let mut metadata = object.get_mut("metadata").map_or_else(|| json!({}), Value::take);
    let hidden = kind.map_or(&[][..], |kind| kind.behaviour.annotations_of_version());
    if let Some(fields) = metadata.as_object_mut().filter(|_| !hidden.is_empty())
        && let Some(annotations) = fields.get_mut("annotations").and_then(Value::as_object_mut)
    {
        annotations.retain(|name, _| !hidden.contains(&name.as_str()));
        if annotations.is_empty() {
            fields.remove("annotations");
        }
    }
    json!({ "kind": "PartialObjectMetadata", "apiVersion": accept.meta_version(), "metadata": metadata })
}
