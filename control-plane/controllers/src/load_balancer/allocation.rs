//! The addresses of a Service from pools: the requested ones, those that it has, or the first free ones.

use std::net::IpAddr;

use corten_api::AddressPool;
use corten_api::k8s_openapi::api::core::v1::Service;

use super::request::{Family, Request, families, sharing_key};
use super::{Observed, Refusal, age, ingress, is_local, ports};
use crate::runtime::key_of;

/// Reports whether a Service gets addresses of nodes where both sources are there: no pool serves it and it asks for
/// none, or it has addresses of nodes already. A new pool does not move Services that are in use.
pub(super) fn is_for_nodes(observed: &Observed, request: &Request) -> bool {
    if observed.pools.is_empty() {
        return true;
    }
    let is_requested = request.pool.is_some() || !request.addresses.is_empty();
    let current = ingress(&observed.service);
    let has_others = !current.is_empty() && !current.iter().any(|address| pool_of(observed, *address).is_some());
    let is_served = observed.pools.iter().any(|pool| pool.auto_assign && may_use(observed, pool));
    !is_requested && (has_others || !is_served)
}

/// Returns the addresses of a Service, one for each of its families.
pub(super) fn addresses(observed: &Observed, request: &Request) -> Result<Vec<IpAddr>, Refusal> {
    let spec = observed.service.spec.as_ref();
    let policy = spec.and_then(|spec| spec.ip_family_policy.as_deref()).unwrap_or_default();
    let families = families(&observed.service);
    if let Some(address) = request.addresses.iter().find(|one| !families.iter().any(|family| family.has(**one))) {
        return Err(Refusal::of_request(format!("the Service has no IP family of the address {address}")));
    }
    let mut addresses = Vec::new();
    for (index, family) in families.into_iter().enumerate() {
        match address(observed, request, family) {
            Ok(address) => addresses.push(address),
            // A Service that only prefers two families has one if the pools have one.
            Err(_) if index > 0 && policy != "RequireDualStack" => {}
            Err(refusal) => return Err(refusal),
        }
    }
    Ok(addresses)
}

fn address(observed: &Observed, request: &Request, family: Family) -> Result<IpAddr, Refusal> {
    if let Some(requested) = request.addresses.iter().find(|address| family.has(**address)) {
        return requested_address(observed, request, *requested);
    }
    let pools = pools_for(observed, request)?;
    let own = ingress(&observed.service).into_iter().find(|address| family.has(*address));
    let is_kept = |own: &IpAddr| pools.iter().any(|pool| pool.contains(*own)) && user(observed, *own, true).is_none();
    if let Some(own) = own.filter(is_kept) {
        return Ok(own);
    }
    let free = |pool: &&AddressPool| {
        let addresses = pool.ranges.iter().flat_map(|range| range.addresses()).filter(|one| family.has(*one));
        addresses.take(MOST_TRIED).find(|one| user(observed, *one, false).is_none())
    };
    pools.iter().find_map(free).ok_or_else(|| none_free(&pools, family))
}

/// The number of addresses of a pool that are tried. More Services would take longer than any cluster has.
const MOST_TRIED: usize = 1 << 17;

fn none_free(pools: &[&AddressPool], family: Family) -> Refusal {
    let names: Vec<&str> = pools.iter().map(|pool| pool.name.as_str()).collect();
    let has_family = |pool: &&&AddressPool| pool.ranges.iter().any(|range| family.has(range.bounds().0));
    let name = family.name();
    Refusal::new(match (names.as_slice(), pools.iter().any(|pool| has_family(&pool))) {
        ([one], true) if *one == super::CONFIGURED_POOL => "no address of the pool is free".to_owned(),
        (_, true) => format!("no {name} address of the pools is free: {}", names.join(", ")),
        (_, false) => format!("the pools have no {name} addresses: {}", names.join(", ")),
    })
}

fn requested_address(observed: &Observed, request: &Request, address: IpAddr) -> Result<IpAddr, Refusal> {
    let Some(pool) = pool_of(observed, address) else {
        let place = if observed.pools.len() == 1 { "the pool of addresses" } else { "any pool of addresses" };
        return Err(Refusal::new(format!("{address} is not in {place}")));
    };
    if request.pool.as_ref().is_some_and(|name| *name != pool.name) {
        return Err(Refusal::new(format!(
            "{address} is an address of the pool {}, and not of the requested",
            pool.name
        )));
    }
    if !may_use(observed, pool) {
        return Err(Refusal::new(format!("the pool {} of {address} does not serve this Service", pool.name)));
    }
    let is_own = ingress(&observed.service).contains(&address);
    match user(observed, address, is_own) {
        Some(_) if sharing_key(&observed.service).is_none() => {
            Err(Refusal::new(format!("{address} is in use by another Service")))
        }
        Some(other) => Err(Refusal::new(format!("{address} cannot be shared with Service {}", key_of(other)))),
        None => Ok(address),
    }
}

/// Returns the pools that a Service without a requested address may use, in their order.
fn pools_for<'a>(observed: &'a Observed, request: &Request) -> Result<Vec<&'a AddressPool>, Refusal> {
    let Some(name) = &request.pool else {
        let own = ingress(&observed.service);
        let is_in_use = |pool: &AddressPool| own.iter().any(|address| pool.contains(*address));
        let usable = observed.pools.iter().filter(|pool| may_use(observed, pool));
        let found: Vec<&AddressPool> = usable.filter(|pool| pool.auto_assign || is_in_use(pool)).collect();
        return match found.is_empty() {
            true => Err(Refusal::new("no pool of addresses serves this Service")),
            false => Ok(found),
        };
    };
    let pool = observed.pools.iter().find(|pool| pool.name == *name);
    let pool = pool.ok_or_else(|| Refusal::new(format!("there is no valid pool of addresses with the name {name}")))?;
    match may_use(observed, pool) {
        true => Ok(vec![pool]),
        false => Err(Refusal::new(format!("the pool {name} does not serve this Service"))),
    }
}

fn pool_of(observed: &Observed, address: IpAddr) -> Option<&AddressPool> {
    observed.pools.iter().find(|pool| pool.contains(address))
}

fn may_use(observed: &Observed, pool: &AddressPool) -> bool {
    let metadata = &observed.service.metadata;
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    let labels = metadata.labels.clone().unwrap_or_default();
    pool.serves(namespace, &observed.namespace_labels, &labels)
}

/// Returns a Service that has the address and does not share it. Of two Services with one address the older keeps it.
fn user(observed: &Observed, address: IpAddr, is_own: bool) -> Option<&Service> {
    let service = &observed.service;
    let others = observed.others.iter().filter(|other| !is_own || age(other) < age(service));
    others.filter(|other| ingress(other).contains(&address)).find(|other| !can_share(service, other))
}

/// Reports whether two Services may have one address: they have the same key and no port in common, and each node that
/// takes packets for one can serve the other.
fn can_share(one: &Service, other: &Service) -> bool {
    let key = sharing_key(one);
    let selector = |service: &Service| service.spec.as_ref().and_then(|spec| spec.selector.clone());
    let same_nodes = (!is_local(one) && !is_local(other)) || selector(one) == selector(other);
    key.is_some() && key == sharing_key(other) && ports(one).is_disjoint(&ports(other)) && same_nodes
}
