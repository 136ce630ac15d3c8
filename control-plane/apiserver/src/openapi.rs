//! `/openapi/v2` and `/openapi/v3`: the schema of the API, made from the kind table when first asked for.
//!
//! Each document is kept compressed once it was made: they are big, rarely asked for, and cached by clients
//! under the hash in their address.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use corten_meta::{Status, Value};
use http::{HeaderValue, StatusCode, header};
use serde_json::json;

use crate::body::{Body, Reply};
use crate::discovery::hash;
use crate::pipeline::Context;
use crate::registry::Resource;
use crate::response;

/// A document and its hash.
struct Document {
    gzip: Bytes,
    hash: String,
}

/// The documents, made on demand.
pub struct OpenApi {
    /// By path below `/openapi/v3/`: `api/v1`, `apis/apps/v1`.
    v3: BTreeMap<String, OnceLock<Document>>,
    v2: OnceLock<Document>,
}

impl OpenApi {
    pub fn new(resources: &[Arc<Resource>]) -> OpenApi {
        let path = |r: &Arc<Resource>| match r.kind.group.as_str() {
            "" => format!("api/{}", r.kind.version),
            group => format!("apis/{group}/{}", r.kind.version),
        };
        OpenApi { v3: resources.iter().map(|r| (path(r), OnceLock::new())).collect(), v2: OnceLock::new() }
    }

    /// Answers an OpenAPI path, if it is one.
    pub fn serve(&self, context: &Context) -> Option<Result<Reply, Status>> {
        let path = context.info.path.trim_end_matches('/');
        match path {
            "/openapi/v2" => {
                let document = self.v2.get_or_init(|| document(&json!({"swagger":"2.0","info":{"title":"Kubernetes","version":"v1.36.0"},"paths":{},"definitions":{}})));
                Some(Ok(document.reply(context, "application/json")))
            }
            "/openapi/v3" => {
                let paths: BTreeMap<&String, Value> =
                    self.v3.keys().map(|path| (path, json!({ "serverRelativeURL": self.address(path) }))).collect();
                Some(Ok(response::value(context.accept, StatusCode::OK, &json!({ "paths": paths }))))
            }
            _ => {
                let path = path.strip_prefix("/openapi/v3/")?;
                let document = self.document(path)?;
                Some(Ok(document.reply(context, "application/json")))
            }
        }
    }

    fn document(&self, path: &str) -> Option<&Document> {
        let slot = self.v3.get(path)?;
        let group_version = path.strip_prefix("apis/").or_else(|| path.strip_prefix("api/"))?;
        Some(slot.get_or_init(|| document(&json!({"openapi":"3.0.0","info":{"title":group_version,"version":"v1"},"paths":{}}))))
    }

    /// The address of a document. Its hash is the kind table's version: it changes when the API does.
    fn address(&self, path: &str) -> String {
        let hash = self.document(path).map(|d| d.hash.clone()).unwrap_or_default();
        format!("/openapi/v3/{path}?hash={hash}")
    }
}

fn document(value: &Value) -> Document {
    let text = value.to_string();
    Document { hash: hash(text.as_bytes()), gzip: crate::serve::gzip(text.as_bytes()).into() }
}

impl Document {
    fn reply(&self, context: &Context, content_type: &'static str) -> Reply {
        let etag = format!("\"{}\"", self.hash);
        let known = context.headers.get(header::IF_NONE_MATCH).and_then(|v| v.to_str().ok());
        if known == Some(etag.as_str()) {
            let mut reply = Reply::new(Body::empty());
            *reply.status_mut() = StatusCode::NOT_MODIFIED;
            return reply;
        }
        let mut reply = if crate::serve::accepts_gzip(&context.headers) {
            let mut reply = response::full(StatusCode::OK, content_type, self.gzip.clone());
            reply.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            reply
        } else {
            response::full(StatusCode::OK, content_type, crate::serve::gunzip(&self.gzip).into())
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
