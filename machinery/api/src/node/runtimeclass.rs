//! RuntimeClass.

use corten_meta::Value;
use corten_meta::field::{FieldError, Path};
use jiff::Timestamp;

use crate::cells::{age, name, text};
use crate::kind::{Behaviour, Kind};

struct RuntimeClass;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses")
        .cluster()
        .create_on_update()
        .conditional_update()
        .table("Name, Handler, Age")
        .behaviour(RuntimeClass)
}

impl Behaviour for RuntimeClass {
    fn validate(&self, object: &Value) -> Vec<FieldError> {
        let handler = text(object, "/handler");
        let path = Path::root("handler");
        corten_meta::names::dns1123_label(handler).into_iter().map(|e| FieldError::invalid(&path, handler, e)).collect()
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        if new["handler"] == old["handler"] {
            return Vec::new();
        }
        vec![FieldError::invalid(&Path::root("handler"), new["handler"].clone(), "field is immutable")]
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![name(object), text(object, "/handler").into(), age(object, now)]
    }
}
