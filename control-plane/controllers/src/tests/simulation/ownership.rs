//! Owner references: the garbage collector on graphs that users build and change.
//!
//! No object is deleted while an owner exists; orphaned objects stay; foreground deletion waits for dependents; and at
//! the end all objects without owners are gone. One of the kinds is a custom resource, whose CustomResourceDefinition
//! is created and deleted.

use std::collections::{BTreeMap, BTreeSet};

use corten_meta::Value;
use http::Method;
use jiff::Timestamp;
use serde_json::json;

use super::cluster::{World, path_of, play};
use super::custom;
use super::server::{Invariant, Server, Write};
use super::{Random, SETTLED, all, any, delete, now, touch};
use crate::tests::model::Model;

const DEFINITION: &str = "CustomResourceDefinition";
const COLLECTOR: &str = "generic-garbage-collector";
const KINDS: [&str; 5] = ["ConfigMap", "Secret", "ServiceAccount", "ClusterRole", custom::KIND];

pub const WORLD: World = World {
    controllers: &["garbage-collector-controller"],
    objects,
    happens,
    goes_on: |server, _| custom::reconcile_crds(server),
    invariant,
    at_rest,
    pace: std::time::Duration::from_millis(700),
    seeds: 4,
    ..World::USUAL
};

fn objects(random: &mut Random) -> Vec<Value> {
    let mut all: Vec<Value> = ["default", "other"]
        .map(|name| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}))
        .into();
    all.extend(random.chance(50).then(custom::definition));
    all.extend((0..6).map(|number| object(random, number)).filter(|one| one["kind"] != custom::KIND));
    all
}

fn object(random: &mut Random, number: usize) -> Value {
    let kind = KINDS[random.next(KINDS.len())];
    let version = match kind {
        "ClusterRole" => "rbac.authorization.k8s.io/v1",
        custom::KIND => custom::API_VERSION,
        _ => "v1",
    };
    let mut object = json!({"apiVersion": version, "kind": kind, "metadata": {"name": format!("o{number}")}});
    if kind != "ClusterRole" {
        object["metadata"]["namespace"] = json!(if random.chance(80) { "default" } else { "other" });
    }
    object
}

/// Returns a reference to an object of the same namespace or of none, or to one that never existed.
fn reference(server: &Server, random: &mut Random, namespace: &str) -> Option<Value> {
    let kind = KINDS[random.next(KINDS.len())];
    let mut owners = all(server, kind);
    owners.retain(|owner| [namespace, ""].contains(&corten_meta::namespace(owner)));
    let owner = random.one_of(&owners)?;
    let uid = if random.chance(8) { json!("never-was") } else { owner["metadata"]["uid"].clone() };
    Some(json!({"apiVersion": owner["apiVersion"], "kind": kind, "name": corten_meta::name(owner), "uid": uid,
        "blockOwnerDeletion": random.chance(50)}))
}

fn happens(server: &Server, random: &mut Random) {
    let kind = KINDS[random.next(KINDS.len())];
    match random.next(20) {
        0 if random.chance(25) => custom::toggle_definition(server),
        0..10 => {
            let number = random.next(14);
            let mut new = object(random, number);
            let namespace = corten_meta::namespace(&new).to_owned();
            let owners: Vec<Value> =
                (0..random.next(3)).filter_map(|_| reference(server, random, &namespace)).collect();
            let distinct: BTreeMap<String, Value> =
                owners.into_iter().map(|owner| (owner["uid"].to_string(), owner)).collect();
            new["metadata"]["ownerReferences"] = distinct.into_values().collect();
            let _ = server.ask("user", Method::POST, &super::cluster::collection(&new), &new);
        }
        10..14 => {
            let policy = [Some("Foreground"), Some("Background"), Some("Orphan"), None][random.next(4)];
            if let Some(object) = any(server, random, kind) {
                delete(server, &object, policy);
            }
        }
        14 | 15 => {
            let Some(object) = any(server, random, kind) else { return };
            let Some(owner) = reference(server, random, corten_meta::namespace(&object)) else { return };
            let patch = json!({"metadata": {"ownerReferences": [owner]}});
            let _ = server.ask("user", Method::PATCH, &path_of(&object), &patch);
        }
        _ => touch(server, random, kind),
    }
}

/// Returns the existing owners that an object names.
fn living_owners(model: &Model, object: &Value) -> Vec<Value> {
    let references = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    let found = references.filter_map(|one| {
        let (kind, name) = (one["kind"].as_str()?, one["name"].as_str()?);
        let namespace = if kind == "ClusterRole" { "" } else { corten_meta::namespace(object) };
        model.find(kind, namespace, name).filter(|owner| owner["metadata"]["uid"] == one["uid"])
    });
    found.collect()
}

fn has_finalizer(object: &Value, name: &str) -> bool {
    object["metadata"]["finalizers"].as_array().is_some_and(|all| all.iter().any(|one| one == name))
}

fn is_waiting(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null() && has_finalizer(object, "foregroundDeletion")
}

