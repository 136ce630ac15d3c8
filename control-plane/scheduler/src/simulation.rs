//! A cluster that misbehaves: nodes are added and removed, pods created and deleted, requests fail, events arrive late,
//! the scheduler restarts. In any order of events: no pod is lost, none is bound twice, no node is over-committed.

use super::*;
use crate::rows::tests::{node, pod};
use corten_api::k8s_openapi::api::core::v1::Pod;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug)]
enum Step {
    AddNode {
        name: u8,
        cpu: u8,
    },
    RemoveNode {
        name: u8,
    },
    Cordon {
        name: u8,
        off: bool,
    },
    CreatePod {
        cpu: u8,
        priority: u8,
        gated: bool,
        spreads: bool,
    },
    Ungate {
        pick: usize,
    },
    DeletePod {
        pick: usize,
    },
    /// A pod that is being deleted is removed.
    Vanish {
        pick: usize,
    },
    /// Another scheduler binds a pod that ours may be about to bind.
    BindByOther {
        pick: usize,
        node: u8,
    },
    /// Events of some pods and nodes reach the scheduler.
    Deliver {
        most: usize,
    },
    Decide,
    /// A request in flight completes.
    Answer {
        pick: usize,
        fails: bool,
    },
    Wait {
        seconds: u16,
    },
    Restart {
        lost: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0u8..4, 1u8..6).prop_map(|(name, cpu)| Step::AddNode { name, cpu }),
        1 => (0u8..4).prop_map(|name| Step::RemoveNode { name }),
        1 => (0u8..4, any::<bool>()).prop_map(|(name, off)| Step::Cordon { name, off }),
        5 => (0u8..5, 0u8..3, prop::bool::weighted(0.1), prop::bool::weighted(0.2))
            .prop_map(|(cpu, priority, gated, spreads)| Step::CreatePod { cpu, priority, gated, spreads }),
        1 => any::<usize>().prop_map(|pick| Step::Ungate { pick }),
        2 => any::<usize>().prop_map(|pick| Step::DeletePod { pick }),
        3 => any::<usize>().prop_map(|pick| Step::Vanish { pick }),
        1 => (any::<usize>(), 0u8..4).prop_map(|(pick, node)| Step::BindByOther { pick, node }),
        5 => (1usize..6).prop_map(|most| Step::Deliver { most }),
        6 => Just(Step::Decide),
        5 => (any::<usize>(), prop::bool::weighted(0.2)).prop_map(|(pick, fails)| Step::Answer { pick, fails }),
        1 => (1u16..400).prop_map(|seconds| Step::Wait { seconds }),
        1 => any::<bool>().prop_map(|lost| Step::Restart { lost }),
    ]
}

/// A pod as the API has it.
#[derive(Clone, Debug)]
struct Stored {
    cpu: i64,
    priority: i32,
    gated: bool,
    spreads: bool,
    node: String,
    /// Whether it is being deleted, and takes its time.
    going: bool,
}

enum Request {
    Bind(Placed),
    Evict(Unplaced),
}

struct World {
    scheduler: Scheduler,
    now: Timestamp,
    pods: BTreeMap<String, Stored>,
    nodes: BTreeMap<String, (i64, bool)>,
    /// The largest size that each node has had.
    sizes: BTreeMap<String, i64>,
    /// The events that the scheduler has not seen yet.
    news: BTreeSet<(bool, String)>,
    requests: Vec<Request>,
    made: usize,
}

impl World {
    fn new() -> World {
        World {
            scheduler: Scheduler::new(&Config::default()),
            now: Timestamp::from_second(1_700_000_000).unwrap(),
            pods: BTreeMap::new(),
            nodes: BTreeMap::new(),
            sizes: BTreeMap::new(),
            news: BTreeSet::new(),
            requests: Vec::new(),
            made: 0,
        }
    }

    fn pod(&self, name: &str) -> Option<Pod> {
        let stored = self.pods.get(name)?;
        let Stored { priority, cpu, .. } = stored;
        let mut line = format!("pod {name} uid={name} label.app={name} priority={priority} request.cpu={cpu}");
        if !stored.node.is_empty() {
            line += &format!(" node={}", stored.node);
        }
        if stored.gated {
            line += " schedulingGates=[{name: g}]";
        }
        if stored.spreads {
            line += " topologySpreadConstraints=[{maxSkew: 2, topologyKey: kubernetes.io/hostname, \
                whenUnsatisfiable: DoNotSchedule, labelSelector: {matchExpressions: [{key: app, operator: Exists}]}}]";
        }
        let mut pod = pod(&line);
        pod.metadata.deletion_timestamp =
            stored.going.then_some(corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(self.now));
        Some(pod)
    }

