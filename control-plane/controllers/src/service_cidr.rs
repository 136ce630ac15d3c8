//! The ServiceCIDR controller: a CIDR is Ready once it has its finalizer, and is deleted only when no Service needs it.
//!
//! An address in use must lie in a CIDR that stays; until then the finalizer holds the CIDR.

use std::net::IpAddr;
use std::time::Duration;

use corten_api::Typed;
use corten_api::k8s_openapi::api::networking::v1::{IPAddress, ServiceCIDR};
use corten_client::Change;
use corten_meta::Key;
use jiff::Timestamp;

use crate::runtime::{Action, Controller, Plan, ResourceType, View, Watch};
use crate::workload::condition::{StatusCondition, set_status};

const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";
const MANAGED_BY: &str = "ipaddress.kubernetes.io/managed-by";
const ALLOCATOR: &str = "ipallocator.k8s.io";
/// The time that an API server may take to notice that a CIDR is being deleted.
const DELETION_GRACE: Duration = Duration::from_secs(10);

/// A network as two numbers, so that both IP families compare alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Prefix {
    is_v4: bool,
    bits: u32,
    base: u128,
}

impl Prefix {
    fn parse(text: &str) -> Option<Prefix> {
        let (address, bits) = text.split_once('/')?;
        let (is_v4, width, number) = number(address.parse().ok()?);
        let bits: u32 = bits.parse().ok().filter(|bits| *bits <= width)?;
        Some(Prefix { is_v4, bits, base: cut(number, width - bits) })
    }

    fn contains(&self, address: IpAddr) -> bool {
        let (is_v4, width, number) = number(address);
        is_v4 == self.is_v4 && cut(number, width - self.bits) == self.base
    }

    fn covers(&self, other: &Prefix) -> bool {
        let width = if self.is_v4 { 32 } else { 128 };
        self.is_v4 == other.is_v4 && self.bits <= other.bits && cut(other.base, width - self.bits) == self.base
    }
}

fn number(address: IpAddr) -> (bool, u32, u128) {
    match address {
        IpAddr::V4(v4) => (true, 32, u32::from(v4).into()),
        IpAddr::V6(v6) => (false, 128, v6.into()),
    }
}

/// Clears the last bits of a number.
fn cut(number: u128, bits: u32) -> u128 {
    number.checked_shr(bits).and_then(|high| high.checked_shl(bits)).unwrap_or(0)
}

pub struct ServiceCidrController;

pub struct Observed {
    range: ServiceCIDR,
    /// The CIDRs that stay when this one is deleted.
    others: Vec<ServiceCIDR>,
    /// The allocated addresses, if the CIDR is being deleted.
    addresses: Vec<IpAddr>,
}

impl Controller for ServiceCidrController {
    type Observed = Observed;

    const NAME: &'static str = "service-cidrs-controller";

