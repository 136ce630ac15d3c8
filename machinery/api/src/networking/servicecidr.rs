//! ServiceCIDR: a range from which services get their addresses.

use corten_meta::field::{FieldError, Path};
use corten_meta::{Value, names};
use jiff::Timestamp;

use crate::cells::{age, join, list, name};
use crate::kind::{Behaviour, Kind};
use crate::validation::invalid_each;

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
    fn validate(&self, object: &Value) -> Vec<FieldError> {
        let path = Path::root("spec").child("cidrs");
        let cidrs = list(object, "/spec/cidrs");
        if cidrs.is_empty() {
            return vec![FieldError::required(&path, "at least one CIDR required")];
        }
        let mut errors = Vec::new();
        if cidrs.len() > 2 {
            let detail = "may only hold up to 2 values";
            errors.push(FieldError::invalid(&path, Value::from(cidrs.to_vec()), detail));
        }
        for (at, cidr) in cidrs.iter().filter_map(Value::as_str).enumerate() {
            errors.extend(invalid_each(&path.index(at), cidr, names::address::cidr(cidr)));
        }
        errors
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let cidrs = join(list(object, "/spec/cidrs").iter().filter_map(Value::as_str));
        vec![name(object), cidrs.into(), age(object, now)]
    }
}