    fn deliver(&mut self, most: usize) {
        for _ in 0..most {
            let Some((is_pod, name)) = self.news.pop_first() else { return };
            match is_pod {
                false => {
                    let stored = self
                        .nodes
                        .get(&name)
                        .map(|(cpu, cordoned)| node(&format!("node {name} cpu={cpu} unschedulable={cordoned}")));
                    self.scheduler.node_changed(&name, stored, self.now);
                }
                true => match self.pod(&name) {
                    Some(pod) => {
                        let row = self.scheduler.snapshot.row(pod);
                        self.scheduler.pod_changed(row, self.now);
                    }
                    None => self.scheduler.pod_gone(&name, self.now),
                },
            }
        }
    }

    fn decide(&mut self) -> bool {
        let Some(entry) = self.scheduler.next(self.now) else { return false };
        let name = entry.pod.name.clone();
        let bound_already = |request: &Request| matches!(request, Request::Bind(other) if other.row.name == name);
        assert!(!self.requests.iter().any(bound_already), "{name} is decided about twice at a time");
        match self.scheduler.decide(entry).expect("there is a profile") {
            Decision::Place(placed) => self.requests.push(Request::Bind(placed)),
            Decision::Reject(unplaced) if unplaced.preemption.is_some() => self.requests.push(Request::Evict(unplaced)),
            Decision::Reject(_) => {}
        }
        true
    }

    fn answer(&mut self, pick: usize, fails: bool) {
        if self.requests.is_empty() {
            return;
        }
        match self.requests.swap_remove(pick % self.requests.len()) {
            Request::Bind(placed) => {
                let name = placed.row.name.clone();
                let free = self.pods.get(&name).is_some_and(|pod| pod.node.is_empty());
                if fails || !free {
                    return self.scheduler.binding_failed(placed, self.now);
                }
                if let Some(pod) = self.pods.get_mut(&name) {
                    pod.node.clone_from(&placed.row.node_name);
                }
                self.news.insert((true, name));
                self.scheduler.bound(&placed, self.now);
                self.check_nodes();
            }
            Request::Evict(unplaced) => {
                let room = unplaced.preemption.clone().expect("it is an eviction");
                if fails {
                    return self.scheduler.eviction_failed(&unplaced.pod, &room);
                }
                for victim in &room.victims {
                    if let Some(pod) = self.pods.get_mut(&victim.name) {
                        pod.going = true;
                    }
                    self.news.insert((true, victim.name.clone()));
                }
            }
        }
    }

    /// Checks that no node has more bound pods than it can take.
    fn check_nodes(&self) {
        for (name, (cpu, _)) in &self.nodes {
            let bound: i64 = self.pods.values().filter(|pod| pod.node == *name).map(|pod| pod.cpu).sum();
            assert!(bound <= *cpu, "{name} has {cpu} and was given {bound}");
        }
    }

    fn restart(&mut self, lost: bool) {
        while !self.requests.is_empty() {
            self.answer(0, lost);
        }
        self.scheduler = Scheduler::new(&Config::default());
        self.news = self.nodes.keys().map(|name| (false, name.clone())).collect();
        self.news.extend(self.pods.keys().map(|name| (true, name.clone())));
        // The caches are synced before the first decision.
        self.deliver(usize::MAX);
    }