    fn watches(&self) -> Vec<Watch> {
        vec![Watch::mapped::<ServiceCIDR>(of_range), Watch::mapped::<IPAddress>(of_address)]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Observed> {
        let range: ServiceCIDR = view.typed(key)?;
        let (mut others, mut addresses) = (Vec::new(), Vec::new());
        if range.metadata.deletion_timestamp.is_some() {
            others = view.all::<ServiceCIDR>("");
            others.retain(|other| stays_after(other, &range));
            let allocated = view.list(ResourceType::of::<IPAddress>(), "");
            let ours = allocated.iter().filter(|ip| ip.header.labels.get(MANAGED_BY).is_some_and(|by| by == ALLOCATOR));
            addresses = ours.filter_map(|ip| ip.header.name.parse().ok()).collect();
        }
        Some(Observed { range, others, addresses })
    }

    fn reconcile(&self, observed: &Observed, now: Timestamp) -> Plan {
        let range = &observed.range;
        let Some(deleted) = &range.metadata.deletion_timestamp else { return make_ready(range, now) };
        if !may_go(observed) {
            let message = "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR";
            return ready_is(range, "False", "Terminating", message, now);
        }
        let passed: Duration = now.duration_since(deleted.0).try_into().unwrap_or(Duration::ZERO);
        match DELETION_GRACE.checked_sub(passed).filter(|left| !left.is_zero()) {
            Some(left) => Plan::later(left),
            None => hold(range, false),
        }
    }
}

/// Reports whether another CIDR stays after this one is deleted. Of those that are being deleted only the first by name
/// counts: two that relied on each other would both be deleted, and leave their addresses uncovered.
fn stays_after(other: &ServiceCIDR, range: &ServiceCIDR) -> bool {
    match other.metadata.deletion_timestamp {
        None => other.name() != range.name(),
        Some(_) => other.name() < range.name(),
    }
}

/// Returns all CIDRs that overlap: a change of one may unblock another.
fn of_range(view: &dyn View, change: &Change) -> Vec<Key> {
    let mut keys = leaving(view);
    keys.push(change.key.clone());
    keys.dedup();
    keys
}

fn of_address(view: &dyn View, change: &Change) -> Vec<Key> {
    if change.old.is_some() && change.new.is_some() { Vec::new() } else { leaving(view) }
}

fn leaving(view: &dyn View) -> Vec<Key> {
    let all = view.list(ResourceType::of::<ServiceCIDR>(), "");
    all.iter().filter(|range| range.header.deletion_timestamp.is_some()).map(|range| range.key()).collect()
}

fn prefixes(range: &ServiceCIDR) -> Vec<Prefix> {
    range.spec.iter().flat_map(|spec| spec.cidrs.iter().flatten()).filter_map(|cidr| Prefix::parse(cidr)).collect()
}

/// Reports whether every address of the CIDR lies in another one, or none is in use.
fn may_go(observed: &Observed) -> bool {
    let own = prefixes(&observed.range);
    let others: Vec<Prefix> = observed.others.iter().flat_map(prefixes).collect();
    let covered = own.iter().all(|prefix| others.iter().any(|other| other.covers(prefix)));
    let orphaned = |address: &IpAddr| {
        own.iter().any(|prefix| prefix.contains(*address)) && !others.iter().any(|other| other.contains(*address))
    };
    covered || !observed.addresses.iter().any(orphaned)
}

fn make_ready(range: &ServiceCIDR, now: Timestamp) -> Plan {
    let held = hold(range, true);
    if held.is_empty() { ready_is(range, "True", "", "Kubernetes Service CIDR is ready", now) } else { held }
}

/// Adds or removes the finalizer.
fn hold(range: &ServiceCIDR, held: bool) -> Plan {
    let mut updated = range.clone();
    let finalizers = updated.metadata.finalizers.get_or_insert_default();
    finalizers.retain(|name| name != FINALIZER);
    if held {
        if range.metadata.finalizers.iter().flatten().any(|name| name == FINALIZER) {
            return Plan::nothing();
        }
        finalizers.push(FINALIZER.to_owned());
    }
    if updated == *range { Plan::nothing() } else { Plan::from(Action::update(&updated)) }
}

fn ready_is(range: &ServiceCIDR, status: &str, reason: &str, message: &str, now: Timestamp) -> Plan {
    let mut updated = range.clone();
    let conditions = &mut updated.status.get_or_insert_default().conditions;
    let generation =
        conditions.iter().flatten().find(|one| one.type_ == "Ready").and_then(|one| one.observed_generation);
    set_status(conditions, &StatusCondition { kind: "Ready", status, reason, message }, generation, now);
    if updated == *range { Plan::nothing() } else { Plan::from(Action::update_status(&updated)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_contain_and_cover_in_both_families() {
        let prefix = |text: &str| Prefix::parse(text).unwrap();
        assert!(prefix("10.96.0.0/12").contains("10.111.0.1".parse().unwrap()));
        assert!(!prefix("10.96.0.0/12").contains("10.112.0.1".parse().unwrap()));
        assert!(prefix("0.0.0.0/0").covers(&prefix("10.0.0.0/8")) && !prefix("0.0.0.0/0").covers(&prefix("::/0")));
        assert!(
            prefix("fd00::/64").covers(&prefix("fd00::/112")) && !prefix("fd00::/112").covers(&prefix("fd00::/64"))
        );
        assert!(prefix("::/0").contains("fd00::1".parse().unwrap()));
    }
}
