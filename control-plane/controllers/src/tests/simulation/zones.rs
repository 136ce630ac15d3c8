//! Zones of which one node, many or all become silent at once.
//!
//! Nodes of a zone are tainted one after the other, none while most of a small zone is silent, and none when all nodes
//! are; at the end every silent node is tainted for eviction where that is right, and no other.

use std::collections::BTreeMap;

use corten_meta::Value;
use http::Method;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use testkit_fixture as fixture;

use super::cluster::{World, path_of, play};
use super::nodes::{SILENT, heartbeats};
use super::server::{Invariant, Server, Write};
use super::{Random, SETTLED, all, now, touch};
use crate::tests::model::Model;

pub const WORLD: World = World {
    controllers: &["node-lifecycle-controller"],
    objects,
    happens,
    goes_on: |server, _| heartbeats(server),
    invariant,
    at_rest,
    pace: std::time::Duration::from_secs(6),
    steps: 200,
    ..World::USUAL
};

const CONTROLLER: &str = "node-controller";
const ZONE: &str = "topology.kubernetes.io/zone";
const SIZES: [(&str, usize); 2] = [("one", 7), ("two", 3)];
/// One node every ten seconds; the time of a taint has whole seconds.
const PACE: SignedDuration = SignedDuration::from_secs(9);

fn objects(_: &mut Random) -> Vec<Value> {
    let mut all = fixture::objects("ns kube-node-lease");
    for (zone, size) in SIZES {
        all.extend((0..size).map(|number| fixture::object(&format!("node {zone}-{number} zone={zone}"))));
    }
    all
}

/// Disconnects or reconnects one node, most of a zone, a zone, or all nodes.
fn happens(server: &Server, random: &mut Random) {
    let mut nodes = all(server, "Node");
    let mark = if random.chance(50) { json!("yes") } else { Value::Null };
    match random.next(24) {
        0..4 => {
            let chosen = random.next(nodes.len());
            nodes = vec![nodes.swap_remove(chosen)];
        }
        4 => {
            let (zone, _) = SIZES[random.next(2)];
            nodes.retain(|node| node["metadata"]["labels"][ZONE] == zone);
        }
        5 => {
            nodes.retain(|node| node["metadata"]["labels"][ZONE] == "one");
            nodes.truncate(5);
        }
        6 if random.chance(30) => {}
        _ => return touch(server, random, "Node"),
    }
    for node in nodes {
        let _ = server.ask("user", Method::PATCH, &path_of(&node), &json!({"metadata": {"labels": {SILENT: mark}}}));
    }
}

fn is_ready(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|one| one["type"] == "Ready" && one["status"] == "True")
}

fn is_emptied(node: &Value) -> bool {
    let ours = ["node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready"];
    let taints = node["spec"]["taints"].as_array().into_iter().flatten();
    taints.into_iter().any(|one| one["effect"] == "NoExecute" && ours.iter().any(|key| one["key"] == *key))
}

/// Reports whether nodes of a zone must not be tainted for eviction: most of the zone is silent, or all nodes are.
fn is_spared(model: &Model, zone: &str) -> bool {
    let nodes: Vec<Value> = model.objects().filter(|(kind, _)| *kind == "Node").map(|(_, node)| node.value()).collect();
    let here = nodes.iter().filter(|node| node["metadata"]["labels"][ZONE] == zone);
    let (silent, ready): (Vec<&Value>, Vec<&Value>) = here.partition(|node| !is_ready(node));
    let most = !ready.is_empty() && silent.len() > 2 && silent.len() * 100 >= (silent.len() + ready.len()) * 55;
    most || !nodes.iter().any(is_ready)
}

fn invariant() -> Invariant {
    // The time since which each zone is spared, and the time of its last taint, if the leader knew it.
    let mut spared: BTreeMap<&'static str, Timestamp> = BTreeMap::new();
    let mut tainted: BTreeMap<String, Timestamp> = BTreeMap::new();
    Box::new(move |write: &Write<'_>| {
        let ("Node", Some(new)) = (write.kind, &write.new) else { return Ok(()) };
        let zone = new["metadata"]["labels"][ZONE].as_str().unwrap_or_default().to_owned();
        let begins = is_emptied(new) && !write.old.as_ref().is_some_and(is_emptied);
        let (since, last) = (spared.get(zone.as_str()).copied(), tainted.get(&zone).copied());
        for (zone, _) in SIZES {
            match is_spared(write.after, zone) {
                true => drop(spared.entry(zone).or_insert_with(now)),
                false => drop(spared.remove(zone)),
            }
        }
        if !begins || write.who != CONTROLLER {
            return Ok(());
        }
        if write.is_late {
            // The leader may not have known of it when it tainted the next.
            tainted.remove(&zone);
            return Ok(());
        }
        tainted.insert(zone.clone(), now());
        if since.is_some_and(|since| now().duration_since(since) > SETTLED) {
            return Err(format!("{zone} is to be spared since {since:?}"));
        }
        match last.map(|last| now().duration_since(last)) {
            Some(passed) if passed < PACE => Err(format!("the last of {zone} was tainted {passed:?} ago")),
            _ => Ok(()),
        }
    })
}

fn at_rest(server: &Server) -> Result<(), String> {
    let nodes = all(server, "Node");
    let state = server.state();
    for node in &nodes {
        let (name, zone) = (corten_meta::name(node), node["metadata"]["labels"][ZONE].as_str().unwrap_or_default());
        let silent = !node["metadata"]["labels"][SILENT].is_null();
        if silent == is_ready(node) {
            return Err(format!("{name} is ready or not, wrongly: {node}"));
        }
        let right = match (silent, is_spared(&state.api.model, zone)) {
            (false, _) => !is_emptied(node),
            (true, false) => is_emptied(node),
            // A node that was tainted before stays tainted.
            (true, true) => true,
        };
        if !right {
            return Err(format!("{name} is tainted or not, wrongly: {node}"));
        }
    }
    let silent = !nodes.iter().any(is_ready);
    match nodes.iter().find(|node| silent && is_emptied(node)) {
        Some(node) => Err(format!("{} is emptied though nobody is heard of", corten_meta::name(node))),
        None => Ok(()),
    }
}

#[test]
fn a_zone_is_emptied_slowly_and_not_at_all_when_most_of_it_is_silent() {
    play(&WORLD);
}
