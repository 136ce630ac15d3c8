//! The comparison of IPAddresses with the cluster IPs of all Services, in both directions; upstream's rules and messages.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use corten_meta::{Object, Value};
use corten_store::Revision;
use jiff::{SignedDuration, Timestamp};

use super::events::Finding as EventFinding;

const FAMILY: &str = "ipaddress.kubernetes.io/ip-family";
const MANAGED_BY: &str = "ipaddress.kubernetes.io/managed-by";
const ALLOCATOR: &str = "ipallocator.k8s.io";
/// The time in which the Service of a new IPAddress may still be created, or changed from ExternalName.
const GRACE: SignedDuration = SignedDuration::from_secs(60);
/// The time in which a refused write of a Service may still take its IPAddress back.
const REVERT: SignedDuration = SignedDuration::from_secs(5);

/// The write that repairs a finding.
pub enum Step {
    /// The Service has to be created again, by its owner.
    None,
    Create(Arc<Object>),
    Replace {
        service: Arc<Object>,
        revision: Revision,
    },
    Delete {
        revision: Revision,
    },
}

/// An address that is not as it should be.
pub struct Finding {
    pub address: String,
    pub event: EventFinding,
    pub step: Step,
}

impl PartialEq for Finding {
    fn eq(&self, other: &Finding) -> bool {
        self.address == other.address && self.event == other.event
    }
}

/// Compares the Services with the IPAddresses, and the IPAddresses with the Services.
pub fn reconcile(
    services: &[Arc<Object>],
    addresses: &[Arc<Object>],
    is_in_range: impl Fn(IpAddr) -> bool,
    now: Timestamp,
) -> Vec<Finding> {
    let world = World {
        services: services.iter().map(|one| ((&*one.header.namespace, &*one.header.name), one)).collect(),
        addresses: addresses.iter().map(|one| (&*one.header.name, one)).collect(),
        now,
    };
    let of_services = services.iter().flat_map(|service| world.check_service(service, &is_in_range));
    let of_addresses = addresses.iter().filter_map(|address| world.check_address(address));
    of_services.chain(of_addresses).collect()
}

/// All Services and IPAddresses, by their names.
struct World<'a> {
    services: HashMap<(&'a str, &'a str), &'a Arc<Object>>,
    addresses: HashMap<&'a str, &'a Arc<Object>>,
    now: Timestamp,
}

/// The reference of an IPAddress to its parent.
struct Parent<'a> {
    group: &'a str,
    resource: &'a str,
    namespace: &'a str,
    name: &'a str,
}

impl<'a> Parent<'a> {
    fn of(address: &'a Value) -> Parent<'a> {
        let field = |name: &str| address["spec"]["parentRef"][name].as_str().unwrap_or_default();
        Parent {
            group: field("group"),
            resource: field("resource"),
            namespace: field("namespace"),
            name: field("name"),
        }
    }

    fn is_service(&self) -> bool {
        self.group.is_empty() && self.resource == "services"
    }
}

impl World<'_> {
    /// Checks that each cluster IP of a Service has its IPAddress.
    fn check_service(&self, service: &Arc<Object>, is_in_range: impl Fn(IpAddr) -> bool) -> Vec<Finding> {
        let value = service.value();
        cluster_ips(&value).filter_map(|ip| self.check_cluster_ip(service, ip, &is_in_range)).collect()
    }

