//! The comparison of the bitmap of node ports with the ports of all Services; upstream's rules and messages.

use std::collections::BTreeMap;
use std::sync::Arc;

use corten_admission::allocation::PortBitmap;
use corten_meta::{Object, Value};

use super::events::Finding as EventFinding;

/// The number of rounds in which a port without a Service must be found before it is free again: a Service that is being
/// created may have it.
const ROUNDS_BEFORE_RELEASE: u32 = 3;

/// The kind of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    NotAllocated,
    AlreadyAllocated,
    OutOfRange,
}

impl Kind {
    /// Returns the label of the metric.
    pub fn label(self) -> &'static str {
        match self {
            Kind::NotAllocated => "repair",
            Kind::AlreadyAllocated => "duplicate",
            Kind::OutOfRange => "outOfRange",
        }
    }
}

/// A port of a Service that is not as it should be.
pub struct Finding {
    pub service: Arc<Object>,
    pub port: u16,
    pub kind: Kind,
}

impl Finding {
    pub fn event(&self, (first, last): (u16, u16)) -> EventFinding {
        let port = self.port;
        let (reason, note) = match self.kind {
            Kind::NotAllocated => ("PortNotAllocated", format!("Port {port} is not allocated; repairing")),
            Kind::AlreadyAllocated => (
                "PortAlreadyAllocated",
                format!("Port {port} was assigned to multiple services; please recreate service"),
            ),
            Kind::OutOfRange => (
                "PortOutOfRange",
                format!("Port {port} is not within the port range {first}-{last}; please recreate service"),
            ),
        };
        EventFinding {
            regarding: EventFinding::service(&self.service),
            controller: "portallocator-repair-controller",
            action: "PortAllocation",
            reason,
            note,
        }
    }
}

/// The bitmap as it should be.
pub struct Plan {
    pub bitmap: PortBitmap,
    pub findings: Vec<Finding>,
    /// The rounds that each port without a Service still keeps.
    pub leaks: BTreeMap<u16, u32>,
    /// The ports that are free again.
    pub released: Vec<u16>,
}

/// Compares the stored bitmap with the Services. `leaks` is that of the last round.
pub fn reconcile(stored: &PortBitmap, services: &[Arc<Object>], leaks: &BTreeMap<u16, u32>) -> Plan {
    let mut unclaimed = stored.clone();
    let mut bitmap = stored.emptied();
    let mut findings = Vec::new();
    for service in services {
        for port in node_ports(&service.value()) {
            let mut found = |kind| findings.push(Finding { service: Arc::clone(service), port, kind });
            if !bitmap.is_in_range(port) {
                found(Kind::OutOfRange);
            } else if bitmap.contains(port) {
                found(Kind::AlreadyAllocated);
            } else {
                if !stored.contains(port) {
                    found(Kind::NotAllocated);
                }
                bitmap.set(port, true);
                unclaimed.set(port, false);
            }
        }
    }
    let mut still_leaked = BTreeMap::new();
    let mut released = Vec::new();
    for port in unclaimed.ports() {
        match leaks.get(&port).copied().unwrap_or(ROUNDS_BEFORE_RELEASE - 1) {
            0 => released.push(port),
            rounds => {
                still_leaked.insert(port, rounds - 1);
                bitmap.set(port, true);
            }
        }
    }
    Plan { bitmap, findings, leaks: still_leaked, released }
}

