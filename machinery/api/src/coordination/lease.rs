//! Lease.

use corten_meta::Value;
use jiff::Timestamp;

use crate::cells::{age, name, text};
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
    fn rules(&self) -> &'static str {
        ".coordination.v1.Lease"
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![name(object), text(object, "/spec/holderIdentity").into(), age(object, now)]
    }
}
