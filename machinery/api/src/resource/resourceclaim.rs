//! ResourceClaim.

use corten_meta::Value;
use jiff::Timestamp;

use crate::cells::{age, list, name};
use crate::defaulting::absent;
use crate::kind::{Behaviour, Kind};

struct ResourceClaim;

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
    fn rules(&self) -> &'static str {
        ".resource.v1.ResourceClaim"
    }

    fn default(&self, object: &mut Value) {
        super::default_requests(object, "/spec/devices/requests");
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
