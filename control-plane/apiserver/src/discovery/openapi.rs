//! `/openapi/v2` and `/openapi/v3`: the schema of the API, made from the kind table on the first request.
//!
//! Making the documents takes a moment and much memory, so it happens on a thread of its own, once, and they are kept
//! compressed. The descriptions that `kubectl explain` shows are loaded for it and dropped again.

use std::cell::LazyCell;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use bytes::Bytes;
use corten_api::openapi::{custom_v2, custom_v3, encode_v2, encode_v3, openapi_v2, openapi_v3, root_paths, root_v3};
use corten_api::{Kind, MinorVersion};
use corten_descriptions::Descriptions;
use corten_meta::Value;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use serde_json::json;

use super::groups::hash;
use super::remote::{RemoteDocuments, RemoteVersion};
use crate::body::{Body, Reply};
use crate::compression::{gunzip, gzip, prefers_gzip};
use crate::content::Content;
use crate::context::Context;
use crate::registry::Resource;

/// The media types of a protobuf document: the one that client-go requests, and the one of the response.
type Protobuf = (&'static str, &'static str);
const PROTOBUF_V2: Protobuf = (
    "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
    "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
);
const PROTOBUF_V3: Protobuf = (
    "application/com.github.proto-openapi.spec.v3@v1.0+protobuf",
    "application/com.github.proto-openapi.spec.v3.v1.0+protobuf",
);
const JSON: &str = "application/json";

/// The prefixes of the names of built-in definitions.
const OWN: &[&str] =
    &["io.k8s.api.", "io.k8s.apimachinery.", "io.k8s.apiextensions-apiserver.", "io.k8s.kube-aggregator."];

/// A document and its hash.
struct Document {
    media_type: &'static str,
    gzip: Bytes,
    hash: String,
    modified: Timestamp,
    /// A version 3 document as protobuf, made on its first request.
    protobuf: OnceLock<Bytes>,
}

/// The version 2 document in both forms.
struct Version2 {
    json: Document,
    protobuf: Document,
}

/// The documents, made on demand: those of the built-in kinds once, those of custom resources again when they change,
/// each group version separately.
pub struct OpenApi {
    /// The group version of each path below `/openapi/v3/`: `api/v1` is `v1`, `apis/apps/v1` is `apps/v1`.
    paths: BTreeMap<String, String>,
    /// The version of Kubernetes whose kinds are published.
    emulated: MinorVersion,
    v3: OnceLock<BTreeMap<String, Document>>,
    v2: OnceLock<Version2>,
    custom: ArcSwap<Custom>,
}

/// A version 3 document and the custom kinds it was made of.
struct Published {
    kinds: Vec<Arc<Kind>>,
    document: Document,
}

/// The documents of custom resources and of other servers.
#[derive(Default)]
struct Custom {
    kinds: Vec<Arc<Kind>>,
    /// The documents of other servers, by their paths.
    remote_v3: BTreeMap<String, Arc<RemoteDocuments>>,
    /// The documents before the last change: those of unchanged group versions are reused.
    before: BTreeMap<String, Arc<Published>>,
    v3: OnceLock<BTreeMap<String, Arc<Published>>>,
    /// The whole document, in which the custom kinds are joined with the built-in ones.
    v2: OnceLock<Version2>,
}

fn path_of(kind: &Kind) -> (String, String) {
    match kind.group.as_str() {
        "" => (format!("api/{}", kind.version), kind.api_version()),
        group => (format!("apis/{group}/{}", kind.version), kind.api_version()),
    }
}

impl OpenApi {
    pub fn new(resources: &[Arc<Resource>]) -> OpenApi {
        let built_in = resources.iter().filter(|r| !r.kind.schema.is_empty());
        OpenApi {
            paths: built_in.map(|r| path_of(&r.kind)).collect(),
            emulated: resources.iter().map(|r| r.kind.emulated).min().unwrap_or_default(),
            v3: OnceLock::new(),
            v2: OnceLock::new(),
            custom: ArcSwap::default(),
        }
    }

