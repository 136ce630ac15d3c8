//! Encoding of results as responses: the last step of the pipeline.
//!
//! Plain JSON responses are joined from the stored bytes; only tables, YAML, indented and partial forms decode.

mod table;
mod view;

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use corten_api::{Kind, Storage};
use corten_meta::quote::quote;
use corten_meta::{Object, Status, Value, codec};
use corten_protobuf as protobuf;
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use serde_json::json;

use crate::body::{Body, List, Reply};
use crate::cache::event::{Delivery, EventEncoder, WatchEvent};
use crate::negotiation::{Accept, Format, View};
use crate::registry::Resource;
use view::partial;
pub use view::{IncludeObject, ListMeta};

/// Returns a response with a JSON value.
pub fn value(accept: Accept, code: StatusCode, value: &impl Serialize) -> Reply {
    if accept.format == Format::Protobuf {
        let object = serde_json::to_value(value).unwrap_or_default();
        if let Some(bytes) = protobuf::encode_any(&object) {
            return full(code, protobuf::MEDIA_TYPE, bytes.into());
        }
    }
    // A value without a protobuf encoding is JSON also for clients that accept only protobuf; the Content-Type says so.
    let accept = if accept.format == Format::Protobuf { Accept { format: Format::Json, ..accept } } else { accept };
    let bytes = match accept.format {
        // Indented JSON ends without a newline.
        Format::Json if accept.pretty => serde_json::to_vec_pretty(value).map(escaped),
        Format::Json | Format::Protobuf => serde_json::to_vec(value).map(|mut json| {
            json.push(b'\n');
            escaped(json)
        }),
        Format::Yaml => serde_json::to_value(value).map(|value| codec::encode_yaml(&value).into_bytes()),
    };
    full(code, accept.content_type(), bytes.unwrap_or_default().into())
}

fn escaped(json: Vec<u8>) -> Vec<u8> {
    match codec::escaped(&json) {
        Cow::Owned(escaped) => escaped,
        Cow::Borrowed(_) => json,
    }
}

/// Returns a response with encoded bytes.
pub fn full(code: StatusCode, content_type: &'static str, bytes: Bytes) -> Reply {
    let mut reply = Reply::new(Body::Full(bytes));
    *reply.status_mut() = code;
    reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    reply
}

/// Returns a response with plain text.
pub fn text(code: StatusCode, text: impl Into<String>) -> Reply {
    let mut reply = full(code, "text/plain; charset=utf-8", Bytes::from(text.into()));
    reply.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    reply
}

/// Returns the response for a path that belongs to no API.
pub fn page_not_found() -> Reply {
    text(StatusCode::NOT_FOUND, "404 page not found\n")
}

/// Returns the response for a path of the API that ends before the resource.
pub fn cut_short(path: &str, query: &str) -> Reply {
    let url = if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") };
    let why = "failed to create RequestInfo: unable to determine kind and namespace from url";
    let text = format!("Internal Server Error: {}: {why}, {url}\n", quote(&url));
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    self::text(StatusCode::INTERNAL_SERVER_ERROR, text)
}

