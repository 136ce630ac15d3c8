//! Services that want an address of the nodes, some of them the same port.
//!
//! A port of a node is given to one Service only; at the end the oldest Service with that port has it on every ready
//! node, and the others have nothing.

use std::collections::BTreeSet;

use corten_meta::Value;
use http::Method;
use serde_json::json;
use testkit_fixture as fixture;

use super::cluster::{World, collection, path_of, play};
use super::eviction::is_ready;
use super::server::{Invariant, Server, Write};
use super::{Random, SETTLED, age, all, any, delete, now, touch};
use crate::tests::model::Model;

pub const WORLD: World =
    World { controllers: &["service-lb-controller"], objects, happens, invariant, at_rest, ..World::USUAL };

/// The port that the nodes need themselves, as the managers are configured.
const KEPT: u64 = 22;

fn objects(_: &mut Random) -> Vec<Value> {
    fixture::objects("ns default\nnode n0\nnode n1\nnode n2")
}

fn happens(server: &Server, random: &mut Random) {
    match random.next(12) {
        0..3 => {
            let number = random.next(6);
            let port = [80, 80, 443, KEPT][random.next(4)];
            let address = format!("10.96.0.{}", 10 + number);
            let new = json!({"apiVersion": "v1", "kind": "Service",
                "metadata": {"namespace": "default", "name": format!("s{number}")},
                "spec": {"type": "LoadBalancer", "clusterIP": address, "clusterIPs": [address], "ipFamilies": ["IPv4"],
                    "ipFamilyPolicy": "SingleStack", "ports": [{"port": port, "protocol": "TCP"}]}});
            let _ = server.ask("user", Method::POST, &collection(&new), &new);
        }
        3 | 4 => {
            let Some(node) = any(server, random, "Node") else { return };
            let address = corten_meta::name(&node).replace('n', "192.0.2.");
            let ready = if is_ready(&node) { "False" } else { "True" };
            let at = corten_meta::time::rfc3339(now());
            let status = json!({"addresses": [{"type": "InternalIP", "address": address}],
                "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": at}]});
            let _ =
                server.ask("kubelet", Method::PATCH, &format!("{}/status", path_of(&node)), &json!({"status": status}));
        }
        5 => {
            if let Some(service) = any(server, random, "Service") {
                delete(server, &service, None);
            }
        }
        _ => {
            let kind = ["Service", "Node"][random.next(2)];
            touch(server, random, kind);
        }
    }
}

fn addresses(service: &Value) -> BTreeSet<String> {
    let entries = service["status"]["loadBalancer"]["ingress"].as_array().into_iter().flatten();
    entries.filter_map(|entry| entry["ip"].as_str().map(str::to_owned)).collect()
}

fn port(service: &Value) -> &Value {
    &service["spec"]["ports"][0]["port"]
}

/// Returns the older Services that want the same port.
fn older(model: &Model, service: &Value) -> Vec<Value> {
    let order = |one: &Value| (one["metadata"]["creationTimestamp"].to_string(), corten_meta::name(one).to_owned());
    let all = model.keys("Service").into_iter().map(|key| model.value("Service", &key.namespace, &key.name));
    all.filter(|other| order(other) < order(service) && port(other) == port(service)).collect()
}

fn invariant() -> Invariant {
    Box::new(|write: &Write<'_>| {
        let ("service-controller", "Service", Some(new)) = (write.who, write.kind, &write.new) else { return Ok(()) };
        if addresses(new).is_empty() {
            return Ok(());
        }
        if *port(new) == KEPT {
            return Err(format!("it has the port {KEPT} of the nodes"));
        }
        // A Service that was created a moment ago may not be in any cache.
        match older(write.after, new).iter().find(|other| age(other) > SETTLED) {
            Some(other) => Err(format!("it has a port that {} wants and is older", corten_meta::name(other))),
            None => Ok(()),
        }
    })
}

fn at_rest(server: &Server) -> Result<(), String> {
    let nodes: BTreeSet<String> = all(server, "Node")
        .iter()
        .filter(|node| is_ready(node))
        .map(|node| corten_meta::name(node).replace('n', "192.0.2."))
        .collect();
    let services = all(server, "Service");
    let state = server.state();
    for service in services {
        let barred = *port(&service) == KEPT || !older(&state.api.model, &service).is_empty();
        let wanted = if barred { BTreeSet::new() } else { nodes.clone() };
        if addresses(&service) != wanted {
            return Err(format!("{} has {:?}, not {wanted:?}", corten_meta::name(&service), addresses(&service)));
        }
    }
    Ok(())
}

#[test]
fn a_port_of_the_nodes_is_given_to_one_service_only() {
    play(&WORLD);
}
