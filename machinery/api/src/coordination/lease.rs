//! Lease.

use corten_meta::field::FieldError;
use corten_meta::{Value, names};
use jiff::Timestamp;

use crate::cells::{age, name, text};
use crate::check::{At, Errors};
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
        let spec = At::object(object).get("spec");
        let mut errors = Errors::new();
        if spec.get("leaseDurationSeconds").is_set() {
            spec.get("leaseDurationSeconds").positive(&mut errors);
        }
        spec.get("leaseTransitions").nonnegative(&mut errors);
        let (strategy, holder) = (spec.get("strategy"), spec.get("preferredHolder"));
        // Upstream repeats the field's name in these two.
        let named = strategy.with(strategy.path.child("strategy"));
        if strategy.text().contains('/') {
            named.follows(&mut errors, names::qualified_name);
        } else {
            named.one_of(&mut errors, &["OldestEmulationVersion"]);
        }
        if !holder.is_empty() && strategy.is_empty() {
            errors.push(holder.forbidden("may only be specified if `strategy` is defined"));
        }
        errors
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![name(object), text(object, "/spec/holderIdentity").into(), age(object, now)]
    }
}
