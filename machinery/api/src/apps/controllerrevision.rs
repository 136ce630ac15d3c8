//! ControllerRevision.

use corten_meta::Value;
use corten_meta::field::{FieldError, Path};
use jiff::Timestamp;

use crate::cells::{age, list, name, number, text, truth};
use crate::kind::{Behaviour, Kind};

struct ControllerRevision;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("apps", "v1", "ControllerRevision", "controllerrevisions")
        .table("Name, Controller, Revision, Age")
        .behaviour(ControllerRevision)
}

impl Behaviour for ControllerRevision {
    fn validate(&self, object: &Value) -> Vec<FieldError> {
        let path = Path::root("revision");
        let revision = number(object, "/revision");
        if revision < 0 {
            return vec![FieldError::invalid(&path, revision, "must be greater than or equal to 0")];
        }
        Vec::new()
    }

    fn validate_create(&self, object: &Value) -> Vec<FieldError> {
        let data = &object["data"];
        let detail = if data.is_null() { "data is mandatory" } else { "data must be a valid JSON object" };
        if data.is_object() { Vec::new() } else { vec![FieldError::required(&Path::root("data"), detail)] }
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        if new["data"] == old["data"] {
            return Vec::new();
        }
        vec![FieldError::invalid(&Path::root("data"), new["data"].clone(), "field is immutable")]
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let owner = list(object, "/metadata/ownerReferences").iter().find(|o| truth(o, "/controller"));
        let controller = match owner {
            Some(owner) => {
                let group = text(owner, "/apiVersion").rsplit_once('/').map_or("", |(group, _)| group);
                let kind = text(owner, "/kind").to_lowercase();
                let dot = if group.is_empty() { "" } else { "." };
                format!("{kind}{dot}{group}/{}", text(owner, "/name"))
            }
            None => "<none>".to_string(),
        };
        vec![name(object), controller.into(), number(object, "/revision").into(), age(object, now)]
    }
}