/// Reports whether the collector must know an object: it has existed for longer than any watch is delayed.
fn is_known(since: &BTreeMap<String, Timestamp>, uid: &str) -> bool {
    since.get(uid).is_some_and(|at| now().duration_since(*at) > SETTLED)
}

fn dependents(model: &Model, owner: &Value) -> Vec<Value> {
    let uid = corten_meta::uid(owner);
    let held = model.objects().filter(|(_, object)| object.header.owners.iter().any(|one| one.uid == uid));
    held.map(|(_, object)| object.value()).collect()
}

fn invariant() -> Invariant {
    // The time since which each object has its owners, and the orphaned objects.
    let mut since: BTreeMap<String, Timestamp> = BTreeMap::new();
    let mut freed: BTreeSet<String> = BTreeSet::new();
    Box::new(move |write: &Write<'_>| {
        let (old, new) = (write.old.as_ref(), write.new.as_ref());
        let Some(object) = new.or(old) else { return Ok(()) };
        let uid = corten_meta::uid(object).to_owned();
        let references = |one: Option<&Value>| one.map(|one| one["metadata"]["ownerReferences"].clone());
        if write.who == "user" && references(old) != references(new) {
            since.insert(uid.clone(), now());
            freed.remove(&uid);
        }
        let begins = |finalizer: &str| {
            let is = |one: Option<&Value>| {
                one.is_some_and(|one| !one["metadata"]["deletionTimestamp"].is_null() && has_finalizer(one, finalizer))
            };
            is(new) && !is(old)
        };
        if begins("orphan") {
            let known = dependents(write.after, object).into_iter().filter(|one| {
                is_known(&since, corten_meta::uid(one))
                    && one["metadata"]["deletionTimestamp"].is_null()
                    && one["metadata"]["ownerReferences"].as_array().is_some_and(|all| all.len() == 1)
            });
            freed.extend(known.map(|one| corten_meta::uid(&one).to_owned()));
        }
        if write.who == "user" && begins("foregroundDeletion") {
            // A user changed the policy: objects that would have been orphaned are deleted before their owner.
            for one in dependents(write.after, object) {
                freed.remove(corten_meta::uid(&one));
            }
        }
        if write.who != COLLECTOR {
            if new.is_none() || !object["metadata"]["deletionTimestamp"].is_null() {
                freed.remove(&uid);
            }
            return Ok(());
        }
        let Some(old) = old else { return Err("the collector made something".to_owned()) };
        check_collector(write, old, &since, &freed)
    })
}

fn check_collector(
    write: &Write<'_>,
    old: &Value,
    since: &BTreeMap<String, Timestamp>,
    freed: &BTreeSet<String>,
) -> Result<(), String> {
    let deleted = |one: &Value| !one["metadata"]["deletionTimestamp"].is_null();
    let begins = !deleted(old) && write.new.as_ref().is_none_or(deleted);
    if begins {
        let solid = living_owners(write.after, old).into_iter().find(|owner| !is_waiting(owner));
        if let Some(owner) = solid {
            return Err(format!("it went while its owner {} lives", corten_meta::name(&owner)));
        }
        if freed.contains(corten_meta::uid(old)) {
            return Err("it went although it was set free".to_owned());
        }
        if old["metadata"]["ownerReferences"].as_array().is_none_or(Vec::is_empty) {
            return Err("it went and never had an owner".to_owned());
        }
    }
    let lifted = is_waiting(old) && write.new.as_ref().is_none_or(|new| !has_finalizer(new, "foregroundDeletion"));
    if lifted {
        let uid = corten_meta::uid(old);
        let blocks = |one: &Value| {
            let references = one["metadata"]["ownerReferences"].as_array().into_iter().flatten();
            is_known(since, corten_meta::uid(one))
                && references.into_iter().any(|owner| owner["uid"] == uid && owner["blockOwnerDeletion"] == true)
        };
        if let Some(left) = dependents(write.after, old).iter().find(|one| blocks(one)) {
            return Err(format!("it did not wait for {}", corten_meta::name(left)));
        }
    }
    Ok(())
}

fn at_rest(server: &Server) -> Result<(), String> {
    let objects: Vec<Value> = KINDS.iter().flat_map(|kind| all(server, kind)).collect();
    let state = server.state();
    for object in &objects {
        let name = corten_meta::name(object);
        if !object["metadata"]["deletionTimestamp"].is_null() {
            return Err(format!("{name} waits for ever: {object}"));
        }
        // If the owner's kind is no longer served, its state is unknown.
        let served = |owner: &&Value| owner["kind"] != custom::KIND || state.api.model.keys(DEFINITION).len() == 1;
        let references = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        let references = references.filter(served).count();
        if references > 0 && living_owners(&state.api.model, object).len() < references {
            return Err(format!("{name} has lost an owner and is as before: {object}"));
        }
    }
    Ok(())
}

#[test]
fn nothing_goes_while_an_owner_lives_and_all_goes_without() {
    play(&WORLD);
}