/// Returns the response of a failed request.
pub fn status(accept: Accept, status: &Status) -> Reply {
    let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    // A client that accepts no format of errors gets indented JSON.
    let (format, pretty) = accept.errors.map_or((Format::Json, true), |format| (format, accept.pretty));
    let mut reply = value(Accept { view: View::Plain, format, pretty, ..accept }, code, status);
    if let Some(seconds) = status.details.as_ref().map(|d| d.retry_after_seconds).filter(|s| *s > 0)
        && matches!(status.code, 429 | 503 | 504)
    {
        reply.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    reply
}

/// Returns a response with one object, in the negotiated view.
pub fn object(accept: Accept, include: IncludeObject, code: StatusCode, kind: &Kind, object: &Arc<Object>) -> Reply {
    match accept.view {
        View::Table => {
            let meta = ListMeta { resource_version: object.revision, ..ListMeta::default() };
            value(accept, code, &table::render(accept, kind, std::slice::from_ref(object), include, &meta, true))
        }
        View::PartialMetadata => value(accept, code, &partial(accept, Some(kind), object.value())),
        View::PartialMetadataList => not_acceptable(accept, &type_of(kind), false),
        _ if accept.format == Format::Json && !accept.pretty => {
            let mut bytes = Vec::with_capacity(object.bytes.len() + 64);
            object.write_wire(&mut bytes);
            bytes.push(b'\n');
            full(code, "application/json", bytes.into())
        }
        _ if accept.format == Format::Protobuf => {
            full(code, protobuf::MEDIA_TYPE, protobuf::encode(&object.value(), &kind.schema).into())
        }
        _ => value(accept, code, &object.value()),
    }
}

/// Returns a response with an object that is not stored and has no Table, in the negotiated view.
pub fn made(accept: Accept, code: StatusCode, object: &Value) -> Reply {
    match accept.view {
        View::PartialMetadata => value(accept, code, &partial(accept, None, object.clone())),
        View::PartialMetadataList => {
            let word = |field: &str| object[field].as_str().unwrap_or_default();
            let group = word("apiVersion").split_once('/').map_or("", |(group, _)| group);
            not_acceptable(accept, &go_type(group, word("kind")), false)
        }
        _ => value(accept, code, object),
    }
}

/// Returns a response with a list, in the negotiated view.
pub fn list(accept: Accept, include: IncludeObject, kind: &Kind, objects: Vec<Arc<Object>>, meta: &ListMeta) -> Reply {
    let code = StatusCode::OK;
    match accept.view {
        View::Table => value(accept, code, &table::render(accept, kind, &objects, include, meta, true)),
        View::PartialMetadata => not_acceptable(accept, &type_of(kind), true),
        View::PartialMetadataList => {
            let items: Vec<Value> = objects.iter().map(|o| partial(accept, Some(kind), o.value())).collect();
            let items = if items.is_empty() { Value::Null } else { items.into() };
            let list = json!({ "kind": "PartialObjectMetadataList", "apiVersion": accept.meta_version(),
                               "metadata": meta.to_value(), "items": items });
            value(accept, code, &list)
        }
        _ if accept.format == Format::Json && !accept.pretty => {
            let head = format!(
                r#"{{"kind":"{}","apiVersion":"{}","metadata":{},"items":["#,
                kind.list_kind,
                kind.api_version(),
                list_meta(kind, meta)
            );
            let mut reply = full(code, "application/json", Bytes::new());
            *reply.body_mut() =
                Body::List(List { head: head.into_bytes(), objects, typed_items: kind.serving().has_typed_items });
            reply
        }
        _ => {
            let items: Vec<Value> = objects.iter().map(|o| item(kind, o.value())).collect();
            let list = json!({ "kind": kind.list_kind, "apiVersion": kind.api_version(),
                               "metadata": list_meta(kind, meta), "items": items });
            if accept.format == Format::Protobuf {
                return full(code, protobuf::MEDIA_TYPE, protobuf::encode_list(&list, &kind.schema).into());
            }
            value(accept, code, &list)
        }
    }
}

/// Returns the metadata of a list.
fn list_meta(kind: &Kind, meta: &ListMeta) -> Value {
    let mut value = meta.to_value();
    if kind.serving().has_empty_continue && meta.continue_token.is_empty() {
        value["continue"] = "".into();
    }
    value
}

/// Returns an object as an item of a list: apiVersion and kind may be those of the list alone.
fn item(kind: &Kind, mut object: Value) -> Value {
    if let Some(fields) = object.as_object_mut().filter(|_| !kind.serving().has_typed_items) {
        fields.remove("apiVersion");
        fields.remove("kind");
    }
    object
}

/// Returns the response for a request of PartialObjectMetadata of a list, or of its list of one object.
fn not_acceptable(accept: Accept, of: &str, is_list: bool) -> Reply {
    let (is, wanted, suffix) = if is_list { ("is a list", "", "List") } else { ("is not a list", "List", "") };
    let message = format!("you requested PartialObjectMetadata{wanted}, but the requested object {is} (*{of}{suffix})");
    status(accept, &Status { message, ..Status::not_acceptable(&[]) })
}

/// Returns the Go name of a kind's internal type, which has the storage version's group.
fn type_of(kind: &Kind) -> String {
    if let Some(go_type) = kind.serving().go_type {
        return go_type.to_owned();
    }
    match &kind.storage {
        Storage::Stored { hub: Some((group, _)), .. } => go_type(group, &kind.kind),
        _ => go_type(&kind.group, &kind.kind),
    }
}

fn go_type(group: &str, kind: &str) -> String {
    let package = group.split('.').next().filter(|package| !package.is_empty()).unwrap_or("core");
    format!("{package}.{kind}")
}

/// Returns the encoder of watch events, for the negotiated view.
pub fn event_encoder(accept: Accept, include: IncludeObject, resource: Arc<Resource>) -> EventEncoder {
    match accept.view {
        View::Table => {
            // Only the first event of a table watch carries the column definitions.
            let first = std::sync::atomic::AtomicBool::new(true);
            Arc::new(move |Delivery { event, .. }| {
                let marked = bookmarked(&resource.kind, event);
                let shown = object_of(event).or_else(|| Some(("BOOKMARK", marked.as_ref()?)));
                let Some((word, object)) = shown else { return plain_event(&resource.kind, event) };
                let columns = first.swap(false, std::sync::atomic::Ordering::Relaxed);
                let meta = ListMeta { resource_version: object.revision, ..ListMeta::default() };
                let table =
                    table::render(accept, &resource.kind, std::slice::from_ref(object), include, &meta, columns);
                frame(word, &table)
            })
        }
        View::PartialMetadata | View::PartialMetadataList => {
            Arc::new(move |Delivery { event, .. }| match (object_of(event), event) {
                (Some((word, object)), _) => {
                    framed(accept, word, &partial(accept, Some(&resource.kind), object.value()))
                }
                (None, WatchEvent::Bookmark { revision, initial_events_end }) => {
                    let object = bookmark(&resource.kind, *revision, *initial_events_end);
                    framed(accept, "BOOKMARK", &partial(accept, Some(&resource.kind), object))
                }
                _ if accept.format == Format::Protobuf => protobuf_event(&resource.kind, event),
                _ => plain_event(&resource.kind, event),
            })
        }
        _ if accept.format == Format::Protobuf => {
            Arc::new(move |Delivery { event, .. }| protobuf_event(&resource.kind, event))
        }
        _ => Arc::new(move |delivery| match &delivery.change {
            Some(change) => change.frame(|| plain_event(&resource.kind, &delivery.event)),
            None => plain_event(&resource.kind, &delivery.event),
        }),
    }
}

/// Returns a watch that ends with an error as its first event.
pub fn only_error(accept: Accept, kind: &Kind, status: &Status) -> Reply {
    if accept.format == Format::Protobuf {
        return full(StatusCode::OK, protobuf::STREAMED, protobuf_event(kind, &WatchEvent::Error(status.clone())));
    }
    full(StatusCode::OK, "application/json", frame("ERROR", status))
}

fn object_of(event: &WatchEvent) -> Option<(&'static str, &Arc<Object>)> {
    match event {
        WatchEvent::Added(object) => Some(("ADDED", object)),
        WatchEvent::Modified(object) => Some(("MODIFIED", object)),
        WatchEvent::Deleted(object) => Some(("DELETED", object)),
        WatchEvent::Bookmark { .. } | WatchEvent::Error(_) => None,
    }
}

fn plain_event(kind: &Kind, event: &WatchEvent) -> Bytes {
    match event {
        WatchEvent::Bookmark { revision, initial_events_end } => {
            frame("BOOKMARK", &bookmark(kind, *revision, *initial_events_end))
        }
        WatchEvent::Error(status) => frame("ERROR", status),
        WatchEvent::Added(object) | WatchEvent::Modified(object) | WatchEvent::Deleted(object) => {
            let word = object_of(event).map_or("ADDED", |(word, _)| word);
            let mut out = Vec::with_capacity(object.bytes.len() + 80);
            out.extend_from_slice(format!(r#"{{"type":"{word}","object":"#).as_bytes());
            object.write_wire(&mut out);
            out.extend_from_slice(b"}\n");
            out.into()
        }
    }
}

fn protobuf_event(kind: &Kind, event: &WatchEvent) -> Bytes {
    let (word, body) = match (object_of(event), event) {
        (Some((word, object)), _) => (word, protobuf::encode(&object.value(), &kind.schema)),
        (None, WatchEvent::Bookmark { revision, initial_events_end }) => {
            ("BOOKMARK", protobuf::encode(&bookmark(kind, *revision, *initial_events_end), &kind.schema))
        }
        (None, WatchEvent::Error(status)) => {
            ("ERROR", protobuf::encode_status(&serde_json::to_value(status).unwrap_or_default()))
        }
        (None, _) => return Bytes::new(),
    };
    protobuf::encode_event(word, &body).into()
}

/// Returns the object of a bookmark, which a Table shows as an empty row.
fn bookmarked(kind: &Kind, event: &WatchEvent) -> Option<Arc<Object>> {
    let WatchEvent::Bookmark { revision, initial_events_end } = event else { return None };
    Object::from_value(&bookmark(kind, *revision, *initial_events_end), *revision).ok().map(Arc::new)
}

fn bookmark(kind: &Kind, revision: u64, initial_events_end: bool) -> Value {
    let mut object = kind.empty();
    object["metadata"]["resourceVersion"] = revision.to_string().into();
    if initial_events_end {
        object["metadata"]["annotations"]["k8s.io/initial-events-end"] = "true".into();
    }
    object
}

/// Encodes an event with an object that is not stored.
fn framed(accept: Accept, word: &str, object: &Value) -> Bytes {
    match accept.format {
        Format::Protobuf => protobuf::encode_event(word, &protobuf::encode_any(object).unwrap_or_default()).into(),
        _ => frame(word, object),
    }
}

fn frame(word: &str, object: &impl Serialize) -> Bytes {
    let object = serde_json::to_vec(object).unwrap_or_default();
    [format!("{{\"type\":\"{word}\",\"object\":").as_bytes(), &escaped(object), b"}\n"].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bookmark_is_an_empty_object() {
        let pods = corten_api::lookup("", "v1", "pods").expect("pods");
        let metadata = json!({ "resourceVersion": "7", "annotations": { "k8s.io/initial-events-end": "true" } });
        let empty = json!({ "kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": { "containers": null }, "status": {} });
        assert_eq!(bookmark(pods, 7, true), empty);
        let accept = Accept { view: View::PartialMetadata, ..Accept::default() };
        let shown = serde_json::to_value(partial(accept, Some(pods), empty)).unwrap();
        assert_eq!(shown["metadata"]["resourceVersion"], "7");
        assert_eq!((shown.get("spec"), shown.get("status")), (None, None));
    }

    #[test]
    fn a_client_that_accepts_no_format_of_errors_gets_indented_json() {
        let not_found = Status::not_found(&corten_meta::GroupResource::new("", "pods"), "p");
        for (accept, expected) in [
            (Accept::default(), "{\"kind\":"),
            (Accept { errors: None, ..Accept::default() }, "{\n  \"kind\":"),
            (Accept { errors: Some(Format::Yaml), view: View::Table, ..Accept::default() }, "apiVersion: v1"),
        ] {
            let reply = status(accept, &not_found);
            let Body::Full(bytes) = reply.body() else { panic!("an error is whole") };
            let text = String::from_utf8_lossy(bytes);
            assert!(text.starts_with(expected), "{text}");
            assert_eq!(text.ends_with('\n'), accept.errors.is_some(), "{text}");
        }
    }

    #[test]
    fn protobuf_responses_are_wrapped_and_events_framed() {
        let kind = corten_api::lookup("", "v1", "configmaps").unwrap();
        let value =
            json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "a" }, "data": { "k": "v" } });
        let object = Arc::new(Object::from_value(&value, 7).unwrap());
        let read = |bytes: &[u8]| protobuf::object(bytes, &kind.schema).unwrap();
        let accept = Accept { format: Format::Protobuf, errors: Some(Format::Protobuf), ..Accept::default() };
        let reply = super::object(accept, IncludeObject::Metadata, StatusCode::OK, kind, &object);
        assert_eq!(reply.headers()[header::CONTENT_TYPE], protobuf::MEDIA_TYPE);
        let Body::Full(body) = reply.into_body() else { panic!("one body") };
        assert_eq!(
            (&read(&body)["data"]["k"], &read(&body)["metadata"]["resourceVersion"]),
            (&json!("v"), &json!("7"))
        );
        let frame = protobuf_event(kind, &WatchEvent::Added(object));
        let (length, event) = frame.split_at(4);
        assert_eq!(u32::from_be_bytes(length.try_into().unwrap()) as usize, event.len());
        assert!(event.starts_with(b"\x0a\x05ADDED\x12"), "{event:?}");
        let at = event.windows(4).position(|four| four == b"k8s\0").unwrap();
        assert_eq!(read(&event[at..])["metadata"]["name"], "a");
        let refused = status(accept, &Status::bad_request("no"));
        let Body::Full(body) = refused.into_body() else { panic!("one body") };
        let read = protobuf::object(&body, "io.k8s.apimachinery.pkg.apis.meta.v1.Status").unwrap();
        assert_eq!((&read["code"], &read["message"], &read["kind"]), (&json!(400), &json!("no"), &json!("Status")));
    }

    #[test]
    fn a_table_shows_a_bookmark_as_an_empty_row() {
        let kind = corten_api::lookup("", "v1", "configmaps").unwrap();
        let event = WatchEvent::Bookmark { revision: 7, initial_events_end: true };
        let object = bookmarked(kind, &event).unwrap();
        let accept = Accept { view: View::Table, ..Accept::default() };
        let meta = ListMeta { resource_version: 7, ..ListMeta::default() };
        let table = table::render(accept, kind, &[object], IncludeObject::Metadata, &meta, false);
        assert_eq!(table["rows"][0]["cells"], json!(["", 0, "<unknown>"]));
        let metadata = json!({ "resourceVersion": "7", "annotations": { "k8s.io/initial-events-end": "true" } });
        assert_eq!(table["rows"][0]["object"]["metadata"], metadata);
        assert!(bookmarked(kind, &WatchEvent::Error(Status::default())).is_none());
    }

    #[test]
    fn partial_metadata_has_no_annotations_that_stand_for_fields() {
        let kind = corten_api::lookup("apps", "v1", "daemonsets").unwrap();
        let hidden = kind.behaviour.annotations_of_version()[0];
        for (annotations, expected) in [
            (json!({ hidden: "1", "a": "b" }), json!({ "annotations": { "a": "b" } })),
            (json!({ hidden: "1" }), json!({})),
        ] {
            let object = json!({ "metadata": { "annotations": annotations } });
            assert_eq!(partial(Accept::default(), Some(kind), object)["metadata"], expected);
        }
    }
}