    /// Publishes these custom kinds from now on.
    pub fn set_custom(&self, kinds: &[Arc<Kind>]) {
        let kinds: Vec<Arc<Kind>> = kinds.iter().filter(|kind| !kind.verbs.is_empty()).cloned().collect();
        self.custom.rcu(|custom| {
            let remote_v3 = custom.remote_v3.clone();
            let before = custom.made();
            Arc::new(Custom { kinds: kinds.clone(), remote_v3, before, ..Custom::default() })
        });
    }

    /// Publishes the documents of other servers from now on.
    pub fn set_remote(&self, known: &[RemoteVersion]) {
        let path = |known: &RemoteVersion| format!("apis/{}/{}", known.group, known.version);
        let remote: BTreeMap<_, _> = known.iter().map(|k| (path(k), Arc::clone(&k.documents))).collect();
        self.custom.rcu(|custom| {
            let kinds = custom.kinds.clone();
            let before = custom.made();
            Arc::new(Custom { kinds, remote_v3: remote.clone(), before, ..Custom::default() })
        });
    }

    /// Answers an OpenAPI path, if it is one.
    pub async fn serve(self: &Arc<Self>, context: &Context) -> Option<Reply> {
        let path =
            context.info.path.strip_prefix("/openapi/").filter(|path| *path == "v2" || path.starts_with("v3"))?;
        let custom = self.custom.load_full();
        self.make(&custom, path == "v2").await;
        if path == "v2" {
            let documents = if custom.is_empty() { self.v2.get()? } else { custom.v2.get()? };
            return Some(match form(&context.headers, PROTOBUF_V2) {
                Some(JSON) => documents.json.reply(context),
                Some(_) => documents.protobuf.reply(context),
                None => not_acceptable(),
            });
        }
        let built_in = self.v3.get()?;
        let custom = custom.v3.get()?;
        if path == "v3" {
            let address = |path: &String, d: &Document| format!("/openapi/v3/{path}?hash={}", d.hash);
            let paths: BTreeMap<&String, Value> = built_in
                .iter()
                .chain(custom.iter().map(|(path, published)| (path, &published.document)))
                .map(|(path, document)| (path, json!({ "serverRelativeURL": address(path, document) })))
                .collect();
            // As upstream, this is not declared as JSON, and its modification time is now.
            let media_type = "text/plain; charset=utf-8";
            let content = Content { tag: "", modified: context.now, media_type };
            let text = || Bytes::from(json!({ "paths": paths }).to_string());
            return Some(content.reply(&context.method, &context.headers, text));
        }
        let path = path.strip_prefix("v3/")?;
        let Some(document) = built_in.get(path).or_else(|| Some(&custom.get(path)?.document)) else {
            let mut reply = Reply::new(Body::empty());
            *reply.status_mut() = StatusCode::NOT_FOUND;
            return Some(reply);
        };
        Some(match form(&context.headers, PROTOBUF_V3) {
            Some(JSON) => document.reply(context),
            Some(media_type) => document.reply_as(media_type, &document.protobuf().await, context),
            None => not_acceptable(),
        })
    }

    /// Makes the documents of a request, unless they are there already.
    async fn make(self: &Arc<Self>, custom: &Arc<Custom>, v2: bool) {
        let made = if v2 {
            self.v2.get().is_some() && (custom.is_empty() || custom.v2.get().is_some())
        } else {
            self.v3.get().is_some() && custom.v3.get().is_some()
        };
        if made {
            return;
        }
        let this = Arc::clone(self);
        let custom = Arc::clone(custom);
        let making = tokio::task::spawn_blocking(move || {
            if v2 {
                let built_in = this.v2.get_or_init(|| make_v2(this.emulated));
                if !custom.is_empty() {
                    custom.v2.get_or_init(|| join_v2(built_in, &custom));
                }
            } else {
                this.v3.get_or_init(|| make_v3(this.emulated, &this.paths));
                custom.v3.get_or_init(|| make_custom_v3(&custom));
            }
        });
        if let Err(e) = making.await {
            tracing::error!(error = %e, "the OpenAPI documents could not be made");
        }
    }
}

impl Custom {
    /// Returns the documents that were made, now or before the last change.
    fn made(&self) -> BTreeMap<String, Arc<Published>> {
        self.v3.get().unwrap_or(&self.before).clone()
    }

