//! ServiceCIDR: a range from which services get their addresses.

use corten_meta::Value;
use jiff::Timestamp;

use crate::cells::{age, join, list, name};
use crate::kind::{Behaviour, Kind};

struct ServiceCidr;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("networking.k8s.io", "v1", "ServiceCIDR", "servicecidrs")
        .cluster()
        .status()
        .table("Name, CIDRs, Age")
        .behaviour(ServiceCidr)
}

impl Behaviour for ServiceCidr {
    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let cidrs = join(list(object, "/spec/cidrs").iter().filter_map(Value::as_str));
        vec![name(object), cidrs.into(), age(object, now)]
    }
}
