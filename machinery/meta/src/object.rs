//! An object as the store, the watch cache and informers share it: its encoded bytes, its revision, and the metadata
//! that most callers read.
//!
//! Invariant: `bytes` never hold `metadata.resourceVersion`. The revision of the store is the resource version, and it
//! is spliced in when the object is sent. Only [`Object::value`] decodes more than metadata.

use crate::interned::{self, Labels};
use crate::owner::Owner;
use crate::quote::quote;
use crate::{Error, codec};
use bytes::Bytes;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;

/// Namespace and name. An empty namespace means cluster scoped.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub namespace: String,
    pub name: String,
}

impl Key {
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Key {
        Key { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() { f.write_str(&self.name) } else { write!(f, "{}/{}", self.namespace, self.name) }
    }
}

/// The metadata that caches, selectors and the garbage collector read without decoding the object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Header {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub labels: Labels,
    pub owners: Vec<Owner>,
    pub finalizers: Vec<String>,
    pub deletion_timestamp: Option<Timestamp>,
    pub creation_timestamp: Option<Timestamp>,
    pub generation: i64,
}

/// An encoded object. Callers share it as an `Arc`; cloning the bytes is free.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Canonical JSON without `metadata.resourceVersion`.
    pub bytes: Bytes,
    /// The store's mod revision; 0 before the object is stored.
    pub revision: u64,
    pub header: Header,
}

impl Object {
    /// Makes an object of canonical bytes, decoding metadata only.
    pub fn parse(bytes: Bytes, revision: u64) -> Result<Object, Error> {
        let header = parse_header(&bytes)?;
        Ok(Object { bytes, revision, header })
    }

    /// Encodes a value canonically; `revision` replaces its `metadata.resourceVersion`.
    pub fn from_value(value: &Value, revision: u64) -> Result<Object, Error> {
        let bytes = codec::encode_object(value);
        match read_header(value) {
            Some(header) => Ok(Object { bytes, revision, header }),
            // Parsing the bytes gives the precise error.
            None => Object::parse(bytes, revision),
        }
    }

    pub fn key(&self) -> Key {
        Key { namespace: self.header.namespace.clone(), name: self.header.name.clone() }
    }

    /// Returns the owner that manages this object, if any.
    pub fn controller(&self) -> Option<&Owner> {
        self.header.owners.iter().find(|owner| owner.controller)
    }

    /// Returns the decoded object, with `metadata.resourceVersion` set.
    pub fn value(&self) -> Value {
        let mut value: Value = serde_json::from_slice(&self.bytes).unwrap_or(Value::Null);
        if self.revision > 0
            && let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut)
        {
            metadata.insert("resourceVersion".into(), Value::String(self.revision.to_string()));
        }
        value
    }

    /// Returns the bytes that a client sees: with `metadata.resourceVersion`.
    pub fn wire(&self) -> Bytes {
        let mut out = Vec::with_capacity(self.bytes.len() + 48);
        self.write_wire(&mut out);
        out.into()
    }

    /// Appends the bytes of [`Object::wire`] to a buffer, for lists and watch frames.
    pub fn write_wire(&self, out: &mut Vec<u8>) {
        self.write_from(0, out);
    }

    /// Appends the bytes of [`Object::wire`] without `apiVersion` and `kind`: items in a list of a built-in kind have
    /// none, because the list has them.
    pub fn write_item(&self, out: &mut Vec<u8>) {
        match self.bytes.starts_with(b"{\"apiVersion\":").then(|| metadata_start(&self.bytes)).flatten() {
            Some(fields) => {
                out.push(b'{');
                self.write_from(fields - METADATA.len(), out);
            }
            None => self.write_wire(out),
        }
    }

    /// Appends the bytes from a position before the metadata on.
    fn write_from(&self, start: usize, out: &mut Vec<u8>) {
        let position = if self.revision > 0 { metadata_start(&self.bytes) } else { None };
        let Some(position) = position else {
            out.extend_from_slice(&self.bytes[start..]);
            return;
        };
        let (before, after) = self.bytes.split_at(position);
        out.extend_from_slice(&before[start..]);
        out.extend_from_slice(b"\"resourceVersion\":\"");
        write!(out, "{}", self.revision).expect("writing a number to memory cannot fail");
        out.push(b'"');
        if after.first() != Some(&b'}') {
            out.push(b',');
        }
        out.extend_from_slice(after);
    }
}