/// Returns the node ports of a Service. One port for several protocols is there once, for one protocol as often as it is
/// named.
fn node_ports(service: &Value) -> Vec<u16> {
    let mut ports: Vec<u16> = Vec::new();
    let mut protocols: Vec<(u16, &str)> = Vec::new();
    for port in service.pointer("/spec/ports").and_then(Value::as_array).into_iter().flatten() {
        let number = port["nodePort"].as_u64().and_then(|number| u16::try_from(number).ok());
        let Some(number) = number.filter(|number| *number != 0) else { continue };
        let protocol = port["protocol"].as_str().unwrap_or_default();
        let is_known = protocols.iter().any(|(known, _)| *known == number);
        if !is_known || protocols.contains(&(number, protocol)) {
            ports.push(number);
        }
        protocols.push((number, protocol));
    }
    let health = service.pointer("/spec/healthCheckNodePort").and_then(Value::as_u64);
    let health = health.and_then(|number| u16::try_from(number).ok()).filter(|number| *number != 0);
    let is_other = |number: &u16| !ports.contains(number) || protocols.contains(&(*number, "TCP"));
    ports.extend(health.filter(is_other));
    ports
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const RANGE: (u16, u16) = (30000, 30100);

    fn service(name: &str, ports: &[(u16, &str)]) -> Arc<Object> {
        let ports: Vec<Value> =
            ports.iter().map(|(port, protocol)| json!({ "nodePort": port, "protocol": protocol })).collect();
        let value = json!({ "metadata": { "name": name, "namespace": "n" }, "spec": { "ports": ports } });
        Arc::new(Object::from_value(&value, 1).unwrap())
    }

    fn shape(plan: &Plan) -> Vec<(String, u16, Kind)> {
        plan.findings.iter().map(|one| (one.service.header.name.clone(), one.port, one.kind)).collect()
    }

    #[test]
    fn ports_of_services_are_compared_with_the_bitmap() {
        let services = [
            service("fine", &[(30001, "TCP"), (30001, "UDP")]),
            service("missing", &[(30002, "TCP")]),
            service("twice", &[(30001, "TCP")]),
            service("outside", &[(40000, "TCP")]),
        ];
        let stored = PortBitmap::new(RANGE, [30001]);
        let plan = reconcile(&stored, &services, &BTreeMap::new());
        assert_eq!(plan.bitmap, PortBitmap::new(RANGE, [30001, 30002]));
        let expected = [
            ("missing", 30002, Kind::NotAllocated),
            ("twice", 30001, Kind::AlreadyAllocated),
            ("outside", 40000, Kind::OutOfRange),
        ];
        assert_eq!(shape(&plan), expected.map(|(name, port, kind)| (name.to_owned(), port, kind)));
        // The repaired bitmap has no missing port any more.
        let again = reconcile(&plan.bitmap, &services, &plan.leaks);
        assert_eq!((again.bitmap, again.findings.len()), (plan.bitmap, 2));
    }

    #[test]
    fn a_port_without_a_service_is_free_after_three_rounds() {
        let mut stored = PortBitmap::new(RANGE, [30005, 30006]);
        let mut leaks = BTreeMap::new();
        for round in 1..=3 {
            // Another port gets its Service in time.
            let services = if round > 1 { vec![service("late", &[(30006, "TCP")])] } else { Vec::new() };
            let plan = reconcile(&stored, &services, &leaks);
            assert_eq!(plan.bitmap.contains(30005), round < 3, "round {round}");
            assert!(plan.bitmap.contains(30006));
            assert_eq!(plan.leaks.contains_key(&30006), round == 1);
            assert_eq!(plan.released, if round < 3 { Vec::new() } else { vec![30005] });
            stored = plan.bitmap;
            leaks = plan.leaks;
        }
        assert!(leaks.is_empty());
    }

    #[test]
    fn a_health_check_port_is_a_port_of_tcp() {
        for (ports, health, expected) in [
            (json!([]), 30001, vec![30001]),
            (json!([{ "nodePort": 30001, "protocol": "TCP" }]), 30001, vec![30001, 30001]),
            (json!([{ "nodePort": 30001, "protocol": "UDP" }]), 30001, vec![30001]),
            (json!([{ "nodePort": 30001, "protocol": "TCP" }, { "port": 1 }]), 0, vec![30001]),
            (
                json!([{ "nodePort": 30001, "protocol": "TCP" }, { "nodePort": 30001, "protocol": "TCP" }]),
                0,
                vec![30001, 30001],
            ),
            (json!([{ "nodePort": 99_999 }]), 0, vec![]),
        ] {
            let service = json!({ "spec": { "ports": ports, "healthCheckNodePort": health } });
            assert_eq!(node_ports(&service), expected, "{service}");
        }
    }
}
