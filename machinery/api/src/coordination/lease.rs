//! Lease.

use corten_meta::Value;
use corten_meta::field::{FieldError, Path};
use jiff::Timestamp;

use crate::cells::{age, name, number, text};
use crate::kind::{Behaviour, Kind};

struct Lease;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("coordination.k8s.io", "v1", "Lease", "leases")
        .create_on_update()
        .conditional_update()
        .table("Name, Holder, Age")
        .behaviour(Lease)
}

impl Behaviour for Lease {
    fn validate(&self, object: &Value) -> Vec<FieldError> {
        let spec = Path::root("spec");
        let mut errors = Vec::new();
        let given = |field: &str| object["spec"].get(field).is_some_and(|v| !v.is_null());
        if given("leaseDurationSeconds") && number(object, "/spec/leaseDurationSeconds") <= 0 {
            let value = object["spec"]["leaseDurationSeconds"].clone();
            errors.push(FieldError::invalid(&spec.child("leaseDurationSeconds"), value, "must be greater than 0"));
        }
        if given("leaseTransitions") && number(object, "/spec/leaseTransitions") < 0 {
            let value = object["spec"]["leaseTransitions"].clone();
            errors.push(FieldError::invalid(
                &spec.child("leaseTransitions"),
                value,
                "must be greater than or equal to 0",
            ));
        }
        errors
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![name(object), text(object, "/spec/holderIdentity").into(), age(object, now)]
    }
}
