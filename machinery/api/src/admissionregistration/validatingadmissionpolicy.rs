//! ValidatingAdmissionPolicy.

use corten_meta::Value;
use corten_meta::field::FieldError;
use jiff::Timestamp;

use super::policy::policy_cells;
use super::policy_validation;
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
    fn warnings(&self, object: &Value, _old: Option<&Value>) -> Vec<String> {
        super::reserved_name(object)
    }

    fn default(&self, object: &mut Value) {
        default_at(object, "/spec/failurePolicy", "Fail");
        default_match(object, "/spec/matchConstraints");
    }

    fn validate(&self, object: &Value) -> Vec<FieldError> {
        policy_validation::validate_validating_policy(object)
    }

    fn validate_status_update(&self, new: &Value, _old: &Value) -> Vec<FieldError> {
        let mut errors = crate::check::Errors::new();
        let status = crate::check::At::object(new).get("status");
        for warning in status.get("typeChecking").get("expressionWarnings").items() {
            warning.get("warning").must(&mut errors);
            let field = warning.get("fieldRef");
            match field.text().trim() {
                "" => errors.push(field.required("")),
                path => {
                    if let Err(why) = crate::JsonPath::parse(path) {
                        errors.push(FieldError::invalid(&field.path, path, format!("invalid JSONPath: {why}")));
                    }
                }
            }
        }
        crate::validation::conditions(&status.get("conditions"), &mut errors);
        errors
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        policy_cells(object, "/spec/validations", now)
    }
}
