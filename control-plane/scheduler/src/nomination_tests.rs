//! Nominations against all updates of the pod before the API shows them: echoes of an older nomination, a status of
//! another writer, a pod of higher priority.

use super::*;
use crate::rows::tests::{node, typed_pod};
use corten_api::k8s_openapi::api::core::v1::Pod;
use serde_json::json;

struct World {
    scheduler: Scheduler,
    now: Timestamp,
}

fn pod(name: &str, priority: i32, node: &str) -> Pod {
    let containers = json!([{"name": "c", "resources": {"requests": {"cpu": "2"}}}]);
    typed_pod(name, json!({"priority": priority, "nodeName": node, "containers": containers}))
}

impl World {
    /// Returns nodes that are full of lower-priority pods: `lesser-a` on `a`, and so on.
    fn new(nodes: &[&str]) -> World {
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        let mut world = World { scheduler: Scheduler::new(&Config::default()), now };
        for name in nodes {
            world.scheduler.node_changed(name, Some(node(name, "2", json!({}))), now);
            world.heard(pod(&format!("lesser-{name}"), 0, name), "");
        }
        world
    }

    /// Delivers a pod from the cache, with this nomination.
    fn heard(&mut self, mut pod: Pod, nominated: &str) {
        pod.status.get_or_insert_default().nominated_node_name = Some(nominated.to_owned());
        let row = self.scheduler.snapshot.row(pod);
        self.scheduler.pod_changed(row, self.now);
    }

    /// Returns the next decision, after whatever time has to pass before it.
    fn decide(&mut self) -> Decision {
        self.now += jiff::SignedDuration::from_secs(60);
        let entry = self.scheduler.next(self.now).expect("a pod is due");
        self.scheduler.decide(entry).expect("its profile is known")
    }

    /// Returns the preemption of the next decision.
    fn makes_room(&mut self) -> Unplaced {
        match self.decide() {
            Decision::Reject(unplaced) => unplaced,
            Decision::Place(placed) => panic!("placed on {}", placed.row.node_name),
        }
    }

    fn victims_go(&mut self, unplaced: &Unplaced) {
        for victim in &unplaced.preemption.as_ref().expect("room can be made").victims {
            self.scheduler.pod_gone(&victim.uid, self.now);
        }
    }

    fn nominated(&self, node: &str) -> Vec<String> {
        self.scheduler.snapshot.nominated.on(node).iter().map(|pod| pod.name.clone()).collect()
    }
}

fn room(unplaced: &Unplaced) -> String {
    unplaced.preemption.as_ref().expect("room can be made").node.clone()
}

#[test]
fn an_older_nomination_that_is_heard_late_does_not_take_the_place_of_a_newer_one() {
    let mut world = World::new(&["a", "b"]);
    world.heard(pod("greater", 10, ""), "");
    let first = world.makes_room();
    let refused = room(&first);
    // Its victim cannot be evicted, and stays for good; so the pod tries the other node.
    world.scheduler.eviction_failed(&first.pod, first.preemption.as_ref().unwrap());
    world.heard(pod(&format!("lesser-{refused}"), 20, &refused), "");
    let second = world.makes_room();
    let cleared = room(&second);
    assert_ne!(refused, cleared);

    // The echoes arrive: of the pod before it was nominated, and of the first nomination.
    for late in ["", refused.as_str()] {
        world.heard(pod("greater", 10, ""), late);
        assert_eq!(world.nominated(&cleared), ["greater"], "after {late:?}");
        assert!(world.nominated(&refused).is_empty(), "after {late:?}");
    }
    // The deletion of its victim wakes the pod, which is scheduled on the nominated node.
    world.victims_go(&second);
    match world.decide() {
        Decision::Place(placed) => assert_eq!(placed.row.node_name, cleared),
        Decision::Reject(unplaced) => panic!("{}", unplaced.message),
    }
}

#[test]
fn once_the_nomination_was_shown_others_may_take_it_back() {
    let mut world = World::new(&["a"]);
    world.heard(pod("greater", 10, ""), "");
    world.makes_room();
    world.heard(pod("greater", 10, ""), "");
    assert_eq!(world.nominated("a"), ["greater"]);
    world.heard(pod("greater", 10, ""), "a");
    world.heard(pod("greater", 10, ""), "");
    assert!(world.nominated("a").is_empty());
}

#[test]
fn a_pod_of_more_importance_takes_the_room_and_the_other_waits_for_another() {
    let mut world = World::new(&["a"]);
    world.heard(pod("greater", 10, ""), "");
    let first = world.makes_room();
    world.heard(pod("greatest", 20, ""), "");
    let second = world.makes_room();
    assert_eq!(second.displaced.iter().map(|pod| pod.name.as_str()).collect::<Vec<_>>(), ["greater"]);
    // The echo of the lost nomination applies until the API shows its removal too.
    assert_eq!(world.nominated("a"), ["greatest"]);
    world.victims_go(&first);
    match world.decide() {
        Decision::Place(placed) => assert_eq!(placed.row.name, "greatest"),
        Decision::Reject(unplaced) => panic!("{}: {}", unplaced.pod.name, unplaced.message),
    }
}