    fn is_empty(&self) -> bool {
        self.kinds.is_empty() && self.remote_v3.values().all(|documents| documents.openapi_v2.is_none())
    }
}

fn make_custom_v3(custom: &Custom) -> BTreeMap<String, Arc<Published>> {
    let publish = |kinds, document: &Value| Arc::new(Published { kinds, document: Document::json(document) });
    let remote = custom.remote_v3.iter();
    let mut made: BTreeMap<String, Arc<Published>> = remote
        .filter_map(|(path, documents)| Some((path.clone(), publish(Vec::new(), documents.openapi_v3.as_ref()?))))
        .collect();
    let mut versions: BTreeMap<String, Vec<Arc<Kind>>> = BTreeMap::new();
    for kind in &custom.kinds {
        versions.entry(path_of(kind).0).or_default().push(Arc::clone(kind));
    }
    let descriptions = LazyCell::new(Descriptions::load);
    for (path, kinds) in versions {
        let same = custom.before.get(&path).filter(|before| is_of(before, &kinds));
        let published = same.cloned().or_else(|| {
            let of_version: Vec<&Kind> = kinds.iter().map(AsRef::as_ref).collect();
            let describe = |of: &str, field: &str| descriptions.get(of, field);
            let document = custom_v3(&of_version.first()?.api_version(), &of_version, &describe)?;
            Some(publish(kinds, &document))
        });
        made.extend(published.map(|published| (path, published)));
    }
    made
}

/// Returns whether a document was made of these very kinds.
fn is_of(published: &Published, kinds: &[Arc<Kind>]) -> bool {
    published.kinds.len() == kinds.len() && published.kinds.iter().zip(kinds).all(|(a, b)| Arc::ptr_eq(a, b))
}

/// Makes the version 2 document with custom kinds. The built-in part is not made again: JSON is joined as a string, and
/// protobuf messages that follow each other are one message.
fn join_v2(built_in: &Version2, more: &Custom) -> Version2 {
    let descriptions = Descriptions::load();
    let kinds: Vec<&Kind> = more.kinds.iter().map(AsRef::as_ref).collect();
    let mut custom = custom_v2(&kinds, &|of, field| descriptions.get(of, field));
    for document in more.remote_v3.values().filter_map(|documents| documents.openapi_v2.as_ref()) {
        for part in ["paths", "definitions"] {
            let Some(own) = document[part].as_object() else { continue };
            let known = |name: &str| part == "definitions" && OWN.iter().any(|prefix| name.starts_with(prefix));
            for (name, value) in own.iter().filter(|(name, _)| !known(name)) {
                custom[part][name] = value.clone();
            }
        }
    }
    let text = gunzip(&built_in.json.gzip);
    let custom = rename_duplicates(custom, &text);
    let mut protobuf = gunzip(&built_in.protobuf.gzip);
    protobuf.extend_from_slice(&encode_v2(&custom));
    let json = join_json(&text, &custom).unwrap_or(text);
    Version2 { json: Document::new(JSON, &json), protobuf: Document::new(PROTOBUF_V2.1, &protobuf) }
}

/// Renames definitions that have the name of a built-in one.
fn rename_duplicates(custom: Value, document: &[u8]) -> Value {
    let names = custom["definitions"].as_object().into_iter().flat_map(|definitions| definitions.keys());
    let alike: Vec<String> = names.filter(|name| OWN.iter().any(|own| name.starts_with(own))).cloned().collect();
    if alike.is_empty() {
        return custom;
    }
    let document: Value = serde_json::from_slice(document).unwrap_or_default();
    let mut text = custom.to_string();
    for name in alike.iter().filter(|name| document["definitions"].get(name.as_str()).is_some()) {
        for (before, after) in [("", ":{"), ("#/definitions/", "")] {
            text = text.replace(&format!("\"{before}{name}\"{after}"), &format!("\"{before}{name}_v2\"{after}"));
        }
    }
    serde_json::from_str(&text).unwrap_or(custom)
}

