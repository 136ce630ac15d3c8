//! ConfigMap.

use corten_meta::Value;
use corten_meta::field::{FieldError, Path};
use jiff::Timestamp;

use super::data;
use crate::cells::{age, name};
use crate::kind::{Behaviour, Kind};

struct ConfigMap;

pub fn kind() -> Kind {
    Kind::new("", "v1", "ConfigMap", "configmaps")
        .short(&["cm"])
        .table("Name, Data, Age")
        .counts_empty()
        .behaviour(ConfigMap)
}

impl Behaviour for ConfigMap {
    fn validate(&self, object: &Value) -> Vec<FieldError> {
        let mut errors = data::validate_keys(object, "data");
        for key in data::keys(object, "data").filter(|k| object["binaryData"].get(k.as_str()).is_some()) {
            let detail = "duplicate of key present in binaryData";
            errors.push(FieldError::invalid(&Path::root("data").key(key), key.as_str(), detail));
        }
        errors.extend(data::validate_keys(object, "binaryData"));
        errors.extend(data::validate_size(object, &["data", "binaryData"], ""));
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        // Upstream gives every map of strings an empty one; an empty map of bytes differs from none.
        let has_strings = [new, old].iter().any(|object| data::keys(object, "data").next().is_some());
        data::validate_immutable(new, old, if has_strings { &["data", "binaryData"] } else { &["binaryData"] })
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let count = data::keys(object, "data").count() + data::keys(object, "binaryData").count();
        vec![name(object), count.into(), age(object, now)]
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_key_is_in_one_of_the_two() {
        let found = ConfigMap.validate(&json!({"data": {"a": "b"}, "binaryData": {"a": "YQ==", "!": ""}}));
        let messages: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(messages[0], "data[a]: Invalid value: \"a\": duplicate of key present in binaryData");
        assert!(messages[1].starts_with("binaryData[!]: Invalid value: \"!\""), "{messages:?}");
        assert_eq!(messages.len(), 2);
    }
}
