//! The decoding of one stored value: protobuf, JSON or YAML of a kind that this server has, or a custom resource of a
//! CustomResourceDefinition in the same store.

use std::collections::BTreeSet;

use corten_meta::Value;

use crate::stored_object::{PROTOBUF, object, split};

/// The prefix of an encrypted value; the name of the provider follows.
const ENCRYPTED: &[u8] = b"k8s:enc:";
/// The key by which API servers share the compaction of etcd, outside of the prefix of objects.
const COMPACTION_KEY: &[u8] = b"compact_rev_key";
/// Keys below the prefix whose values are no objects: the health check's, and this server's allocated node ports.
const NOT_OBJECTS: [&str; 2] = ["health", "ranges/servicenodeports/"];

/// The form of a stored value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    Protobuf,
    Json,
    /// Encrypted by this provider; the object is not visible.
    Encrypted(String),
    /// No object.
    Internal,
    /// A key outside of the prefix of objects: of another program.
    Foreign,
}

/// A decoded value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Decoded {
    pub form: Form,
    /// The apiVersion and the kind; empty where there is no object.
    pub api_version: String,
    pub kind: String,
}

impl Decoded {
    fn without_object(form: Form) -> Decoded {
        Decoded { form, api_version: String::new(), kind: String::new() }
    }
}

/// The kinds of custom resources that the store defines, as group, version and kind.
#[derive(Debug, Default)]
pub struct CustomKinds(BTreeSet<[String; 3]>);

impl CustomKinds {
    /// Adds the kinds of a CustomResourceDefinition; one that cannot be decoded is reported like every other key.
    pub fn learn(&mut self, value: &[u8]) {
        let Ok(definition) = object(value) else { return };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let spec = &definition["spec"];
        let versions = spec["versions"].as_array().into_iter().flatten().map(|version| &version["name"]);
        // The only version of an old definition.
        for version in versions.chain([&spec["version"]]).map(text).filter(|version| !version.is_empty()) {
            self.0.insert([text(&spec["group"]), version, text(&spec["names"]["kind"])]);
        }
    }
}

/// Returns the prefix of CustomResourceDefinitions.
pub fn definitions(prefix: &str) -> String {
    format!("{prefix}apiextensions.k8s.io/customresourcedefinitions/")
}

/// Decodes a value, or returns the reason why this server could not.
pub fn decode(prefix: &str, key: &[u8], value: &[u8], custom: &CustomKinds) -> Result<Decoded, String> {
    let below = key.strip_prefix(prefix.as_bytes());
    let is_internal = match below {
        None => key == COMPACTION_KEY,
        Some(rest) => !value.starts_with(PROTOBUF) && NOT_OBJECTS.iter().any(|name| rest.starts_with(name.as_bytes())),
    };
    if is_internal {
        return Ok(Decoded::without_object(Form::Internal));
    }
    if below.is_none() {
        return Ok(Decoded::without_object(Form::Foreign));
    }
    if let Some(rest) = value.strip_prefix(ENCRYPTED) {
        let provider = rest.split(|byte| *byte == b':').next().unwrap_or_default();
        return Ok(Decoded::without_object(Form::Encrypted(String::from_utf8_lossy(provider).into_owned())));
    }
    let form = if value.starts_with(PROTOBUF) { Form::Protobuf } else { Form::Json };
    let object = object(value)?;
    let api_version = object["apiVersion"].as_str().unwrap_or_default().to_owned();
    let kind = object["kind"].as_str().unwrap_or_default().to_owned();
    if api_version.is_empty() || kind.is_empty() {
        return Err("it has no apiVersion or no kind".to_owned());
    }
    let [group, version] = split(&api_version);
    let is_custom = || custom.0.contains(&[group.to_owned(), version.to_owned(), kind.clone()]);
    if form == Form::Json && !is_built_in(group, &kind) && !is_custom() {
        return Err(format!("no CustomResourceDefinition of the store defines {kind} of {api_version}"));
    }
    Ok(Decoded { form, api_version, kind })
}

/// Reports whether a kind of a group is built in, in any version: older versions are converted. Allocated node ports are
/// stored and not served.
fn is_built_in(group: &str, kind: &str) -> bool {
    (group.is_empty() && kind == "RangeAllocation")
        || corten_api::kinds().iter().any(|known| known.group == group && known.kind == kind)
}