    fn check_cluster_ip(
        &self,
        service: &Arc<Object>,
        ip: &str,
        is_in_range: impl Fn(IpAddr) -> bool,
    ) -> Option<Finding> {
        let of_service = |reason, action, note: String, step| {
            let controller = "ipallocator-repair-controller";
            let regarding = EventFinding::service(service);
            let event = EventFinding { regarding, controller, action, reason, note };
            Some(Finding { address: ip.to_owned(), event, step })
        };
        const ALLOCATION: &str = "ClusterIPAllocation";
        let Ok(parsed) = ip.parse::<IpAddr>() else {
            let note = "Cluster IP <nil> is not a valid IP; please recreate Service".to_owned();
            return of_service("ClusterIPNotValid", "ClusterIPValidation", note, Step::None);
        };
        let family = family_of(ip);
        if !is_in_range(parsed) {
            let note = format!(
                "Cluster IP [{family}]: {ip} is not within any configured Service CIDR; please recreate service"
            );
            return of_service("ClusterIPOutOfRange", ALLOCATION, note, Step::None);
        }
        let Some(address) = self.addresses.get(ip) else {
            let note = format!("Cluster IP [{family}]: {ip} is not allocated; repairing");
            return of_service("ClusterIPNotAllocated", ALLOCATION, note, Step::Create(Arc::clone(service)));
        };
        let replace = || Step::Replace { service: Arc::clone(service), revision: address.revision };
        let value = address.value();
        let parent = Parent::of(&value);
        let header = &service.header;
        let is_own = parent.namespace == header.namespace && parent.name == header.name;
        let other = self.services.get(&(parent.namespace, parent.name));
        let note = format!(
            "the ClusterIP [{family}]: {ip} for Service {}/{} has a wrong reference; repairing",
            header.namespace, header.name
        );
        if !parent.is_service() || !is_own && other.is_none() {
            return of_service("ClusterIPNotAllocated", ALLOCATION, note, replace());
        }
        if !is_own && other.is_some_and(|other| cluster_ips(&other.value()).any(|other| other == ip)) {
            let note = format!("Cluster IP [{family}]:{ip} was assigned to multiple services; please recreate service");
            return of_service("ClusterIPAlreadyAllocated", ALLOCATION, note, Step::None);
        }
        if !is_own || !has_labels(&value, ip) {
            return of_service("ClusterIPNotAllocated", ALLOCATION, note, replace());
        }
        None
    }

    /// Checks that an IPAddress of the allocator has its Service.
    fn check_address(&self, address: &Arc<Object>) -> Option<Finding> {
        let value = address.value();
        if value["metadata"]["labels"][MANAGED_BY] != ALLOCATOR {
            return None;
        }
        let name = &address.header.name;
        let parent = Parent::of(&value);
        let Parent { group, resource, namespace, name: service_name } = parent;
        let delete = |reason, note| {
            let event = EventFinding {
                regarding: EventFinding::ip_address(address),
                controller: "ipallocator-repair-controller",
                action: "IPAddressAllocation",
                reason,
                note,
            };
            let step = Step::Delete { revision: address.revision };
            Some(Finding { address: name.clone(), event, step })
        };
        if !parent.is_service() {
            let reference = format!("&{{{group} {resource} {namespace} {service_name}}}");
            let note = format!(
                "IPAddress {name} appears to have been modified, not referencing a Service {reference}: cleaning up"
            );
            return delete("IPAddressNotAllocated", note);
        }
        let created = time_of(&value);
        let age = created.map_or(SignedDuration::MAX, |created| self.now.duration_since(created));
        let Some(service) = self.services.get(&(namespace, service_name)) else {
            let note =
                format!("IPAddress: {name} for Service {namespace}/{service_name} appears to have leaked: cleaning up");
            return if age > GRACE { delete("IPAddressNotAllocated", note) } else { None };
        };
        let service = service.value();
        let is_external = service["spec"]["type"] == "ExternalName";
        let is_reverted = created > time_of(&service) && age < REVERT;
        // The list of the spec, also of a type that has no cluster IP: the field is the same.
        let is_of_service = listed(&service).any(|ip| ip == name.as_str());
        if is_of_service || is_external && age < GRACE || is_reverted {
            return None;
        }
        let note =
            format!("IPAddress: {name} for Service {namespace}/{service_name} has a wrong reference; cleaning up");
        delete("IPAddressWrongReference", note)
    }
}

fn time_of(object: &Value) -> Option<Timestamp> {
    object["metadata"]["creationTimestamp"].as_str()?.parse().ok()
}

fn family_of(ip: &str) -> &'static str {
    if ip.contains(':') { "IPv6" } else { "IPv4" }
}

fn has_labels(address: &Value, ip: &str) -> bool {
    let labels = &address["metadata"]["labels"];
    labels[FAMILY] == family_of(ip) && labels[MANAGED_BY] == ALLOCATOR
}