    fn happen(&mut self, step: &Step) {
        match step.clone() {
            Step::AddNode { name, cpu } => {
                let name = format!("n{name}");
                // A node never comes back smaller: the scheduler cannot respect a size that it has not seen yet.
                let size = self.sizes.entry(name.clone()).or_default();
                *size = i64::from(cpu).max(*size);
                self.nodes.insert(name.clone(), (*size, false));
                self.news.insert((false, name));
            }
            Step::RemoveNode { name } => {
                let name = format!("n{name}");
                self.nodes.remove(&name);
                self.news.insert((false, name));
            }
            Step::Cordon { name, off } => {
                let name = format!("n{name}");
                if let Some((_, cordoned)) = self.nodes.get_mut(&name) {
                    *cordoned = !off;
                    self.news.insert((false, name));
                }
            }
            Step::CreatePod { cpu, priority, gated, spreads } => {
                let name = format!("p{:03}", self.made);
                self.made += 1;
                let (cpu, priority) = (i64::from(cpu), i32::from(priority));
                self.pods
                    .insert(name.clone(), Stored { cpu, priority, gated, spreads, node: String::new(), going: false });
                self.news.insert((true, name));
            }
            Step::Ungate { pick } => self.change(pick, |pods, name| {
                if let Some(pod) = pods.get_mut(name) {
                    pod.gated = false;
                }
            }),
            Step::DeletePod { pick } => self.change(pick, |pods, name| drop(pods.remove(name))),
            Step::Vanish { pick } => self.vanish(pick),
            Step::BindByOther { pick, node } => {
                let node = format!("n{node}");
                let known = self.nodes.contains_key(&node);
                // A pod without requests: the scheduler cannot respect what another binds at the same time.
                self.change(pick, |pods, name| {
                    if let Some(pod) = pods.get_mut(name).filter(|pod| known && pod.cpu == 0 && pod.node.is_empty()) {
                        pod.node = node;
                    }
                });
            }
            Step::Deliver { most } => self.deliver(most),
            Step::Decide => _ = self.decide(),
            Step::Answer { pick, fails } => self.answer(pick, fails),
            Step::Wait { seconds } => self.wait(i64::from(seconds)),
            Step::Restart { lost } => self.restart(lost),
        }
    }

    fn change(&mut self, pick: usize, what: impl FnOnce(&mut BTreeMap<String, Stored>, &str)) {
        let Some(name) = self.pods.keys().nth(pick % self.pods.len().max(1)).cloned() else { return };
        what(&mut self.pods, &name);
        self.news.insert((true, name));
    }

    fn vanish(&mut self, pick: usize) {
        let going: Vec<String> = self.pods.iter().filter(|(_, pod)| pod.going).map(|(name, _)| name.clone()).collect();
        if let Some(name) = going.get(pick % going.len().max(1)) {
            self.pods.remove(name);
            self.news.insert((true, name.clone()));
        }
    }

    fn wait(&mut self, seconds: i64) {
        self.now = self.now.checked_add(std::time::Duration::from_secs(seconds.unsigned_abs())).unwrap();
    }

    /// Delivers all events, lets all requests succeed, and advances time until nothing is left to do.
    fn settle(&mut self) {
        for _ in 0..4 {
            self.wait(301);
            loop {
                self.deliver(usize::MAX);
                let decided = self.decide();
                while !self.requests.is_empty() {
                    self.answer(0, false);
                }
                if !decided && self.news.is_empty() {
                    if !self.pods.values().any(|pod| pod.going) {
                        break;
                    }
                    self.vanish(0);
                }
            }
        }
    }

    /// Checks that every pod without a node is known, and fits nowhere.
    fn check_no_pod_is_lost(&self) {
        for (name, pod) in self.pods.iter().filter(|(_, pod)| pod.node.is_empty()) {
            assert!(self.scheduler.is_queued(name), "{name} is lost: {pod:?}");
            let fits = |(node, (cpu, cordoned)): (&String, &(i64, bool))| {
                let used: i64 = self.pods.values().filter(|other| other.node == *node).map(|other| other.cpu).sum();
                !cordoned && used + pod.cpu <= *cpu
            };
            let could = !pod.gated && !pod.spreads && self.nodes.iter().any(fits);
            assert!(!could, "{name} waits although there is room: {pod:?} {:?}", self.nodes);
        }
        let bound = self.pods.iter().filter(|(_, pod)| !pod.node.is_empty());
        for (name, _) in bound {
            assert!(!self.scheduler.is_queued(name) && !self.scheduler.is_assumed(name), "{name} is placed");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_pod_is_lost_none_bound_twice_no_node_overcommitted(steps in prop::collection::vec(step(), 1..120)) {
        let mut world = World::new();
        for step in &steps {
            world.happen(step);
        }
        world.settle();
        world.check_nodes();
        world.check_no_pod_is_lost();
    }
}
