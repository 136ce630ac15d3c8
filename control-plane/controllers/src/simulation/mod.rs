//! Controllers on a faulty API: writes that are refused, answers that get lost, caches that lag, processes that start
//! anew, others that write too. Seeded, so that a failure can be replayed.
//!
//! [`workloads`] plays those that keep pods, [`makers`] all others that create something. What must hold at every step:
//! nothing is there more often than it was ever asked for. What must hold when the faults end: everything is as asked,
//! and nothing is left over.

mod makers;
mod workloads;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use corten_meta::Key;

use crate::model::{Model, NOW};
use crate::runtime::Decide;

/// A small generator of its own: the same numbers for the same seed, whatever a library does.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed * 2_654_435_761 + 1)
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
}

/// A controller with its own view of the world.
pub struct Actor {
    controller: Arc<dyn Decide>,
    /// Its own kind, whose keys it looks at when it starts.
    kind: &'static str,
    cache: Model,
    /// How much of the log its cache has taken over.
    position: usize,
    pending: BTreeSet<Key>,
    /// A key is not looked at before the cache shows what was written for it.
    floors: BTreeMap<Key, usize>,
}

impl Actor {
    pub fn new(controller: Arc<dyn Decide>, kind: &'static str) -> Actor {
        let (cache, pending, floors) = (Model::default(), BTreeSet::new(), BTreeMap::new());
        Actor { controller, kind, cache, position: 0, pending, floors }
    }

    /// Takes over some more of what happened.
    pub fn listen(&mut self, server: &Model, most: usize) {
        let log = server.log.as_deref().unwrap_or_default();
        for told in log.iter().skip(self.position).take(most) {
            self.cache.follow(told);
            self.position += 1;
            for watch in self.controller.watches().iter().filter(|watch| watch.resource.kind == told.kind) {
                self.pending.extend((watch.keys)(&self.cache, &told.change));
            }
        }
    }

    /// Forgets everything and lists anew.
    pub fn restart(&mut self, server: &Model) {
        self.cache = server.listed();
        self.position = server.log.as_ref().map_or(0, Vec::len);
        self.pending = server.keys(self.kind).into_iter().collect();
        self.floors.clear();
    }

    /// Looks at one key and writes what it decides, as far as the API lets it.
    pub fn act(&mut self, server: &mut Model, random: &mut Random, faults: bool) {
        let ready: Vec<Key> = self
            .pending
            .iter()
            .filter(|key| self.floors.get(*key).is_none_or(|at| self.position >= *at))
            .cloned()
            .collect();
        let Some(key) = ready.get(random.next(ready.len())).cloned() else { return };
        self.pending.remove(&key);
        self.cache.reversed = random.chance(50);
        let plan = self.controller.decide(&self.cache, &key, *NOW);
        for action in &plan.actions {
            let refused = faults && random.chance(6);
            let answer_lost = faults && random.chance(4);
            let outcome = if refused { Err("refused".to_owned()) } else { server.attempt(action) };
            let gone = matches!(action, crate::runtime::Action::Patch { .. } | crate::runtime::Action::Delete { .. })
                && outcome.as_ref().is_err_and(|why| why.ends_with("is gone"));
            self.floors.insert(key.clone(), server.log.as_ref().map_or(0, Vec::len));
            if (outcome.is_err() && !gone) || answer_lost {
                self.pending.insert(key);
                return;
            }
        }
    }
}

/// Plays a world of every seed; a failure names its seed.
fn play(seeds: u64, one: impl Fn(u64) + std::panic::RefUnwindSafe) {
    for seed in 1..=seeds {
        if let Err(panic) = std::panic::catch_unwind(|| one(seed)) {
            eprintln!("the seed was {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
