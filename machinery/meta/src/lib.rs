//! The parts of the API that all kinds share: metadata, names, selectors, quantities, patches, the `Status` of a failed
//! request, and the JSON and YAML encodings.
//!
//! Everything here is synchronous and pure: no I/O, no clock except [`time::now`], no knowledge of any single kind.
//! Error messages are upstream's, because people and programs read them.

pub mod accessor;
pub mod address;
pub mod codec;
pub mod error;
pub mod field;
pub mod field_selector;
pub mod go;
pub mod interned;
pub mod labels;
pub mod metrics;
pub mod names;
pub mod numbers;
pub mod object;
mod owner;
pub mod patch;
pub mod quantity;
pub mod quote;
pub mod status;
pub mod time;

mod integer;
mod yaml;

pub use accessor::{
    annotations, at, at_mut, deletion_timestamp, finalizers, generation, labels, name, namespace, owner_references,
    resource_version, set, uid,
};
pub use codec::{Decoded, decode_json, decode_yaml, decode_yaml_leniently, encode_object};
pub use error::Error;
pub use field::{ErrorKind, FieldError, Path};
pub use field_selector::FieldSelector;
pub use interned::Labels;
pub use labels::Selector;
pub use names::{GroupKind, GroupResource, GroupVersion, GroupVersionKind, GroupVersionResource};
pub use numbers::Numbers;
pub use object::{Header, Key, Object, parse_wire};
pub use owner::Owner;
pub use quantity::Quantity;
pub use serde_json::{Map, Value};
pub use status::{Cause, Details, Status};