/// Decodes an object from the wire. If our own API server wrote it, only its resource version is cut out again; any
/// other is decoded and encoded canonically.
pub fn parse_wire(bytes: &[u8]) -> Result<Object, Error> {
    if let Some((stored, revision)) = cut_resource_version(bytes) {
        return Object::parse(stored, revision);
    }
    let value: Value = serde_json::from_slice(bytes).map_err(|e| Error::Json(e.to_string()))?;
    let text = crate::accessor::resource_version(&value);
    let revision = if text.is_empty() {
        0
    } else {
        text.parse().map_err(|_| Error::Metadata(format!("resource version {} is not a number", quote(text))))?
    };
    Object::from_value(&value, revision)
}

const METADATA: &[u8] = b"\"metadata\":{";

/// Returns the position of the first field of `metadata`. A quote inside a string is escaped, so the first match is the
/// real one.
fn metadata_start(bytes: &[u8]) -> Option<usize> {
    // In canonical bytes that is the second brace: only `apiVersion` and `kind` come before it.
    let second = bytes.iter().skip(1).position(|byte| *byte == b'{').map(|at| at + 2);
    if let Some(start) = second.filter(|start| bytes[..*start].ends_with(METADATA)) {
        return Some(start);
    }
    bytes.windows(METADATA.len()).position(|window| window == METADATA).map(|at| at + METADATA.len())
}

/// Undoes the splice of [`Object::write_wire`], or returns `None` if the bytes are not of that form.
fn cut_resource_version(bytes: &[u8]) -> Option<(Bytes, u64)> {
    const FIELD: &[u8] = b"\"resourceVersion\":\"";
    if !bytes.starts_with(b"{\"apiVersion\":\"") {
        return None;
    }
    let start = metadata_start(bytes)?;
    let digits = bytes.get(start..)?.strip_prefix(FIELD)?;
    let length = digits.iter().position(|b| !b.is_ascii_digit())?;
    let revision: u64 = std::str::from_utf8(&digits[..length]).ok()?.parse().ok()?;
    let after = digits[length..].strip_prefix(b"\"")?;
    let rest = match after.first()? {
        b',' => &after[1..],
        b'}' => after,
        _ => return None,
    };
    let mut stored = Vec::with_capacity(start + rest.len());
    stored.extend_from_slice(&bytes[..start]);
    stored.extend_from_slice(rest);
    // A trailing newline of a watch frame is not part of the object.
    stored.truncate(stored.trim_ascii_end().len());
    (revision > 0).then(|| (stored.into(), revision))
}

/// The parts of an object that make a [`Header`]; all others are skipped, not decoded.
#[derive(Deserialize)]
struct Partial<'a> {
    #[serde(borrow, default)]
    metadata: Option<PartialMetadata<'a>>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct PartialMetadata<'a> {
    #[serde(borrow)]
    namespace: Option<Cow<'a, str>>,
    #[serde(borrow)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    uid: Option<Cow<'a, str>>,
    labels: Option<BTreeMap<String, Option<String>>>,
    #[serde(borrow)]
    owner_references: Option<Vec<PartialOwner<'a>>>,
    finalizers: Option<Vec<String>>,
    #[serde(borrow)]
    deletion_timestamp: Option<Cow<'a, str>>,
    #[serde(borrow)]
    creation_timestamp: Option<Cow<'a, str>>,
    generation: Option<i64>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct PartialOwner<'a> {
    #[serde(borrow)]
    api_version: Cow<'a, str>,
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    uid: Cow<'a, str>,
    controller: Option<bool>,
    block_owner_deletion: Option<bool>,
}

