//! The decoding of one stored value as the API server does it: decrypted, then protobuf, JSON or YAML of a kind that this
//! server has, converted to today's version; or a custom resource of a CustomResourceDefinition in the same store.

use std::collections::HashMap;

use bytes::Bytes;
use corten_api::Kind;
use corten_apiserver::StoredReader;
use corten_meta::{Value, codec};

/// The root of the keys that kinds declare.
const DECLARED: &str = "/registry/";
/// The prefix of an object in protobuf.
const PROTOBUF: &[u8] = b"k8s\0";
/// The prefix of an encrypted value; the name of the provider follows.
const ENCRYPTED: &[u8] = b"k8s:enc:";
/// The key by which API servers share the compaction of etcd, outside of the prefix of objects.
const COMPACTION_KEY: &[u8] = b"compact_rev_key";
/// Keys below the prefix whose values are no objects: the health check's, and this server's allocated node ports.
const NOT_OBJECTS: [&str; 2] = ["health", "ranges/servicenodeports/"];
/// Objects that are stored and not served, below the prefix: all have kinds of the core group.
const UNSERVED: [&str; 4] = ["ranges/", "masterleases/", "peerserverleases/", "serviceips"];

/// The form of a stored value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    Protobuf,
    Json,
    /// Encrypted by a provider whose key is not known; the object is not visible.
    Sealed,
    /// No object.
    Internal,
    /// An object of a built-in group whose kind this server does not serve, and leaves alone.
    NotServed,
    /// A key outside of the prefix of objects: of another program.
    Foreign,
}

/// A decoded value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Decoded {
    pub form: Form,
    /// The provider that encrypted it; empty for none.
    pub provider: String,
    /// The apiVersion and the kind as they are stored; empty where there is no object.
    pub api_version: String,
    pub kind: String,
}

impl Decoded {
    fn without_object(form: Form, provider: &str) -> Decoded {
        Decoded { form, provider: provider.to_owned(), api_version: String::new(), kind: String::new() }
    }
}

/// A decoded value with its object, if it has one that is visible.
pub struct Checked {
    pub decoded: Decoded,
    pub object: Option<Value>,
}

/// The kinds and keys by which values are decoded.
pub struct Decoder {
    reader: StoredReader,
    /// Whether there are keys, so that every encrypted value must be decrypted.
    has_keys: bool,
    /// The prefix of all objects, with a slash at its end.
    prefix: String,
    /// The kinds of custom resources, by the part of their keys below the prefix.
    custom: HashMap<String, CustomKind>,
}

/// A kind of custom resources.
struct CustomKind {
    kind: Kind,
    versions: Vec<String>,
}

impl Decoder {
    pub fn new(prefix: &str, reader: StoredReader, has_keys: bool) -> Decoder {
        Decoder { reader, has_keys, prefix: prefix.to_owned(), custom: HashMap::new() }
    }

    /// Returns the prefix of CustomResourceDefinitions.
    pub fn definitions(&self) -> String {
        format!("{}apiextensions.k8s.io/customresourcedefinitions/", self.prefix)
    }

    /// Adds the kind of a CustomResourceDefinition; one that cannot be decoded is reported like every other key.
    pub async fn learn(&mut self, key: &[u8], value: &Bytes) {
        let Ok(Checked { object: Some(definition), .. }) = self.decode(key, value).await else { return };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let spec = &definition["spec"];
        let versions = spec["versions"].as_array().into_iter().flatten().map(|version| text(&version["name"]));
        let versions: Vec<String> = versions.filter(|version| !version.is_empty()).collect();
        let group = text(&spec["group"]);
        let plural = text(&spec["names"]["plural"]);
        let version = versions.first().cloned().unwrap_or_default();
        let kind = Kind::new(&group, &version, &text(&spec["names"]["kind"]), &plural);
        self.custom.insert(format!("{group}/{plural}"), CustomKind { kind, versions });
    }

