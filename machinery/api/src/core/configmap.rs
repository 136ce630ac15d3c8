//! ConfigMap.

use corten_meta::Value;
use corten_meta::field::{FieldError, Path};
use jiff::Timestamp;

use super::data;
use crate::cells::{age, name};
use crate::kind::{Behaviour, Kind};

struct ConfigMap;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("", "v1", "ConfigMap", "configmaps").short(&["cm"]).table("Name, Data, Age").behaviour(ConfigMap)
}

impl Behaviour for ConfigMap {
    fn validate(&self, object: &Value) -> Vec<FieldError> {
        let mut errors = data::validate_keys(object, "data");
        errors.extend(data::validate_keys(object, "binaryData"));
        for key in data::keys(object, "binaryData").filter(|k| object["data"].get(k.as_str()).is_some()) {
            let detail = "duplicate of key present in data";
            errors.push(FieldError::invalid(&Path::root("binaryData").key(key), key.as_str(), detail));
        }
        errors.extend(data::validate_size(object, &["data", "binaryData"], ""));
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        data::validate_immutable(new, old, &["data", "binaryData"])
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let count = data::keys(object, "data").count() + data::keys(object, "binaryData").count();
        vec![name(object), count.into(), age(object, now)]
    }
}
