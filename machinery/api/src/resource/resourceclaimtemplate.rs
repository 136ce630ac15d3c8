//! ResourceClaimTemplate.

use corten_meta::Value;
use corten_meta::field::FieldError;

use super::validation::validate_claim_spec;
use crate::check::{At, Errors};
use crate::core::claim_validation::validate_template_metadata;
use crate::kind::{Behaviour, Kind};

struct ResourceClaimTemplate;

/// Returns the declaration.
pub fn kind() -> Kind {
    Kind::new("resource.k8s.io", "v1", "ResourceClaimTemplate", "resourceclaimtemplates")
        .returns_deleted()
        .behaviour(ResourceClaimTemplate)
}

impl Behaviour for ResourceClaimTemplate {
    fn default(&self, object: &mut Value) {
        super::default_requests(object, "/spec/spec/devices/requests");
    }

    fn validate(&self, object: &Value) -> Vec<FieldError> {
        let spec = At::object(object).get("spec");
        let mut errors = Errors::new();
        validate_template_metadata(&spec.get("metadata"), &mut errors);
        validate_claim_spec(&spec.get("spec"), &mut errors);
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        let mut errors = Errors::new();
        At::object(new).get("spec").unchanged(&mut errors, &At::object(old).get("spec"));
        errors
    }
}
