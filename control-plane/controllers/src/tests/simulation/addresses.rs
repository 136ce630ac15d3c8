//! ServiceCIDRs that are created, overlap and are deleted, and the addresses allocated from them.
//!
//! No CIDR is deleted while an address lies in it alone; at the end every remaining CIDR is ready, and none that could
//! be deleted is left.

use std::net::Ipv4Addr;

use corten_meta::Value;
use http::Method;
use serde_json::json;

use super::cluster::{World, play};
use super::server::{Invariant, Server, Write};
use super::{Random, SETTLED, age, all, any, delete, touch};
use crate::tests::model::Model;

pub const WORLD: World = World {
    controllers: &["service-cidr-controller"],
    objects: |_| Vec::new(),
    happens,
    invariant,
    at_rest,
    pace: std::time::Duration::from_secs(2),
    ..World::USUAL
};

const CONTROLLER: &str = "service-cidrs-controller";
const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";
/// Some contain others, and two are the same.
const RANGES: [(&str, u32); 5] =
    [("10.96.0.0", 24), ("10.96.0.0", 16), ("10.96.1.0", 24), ("10.97.0.0", 24), ("10.96.0.0", 24)];

fn happens(server: &Server, random: &mut Random) {
    match random.next(10) {
        0..3 => {
            let which = random.next(RANGES.len());
            let (base, bits) = RANGES[which];
            let new = json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
                "metadata": {"name": format!("r{which}")}, "spec": {"cidrs": [format!("{base}/{bits}")]}});
            let _ = server.ask("user", Method::POST, "/apis/networking.k8s.io/v1/servicecidrs", &new);
        }
        3 | 4 => {
            // Two that are deleted at once may each rely on the other.
            for _ in 0..1 + random.next(2) {
                if let Some(range) = any(server, random, "ServiceCIDR") {
                    delete(server, &range, None);
                }
            }
        }
        5 | 6 => allocate(server, random),
        7 => {
            if let Some(address) = any(server, random, "IPAddress") {
                delete(server, &address, None);
            }
        }
        _ => {
            let kind = ["ServiceCIDR", "IPAddress"][random.next(2)];
            touch(server, random, kind);
        }
    }
}

/// Allocates an address of a CIDR that stays.
fn allocate(server: &Server, random: &mut Random) {
    let mut ranges = all(server, "ServiceCIDR");
    ranges.retain(|range| range["metadata"]["deletionTimestamp"].is_null());
    let Some(range) = random.one_of(&ranges) else { return };
    let Some((base, _)) = prefix(range) else { return };
    let address = Ipv4Addr::from(base + 1 + u32::try_from(random.next(4)).unwrap_or(0));
    let labels = json!({"ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io", "ipaddress.kubernetes.io/ip-family": "IPv4"});
    let parent = json!({"resource": "services", "namespace": "default", "name": "s"});
    let new = json!({"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress",
        "metadata": {"name": address.to_string(), "labels": labels}, "spec": {"parentRef": parent}});
    let _ = server.ask("apiserver", Method::POST, "/apis/networking.k8s.io/v1/ipaddresses", &new);
}

fn prefix(range: &Value) -> Option<(u32, u32)> {
    let (base, bits) = range["spec"]["cidrs"][0].as_str()?.split_once('/')?;
    Some((base.parse::<Ipv4Addr>().ok()?.into(), bits.parse().ok()?))
}

fn holds(range: &Value, address: &Value) -> bool {
    let number = corten_meta::name(address).parse::<Ipv4Addr>().map(u32::from).ok();
    prefix(range).zip(number).is_some_and(|((base, bits), number)| number >> (32 - bits) == base >> (32 - bits))
}

fn values(model: &Model, kind: &str) -> Vec<Value> {
    model.keys(kind).into_iter().map(|key| model.value(kind, &key.namespace, &key.name)).collect()
}

/// Returns the addresses that lie in this CIDR and in no other.
fn alone_in(model: &Model, range: &Value) -> Vec<Value> {
    let mut others = values(model, "ServiceCIDR");
    others.retain(|other| corten_meta::name(other) != corten_meta::name(range));
    let mut addresses = values(model, "IPAddress");
    addresses.retain(|one| holds(range, one) && !others.iter().any(|other| holds(other, one)));
    addresses
}

fn invariant() -> Invariant {
    Box::new(|write: &Write<'_>| {
        let (CONTROLLER, "ServiceCIDR", Some(old), None) = (write.who, write.kind, &write.old, &write.new) else {
            return Ok(());
        };
        match alone_in(write.after, old).iter().find(|address| age(address) > SETTLED) {
            Some(address) => Err(format!("{} lies in it alone", corten_meta::name(address))),
            None => Ok(()),
        }
    })
}

fn at_rest(server: &Server) -> Result<(), String> {
    let state = server.state();
    let model = &state.api.model;
    for range in values(model, "ServiceCIDR") {
        let name = corten_meta::name(&range);
        let leaves = !range["metadata"]["deletionTimestamp"].is_null();
        // Of those that are being deleted, one may have to wait for another that is held by addresses of its own.
        let held = values(model, "ServiceCIDR").into_iter().any(|other| {
            let other_leaves = !other["metadata"]["deletionTimestamp"].is_null();
            corten_meta::name(&other) > name && other_leaves && !alone_in(model, &other).is_empty()
        });
        if leaves && alone_in(model, &range).is_empty() && !held {
            return Err(format!("{name} is needed by nobody and stays"));
        }
        let ready = &range["status"]["conditions"][0];
        let is_reported = ready["type"] == "Ready" && ready["status"] == if leaves { "False" } else { "True" };
        if !is_reported || range["metadata"]["finalizers"] != json!([FINALIZER]) {
            return Err(format!("{name} is held or reported wrongly: {range}"));
        }
    }
    Ok(())
}

#[test]
fn no_range_goes_while_an_address_lies_in_it_alone() {
    play(&WORLD);
}
