//! Every controller of the registry, alone and all together, on worlds put together at random.
//!
//! A controller that is added to the registry is held to the properties here without a line of its own: alone it comes
//! to an end and the order of lists does not matter to it; with all others, on an API that refuses, forgets to answer
//! and lags, everything comes to rest once the faults end, and nothing is done on the way that cannot be undone.

use std::collections::{BTreeMap, BTreeSet};

use corten_meta::Value;

use super::worlds::world;
use super::{Actor, Random, attempt, collect, kubelet, play};
use crate::model::{Model, decide};
use crate::registry::{self, Named};
use crate::runtime::Action;
use crate::{Config, LoadBalancerAddresses};

/// How many worlds each controller has to itself, and how many all share.
const SEEDS: u64 = 8;
const SHARED_SEEDS: u64 = 4;
/// How many steps are taken before the faults end.
const STEPS: usize = 400;
const OBJECTS: usize = 24;

fn everyone() -> Vec<Named> {
    let nodes = LoadBalancerAddresses::Nodes { kept_ports: [22].into() };
    let config = Config { load_balancer: Some(nodes), local_volumes: true, ..Config::default() };
    registry::controllers(&config).unwrap()
}

/// What a plan still wants to write; events and questions change nothing.
fn writes(plan: &crate::runtime::Plan) -> bool {
    plan.actions.iter().any(|action| !matches!(action, Action::Event(_) | Action::AskScale(_) | Action::Relay { .. }))
}

#[test]
fn each_alone_comes_to_an_end_whatever_the_order_of_lists() {
    play(SEEDS, |seed| {
        let mut start = Model::default();
        world(&mut Random::new(seed), OBJECTS).into_iter().for_each(|object| start.put(object));
        for (_, queue, controller) in everyone() {
            let mut keys = BTreeSet::new();
            for told in start.told() {
                for watch in controller.watches().iter().filter(|watch| watch.resource.kind == told.kind) {
                    keys.extend((watch.keys)(&start, &told.change));
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
                            // Somebody else has the name: that is tried again until it is free.
                            Err(refused) if refused.ends_with("already exists") => return true,
                            Err(refused) => panic!("{queue} for {key}: {refused}"),
                        }
                    }
                    // To delete again what others hold changes nothing, and wakes nobody.
                    !writes(&plan) || model.revision == before
                });
                assert!(ended, "{queue} does not come to an end for {key}");
            }
        }
    });
}

struct World {
    server: Model,
    actors: Vec<Actor>,
    random: Random,
}

impl World {
    fn new(seed: u64) -> World {
        let (mut server, mut random) = (Model::logged(), Random::new(seed));
        world(&mut random, OBJECTS).into_iter().for_each(|object| server.put(object));
        let actors = everyone().into_iter().map(|(.., controller)| Actor::new(controller)).collect();
        World { server, actors, random }
    }

    fn step(&mut self) {
        let who = self.random.next(self.actors.len());
        match self.random.next(20) {
            0..8 => {
                let most = 1 + self.random.next(20);
                self.actors[who].listen(&self.server, most);
            }
            8..17 => {
                let before = self.server.listed();
                self.actors[who].act(&mut self.server, &mut self.random, true);
                self.check(&before);
            }
            17 => self.actors[who].restart(&self.server),
            _ => kubelet(&mut self.server, &mut self.random),
        }
        collect(&mut self.server);
    }

    /// What no look at a stale cache may cost anybody.
    fn check(&self, before: &Model) {
        let gone = |kind: &'static str| {
            let there: BTreeSet<_> = self.server.keys(kind).into_iter().collect();
            before.keys(kind).into_iter().filter(move |key| !there.contains(key))
        };
        for claim in gone("PersistentVolumeClaim") {
            let uses = |pod: &Value| {
                let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
                volumes.into_iter().any(|volume| volume["persistentVolumeClaim"]["claimName"] == claim.name.as_str())
                    && !matches!(pod["status"]["phase"].as_str(), Some("Failed" | "Succeeded"))
            };
            assert!(!all(before, "Pod").iter().any(uses), "{claim} went while a pod used it");
        }
        // Two nodes of one range would have two pods of one address. Those that began so are not ours to mend.
        let shared = |model: &Model| all(model, "Node").len() - ranges(model).len();
        assert!(shared(&self.server) <= shared(before), "a range was given twice: {:?}", ranges(&self.server));
    }

    fn settle(&mut self) {
        let mut quiet = 0;
        for _ in 0..1000 {
            let before = self.server.revision;
            for who in 0..self.actors.len() {
                self.actors[who].listen(&self.server, usize::MAX);
                self.actors[who].act(&mut self.server, &mut self.random, false);
            }
            for _ in 0..4 {
                kubelet(&mut self.server, &mut self.random);
            }
            collect(&mut self.server);
            quiet = if self.server.revision == before { quiet + 1 } else { 0 };
            // Who waits for a name that another has goes on trying, and changes nothing.
            if quiet == 40 {
                return;
            }
        }
        let last = self.server.log.iter().flatten().rev().take(30);
        let last: Vec<String> = last.map(|told| format!("{} {}", told.kind, told.change.key)).collect();
        panic!("it does not come to rest: {last:?}");
    }
}

fn all(model: &Model, kind: &str) -> Vec<Value> {
    model.keys(kind).iter().map(|key| model.value(kind, &key.namespace, &key.name)).collect()
}

/// The nodes by the range of their pods; those without one each by themselves.
fn ranges(model: &Model) -> BTreeMap<String, Value> {
    let of = |node: Value| {
        let range = node["spec"]["podCIDR"].as_str().map(str::to_owned);
        (range.unwrap_or_else(|| corten_meta::name(&node).to_owned()), node)
    };
    all(model, "Node").into_iter().map(of).collect()
}

#[test]
fn all_together_come_to_rest_once_the_faults_end() {
    play(SHARED_SEEDS, |seed| {
        let mut world = World::new(seed);
        for _ in 0..STEPS {
            world.step();
        }
        world.settle();
    });
}
