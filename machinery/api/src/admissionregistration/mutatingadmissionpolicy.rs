//! MutatingAdmissionPolicy.

use corten_meta::Value;
use jiff::Timestamp;

use super::policy::policy_cells;
use super::webhook::default_match;
use crate::defaulting::default_at;
use crate::kind::{Behaviour, Kind};

struct MutatingAdmissionPolicy;

/// Returns the declaration.
pub fn kind() -> Kind {
    Kind::new("admissionregistration.k8s.io", "v1", "MutatingAdmissionPolicy", "mutatingadmissionpolicies")
        .cluster()
        .category("api-extensions")
        .generation()
        .conditional_update()
        .table("Name, Mutations:integer, ParamKind, Age")
        .behaviour(MutatingAdmissionPolicy)
}

impl Behaviour for MutatingAdmissionPolicy {
    fn rules(&self) -> &'static str {
        ".admissionregistration.v1.MutatingAdmissionPolicy"
    }

    fn warnings(&self, object: &Value, _old: Option<&Value>) -> Vec<String> {
        super::reserved_name(object)
    }

    fn default(&self, object: &mut Value) {
        default_at(object, "/spec/failurePolicy", "Fail");
        default_match(object, "/spec/matchConstraints");
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        policy_cells(object, "/spec/mutations", now)
    }
}