fn join_json(document: &[u8], custom: &Value) -> Option<Vec<u8>> {
    let fields: BTreeMap<String, &serde_json::value::RawValue> = serde_json::from_slice(document).ok()?;
    let mut out = Vec::with_capacity(document.len() + 4096);
    for (name, value) in &fields {
        out.push(if out.is_empty() { b'{' } else { b',' });
        out.extend_from_slice(format!("{}:", Value::from(name.as_str())).as_bytes());
        match custom.get(name).and_then(Value::as_object).filter(|more| !more.is_empty()) {
            Some(more) => {
                let more = Value::Object(more.clone()).to_string();
                out.extend_from_slice(more.strip_suffix('}')?.as_bytes());
                out.push(b',');
                out.extend_from_slice(value.get().strip_prefix('{')?.as_bytes());
            }
            None => out.extend_from_slice(value.get().as_bytes()),
        }
    }
    out.push(b'}');
    Some(out)
}

/// Returns the first form of the Accept header that a document has.
fn form(headers: &HeaderMap, (requested, served): Protobuf) -> Option<&'static str> {
    let header = headers.get(header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or_default();
    if header.trim().is_empty() {
        return Some(JSON);
    }
    let mut clauses = header.split(',').map(|clause| clause.split(';').next().unwrap_or_default().trim());
    clauses.find_map(|clause| match clause {
        JSON | "application/*" | "*/*" => Some(JSON),
        clause => (clause == requested || clause == served).then_some(served),
    })
}

fn not_acceptable() -> Reply {
    let mut reply = Reply::new(Body::empty());
    *reply.status_mut() = StatusCode::NOT_ACCEPTABLE;
    reply.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept"));
    reply
}

fn make_v2(at: MinorVersion) -> Version2 {
    let descriptions = Descriptions::load();
    let document = openapi_v2(at, &|of, field| descriptions.get(of, field));
    Version2 { json: Document::json(&document), protobuf: Document::new(PROTOBUF_V2.1, &encode_v2(&document)) }
}

fn make_v3(at: MinorVersion, paths: &BTreeMap<String, String>) -> BTreeMap<String, Document> {
    let descriptions = Descriptions::load();
    let document = |group_version: &str| openapi_v3(at, group_version, &|of, field| descriptions.get(of, field));
    let root = |path: &str| root_v3(at, path, &|of, field| descriptions.get(of, field));
    let roots = root_paths(at).into_iter().map(|path| (path.clone(), Document::json(&root(&path))));
    let versions = paths.iter().filter_map(|(path, gv)| Some((path.clone(), Document::json(&document(gv)?))));
    versions.chain(roots).collect()
}

impl Document {
    fn json(value: &Value) -> Document {
        Document::new(JSON, value.to_string().as_bytes())
    }

    fn new(media_type: &'static str, bytes: &[u8]) -> Document {
        let hash = hash(bytes);
        let gzip = gzip(bytes).into();
        Document { media_type, gzip, hash, modified: Timestamp::now(), protobuf: OnceLock::new() }
    }

    /// Returns the document in protobuf, compressed. It has the hash of the document in JSON.
    async fn protobuf(&self) -> Bytes {
        if let Some(made) = self.protobuf.get() {
            return made.clone();
        }
        let json = self.gzip.clone();
        let making = tokio::task::spawn_blocking(move || {
            let document: Value = serde_json::from_slice(&gunzip(&json)).unwrap_or_default();
            Bytes::from(gzip(&encode_v3(&document)))
        });
        let made = making.await.unwrap_or_default();
        self.protobuf.get_or_init(|| made).clone()
    }

    fn reply(&self, context: &Context) -> Reply {
        self.reply_as(self.media_type, &self.gzip, context)
    }

