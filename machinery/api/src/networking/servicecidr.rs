//! ServiceCIDR: a range from which Services get their addresses.

use corten_meta::field::{FieldError, Path};
use corten_meta::{Value, names};

use crate::cells::list;
use crate::kind::{Behaviour, Kind};
use crate::validation::invalid_each;

struct ServiceCidr;

pub fn kind() -> Kind {
    Kind::new("networking.k8s.io", "v1", "ServiceCIDR", "servicecidrs")
        .cluster()
        .status()
        .status_takes_identity()
        .table("Name, CIDRs=join(/spec/cidrs), Age")
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
            return vec![FieldError::invalid(&path, object["spec"].clone(), detail)];
        }
        for (at, cidr) in cidrs.iter().filter_map(Value::as_str).enumerate() {
            errors.extend(invalid_each(&path.index(at), cidr, names::address::cidr(cidr)));
        }
        let is_v6 = |cidr: &Value| names::address::parse_cidr(cidr.as_str()?).map(|(address, _)| address.is_ipv6());
        if let [first, second] = cidrs
            && is_v6(first).is_some()
            && is_v6(first) == is_v6(second)
        {
            let detail = "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64";
            errors.push(FieldError::invalid(&path, Value::from(cidrs.to_vec()), detail));
        }
        errors
    }

    /// Validates that a range does not change; a second family may be added.
    fn validate_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        const FIXED: &str = "field is immutable";
        let path = Path::root("spec").child("cidrs");
        let now = list(new, "/spec/cidrs");
        let then = list(old, "/spec/cidrs");
        if now.len() != then.len() && (then.len(), now.len()) != (1, 2) {
            return vec![FieldError::invalid(&path, new["spec"]["cidrs"].clone(), FIXED)];
        }
        let changed = now.iter().zip(then).enumerate().filter(|(_, (now, then))| now != then);
        let mut errors: Vec<FieldError> =
            changed.map(|(at, (now, _))| FieldError::invalid(&path.index(at), now.clone(), FIXED)).collect();
        if now.len() > then.len() {
            errors.extend(self.validate(new));
        }
        errors
    }
}
