//! Every controller of the registry on worlds put together at random.
//!
//! A controller that is added to the registry is held to the two properties without a line of its own: it comes to an
//! end, and the order of lists does not matter to it.

use std::collections::BTreeSet;

use super::worlds::world;
use super::{Random, attempt, play};
use crate::model::{Model, decide};
use crate::registry::{self, Named};
use crate::runtime::Action;
use crate::{Config, LoadBalancerAddresses};

const SEEDS: u64 = 8;
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
