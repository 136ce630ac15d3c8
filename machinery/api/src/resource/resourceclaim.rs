//! ResourceClaim.

use corten_meta::Value;
use corten_meta::field::FieldError;
use jiff::Timestamp;

use super::validation::{validate_claim_spec, validate_claim_status};
use crate::cells::{age, list, name};
use crate::check::{At, Errors};
use crate::defaulting::absent;
use crate::kind::{Behaviour, Kind};

struct ResourceClaim;

/// Returns the declaration.
pub fn kind() -> Kind {
    Kind::new("resource.k8s.io", "v1", "ResourceClaim", "resourceclaims")
        .status()
        .status_takes_identity()
        .status_without_rows()
        .table("Name, State, Age")
        .returns_deleted()
        .behaviour(ResourceClaim)
}

impl Behaviour for ResourceClaim {
    fn default(&self, object: &mut Value) {
        super::default_requests(object, "/spec/devices/requests");
    }

    fn validate_create(&self, object: &Value) -> Vec<FieldError> {
        let mut errors = Errors::new();
        validate_claim_spec(&At::object(object).get("spec"), &mut errors);
        errors
    }

    /// Validates that the spec does not change; the allocation is in the status.
    fn validate_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        let mut errors = Errors::new();
        At::object(new).get("spec").unchanged(&mut errors, &At::object(old).get("spec"));
        errors
    }

    fn validate_status_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        validate_claim_status(new, old)
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![name(object), state(object).into(), age(object, now)]
    }
}

fn state(claim: &Value) -> String {
    let deleted = !absent(claim, "/metadata/deletionTimestamp");
    let allocated = !absent(claim, "/status/allocation");
    let reserved = allocated && !list(claim, "/status/reservedFor").is_empty();
    let words =
        [(deleted, "deleted"), (!allocated && !deleted, "pending"), (allocated, "allocated"), (reserved, "reserved")];
    words.iter().filter(|(holds, _)| *holds).map(|(_, word)| *word).collect::<Vec<_>>().join(",")
}
