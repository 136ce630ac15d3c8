//! Service allocation: cluster IPs and node ports, allocated as long as their Service exists.
//!
//! An address is an IPAddress object, which must be absent; all node ports are one bitmap, which must be as it was read.
//! Both are written in the Service's commit, so concurrent writes can never give the same one to two Services.

use std::collections::BTreeSet;
use std::net::IpAddr;

use corten_managed_fields::own_created;
use corten_meta::{FieldError, Path, Status, Value};
use corten_store::{Expect, Op};
use futures::future::BoxFuture;
use serde_json::json;

use super::attributes::Attributes;
use super::operation::Operation;
use super::plugin::Plugin;
use super::service_families::{self, strings};
use crate::allocation::{AddressRange, PortBitmap, choose_port, ip_address, random};
use crate::door::Core;
use crate::door::Target;

const TAKEN: &str = "provided port is already allocated";

pub struct ServiceAllocation;

impl Plugin for ServiceAllocation {
    fn allocate<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            if a.operation == Operation::Delete || !a.is("", "services", "") || !a.object["spec"].is_object() {
                return Ok(());
            }
            if let Some(old) = a.old.clone() {
                // A webhook may have removed fields that an update keeps.
                corten_api::keep_service_allocations(&mut a.object, &old);
            }
            allocate_address(a).await?;
            allocate_ports(a).await
        })
    }

    fn released<'a>(&'a self, target: &'a Target<'_>, object: &'a Value) -> BoxFuture<'a, Result<Vec<Op>, Status>> {
        Box::pin(async move {
            if !target.resource.kind().group.is_empty() || target.resource.kind().plural != "services" {
                return Ok(Vec::new());
            }
            let addresses = addresses_of(object).into_iter().map(|ip| release_address(target, &ip));
            let mut operations: Vec<Op> = addresses.collect::<Result<_, _>>()?;
            let ports = node_ports_of(object);
            if !ports.is_empty() {
                let mut used = UsedPorts::read(target.core).await?;
                ports.iter().for_each(|port| used.bitmap.set(*port, false));
                operations.push(used.write(target.core)?);
            }
            Ok(operations)
        })
    }
}

fn string<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn needs_address(service: &Value) -> bool {
    string(service, "/spec/type") != "ExternalName"
}

fn needs_ports(service: &Value) -> bool {
    match string(service, "/spec/type") {
        "NodePort" => true,
        "LoadBalancer" => service.pointer("/spec/allocateLoadBalancerNodePorts") != Some(&Value::Bool(false)),
        _ => false,
    }
}

/// Reports whether the Service may name node ports; those of other types are refused or ignored.
fn may_have_ports(service: &Value) -> bool {
    matches!(string(service, "/spec/type"), "NodePort" | "LoadBalancer")
}

/// Reports whether the Service needs a health check port: load balancers ask nodes there whether they have local
/// endpoints.
fn needs_health_port(service: &Value) -> bool {
    string(service, "/spec/type") == "LoadBalancer" && string(service, "/spec/externalTrafficPolicy") == "Local"
}

/// Returns the cluster IPs of a Service.
fn addresses_of(service: &Value) -> BTreeSet<String> {
    let list =
        service.pointer("/spec/clusterIPs").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    let one = std::iter::once(string(service, "/spec/clusterIP"));
    list.chain(one).filter(|ip| !ip.is_empty() && *ip != "None" && needs_address(service)).map(str::to_owned).collect()
}

fn node_ports_of(service: &Value) -> BTreeSet<u16> {
    let ports = service.pointer("/spec/ports").and_then(Value::as_array).into_iter().flatten();
    let numbers = ports.filter_map(|port| port["nodePort"].as_u64()).filter(|_| may_have_ports(service));
    let health = service.pointer("/spec/healthCheckNodePort").and_then(Value::as_u64);
    numbers
        .chain(health.filter(|_| needs_health_port(service)))
        .filter_map(|port| u16::try_from(port).ok())
        .filter(|port| *port != 0)
        .collect()
}

fn invalid(a: &Attributes<'_>, error: FieldError) -> Status {
    Status::invalid(&a.target.resource.group_kind(), corten_meta::name(&a.object), vec![error])
}

