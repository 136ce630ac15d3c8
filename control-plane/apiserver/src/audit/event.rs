//! An audit event: one stage of a request, in the format of audit.k8s.io/v1. Pure.

use std::net::SocketAddr;

use bytes::Bytes;
use corten_access::Verb;
use corten_meta::{Status, Value};
use http::HeaderMap;
use serde_json::json;

use crate::body::{Body, Reply};
use crate::context::{Context, Level};

/// The maximum size of an object in an event.
const MAX_OBJECT: usize = 1024 * 1024;

/// Returns the source addresses of a request, the client's first.
pub fn source(headers: &HeaderMap, address: Option<SocketAddr>) -> Vec<String> {
    let of = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned();
    let forwarded = of("x-forwarded-for");
    let named = forwarded.split(',').map(|a| a.trim().to_owned()).chain([of("x-real-ip")]);
    let mut source: Vec<String> = named.filter(|a| a.parse::<std::net::IpAddr>().is_ok()).collect();
    let own = address.map_or_else(|| "127.0.0.1".to_owned(), |address| address.ip().to_string());
    if !source.contains(&own) {
        source.push(own);
    }
    source
}

/// Returns the event of a stage, without the objects.
pub fn event(context: &Context, stage: &str, reply: Option<&Reply>) -> Value {
    let info = &context.info;
    let record = &context.audit;
    let query = if context.raw_query.is_empty() { String::new() } else { format!("?{}", context.raw_query) };
    let user = record.impersonator.as_ref().unwrap_or(&context.user);
    let mut event = json!({
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "level": record.level.word(),
        "auditID": record.id,
        "stage": stage,
        "requestURI": format!("{}{query}", context.raw_path),
        "verb": info.verb.as_str(),
        "user": user.to_value(),
        "sourceIPs": source(&context.headers, record.address),
        "requestReceivedTimestamp": corten_meta::time::rfc3339_micro(context.now),
        "stageTimestamp": corten_meta::time::rfc3339_micro(jiff::Timestamp::now()),
    });
    if record.impersonator.is_some() {
        event["impersonatedUser"] = context.user.to_value();
    }
    if let Some(agent) = context.headers.get(http::header::USER_AGENT).and_then(|v| v.to_str().ok()) {
        event["userAgent"] = agent.into();
    }
    if info.is_resource {
        let mut reference = json!({ "apiVersion": info.version });
        for (key, value) in [
            ("apiGroup", &info.group),
            ("resource", &info.resource),
            ("subresource", &info.subresource),
            ("namespace", &info.namespace),
            ("name", &info.name),
        ] {
            if !value.is_empty() {
                reference[key] = value.as_str().into();
            }
        }
        if info.verb == Verb::Create
            && info.name.is_empty()
            && let Some(name) = reply.and_then(created_name)
        {
            reference["name"] = name.into();
        }
        event["objectRef"] = reference;
    }
    if let Some(reply) = reply {
        event["responseStatus"] = response_status(reply);
    }
    let mut annotations = context.annotations.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
    if let Some((decision, reason)) = &record.decision {
        annotations.insert("authorization.k8s.io/decision".to_owned(), (*decision).to_owned());
        annotations.insert("authorization.k8s.io/reason".to_owned(), reason.clone());
    }
    if !annotations.is_empty() {
        event["annotations"] = json!(annotations);
    }
    event
}

/// Returns the name of a created or refused object, which is not in the path.
fn created_name(reply: &Reply) -> Option<String> {
    let Body::Full(bytes) = reply.body() else { return None };
    let answer: Value = serde_json::from_slice(bytes).ok()?;
    let name = ["/metadata/name", "/details/name"].into_iter().find_map(|pointer| answer.pointer(pointer)?.as_str());
    name.map(str::to_owned)
}

/// Returns the status code of the response and, of an error, its reason.
fn response_status(reply: &Reply) -> Value {
    let code = reply.status().as_u16();
    let mut status = json!({ "metadata": {}, "code": code });
    if code >= 400
        && let Body::Full(bytes) = reply.body()
        && let Some(failed) = serde_json::from_slice::<Value>(bytes).ok().as_ref().and_then(Status::from_value)
    {
        status["status"] = "Failure".into();
        status["message"] = failed.message.into();
        if !failed.reason.is_empty() {
            status["reason"] = failed.reason.into();
        }
    }
    status
}

/// Adds the request and response objects that the level includes.
pub fn add_objects(
    event: &mut Value,
    level: Level,
    request: Option<&Bytes>,
    reply: Option<&Reply>,
    omit_managed: bool,
) {
    if level >= Level::Request
        && let Some(object) = request.and_then(|bytes| object(bytes, omit_managed))
    {
        event["requestObject"] = object;
    }
    if level >= Level::RequestResponse
        && let Some(bytes) = reply.and_then(|reply| reply.body().bytes())
        && let Some(object) = object(&bytes, omit_managed)
    {
        event["responseObject"] = object;
    }
}

fn object(bytes: &Bytes, omit_managed: bool) -> Option<Value> {
    if bytes.is_empty() || bytes.len() > MAX_OBJECT {
        return None;
    }
    let parsed = serde_json::from_slice(bytes).ok().or_else(|| corten_meta::decode_yaml(bytes).ok());
    let mut object: Value = parsed.filter(|value: &Value| value.is_object() || value.is_array())?;
    if omit_managed {
        let remove = |object: &mut Value| {
            if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
                metadata.remove("managedFields");
            }
        };
        remove(&mut object);
        object.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten().for_each(remove);
    }
    Some(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_follow_the_level() {
        let request = Bytes::from_static(br#"{"kind":"Secret","metadata":{"name":"a","managedFields":[]}}"#);
        let reply = Reply::new(Body::Full(Bytes::from_static(br#"{"items":[{"metadata":{"managedFields":[]}}]}"#)));
        let with = |level: Level| {
            let mut event = json!({});
            add_objects(&mut event, level, Some(&request), Some(&reply), true);
            event
        };
        assert_eq!(with(Level::Metadata), json!({}));
        assert_eq!(with(Level::Request), json!({ "requestObject": { "kind": "Secret", "metadata": { "name": "a" } } }));
        assert_eq!(with(Level::RequestResponse)["responseObject"], json!({ "items": [{ "metadata": {} }] }));
    }

    #[test]
    fn the_client_comes_first() {
        let mut headers = HeaderMap::new();
        headers.insert("x-forwarded-for", "192.0.2.1, nonsense".parse().unwrap());
        let peer = Some("198.51.100.2:5".parse().unwrap());
        assert_eq!(source(&headers, peer), ["192.0.2.1", "198.51.100.2"]);
    }
}