    fn reply_as(&self, media_type: &'static str, gzip: &Bytes, context: &Context) -> Reply {
        let tag = format!("\"{}\"", self.hash);
        let hash = context.info.query.get("hash").filter(|hash| !hash.is_empty());
        let moved = context.info.path.starts_with("/openapi/v3") && hash.is_some_and(|hash| hash != self.hash);
        let packed = prefers_gzip(&context.headers) && !context.headers.contains_key(header::RANGE);
        let content = Content { tag: &tag, modified: self.modified, media_type };
        let mut reply = match moved {
            true => Reply::new(Body::empty()),
            false => content.reply(&context.method, &context.headers, || match packed {
                true => gzip.clone(),
                false => gunzip(gzip).into(),
            }),
        };
        let code = reply.status();
        let mut set = |name: HeaderName, value: &str| {
            if let Ok(value) = HeaderValue::from_str(value) {
                reply.headers_mut().append(name, value);
            }
        };
        set(header::VARY, "Accept-Encoding");
        set(header::VARY, "Accept");
        if packed && code == StatusCode::OK && !moved {
            set(header::CONTENT_ENCODING, "gzip");
        }
        if moved {
            set(header::CONTENT_TYPE, media_type);
            set(header::ETAG, &tag);
            set(header::LOCATION, &format!("{}?hash={}", context.info.path, self.hash));
            *reply.status_mut() = StatusCode::MOVED_PERMANENTLY;
        } else if hash == Some(self.hash.as_str()) {
            // Only a URL with the hash may be cached without revalidation.
            let in_a_year = context.now.to_zoned(TimeZone::UTC).saturating_add(1.year());
            set(header::CACHE_CONTROL, "public, immutable");
            set(header::EXPIRES, &in_a_year.strftime("%a, %d %b %Y %H:%M:%S UTC").to_string());
        }
        reply
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_definition_called_like_a_built_in_one_gets_another_name() {
        let own = "io.k8s.api.core.v1.Pod";
        let other = "com.example.v1.Pod";
        let refers = |name: &str| json!({ "get": { "$ref": format!("#/definitions/{name}") } });
        let custom = json!({ "paths": { "/a": refers(own), "/b": refers(other) },
                             "definitions": { own: { "type": "object" }, other: {} } });
        let document = json!({ "definitions": { own: {} } }).to_string();
        let renamed = format!("{own}_v2");
        let expected = json!({ "paths": { "/a": refers(&renamed), "/b": refers(other) },
                               "definitions": { &renamed: { "type": "object" }, other: {} } });
        assert_eq!(rename_duplicates(custom.clone(), document.as_bytes()), expected);
        assert_eq!(rename_duplicates(custom.clone(), b"{}"), custom);
    }

    #[test]
    fn the_document_of_an_unchanged_group_version_is_reused() {
        let kind = |group: &str, name: &str| Arc::new(Kind::new(group, "v1", name, &name.to_lowercase()));
        let foo = kind("a.example.com", "Foo");
        let bar = kind("b.example.com", "Bar");
        let openapi = OpenApi::new(&[]);
        let made = || {
            let custom = openapi.custom.load_full();
            custom.v3.get_or_init(|| make_custom_v3(&custom)).clone()
        };
        openapi.set_custom(&[Arc::clone(&foo), Arc::clone(&bar)]);
        let first = made();
        // No client requests a document between the two changes.
        openapi.set_custom(&[Arc::clone(&foo)]);
        openapi.set_custom(&[Arc::clone(&foo), kind("b.example.com", "Baz")]);
        let second = made();
        let a = "apis/a.example.com/v1";
        let b = "apis/b.example.com/v1";
        assert!(Arc::ptr_eq(&first[a], &second[a]));
        assert_ne!(first[b].document.hash, second[b].document.hash);
        openapi.set_custom(&[bar]);
        assert_eq!(made().keys().collect::<Vec<_>>(), [b]);
    }

    #[test]
    fn the_form_is_negotiated() {
        let (requested, served) = PROTOBUF_V2;
        for (accept, expected) in [
            ("", Some(JSON)),
            ("*/*", Some(JSON)),
            ("application/json", Some(JSON)),
            (requested, Some(served)),
            (served, Some(served)),
            ("application/json, application/com.github.proto-openapi.spec.v2@v1.0+protobuf", Some(JSON)),
            ("text/plain, application/com.github.proto-openapi.spec.v2@v1.0+protobuf;q=0.9, */*", Some(served)),
            ("text/html", None),
            (PROTOBUF_V3.0, None),
            ("application/vnd.kubernetes.protobuf", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, HeaderValue::from_str(accept).unwrap());
            assert_eq!(form(&headers, PROTOBUF_V2), expected, "{accept:?}");
        }
    }
}