async fn allocate_address(a: &mut Attributes<'_>) -> Result<(), Status> {
    let held = a.old.as_deref().map(addresses_of).unwrap_or_default();
    if !needs_address(&a.object) {
        for ip in &held {
            a.companions.push(release_address(&a.target, ip)?);
        }
        return Ok(());
    }
    let ranges = ranges(a)?;
    let configured = configured_families(&ranges);
    let one = string(&a.object, "/spec/clusterIP").to_owned();
    if !one.is_empty() && strings(&a.object, "clusterIPs").is_empty() {
        a.object["spec"]["clusterIPs"] = json!([one]);
    }
    if let Err(errors) = service_families::complete(&mut a.object, a.old.as_deref(), &configured) {
        return Err(Status::invalid(&a.target.resource.group_kind(), corten_meta::name(&a.object), errors));
    }
    let requested = strings(&a.object, "clusterIPs");
    let headless = string(&a.object, "/spec/clusterIP") == "None" || requested.first().is_some_and(|ip| ip == "None");
    let mut addresses: Vec<String> = Vec::new();
    for (index, family) in strings(&a.object, "ipFamilies").iter().enumerate().filter(|_| !headless) {
        let of_family: Vec<AddressRange> =
            ranges.iter().copied().filter(|range| family_of(range) == family.as_str()).collect();
        // The first address is immutable: validation refuses another one later, so nothing is allocated for it here.
        let is_refused = index == 0 && !held.is_empty() && requested.first().is_some_and(|ip| !held.contains(ip));
        let ip = match requested.get(index) {
            Some(ip) if is_refused || held.contains(ip) => ip.clone(),
            Some(ip) => {
                check_requested(a, &of_family, ip).await?;
                ip.clone()
            }
            None => {
                let ip = choose_address(a, &of_family)?;
                check_parent(a, &ip, None)?;
                ip
            }
        };
        if !is_refused && !held.contains(&ip) {
            let operation = take_address(a, &ip).await?;
            a.companions.push(operation);
        }
        addresses.push(ip);
    }
    for other in held.iter().filter(|held| !addresses.contains(held)) {
        a.companions.push(release_address(&a.target, other)?);
    }
    if headless {
        addresses.push("None".to_owned());
    }
    let spec = &mut a.object["spec"];
    spec["clusterIP"] = addresses.first().cloned().into();
    spec["clusterIPs"] = json!(addresses);
    Ok(())
}

fn family_of(range: &AddressRange) -> &'static str {
    if range.is_v4() { "IPv4" } else { "IPv6" }
}

/// Returns the IP families of the cluster's ranges, the primary one first.
fn configured_families(ranges: &[AddressRange]) -> Vec<&'static str> {
    let mut families: Vec<&'static str> = Vec::new();
    for family in ranges.iter().map(family_of) {
        if !families.contains(&family) {
            families.push(family);
        }
    }
    families
}

