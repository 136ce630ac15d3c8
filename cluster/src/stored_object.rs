//! An object as the store has it: protobuf in upstream's envelope, JSON or YAML.

use corten_meta::{Value, codec};

/// The prefix of an object in protobuf.
pub const PROTOBUF: &[u8] = b"k8s\0";

/// Decodes an object in protobuf, JSON or YAML.
pub fn object(value: &[u8]) -> Result<Value, String> {
    if !value.starts_with(PROTOBUF) {
        return codec::decode_yaml(value).map_err(|error| format!("it is neither protobuf nor JSON: {error}"));
    }
    let stored = corten_protobuf::type_meta(value).map_err(|error| error.to_string())?;
    let [group, version] = split(&stored.api_version);
    let known = corten_api::by_gvk(group, version, &stored.kind).map(|kind| kind.schema.clone());
    // Versions of one kind have the same field numbers.
    let relative = || {
        let same = corten_api::kinds().iter().find(|known| known.group == group && known.kind == stored.kind);
        same.map(|kind| kind.schema.clone())
    };
    let schema = known.or_else(relative).unwrap_or_else(|| corten_api::kind::schema_name(group, version, &stored.kind));
    corten_protobuf::object(value, &schema)
        .map_err(|error| format!("{} of {}: {error}", stored.kind, stored.api_version))
}

/// Splits an apiVersion into group and version.
pub fn split(api_version: &str) -> [&str; 2] {
    api_version.split_once('/').map_or(["", api_version], |(group, version)| [group, version])
}