fn listed(service: &Value) -> impl Iterator<Item = &str> {
    service.pointer("/spec/clusterIPs").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

/// Returns the cluster IPs of a Service that has some.
fn cluster_ips(service: &Value) -> impl Iterator<Item = &str> {
    let first = service["spec"]["clusterIP"].as_str().unwrap_or_default();
    let is_set = !first.is_empty() && first != "None" && service["spec"]["type"] != "ExternalName";
    listed(service).filter(move |_| is_set)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const NOW: &str = "2026-01-01T00:02:00Z";

    fn service(name: &str, ip: &str) -> Value {
        json!({
            "metadata": { "name": name, "namespace": "n", "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "type": "ClusterIP", "clusterIP": ip, "clusterIPs": [ip] },
        })
    }

    fn address(ip: &str, service: &str, created: &str) -> Value {
        json!({
            "metadata": { "name": ip, "creationTimestamp": created, "labels": { FAMILY: "IPv4", MANAGED_BY: ALLOCATOR } },
            "spec": { "parentRef": { "resource": "services", "namespace": "n", "name": service } },
        })
    }

    fn with(mut value: Value, pointer: &str, field: Value) -> Value {
        *value.pointer_mut(pointer).unwrap() = field;
        value
    }

    fn check(services: &[Value], addresses: &[Value]) -> Vec<String> {
        let objects = |values: &[Value]| -> Vec<Arc<Object>> {
            values.iter().map(|value| Arc::new(Object::from_value(value, 7).unwrap())).collect()
        };
        let is_in_range = |ip: IpAddr| ip.to_string().starts_with("10.96.");
        let found = reconcile(&objects(services), &objects(addresses), is_in_range, NOW.parse().unwrap());
        let step = |finding: &Finding| match &finding.step {
            Step::None => "none".to_owned(),
            Step::Create(service) => format!("create for {}", service.header.name),
            Step::Replace { service, revision } => format!("replace {revision} for {}", service.header.name),
            Step::Delete { revision } => format!("delete {revision}"),
        };
        found.iter().map(|one| format!("{} {}: {}", one.address, one.event.reason, step(one))).collect()
    }

    #[test]
    fn each_cluster_ip_has_its_address_and_each_address_its_service() {
        const OLD: &str = "2026-01-01T00:00:00Z";
        const NEW: &str = "2026-01-01T00:01:58Z";
        let a = || service("a", "10.96.0.5");
        let own = || address("10.96.0.5", "a", OLD);
        let managed = "/metadata/labels";
        for (services, addresses, expected) in [
            (vec![a()], vec![own()], vec![]),
            (vec![a()], vec![], vec!["10.96.0.5 ClusterIPNotAllocated: create for a"]),
            (vec![service("a", "10.0.0.5")], vec![], vec!["10.0.0.5 ClusterIPOutOfRange: none"]),
            (vec![service("a", "None")], vec![], vec![]),
            (vec![a(), service("b", "10.96.0.5")], vec![own()], vec!["10.96.0.5 ClusterIPAlreadyAllocated: none"]),
            // The Service of the reference does not exist, or has another address.
            (
                vec![a()],
                vec![address("10.96.0.5", "gone", OLD)],
                vec!["10.96.0.5 ClusterIPNotAllocated: replace 7 for a", "10.96.0.5 IPAddressNotAllocated: delete 7"],
            ),
            (
                vec![a()],
                vec![with(own(), "/spec/parentRef/resource", json!("gateways"))],
                vec!["10.96.0.5 ClusterIPNotAllocated: replace 7 for a", "10.96.0.5 IPAddressNotAllocated: delete 7"],
            ),
            (
                vec![a()],
                vec![with(own(), managed, json!({ MANAGED_BY: ALLOCATOR }))],
                vec!["10.96.0.5 ClusterIPNotAllocated: replace 7 for a"],
            ),
            // Leaks: not before a minute, and never an address of another manager.
            (vec![], vec![own()], vec!["10.96.0.5 IPAddressNotAllocated: delete 7"]),
            (vec![], vec![address("10.96.0.5", "a", NEW)], vec![]),
            (vec![], vec![with(own(), managed, json!({ MANAGED_BY: "user" }))], vec![]),
            (
                vec![a()],
                vec![own(), address("10.96.0.6", "a", OLD)],
                vec!["10.96.0.6 IPAddressWrongReference: delete 7"],
            ),
            (vec![a()], vec![own(), address("10.96.0.6", "a", NEW)], vec![]),
        ] {
            assert_eq!(check(&services, &addresses), expected, "{services:?} {addresses:?}");
        }
    }
}
