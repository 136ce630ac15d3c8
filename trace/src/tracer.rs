//! The state of a live trace.

use std::collections::HashMap;

use corten_meta::Value;
use jiff::Timestamp;

use crate::difference;
use crate::related::{Related, uid};
use crate::step::Step;

/// The most states of objects that are kept until their owner is seen.
const MAX_WAITING: usize = 10_000;

/// The object that a trace begins at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    pub kind: String,
    pub name: String,
}

impl Root {
    fn is(&self, object: &Value) -> bool {
        object["kind"] == *self.kind && object["metadata"]["name"] == *self.name
    }
}

/// A state of an object, and when it was seen.
struct Seen {
    at: Timestamp,
    object: Value,
    /// Whether the object was there when the trace began: its state is no step.
    existed: bool,
}

/// Turns states of objects into steps. Watches of several kinds arrive in any order, so states of objects whose owner is
/// not known yet wait for it.
pub struct Tracer {
    roots: Vec<Root>,
    related: Related,
    states: HashMap<String, Value>,
    waiting: Vec<Seen>,
}

impl Tracer {
    pub fn new(roots: Vec<Root>) -> Tracer {
        Tracer { roots, related: Related::default(), states: HashMap::new(), waiting: Vec::new() }
    }

    /// Takes a state of an object, and returns the steps that it shows, in the order of their times.
    pub fn see(&mut self, object: Value, at: Timestamp, existed: bool) -> Vec<Step> {
        // Earlier states of the same object come first: it may belong to the trace only by its new state.
        let belongs = self.belongs(&object);
        if belongs {
            self.related.add(&object);
        }
        if belongs || self.waiting.len() < MAX_WAITING {
            self.waiting.push(Seen { at, object, existed });
        }
        // Nothing that waits belongs to the trace by an object that does not.
        if belongs { self.take_waiting() } else { Vec::new() }
    }

    /// Takes the states of all objects of a kind, which were there when the trace began.
    pub fn see_existing(&mut self, objects: Vec<Value>, at: Timestamp) {
        self.waiting.extend(objects.into_iter().map(|object| Seen { at, object, existed: true }));
        self.take_waiting();
        self.waiting.truncate(MAX_WAITING);
    }

    /// Takes the states that belong to the trace, pass by pass, because an object that was taken may lead to others.
    fn take_waiting(&mut self) -> Vec<Step> {
        let mut steps = Vec::new();
        loop {
            let waiting = std::mem::take(&mut self.waiting);
            let (taken, waiting): (Vec<Seen>, Vec<Seen>) =
                waiting.into_iter().partition(|seen| self.belongs(&seen.object));
            self.waiting = waiting;
            if taken.is_empty() {
                break;
            }
            for seen in taken {
                steps.extend(self.take(seen));
            }
        }
        steps.sort_by_key(|step| step.at);
        steps
    }

    /// Returns the last states of the objects of the trace.
    pub fn objects(&self) -> impl Iterator<Item = &Value> {
        self.states.values()
    }

    /// Returns the last state of each root; none for one that was not seen.
    pub fn roots(&self) -> Vec<Option<&Value>> {
        self.roots.iter().map(|root| self.states.values().find(|object| root.is(object))).collect()
    }

    fn belongs(&self, object: &Value) -> bool {
        let is_root = self.roots.iter().any(|root| root.is(object));
        is_root || self.related.contains(object) || self.related.leads_to(object)
    }

    fn take(&mut self, seen: Seen) -> Vec<Step> {
        let Seen { at, object, existed } = seen;
        self.related.add(&object);
        let Some(uid) = uid(&object).map(str::to_owned) else { return Vec::new() };
        let steps = match (existed, self.states.get(&uid)) {
            (true, _) => Vec::new(),
            // An Event that is counted again is a step again.
            (false, Some(_)) if object["kind"] == "Event" => difference::steps(None, &object, at),
            (false, before) => difference::steps(before, &object, at),
        };
        self.states.insert(uid, object);
        steps
    }
}
