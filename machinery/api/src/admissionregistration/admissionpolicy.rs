//! MutatingAdmissionPolicy and ValidatingAdmissionPolicy.

use corten_meta::Value;
use jiff::Timestamp;

use super::webhook::default_match;
use super::{GROUP, reserved_name};
use crate::cells::{age, count, list, name, text};
use crate::defaulting::default_at;
use crate::kind::{Behaviour, Kind};

/// A policy with the section of its rules and the list that it evaluates.
struct AdmissionPolicy {
    rules: &'static str,
    list: &'static str,
}

/// Returns the declaration of the mutating kind.
pub fn mutating() -> Kind {
    Kind::new(GROUP, "v1", "MutatingAdmissionPolicy", "mutatingadmissionpolicies")
        .cluster()
        .category("api-extensions")
        .generation()
        .conditional_update()
        .table("Name, Mutations:integer, ParamKind, Age")
        .behaviour(AdmissionPolicy {
            rules: ".admissionregistration.v1.MutatingAdmissionPolicy",
            list: "/spec/mutations",
        })
}

/// Returns the declaration of the validating kind.
pub fn validating() -> Kind {
    Kind::new(GROUP, "v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies")
        .cluster()
        .category("api-extensions")
        .status()
        .status_apply_creates()
        .status_takes_identity()
        .generation()
        .conditional_update()
        .table("Name, Validations:integer, ParamKind, Age")
        .behaviour(AdmissionPolicy {
            rules: ".admissionregistration.v1.ValidatingAdmissionPolicy",
            list: "/spec/validations",
        })
}

impl Behaviour for AdmissionPolicy {
    fn rules(&self) -> &'static str {
        self.rules
    }

    fn warnings(&self, object: &Value, _old: Option<&Value>) -> Vec<String> {
        reserved_name(object)
    }

    fn default(&self, object: &mut Value) {
        default_at(object, "/spec/failurePolicy", "Fail");
        default_match(object, "/spec/matchConstraints");
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let param_kind = match object.pointer("/spec/paramKind").filter(|k| k.is_object()) {
            Some(kind) => format!("{}/{}", text(kind, "/apiVersion"), text(kind, "/kind")),
            None => "<unset>".to_string(),
        };
        vec![name(object), count(list(object, self.list)), param_kind.into(), age(object, now)]
    }
}