/// Returns the ranges to allocate from, at least one: the configured ones, and those of every ServiceCIDR that is ready
/// and not being deleted.
fn ranges(a: &Attributes<'_>) -> Result<Vec<AddressRange>, Status> {
    let core = a.target.core;
    let mut ranges = AddressRange::parse_list(core.config.service_cidr)
        .ok_or_else(|| Status::internal("the service CIDR is not a CIDR".to_owned()))?;
    let configured = configured_families(&ranges);
    for object in core.objects.cached_list("networking.k8s.io", "servicecidrs", "") {
        let value = object.value();
        let conditions = value.pointer("/status/conditions").and_then(Value::as_array);
        let ready = conditions.is_some_and(|list| list.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"));
        if !ready || corten_meta::deletion_timestamp(&value).is_some() {
            continue;
        }
        let cidrs = value.pointer("/spec/cidrs").and_then(Value::as_array).into_iter().flatten();
        for range in cidrs.filter_map(Value::as_str).filter_map(AddressRange::parse) {
            if configured.contains(&family_of(&range)) && !ranges.contains(&range) {
                ranges.push(range);
            }
        }
    }
    Ok(ranges)
}

fn choose_address(a: &Attributes<'_>, ranges: &[AddressRange]) -> Result<String, Status> {
    let core = a.target.core;
    // The first address of the primary range is reserved for the API server's own Service.
    let reserved = AddressRange::parse_list(core.config.service_cidr).map(|all| all[0].first());
    let taken = |ip: IpAddr| {
        core.objects.cached("networking.k8s.io", "ipaddresses", "", &ip.to_string()).is_some() || Some(ip) == reserved
    };
    match ranges.iter().find_map(|range| range.choose(random(), taken)) {
        Some(ip) => Ok(ip.to_string()),
        None => Err(Status::internal("failed to allocate a serviceIP: range is full".to_owned())),
    }
}

/// Checks that a requested address is in a range and free; a dry run checks only the range, as upstream does.
async fn check_requested(a: &Attributes<'_>, ranges: &[AddressRange], ip: &str) -> Result<(), Status> {
    let refuse = |why: &str| Err(not_allocated(a, Some(ip), why));
    let Ok(address) = ip.parse::<IpAddr>() else {
        return refuse("must be a valid IP address");
    };
    let is_in_range = ranges.iter().any(|range| range.contains(address));
    if a.dry_run {
        let range = configured_range(a.target.core.config.service_cidr, address);
        let outside = format!("the provided IP ({ip}) is not in the valid range. The range of valid IPs is {range}");
        return if is_in_range { Ok(()) } else { refuse(&outside) };
    }
    if !is_in_range {
        return refuse("the provided network does not match the current range");
    }
    check_parent(a, ip, Some(ip))?;
    if a.target.core.objects.read("networking.k8s.io", "ipaddresses", "", ip).await?.is_some() {
        return refuse("provided IP is already allocated");
    }
    Ok(())
}

/// Checks that an IPAddress can refer to the Service, which precedes the validation of the Service itself.
fn check_parent(a: &Attributes<'_>, ip: &str, requested: Option<&str>) -> Result<(), Status> {
    let resource = a.target.core.objects.required("networking.k8s.io", "ipaddresses")?;
    let errors = resource.kind().behaviour.validate(&address_of(a, ip));
    if a.dry_run || errors.is_empty() {
        return Ok(());
    }
    let status = Status::invalid(&resource.group_kind(), ip, errors);
    Err(not_allocated(a, requested, &status.message))
}

fn not_allocated(a: &Attributes<'_>, requested: Option<&str>, why: &str) -> Status {
    let which = requested.map(|ip| format!(" {ip}")).unwrap_or_default();
    let path = Path::root("spec").child("clusterIPs");
    let value = json!([requested.unwrap_or_default()]);
    invalid(a, FieldError::invalid(&path, value, format!("failed to allocate IP{which}: {why}")))
}

/// Returns the configured range of an address's family.
fn configured_range(ranges: &str, address: IpAddr) -> &str {
    ranges.split(',').find(|range| range.contains(':') == address.is_ipv6()).unwrap_or(ranges)
}

async fn take_address(a: &Attributes<'_>, ip: &str) -> Result<Op, Status> {
    let mut object = address_of(a, ip);
    let objects = a.target.core.objects;
    let resource = objects.required("networking.k8s.io", "ipaddresses")?;
    own_created(resource.kind(), &mut object, "kube-apiserver", a.target.context.now());
    Ok(objects.put("networking.k8s.io", "ipaddresses", &object, Expect::Absent).await?.0)
}

fn address_of(a: &Attributes<'_>, ip: &str) -> Value {
    ip_address(ip, corten_meta::namespace(&a.object), corten_meta::name(&a.object), a.target.context.now())
}

fn release_address(target: &Target<'_>, ip: &str) -> Result<Op, Status> {
    target.core.objects.remove("networking.k8s.io", "ipaddresses", "", ip, Expect::Any)
}

/// The node ports in use, as they were read.
struct UsedPorts {
    bitmap: PortBitmap,
    expect: Expect,
}

impl UsedPorts {
    /// Reads the stored bitmap. Without one, or after a change of the range, it is made of the existing Services.
    async fn read(core: Core<'_>) -> Result<UsedPorts, Status> {
        let range = core.config.node_port_range;
        let found = core.objects.read_node_ports().await?;
        let expect = found.as_ref().map_or(Expect::Absent, |(_, revision)| Expect::ModRevision(*revision));
        let stored = found.and_then(|(allocation, _)| PortBitmap::parse(range, &allocation));
        let bitmap = match stored {
            Some(bitmap) => bitmap,
            None => {
                core.objects.fresh().await?;
                PortBitmap::new(range, ports_of_services(core))
            }
        };
        Ok(UsedPorts { bitmap, expect })
    }

    /// Returns the operation that writes the changed bitmap.
    fn write(&self, core: Core<'_>) -> Result<Op, Status> {
        core.objects.put_node_ports(&self.bitmap.object(), self.expect)
    }
}

fn ports_of_services(core: Core<'_>) -> BTreeSet<u16> {
    let services = core.objects.cached_list("", "services", "");
    services.iter().flat_map(|service| node_ports_of(&service.value())).collect()
}

async fn allocate_ports(a: &mut Attributes<'_>) -> Result<(), Status> {
    let held = a.old.as_deref().map(node_ports_of).unwrap_or_default();
    if held.is_empty() && !may_have_ports(&a.object) && !needs_health_port(&a.object) {
        return allocate_health_port(a, &held, &PortBitmap::new(a.target.core.config.node_port_range, []));
    }
    let mut used = UsedPorts::read(a.target.core).await?;
    if may_have_ports(&a.object) {
        choose_ports(a, &held, &used.bitmap)?;
    }
    allocate_health_port(a, &held, &used.bitmap)?;
    let wanted = node_ports_of(&a.object);
    if wanted == held {
        return Ok(());
    }
    held.difference(&wanted).for_each(|port| used.bitmap.set(*port, false));
    wanted.difference(&held).for_each(|port| used.bitmap.set(*port, true));
    a.companions.push(used.write(a.target.core)?);
    Ok(())
}

/// Allocates a node port for every port that needs one; ports of the same number with several protocols share theirs.
fn choose_ports(a: &mut Attributes<'_>, held: &BTreeSet<u16>, bitmap: &PortBitmap) -> Result<(), Status> {
    let mut used = node_ports_of(&a.object);
    let mut ports = a.object.pointer("/spec/ports").and_then(Value::as_array).cloned().unwrap_or_default();
    let numbers = |ports: &[Value]| -> Vec<(i64, i64)> {
        ports.iter().map(|p| (p["port"].as_i64().unwrap_or(0), p["nodePort"].as_i64().unwrap_or(0))).collect()
    };
    let requested = numbers(&ports);
    let is_new = a.old.is_none();
    let mut chosen_ports: Vec<(i64, i64)> = Vec::new();
    for (index, (number, own)) in requested.iter().copied().enumerate() {
        if own == 0 && !needs_ports(&a.object) {
            continue;
        }
        let shared = chosen_ports.iter().find(|(port, _)| *port == number && is_new).map(|(_, node)| *node);
        let named = requested.iter().find(|(port, node)| *port == number && *node != 0).map(|(_, node)| *node);
        let wanted = match (own, shared, named) {
            (0, Some(node), _) => node,
            (0, None, Some(node)) if is_new => node,
            (own, ..) => own,
        };
        let chosen = if wanted == 0 && a.dry_run {
            untaken_port(chosen_ports.iter().map(|(_, node)| *node), held)
        } else if wanted == 0 {
            let chosen = choose_port(a.target.core.config.node_port_range, random(), |p| {
                used.contains(&p) || bitmap.contains(p)
            });
            let chosen =
                chosen.ok_or_else(|| Status::internal("failed to allocate a nodePort: range is full".to_owned()))?;
            used.insert(chosen);
            chosen.into()
        } else {
            let is_held = u16::try_from(wanted).is_ok_and(|port| held.contains(&port));
            if !is_held && shared != Some(wanted) {
                check_port(a, index, wanted, bitmap)?;
            }
            wanted
        };
        let protocol = ports[index]["protocol"].as_str().unwrap_or_default().to_owned();
        let is_twice = ports[..index].iter().any(|port| port["nodePort"] == chosen && port["protocol"] == *protocol);
        if is_twice && !is_new {
            let message = format!("duplicate nodePort: {{{protocol} {chosen}}}");
            return Err(Status { code: 500, message, ..Status::default() });
        }
        chosen_ports.push((number, chosen));
        ports[index]["nodePort"] = chosen.into();
    }
    corten_meta::set(&mut a.object, "/spec/ports", json!(ports));
    Ok(())
}

/// Returns the port that a dry run shows without allocating it: the one after the ports chosen so far.
fn untaken_port(chosen_ports: impl Iterator<Item = i64>, held: &BTreeSet<u16>) -> i64 {
    let is_held = |port: &i64| u16::try_from(*port).is_ok_and(|port| held.contains(&port));
    let last = chosen_ports.filter(|port| *port != 0 && !is_held(port)).max().unwrap_or(32768);
    i64::from(i32::try_from(last + 1).unwrap_or(i32::MIN))
}

fn allocate_health_port(a: &mut Attributes<'_>, held: &BTreeSet<u16>, bitmap: &PortBitmap) -> Result<(), Status> {
    let needed = needs_health_port(&a.object);
    let port_of = |service: &Value| service.pointer("/spec/healthCheckNodePort").and_then(Value::as_i64).unwrap_or(0);
    let present = port_of(&a.object);
    let kept = a.old.as_deref().map_or(0, port_of);
    if needed && present == 0 {
        let used = node_ports_of(&a.object);
        let is_used = |port: u16| used.contains(&port) || bitmap.contains(port);
        let chosen = if kept != 0 {
            Some(kept)
        } else if a.dry_run {
            let ports = a.object.pointer("/spec/ports").and_then(Value::as_array).into_iter().flatten();
            Some(untaken_port(ports.filter_map(|port| port["nodePort"].as_i64()), held))
        } else {
            choose_port(a.target.core.config.node_port_range, random(), is_used).map(i64::from)
        };
        let chosen = chosen.ok_or_else(|| Status::internal("failed to allocate a HealthCheck port".to_owned()))?;
        a.object["spec"]["healthCheckNodePort"] = chosen.into();
    } else if needed && !a.old.as_deref().is_some_and(needs_health_port) {
        let mut ports = a.object.pointer("/spec/ports").and_then(Value::as_array).into_iter().flatten();
        let why = match ports.any(|port| port["nodePort"] == present) {
            true => Some(TAKEN.to_owned()),
            false => objection(a, present, bitmap),
        };
        if let Some(why) = why {
            let message = format!("failed to allocate requested HealthCheck NodePort {present}: {why}");
            return Err(Status::internal(message));
        }
    } else if !needed
        // A port that the client only repeats is not a request for it.
        && present == kept
        && let Some(spec) = a.object["spec"].as_object_mut()
    {
        spec.remove("healthCheckNodePort");
    }
    Ok(())
}

/// Checks that a requested port is in the range and free.
fn check_port(a: &Attributes<'_>, index: usize, port: i64, bitmap: &PortBitmap) -> Result<(), Status> {
    let path = Path::root("spec").child("ports").index(index).child("nodePort");
    let why = objection(a, port, bitmap);
    why.map_or(Ok(()), |why| Err(invalid(a, FieldError::invalid(&path, port, why))))
}

/// Returns the reason why a requested port cannot be allocated.
fn objection(a: &Attributes<'_>, port: i64, bitmap: &PortBitmap) -> Option<String> {
    let (first, last) = a.target.core.config.node_port_range;
    // Upstream checks the range only when it allocates the port.
    if !a.dry_run && !(i64::from(first)..=i64::from(last)).contains(&port) {
        let range = format!("The range of valid ports is {first}-{last}");
        return Some(format!("provided port is not in the valid range. {range}"));
    }
    let is_taken = u16::try_from(port).is_ok_and(|port| bitmap.contains(port));
    is_taken.then(|| TAKEN.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dry_run_shows_the_port_after_the_chosen_ones() {
        for (chosen_ports, held, port) in [
            (&[][..], &[][..], 32769),
            (&[30001], &[], 30002),
            (&[30001, 0, 30000], &[], 30002),
            (&[30001, 30005], &[30005], 30002),
            (&[i64::from(i32::MAX)], &[], i64::from(i32::MIN)),
        ] {
            assert_eq!(untaken_port(chosen_ports.iter().copied(), &held.iter().copied().collect()), port);
        }
    }
}
