//! ValidatingAdmissionPolicy.

use corten_meta::Value;
use jiff::Timestamp;

use super::policy::policy_cells;
use super::webhook::default_match;
use crate::defaulting::default_at;
use crate::kind::{Behaviour, Kind};

struct ValidatingAdmissionPolicy;

/// Returns the declaration.
pub fn kind() -> Kind {
    Kind::new("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies")
        .cluster()
        .category("api-extensions")
        .status()
        .status_apply_creates()
        .status_takes_identity()
        .generation()
        .conditional_update()
        .table("Name, Validations:integer, ParamKind, Age")
        .behaviour(ValidatingAdmissionPolicy)
}

impl Behaviour for ValidatingAdmissionPolicy {
    fn rules(&self) -> &'static str {
        ".admissionregistration.v1.ValidatingAdmissionPolicy"
    }

    fn warnings(&self, object: &Value, _old: Option<&Value>) -> Vec<String> {
        super::reserved_name(object)
    }

    fn default(&self, object: &mut Value) {
        default_at(object, "/spec/failurePolicy", "Fail");
        default_match(object, "/spec/matchConstraints");
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        policy_cells(object, "/spec/validations", now)
    }
}