    /// Decodes a value, or returns the reason why this server could not.
    pub async fn decode(&self, key: &[u8], value: &Bytes) -> Result<Checked, String> {
        let Some(below) = key.strip_prefix(self.prefix.as_bytes()) else {
            let form = if key == COMPACTION_KEY { Form::Internal } else { Form::Foreign };
            return Ok(Checked { decoded: Decoded::without_object(form, ""), object: None });
        };
        let below = std::str::from_utf8(below).map_err(|_| "its key is not UTF-8".to_owned())?;
        let is_plain = !value.starts_with(PROTOBUF) && !value.starts_with(ENCRYPTED);
        if is_plain && NOT_OBJECTS.iter().any(|name| below.starts_with(name)) {
            return Ok(Checked { decoded: Decoded::without_object(Form::Internal, ""), object: None });
        }
        let provider = provider_of(value);
        let custom = self.custom_kind(below);
        let built_in = self.reader.built_in(&format!("{DECLARED}{below}"));
        let Some(kind) = built_in.map(|kind| &**kind).or(custom.map(|custom| &custom.kind)) else {
            return unknown(below, value, &provider);
        };
        if !provider.is_empty() && !self.has_keys {
            return Ok(Checked { decoded: Decoded::without_object(Form::Sealed, &provider), object: None });
        }
        let plain = self.reader.open(kind, key, value).await.map_err(|why| match provider.is_empty() {
            true => why,
            false => format!("no key decrypts it, which {provider} encrypted: {why}"),
        })?;
        let form = if plain.starts_with(PROTOBUF) { Form::Protobuf } else { Form::Json };
        let stored = stored_type(&plain)?;
        if stored.kind != kind.kind {
            return Err(format!("{} of {} is not a {}", stored.kind, stored.api_version, kind.kind));
        }
        let object = match custom.filter(|_| built_in.is_none()) {
            None => self.reader.decode(kind, plain)?.value(),
            Some(custom) => {
                check_version(custom, &stored)?;
                codec::decode_yaml(&plain).map_err(|error| error.to_string())?
            }
        };
        let StoredType { api_version, kind } = stored;
        Ok(Checked { decoded: Decoded { form, provider, api_version, kind }, object: Some(object) })
    }

    fn custom_kind(&self, below: &str) -> Option<&CustomKind> {
        let end = below.match_indices('/').nth(1)?.0;
        self.custom.get(&below[..end])
    }
}

/// Decodes a value of a resource that the server does not know by its key.
fn unknown(below: &str, value: &Bytes, provider: &str) -> Result<Checked, String> {
    let without = |form, stored: StoredType| {
        let StoredType { api_version, kind } = stored;
        Ok(Checked { decoded: Decoded { form, provider: provider.to_owned(), api_version, kind }, object: None })
    };
    if !provider.is_empty() {
        return without(Form::Sealed, StoredType::default());
    }
    let stored = stored_type(value)?;
    if UNSERVED.iter().any(|name| below.starts_with(name)) {
        return without(if value.starts_with(PROTOBUF) { Form::Protobuf } else { Form::Json }, stored);
    }
    let group = stored.group();
    if group.is_empty() || corten_api::kinds().iter().any(|kind| kind.group == group && !kind.is_custom()) {
        return without(Form::NotServed, stored);
    }
    Err(format!("no CustomResourceDefinition of the store defines {} of {}", stored.kind, stored.api_version))
}

fn check_version(custom: &CustomKind, stored: &StoredType) -> Result<(), String> {
    let version = stored.api_version.rsplit('/').next().unwrap_or_default();
    match stored.group() == custom.kind.group && custom.versions.iter().any(|known| known == version) {
        true => Ok(()),
        false => Err(format!("its CustomResourceDefinition does not have {}", stored.api_version)),
    }
}

/// The apiVersion and the kind of a stored object.
#[derive(Debug, Default)]
struct StoredType {
    api_version: String,
    kind: String,
}

impl StoredType {
    fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }
}

fn stored_type(plain: &[u8]) -> Result<StoredType, String> {
    let stored = if plain.starts_with(PROTOBUF) {
        let stored = corten_protobuf::type_meta(plain).map_err(|error| error.to_string())?;
        StoredType { api_version: stored.api_version, kind: stored.kind }
    } else {
        let value = codec::decode_yaml(plain).map_err(|error| format!("it is neither protobuf nor JSON: {error}"))?;
        let text = |field: &str| value[field].as_str().unwrap_or_default().to_owned();
        StoredType { api_version: text("apiVersion"), kind: text("kind") }
    };
    match stored.api_version.is_empty() || stored.kind.is_empty() {
        true => Err("it has no apiVersion or no kind".to_owned()),
        false => Ok(stored),
    }
}

/// Returns the name of the provider that encrypted a value; empty for a plain one.
fn provider_of(value: &[u8]) -> String {
    let rest = value.strip_prefix(ENCRYPTED).unwrap_or_default();
    let name = rest.split(|byte| *byte == b':').next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}
