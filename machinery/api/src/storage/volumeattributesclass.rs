//! VolumeAttributesClass.

use corten_meta::Value;
use corten_meta::field::{FieldError, Path};
use jiff::Timestamp;

use super::validation;
use crate::cells::{age, name, text};
use crate::kind::{Behaviour, Kind};

struct VolumeAttributesClass;

/// Returns the declaration.
pub fn kind() -> Kind {
    Kind::new("storage.k8s.io", "v1", "VolumeAttributesClass", "volumeattributesclasses")
        .cluster()
        .short(&["vac"])
        .table("Name, DriverName, Age")
        .returns_deleted()
        .behaviour(VolumeAttributesClass)
}

impl Behaviour for VolumeAttributesClass {
    fn validate(&self, object: &Value) -> Vec<FieldError> {
        validation::validate_attributes_class(object)
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        let fields = ["driverName", "parameters"].iter().filter(|field| new.get(**field) != old.get(**field));
        fields
            .map(|field| FieldError::forbidden(&Path::root(field), format!("updates to {field} are forbidden.")))
            .collect()
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![name(object), text(object, "/driverName").into(), age(object, now)]
    }
}
