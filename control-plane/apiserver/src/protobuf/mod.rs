//! Request bodies in protobuf, turned into the same JSON values as all others.
//!
//! kubectl and other typed clients send `application/vnd.kubernetes.protobuf` and take JSON back. The wire
//! format needs only field numbers and types, which are the table `wire.tbl`; everything after decoding is the
//! common path. Nothing here encodes.

mod decode;
mod table;

use corten_meta::Value;

pub use decode::Error;

/// The media type.
pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// What every body begins with.
const MAGIC: &[u8] = b"k8s\0";

/// Decodes a body that must hold the type `schema`, such as `io.k8s.api.core.v1.Pod`.
pub fn object(bytes: &[u8], schema: &str) -> Result<Value, Error> {
    let body = bytes.strip_prefix(MAGIC).ok_or(Error::Envelope)?;
    let envelope = decode::envelope(body)?;
    let mut value = decode::message(table::messages(), schema, envelope.raw, 0)?;
    if let Some(object) = value.as_object_mut() {
        if !envelope.api_version.is_empty() {
            object.insert("apiVersion".to_owned(), envelope.api_version.into());
        }
        if !envelope.kind.is_empty() {
            object.insert("kind".to_owned(), envelope.kind.into());
        }
    }
    Ok(value)
}
