//! ValidatingAdmissionPolicyBinding.

use corten_meta::Value;
use jiff::Timestamp;

use super::policy::binding_cells;
use super::webhook::default_match;
use crate::kind::{Behaviour, Kind};

struct ValidatingAdmissionPolicyBinding;

/// Returns the declaration.
pub fn kind() -> Kind {
    Kind::new(
        "admissionregistration.k8s.io",
        "v1",
        "ValidatingAdmissionPolicyBinding",
        "validatingadmissionpolicybindings",
    )
    .cluster()
    .category("api-extensions")
    .generation()
    .conditional_update()
    .table("Name, PolicyName, ParamRef, Age")
    .behaviour(ValidatingAdmissionPolicyBinding)
}

impl Behaviour for ValidatingAdmissionPolicyBinding {
    fn rules(&self) -> &'static str {
        ".admissionregistration.v1.ValidatingAdmissionPolicyBinding"
    }

    fn warnings(&self, object: &Value, _old: Option<&Value>) -> Vec<String> {
        super::reserved_name(object)
    }

    fn default(&self, object: &mut Value) {
        default_match(object, "/spec/matchResources");
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        binding_cells(object, now)
    }
}
