//! DeviceClass.

use corten_meta::Value;
use corten_meta::field::FieldError;

use super::validation::{validate_configuration, validate_selectors};
use crate::check::{At, Errors};
use crate::core::resource_validation::is_extended;
use crate::kind::{Behaviour, Kind, NameRule};

struct DeviceClass;

/// Returns the declaration.
pub fn kind() -> Kind {
    Kind::new("resource.k8s.io", "v1", "DeviceClass", "deviceclasses")
        .cluster()
        .generation()
        .name_rule(NameRule::SubdomainInBytes)
        .returns_deleted()
        .behaviour(DeviceClass)
}

impl Behaviour for DeviceClass {
    fn validate(&self, object: &Value) -> Vec<FieldError> {
        let spec = At::object(object).get("spec");
        let mut errors = Errors::new();
        validate_selectors(&spec.get("selectors"), &mut errors);
        spec.get("config").each_of_at_most(&mut errors, 32, validate_configuration);
        let resource = spec.get("extendedResourceName");
        if resource.is_set() && !is_extended(resource.text()) {
            errors.push(resource.invalid("must be a valid extended resource name"));
        }
        errors
    }
}
