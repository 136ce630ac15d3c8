//! Simulations of controllers on a faulty API: rejected writes, lost responses, stale caches, broken watches, managers
//! that crash and whose last writes arrive late, and other writers. They are seeded, so that a failure can be replayed.
//!
//! One mechanism runs everything: [`cluster`] runs the real managers on [`server`], a network with faults in front of
//! [`api`], the API in memory. A [`cluster::World`] defines the controllers, the initial objects, the actions, the
//! checks of every write, and the checks of the final state, when the faults have ended and no controller writes any
//! more. Time is tokio's and paused; an hour of the simulation costs nothing.
//!
//! [`everyone`] checks two properties of each controller alone: it converges, and the order of lists does not matter.

mod addresses;
mod api;
mod autoscalers;
mod balancers;
mod batch;
mod budgets;
mod cluster;
mod custom;
mod devices;
mod everyone;
mod eviction;
mod identities;
mod makers;
mod memories;
mod namespaces;
mod nodes;
mod ownership;
mod server;
mod tokens;
mod volumes;
mod workloads;
mod worlds;
mod zones;

use std::cell::Cell;

use corten_meta::Value;
use http::Method;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use tokio::time::Instant;

use crate::tests::model::NOW;
use cluster::{authority, path_of};
use server::Server;

/// Every cache shows changes that are older than this: no watch and no request is delayed that long.
const SETTLED: SignedDuration = SignedDuration::from_secs(30);

/// A random number generator with the same numbers for the same seed, independent of libraries.
pub struct Random(u64);

impl Random {
    /// Neighbouring seeds begin with unrelated numbers.
    pub fn new(seed: u64) -> Random {
        let mixed = (seed ^ 0x9E37_79B9_7F4A_7C15).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0x94D0_49BB_1331_11EB);
        Random((mixed ^ (mixed >> 32)) | 1)
    }

    pub fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 16).unwrap_or(0) % below.max(1)
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.next(100) < percent
    }

    pub fn per_mille(&mut self, of: usize) -> bool {
        self.next(1000) < of
    }

    pub fn one_of<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        all.get(self.next(all.len()))
    }
}

thread_local! {
    /// The start time of the simulation on this thread.
    static STARTED: Cell<Option<Instant>> = const { Cell::new(None) };
}

fn start_clock() {
    STARTED.set(Some(Instant::now()));
}

fn stop_clock() {
    STARTED.set(None);
}

/// Returns the time of the simulation or of the script on this thread, or else the wall clock.
pub fn now() -> Timestamp {
    match STARTED.get() {
        Some(started) => {
            let passed = SignedDuration::try_from(started.elapsed()).unwrap_or_default();
            NOW.checked_add(passed).unwrap_or(*NOW)
        }
        None => super::script::CLOCK.get().unwrap_or_else(corten_meta::time::now),
    }
}

/// Returns the age of an object.
fn age(object: &Value) -> SignedDuration {
    let created = object["metadata"]["creationTimestamp"].as_str().and_then(|text| text.parse::<Timestamp>().ok());
    created.map_or(SignedDuration::ZERO, |created| now().duration_since(created))
}

/// Lists all objects of a kind.
fn all(server: &Server, kind: &str) -> Vec<Value> {
    let state = server.state();
    let model = &state.api.model;
    model.keys(kind).iter().map(|key| model.value(kind, &key.namespace, &key.name)).collect()
}

/// Returns a random object of a kind, if there is one.
fn any(server: &Server, random: &mut Random, kind: &str) -> Option<Value> {
    let state = server.state();
    let keys = state.api.model.keys(kind);
    random.one_of(&keys).map(|key| state.api.model.value(kind, &key.namespace, &key.name))
}

/// Changes an annotation that no controller reads, so that the resourceVersion changes.
fn touch(server: &Server, random: &mut Random, kind: &str) {
    let Some(object) = any(server, random, kind) else { return };
    let patch = json!({"metadata": {"annotations": {"touched": random.next(1000).to_string()}}});
    let _ = server.ask("user", Method::PATCH, &path_of(&object), &patch);
}

/// Deletes an object as a user does, with one of the propagation policies.
fn delete(server: &Server, object: &Value, policy: Option<&str>) {
    let _ = server.ask("user", Method::DELETE, &path_of(object), &json!({"propagationPolicy": policy}));
}

/// Moves a pod one step forward: it is bound, runs, terminates, or is removed. Pods of Jobs terminate by themselves.
fn kubelet(server: &Server, random: &mut Random) {
    let Some(pod) = any(server, random, "Pod") else { return };
    let path = path_of(&pod);
    let status = |body: Value| {
        let _ = server.ask("kubelet", Method::PATCH, &format!("{path}/status"), &json!({ "status": body }));
    };
    let phase = pod["status"]["phase"].as_str().unwrap_or("Pending").to_owned();
    let ended = ["Succeeded", "Failed"].contains(&phase.as_str());
    let owner = &pod["metadata"]["ownerReferences"][0]["kind"];
    let terminated = |code: i32| {
        json!([{"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"terminated": {"exitCode": code, "finishedAt": "2026-01-01T00:00:00Z"}}}])
    };
    if pod["spec"]["nodeName"].is_null() {
        let node = any(server, random, "Node").map_or("a".to_owned(), |node| corten_meta::name(&node).to_owned());
        let _ = server.ask("scheduler", Method::POST, &format!("{path}/binding"), &json!({"target": {"name": node}}));
    } else if !pod["metadata"]["deletionTimestamp"].is_null() {
        if !ended {
            return status(json!({"phase": "Failed", "containerStatuses": terminated(137)}));
        }
        let _ = server.ask("kubelet", Method::DELETE, &path, &json!({"gracePeriodSeconds": 0}));
    } else if !ended && phase != "Running" {
        // No two pods have the same address: uids are numbered.
        let number: usize = corten_meta::uid(&pod).rsplit('-').next().and_then(|text| text.parse().ok()).unwrap_or(0);
        let ip = format!("10.0.{}.{}", number / 250, 1 + number % 250);
        let ready = json!({"type": "Ready", "status": "True", "lastTransitionTime": corten_meta::time::rfc3339(now())});
        let started = corten_meta::time::rfc3339(now());
        status(
            json!({"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "startTime": started, "conditions": [ready]}),
        );
    } else if !ended && *owner == "Job" {
        let succeeded = random.chance(80);
        let phase = if succeeded { "Succeeded" } else { "Failed" };
        status(json!({"phase": phase, "containerStatuses": terminated(i32::from(!succeeded)), "conditions": null}));
    }
}
