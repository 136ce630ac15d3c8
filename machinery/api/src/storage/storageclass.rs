//! StorageClass.

use corten_meta::Value;
use corten_meta::field::{FieldError, Path};
use jiff::Timestamp;

use crate::cells::{age, or, text, truth};
use crate::defaulting::default_at;
use crate::kind::{Behaviour, Kind};

struct StorageClass;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("storage.k8s.io", "v1", "StorageClass", "storageclasses")
        .cluster()
        .short(&["sc"])
        .table("Name, Provisioner, ReclaimPolicy, VolumeBindingMode, AllowVolumeExpansion, Age")
        .behaviour(StorageClass)
}

impl Behaviour for StorageClass {
    fn default(&self, object: &mut Value) {
        default_at(object, "/reclaimPolicy", "Delete");
        default_at(object, "/volumeBindingMode", "Immediate");
    }

    fn validate(&self, object: &Value) -> Vec<FieldError> {
        let mut errors = Vec::new();
        if text(object, "/provisioner").is_empty() {
            errors.push(FieldError::required(&Path::root("provisioner"), ""));
        }
        errors.extend(crate::validation::one_of(object, "reclaimPolicy", &["Delete", "Retain"]));
        errors.extend(crate::validation::one_of(object, "volumeBindingMode", &["Immediate", "WaitForFirstConsumer"]));
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        let mut errors = Vec::new();
        for (field, detail) in [
            ("parameters", "updates to parameters are forbidden."),
            ("provisioner", "updates to provisioner are forbidden."),
            ("reclaimPolicy", "updates to reclaimPolicy are forbidden."),
        ] {
            if new.get(field) != old.get(field) {
                errors.push(FieldError::forbidden(&Path::root(field), detail));
            }
        }
        if new["volumeBindingMode"] != old["volumeBindingMode"] {
            let path = Path::root("volumeBindingMode");
            errors.push(FieldError::invalid(&path, new["volumeBindingMode"].clone(), "field is immutable"));
        }
        errors
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let is_default =
            ["storageclass.kubernetes.io~1is-default-class", "storageclass.beta.kubernetes.io~1is-default-class"]
                .iter()
                .any(|a| text(object, &format!("/metadata/annotations/{a}")) == "true");
        let default = if is_default { " (default)" } else { "" };
        vec![
            format!("{}{default}", text(object, "/metadata/name")).into(),
            text(object, "/provisioner").into(),
            or(text(object, "/reclaimPolicy"), "Delete").into(),
            or(text(object, "/volumeBindingMode"), "Immediate").into(),
            truth(object, "/allowVolumeExpansion").into(),
            age(object, now),
        ]
    }
}