fn parse_header(bytes: &[u8]) -> Result<Header, Error> {
    let partial: Partial<'_> = serde_json::from_slice(bytes).map_err(|e| Error::Metadata(e.to_string()))?;
    // A derived decoder also reads a list as a struct, field by field; such an object is invalid.
    if bytes.first() != Some(&b'{') || (partial.metadata.is_some() && metadata_start(bytes).is_none()) {
        return Err(Error::Metadata("metadata must be an object".into()));
    }
    let metadata = partial.metadata.unwrap_or_default();
    let text = |t: Option<Cow<'_, str>>| t.map(Cow::into_owned).unwrap_or_default();
    let labels = metadata.labels.unwrap_or_default().into_iter();
    Ok(Header {
        namespace: text(metadata.namespace),
        name: text(metadata.name),
        uid: text(metadata.uid),
        labels: interned::labels(labels.map(|(key, value)| (key, value.unwrap_or_default())).collect()),
        owners: metadata.owner_references.unwrap_or_default().into_iter().map(Owner::from).collect(),
        finalizers: metadata.finalizers.unwrap_or_default(),
        deletion_timestamp: metadata.deletion_timestamp.map(|t| crate::time::parse(&t)).transpose()?,
        creation_timestamp: metadata.creation_timestamp.map(|t| crate::time::parse(&t)).transpose()?,
        generation: metadata.generation.unwrap_or_default(),
    })
}

/// Returns the header of a decoded object: the result of [`parse_header`] without reading the bytes again. `None` if a
/// field has an invalid shape.
fn read_header(value: &Value) -> Option<Header> {
    let object = value.as_object()?;
    let metadata = object.get("metadata")?.as_object()?;
    let text = |field: &str| match metadata.get(field) {
        None | Some(Value::Null) => Some(""),
        Some(given) => given.as_str(),
    };
    let list = |field: &str| match metadata.get(field) {
        None | Some(Value::Null) => Some([].as_slice()),
        Some(given) => given.as_array().map(Vec::as_slice),
    };
    let time = |field: &str| match metadata.get(field) {
        None | Some(Value::Null) => Some(None),
        Some(given) => crate::time::parse(given.as_str()?).ok().map(Some),
    };
    let labels = match metadata.get("labels") {
        None | Some(Value::Null) => BTreeMap::new(),
        Some(given) => {
            let label = |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.to_owned()));
            given.as_object()?.iter().map(label).collect::<Option<_>>()?
        }
    };
    Some(Header {
        namespace: text("namespace")?.to_owned(),
        name: text("name")?.to_owned(),
        uid: text("uid")?.to_owned(),
        labels: interned::labels(labels),
        owners: list("ownerReferences")?.iter().map(read_owner).collect::<Option<_>>()?,
        finalizers: list("finalizers")?.iter().map(|f| f.as_str().map(str::to_owned)).collect::<Option<_>>()?,
        deletion_timestamp: time("deletionTimestamp")?,
        creation_timestamp: time("creationTimestamp")?,
        generation: match metadata.get("generation") {
            None | Some(Value::Null) => 0,
            Some(given) => given.as_i64()?,
        },
    })
}

fn read_owner(value: &Value) -> Option<Owner> {
    let owner = value.as_object()?;
    let text = |field: &str| owner.get(field).map_or(Some(""), Value::as_str).map(str::to_owned);
    let flag = |field: &str| match owner.get(field) {
        None | Some(Value::Null) => Some(false),
        Some(given) => given.as_bool(),
    };
    Some(Owner {
        api_version: text("apiVersion")?,
        kind: text("kind")?,
        name: text("name")?,
        uid: text("uid")?,
        controller: flag("controller")?,
        block_owner_deletion: flag("blockOwnerDeletion")?,
    })
}

impl From<PartialOwner<'_>> for Owner {
    fn from(owner: PartialOwner<'_>) -> Owner {
        Owner {
            api_version: owner.api_version.into_owned(),
            kind: owner.kind.into_owned(),
            name: owner.name.into_owned(),
            uid: owner.uid.into_owned(),
            controller: owner.controller.unwrap_or(false),
            block_owner_deletion: owner.block_owner_deletion.unwrap_or(false),
        }
    }
}
