//! Every controller of the registry, alone and all together, on random worlds.
//!
//! A controller that is added to the registry is checked here without a line of its own: alone it converges, and the
//! order of lists does not matter; with all others, on a faulty API, the cluster converges once the faults end, and
//! nothing irreversible is done on the way.

use std::collections::BTreeSet;

use corten_meta::Value;

use super::cluster::{World, play};
use super::server::{Invariant, Server, Write};
use super::worlds::world;
use super::{Random, kubelet};
use crate::registry::{self, Named};
use crate::runtime::Action;
use crate::tests::model::{Model, decide};
use crate::{Config, KubeletServing, LoadBalancerAddresses};

/// The number of random worlds for each controller.
const SEEDS: u64 = 8;
const OBJECTS: usize = 24;

fn everyone() -> Vec<Named> {
    let nodes = LoadBalancerAddresses::Nodes { kept_ports: [22].into() };
    let config = Config {
        load_balancer: Some(nodes),
        local_volumes: true,
        kubelet_serving: Some(KubeletServing::default()),
        ..Config::default()
    };
    registry::controllers(&config).unwrap()
}

/// Reports whether a plan still writes; events and questions change nothing.
fn writes(plan: &crate::runtime::Plan) -> bool {
    plan.actions.iter().any(|action| {
        !matches!(action, Action::Event(_) | Action::AskScale(_) | Action::Relay { .. } | Action::Unused { .. })
    })
}

/// Applies one action as the runtime does: a missing object is neither patched nor deleted.
fn attempt(model: &mut Model, action: &Action) -> Result<(), String> {
    match (model.attempt(action), action) {
        (Err(why), Action::Patch { .. } | Action::Delete { .. }) if why.ends_with("is gone") => Ok(()),
        (outcome, _) => outcome,
    }
}

#[test]
fn each_alone_comes_to_an_end_whatever_the_order_of_lists() {
    for seed in 1..=SEEDS {
        let mut start = Model::default();
        world(&mut Random::new(seed), OBJECTS).into_iter().for_each(|object| start.put(object));
        for (_, queue, controller) in everyone() {
            let mut keys = BTreeSet::new();
            for listed in start.initial_list() {
                for watch in controller.watches().iter().filter(|watch| watch.resource.kind == listed.kind) {
                    keys.extend((watch.keys)(&start, &listed.change));
                }
            }
            for key in keys {
                let mut model = start.clone();
                let ended = (0..60).any(|_| {
                    let before = model.revision;
                    let plan = decide(&*controller, &model, &key.namespace, &key.name);
                    for action in &plan.actions {
                        match attempt(&mut model, action) {
                            Ok(()) => {}
                            // Another object has the name: the controller retries until it is free.
                            Err(refused) if refused.ends_with("already exists") => return true,
                            Err(refused) => panic!("seed {seed}: {queue} for {key}: {refused}"),
                        }
                    }
                    // To delete again an object with finalizers changes nothing, and enqueues no key.
                    !writes(&plan) || model.revision == before
                });
                assert!(ended, "seed {seed}: {queue} does not come to an end for {key}");
            }
        }
    }
}

/// All controllers at once.
pub const TOGETHER: World = World {
    controllers: &["*"],
    begins,
    happens,
    goes_on: kubelet,
    invariant,
    pace: std::time::Duration::from_millis(300),
    steps: 150,
    ..World::USUAL
};

/// Stores objects that may or may not fit together, as older versions may have left them: they are not validated.
fn begins(server: &Server, random: &mut Random) {
    let mut state = server.state();
    for mut object in world(random, OBJECTS) {
        let place = super::api::Place::of(&super::cluster::collection(&object));
        place.kind().unwrap().default(&mut object);
        state.api.model.put(object);
    }
    state.publish("user");
}

fn happens(server: &Server, random: &mut Random) {
    kubelet(server, random);
    let kinds = ["Pod", "Node", "Deployment", "Job", "PersistentVolume", "Service", "Secret"];
    let kind = kinds[random.next(kinds.len())];
    super::touch(server, random, kind);
}

/// Checks that no reconcile on a stale cache does irreversible harm.
fn invariant() -> Invariant {
    Box::new(|write: &Write<'_>| match (write.kind, &write.old, &write.new) {
        ("PersistentVolumeClaim", Some(claim), None) if write.who != "user" => {
            let uses = |pod: &Value| {
                let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
                let named = |one: &Value| one["persistentVolumeClaim"]["claimName"] == corten_meta::name(claim);
                volumes.into_iter().any(named)
                    && !["Failed", "Succeeded"].iter().any(|phase| pod["status"]["phase"] == *phase)
            };
            let pods = write.after.objects().filter(|(kind, _)| *kind == "Pod").map(|(_, pod)| pod.value());
            if pods.into_iter().any(|pod| uses(&pod)) { Err("it went while a pod used it".to_owned()) } else { Ok(()) }
        }
        // Two nodes with one CIDR would have two pods with one address. Those that began so are not the controller's to
        // repair.
        ("Node", Some(old), Some(new)) if write.who != "user" && old["spec"]["podCIDR"] != new["spec"]["podCIDR"] => {
            let range = &new["spec"]["podCIDR"];
            let nodes = write.after.objects().filter(|(kind, _)| *kind == "Node").map(|(_, node)| node.value());
            let sharing = nodes.filter(|node| node["spec"]["podCIDR"] == *range).count();
            if sharing > 1 { Err(format!("{sharing} nodes have {range}")) } else { Ok(()) }
        }
        _ => Ok(()),
    })
}

/// Every world in which controllers are checked against an invariant of their own.
const WORLDS: [&World; 15] = [
    &super::addresses::WORLD,
    &super::autoscalers::WORLD,
    &super::balancers::WORLD,
    &super::batch::WORLD,
    &super::budgets::WORLD,
    &super::devices::WORLD,
    &super::identities::WORLD,
    &super::makers::WORLD,
    &super::namespaces::WORLD,
    &super::nodes::WORLD,
    &super::ownership::WORLD,
    &super::tokens::WORLD,
    &super::volumes::WORLD,
    &super::workloads::WORLD,
    &super::zones::WORLD,
];

/// A controller that is added to the registry needs a world: no other test knows its invariants.
#[test]
fn every_controller_has_a_world_that_names_it() {
    let config = Config { controllers: vec!["*".to_owned()], ..Config::default() };
    let named: BTreeSet<&str> = WORLDS.iter().flat_map(|world| world.controllers.iter().copied()).collect();
    let mut missing = registry::running(&config, &everyone());
    missing.retain(|name| !named.contains(name));
    assert!(missing.is_empty(), "no world names {missing:?}");
}

#[test]
fn all_together_come_to_rest_once_the_faults_end() {
    play(&TOGETHER);
}
