//! The end of a write: the object as it is stored and read again.

use corten_meta::{Object, Status, Value};

use super::field_ownership::compared;
use super::scope::Scope;
use crate::registry::Resource;

/// Makes an object equal to what a client would read after it was stored: a kind that is defaulted as sent is defaulted
/// once more, by the storage version.
pub fn settle(resource: &Resource, object: &mut Value) {
    let kind = &resource.kind;
    if kind.rules.is_defaulted_as_sent && !resource.is_spoke() {
        kind.default(object);
    }
    kind.settle(object);
}

/// Returns the object of a dry run's response: it has not been in the store, which sets the resourceVersion and removes
/// the selfLink.
pub fn dry_answer(scope: &Scope<'_>, object: &Value, version: &str) -> Result<Object, Status> {
    const METADATA: &[u8] = b"\"metadata\":{";
    // A resourceVersion in the store's own format is shown as one.
    let revision = version.parse().ok().filter(|revision: &u64| *revision > 0 && revision.to_string() == version);
    let version = if revision.is_some() { "" } else { version };
    let internal = |e: corten_meta::Error| Status::internal(e.to_string());
    let mut answer = Object::from_value(&compared(scope, object), revision.unwrap_or(0)).map_err(internal)?;
    let link = object.pointer("/metadata/selfLink").and_then(Value::as_str).unwrap_or_default();
    let mut added = Vec::new();
    for (field, value) in [("resourceVersion", version), ("selfLink", link)].into_iter().filter(|(_, v)| !v.is_empty())
    {
        added.extend_from_slice(format!("{}:{},", Value::from(field), Value::from(value)).as_bytes());
    }
    let start = answer.bytes.windows(METADATA.len()).position(|window| window == METADATA);
    if let Some(start) = start.map(|at| at + METADATA.len()).filter(|_| !added.is_empty()) {
        answer.bytes = [&answer.bytes[..start], &added, &answer.bytes[start..]].concat().into();
    }
    Ok(answer)
}
