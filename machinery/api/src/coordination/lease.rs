//! Lease.

use corten_meta::Value;
use corten_meta::field::FieldError;
use jiff::Timestamp;

use crate::cells::{age, name, text};
use crate::check::{At, Errors};
use crate::kind::{Behaviour, Kind};

struct Lease;

/// Returns the declaration.
pub fn kind() -> Kind {
    Kind::new("coordination.k8s.io", "v1", "Lease", "leases")
        .create_on_update()
        .conditional_update()
        .table("Name, Holder, Age")
        .behaviour(Lease)
}

impl Behaviour for Lease {
    fn validate(&self, object: &Value) -> Vec<FieldError> {
        let spec = At::object(object).get("spec");
        let mut errors = Errors::new();
        if spec.get("leaseDurationSeconds").is_set() {
            spec.get("leaseDurationSeconds").positive(&mut errors);
        }
        spec.get("leaseTransitions").nonnegative(&mut errors);
        errors
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![name(object), text(object, "/spec/holderIdentity").into(), age(object, now)]
    }
}
