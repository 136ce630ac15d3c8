//! `/openapi/v2` and `/openapi/v3`: the schema of the API, made from the kind table when first asked for.
//!
//! Making the documents takes a moment and much memory, so it happens on a thread of its own, once, and they are
//! kept compressed. The descriptions that `kubectl explain` shows are loaded for it and dropped again.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use corten_api::openapi::{encode_v2, openapi_v2, openapi_v3};
use corten_descriptions::Descriptions;
use corten_meta::Value;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde_json::json;

use crate::body::{Body, Reply};
use crate::discovery::hash;
use crate::pipeline::Context;
use crate::registry::Resource;
use crate::response;
use crate::serve::{accepts_gzip, gunzip, gzip};

/// The version 2 document as protobuf: what client-go asks for, what others may ask for, and what both get.
const ASKED_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
const JSON: &str = "application/json";

/// A document and its hash.
struct Document {
    media_type: &'static str,
    gzip: Bytes,
    hash: String,
}

/// The version 2 document in both forms.
struct Version2 {
    json: Document,
    protobuf: Document,
}

/// The documents, made on demand.
pub struct OpenApi {
    /// The group version of each path below `/openapi/v3/`: `api/v1` is `v1`, `apis/apps/v1` is `apps/v1`.
    paths: BTreeMap<String, String>,
    v3: OnceLock<BTreeMap<String, Document>>,
    v2: OnceLock<Version2>,
}

impl OpenApi {
    pub fn new(resources: &[Arc<Resource>]) -> OpenApi {
        let path = |r: &Arc<Resource>| match r.kind.group.as_str() {
            "" => (format!("api/{}", r.kind.version), r.kind.api_version()),
            group => (format!("apis/{group}/{}", r.kind.version), r.kind.api_version()),
        };
        OpenApi { paths: resources.iter().map(path).collect(), v3: OnceLock::new(), v2: OnceLock::new() }
    }

    /// Answers an OpenAPI path, if it is one.
    pub async fn serve(self: &Arc<Self>, context: &Context) -> Option<Reply> {
        let path = context.info.path.trim_end_matches('/').strip_prefix("/openapi/")?;
        self.make(path == "v2").await;
        if path == "v2" {
            let documents = self.v2.get()?;
            let document = if wants_protobuf(&context.headers) { &documents.protobuf } else { &documents.json };
            return Some(document.reply(context));
        }
        let documents = self.v3.get()?;
        if path == "v3" {
            let address = |path: &String, d: &Document| format!("/openapi/v3/{path}?hash={}", d.hash);
            let paths: BTreeMap<&String, Value> = documents
                .iter()
                .map(|(path, document)| (path, json!({ "serverRelativeURL": address(path, document) })))
                .collect();
            return Some(response::value(context.accept, StatusCode::OK, &json!({ "paths": paths })));
        }
        Some(documents.get(path.strip_prefix("v3/")?)?.reply(context))
    }

    /// Makes the documents that are asked for, if nobody has yet.
    async fn make(self: &Arc<Self>, v2: bool) {
        let made = if v2 { self.v2.get().is_some() } else { self.v3.get().is_some() };
        if made {
            return;
        }
        let this = Arc::clone(self);
        let making = tokio::task::spawn_blocking(move || {
            if v2 {
                this.v2.get_or_init(make_v2);
            } else {
                this.v3.get_or_init(|| make_v3(&this.paths));
            }
        });
        if let Err(e) = making.await {
            tracing::error!(error = %e, "the OpenAPI documents could not be made");
        }
    }
}

/// Whether the first form that the client lists and we speak is protobuf.
fn wants_protobuf(headers: &HeaderMap) -> bool {
    let header = headers.get(header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let clauses = header.split(',').map(|clause| clause.split(';').next().unwrap_or_default().trim());
    let spoken = [ASKED_PROTOBUF, PROTOBUF, JSON, "application/*", "*/*"];
    let first = clauses.into_iter().find(|clause| spoken.contains(clause));
    first.is_some_and(|clause| clause == ASKED_PROTOBUF || clause == PROTOBUF)
}

fn make_v2() -> Version2 {
    let descriptions = Descriptions::load();
    let document = openapi_v2(&|of, field| descriptions.get(of, field));
    Version2 { json: Document::json(&document), protobuf: Document::new(PROTOBUF, &encode_v2(&document)) }
}

fn make_v3(paths: &BTreeMap<String, String>) -> BTreeMap<String, Document> {
    let descriptions = Descriptions::load();
    let document = |group_version: &str| openapi_v3(group_version, &|of, field| descriptions.get(of, field));
    paths.iter().filter_map(|(path, gv)| Some((path.clone(), Document::json(&document(gv)?)))).collect()
}

impl Document {
    fn json(value: &Value) -> Document {
        Document::new(JSON, value.to_string().as_bytes())
    }

    fn new(media_type: &'static str, bytes: &[u8]) -> Document {
        Document { media_type, hash: hash(bytes), gzip: gzip(bytes).into() }
    }

    fn reply(&self, context: &Context) -> Reply {
        let etag = format!("\"{}\"", self.hash);
        let known = context.headers.get(header::IF_NONE_MATCH).and_then(|v| v.to_str().ok());
        let mut reply = if known == Some(etag.as_str()) {
            let mut reply = Reply::new(Body::empty());
            *reply.status_mut() = StatusCode::NOT_MODIFIED;
            reply
        } else if accepts_gzip(&context.headers) {
            let mut reply = response::full(StatusCode::OK, self.media_type, self.gzip.clone());
            reply.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            reply
        } else {
            response::full(StatusCode::OK, self.media_type, gunzip(&self.gzip).into())
        };
        let headers = reply.headers_mut();
        headers.insert(header::VARY, HeaderValue::from_static("Accept-Encoding, Accept"));
        if let Ok(etag) = HeaderValue::from_str(&etag) {
            headers.insert(header::ETAG, etag);
        }
        // Only an address that carries the hash may be kept without asking again.
        if context.info.query.get("hash") == Some(self.hash.as_str()) {
            headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
        }
        reply
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_of_version_2_is_negotiated() {
        for (accept, protobuf) in [
            ("", false),
            ("*/*", false),
            ("application/json", false),
            (ASKED_PROTOBUF, true),
            (PROTOBUF, true),
            ("application/json, application/com.github.proto-openapi.spec.v2@v1.0+protobuf", false),
            ("text/plain, application/com.github.proto-openapi.spec.v2@v1.0+protobuf;q=0.9, */*", true),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, HeaderValue::from_str(accept).unwrap());
            assert_eq!(wants_protobuf(&headers), protobuf, "{accept:?}");
        }
    }
}
