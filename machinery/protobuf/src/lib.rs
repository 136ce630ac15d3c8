//! Kubernetes' protobuf bodies, decoded to the same JSON values as all others, and encoded from them.
//!
//! kubectl and other typed clients send `application/vnd.kubernetes.protobuf` and accept JSON back, which costs the
//! server nothing; only clients that accept nothing else get protobuf. The wire format needs only field numbers and
//! types, which are in the table `wire.tbl`; everything else is the common path.

mod decode;
mod encode;
mod table;

use corten_meta::Value;

pub use decode::Error;

/// The media type.
pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// The media type of a watch.
pub const STREAMED: &str = "application/vnd.kubernetes.protobuf;stream=watch";

/// The prefix of every body.
const MAGIC: &[u8] = b"k8s\0";

/// Decodes a body that must hold the type `schema`, such as `io.k8s.api.core.v1.Pod`.
pub fn object(bytes: &[u8], schema: &str) -> Result<Value, Error> {
    let body = match bytes.strip_prefix(MAGIC) {
        _ if bytes.is_empty() => return Err(Error::Empty),
        None => return Err(Error::Envelope),
        Some([]) => return Err(Error::EmptyBody),
        Some(body) => body,
    };
    let mut envelope = decode::envelope(body)?;
    // An invalid apiVersion counts as none.
    if envelope.api_version.matches('/').count() > 1 {
        envelope.api_version.clear();
    }
    let decode::Envelope { api_version, kind, raw } = envelope;
    let mut value = match decode::message(table::messages(), schema, raw, 0) {
        Ok(value) => value,
        Err(error) => return Err(Error::Object { api_version, kind, error: error.into() }),
    };
    if let Some(object) = value.as_object_mut() {
        if !api_version.is_empty() {
            object.insert("apiVersion".to_owned(), api_version.into());
        }
        if !kind.is_empty() {
            object.insert("kind".to_owned(), kind.into());
        }
    }
    Ok(value)
}

/// The type of a body, by its envelope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeMeta {
    pub api_version: String,
    pub kind: String,
}

/// Returns the type of a body, without decoding the object.
pub fn type_meta(bytes: &[u8]) -> Result<TypeMeta, Error> {
    let decode::Envelope { api_version, kind, .. } =
        decode::envelope(bytes.strip_prefix(MAGIC).ok_or(Error::Envelope)?)?;
    Ok(TypeMeta { api_version, kind })
}

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

/// Encodes an object of the type `schema` as a body.
pub fn encode(value: &Value, schema: &str) -> Vec<u8> {
    let mut raw = Vec::new();
    encode::message(&mut raw, table::messages(), schema, value);
    wrapped(value, &raw)
}

/// Encodes any object as a body, if its type has a message.
pub fn encode_any(value: &Value) -> Option<Vec<u8>> {
    let api_version = value["apiVersion"].as_str().unwrap_or_default();
    let kind = value["kind"].as_str()?;
    let schema = match (api_version, kind) {
        ("v1", "Status" | "APIGroupList" | "APIGroup" | "APIResourceList") => format!("{META}.{kind}"),
        ("", "APIVersions" | "APIResourceList") => format!("{META}.{kind}"),
        (_, "PartialObjectMetadataList") => {
            return Some(encode_list(value, &format!("{META}.PartialObjectMetadata")));
        }
        (_, "PartialObjectMetadata") => format!("{META}.PartialObjectMetadata"),
        _ => {
            let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
            corten_api::kind::schema_name(group, version, kind)
        }
    };
    table::messages().contains_key(&schema).then(|| encode(value, &schema))
}

/// Encodes a Status as a body.
pub fn encode_status(status: &Value) -> Vec<u8> {
    encode(status, &format!("{META}.Status"))
}

/// Encodes a list of objects of the type `schema` as a body. All lists have the same two fields.
pub fn encode_list(list: &Value, schema: &str) -> Vec<u8> {
    let messages = table::messages();
    let mut raw = Vec::new();
    encode::nested(&mut raw, 1, |out| encode::message(out, messages, &format!("{META}.ListMeta"), &list["metadata"]));
    for item in list["items"].as_array().into_iter().flatten() {
        encode::nested(&mut raw, 2, |out| encode::message(out, messages, schema, item));
    }
    wrapped(list, &raw)
}

/// Encodes one event of a watch, which has the body of an object inside: its length comes first, in four bytes.
pub fn encode_event(event_type: &str, object: &[u8]) -> Vec<u8> {
    let mut event = Vec::with_capacity(object.len() + 32);
    encode::bytes(&mut event, 1, event_type.as_bytes());
    encode::nested(&mut event, 2, |out| encode::bytes(out, 1, object));
    let length = u32::try_from(event.len()).unwrap_or(u32::MAX).to_be_bytes();
    [&length[..], &event].concat()
}

/// Wraps a message in the envelope of every body, which has its type.
fn wrapped(value: &Value, raw: &[u8]) -> Vec<u8> {
    let text = |key: &str| value[key].as_str().unwrap_or_default();
    let mut out = MAGIC.to_vec();
    encode::nested(&mut out, 1, |out| {
        encode::bytes(out, 1, text("apiVersion").as_bytes());
        encode::bytes(out, 2, text("kind").as_bytes());
    });
    encode::bytes(&mut out, 2, raw);
    encode::bytes(&mut out, 3, b"");
    encode::bytes(&mut out, 4, b"");
    out
}
