//! Remembers the reads of a reconcile that found nothing to do: while they are unchanged, there is nothing to do.
//!
//! A decision depends only on its reads and on the time, and it reads through a view. So the view records each part of
//! a cache that is read, with the stamp of that part ([`Part`]). No controller declares its dependencies, and none can
//! forget one. `requeue_after` covers the time: the result is valid until then.
//!
//! Invariant: a reconcile that planned writes, followed a failure or asked the server is not remembered, and nothing is
//! remembered beyond the leadership. A controller that keeps state of its own between reconciles must return false from
//! [`super::Controller::remembers`]. In tests every remembered result is compared with a fresh reconcile.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use corten_client::{Cache, Part};
use corten_meta::Key;
use jiff::{SignedDuration, Timestamp};

use super::Informers;
use super::controller::Decide;
use super::count::Count;
use super::informer::CachedView;
use super::plan::Plan;
use super::view::Failure;

/// A reconcile that reads more parts of one resource than this depends on all of it.
const MOST_PARTS: usize = 16;

/// The reads of a reconcile, with the stamps from before each read.
#[derive(Default)]
pub struct Seen(Vec<Reads>);

/// The reads of one resource.
struct Reads {
    cache: Arc<Cache>,
    stamp_of_all: u64,
    parts: Vec<(Question, u64)>,
    /// Whether the reconcile depends on all of the resource.
    everything: bool,
}

/// An owned [`Part`] of a cache.
#[derive(PartialEq, Eq)]
enum Question {
    Namespace(Box<str>),
    Object(Key),
    Owner(Box<str>),
    Index(&'static str, Box<str>),
}

impl Question {
    /// Converts a part; none stands for all of the cache.
    fn of(part: Part<'_>) -> Option<Question> {
        match part {
            Part::All | Part::Namespace("") => None,
            Part::Namespace(namespace) => Some(Question::Namespace(namespace.into())),
            Part::Object(key) => Some(Question::Object(key.clone())),
            Part::Owner(uid) => Some(Question::Owner(uid.into())),
            Part::Index(index, value) => Some(Question::Index(index, value.into())),
        }
    }

    fn part(&self) -> Part<'_> {
        match self {
            Question::Namespace(namespace) => Part::Namespace(namespace),
            Question::Object(key) => Part::Object(key),
            Question::Owner(uid) => Part::Owner(uid),
            Question::Index(index, value) => Part::Index(index, value),
        }
    }
}

impl Seen {
    /// Records that a part of a cache is about to be read.
    pub fn note(&mut self, cache: &Arc<Cache>, part: Part<'_>) {
        let at = self.0.iter().position(|reads| Arc::ptr_eq(&reads.cache, cache)).unwrap_or_else(|| {
            let stamp_of_all = cache.stamp(Part::All);
            self.0.push(Reads { cache: cache.clone(), stamp_of_all, parts: Vec::new(), everything: false });
            self.0.len() - 1
        });
        let reads = &mut self.0[at];
        if reads.everything {
            return;
        }
        match Question::of(part) {
            Some(question) if reads.parts.len() < MOST_PARTS => reads.parts.push((question, cache.stamp(part))),
            _ => (reads.everything, reads.parts) = (true, Vec::new()),
        }
    }

    fn is_unchanged(&self) -> bool {
        self.0.iter().all(|Reads { cache, stamp_of_all, parts, everything }| {
            let same = |(question, stamp): &(Question, u64)| cache.stamp(question.part()) == *stamp;
            cache.stamp(Part::All) == *stamp_of_all || !everything && parts.iter().all(same)
        })
    }

    /// Reports whether remembering saves work: single objects are read again as quickly.
    fn is_worth_it(&self) -> bool {
        let lists = |(question, _): &(Question, u64)| !matches!(question, Question::Object(_));
        self.0.iter().any(|reads| reads.everything || reads.parts.iter().any(lists))
    }
}

/// A reconcile that found nothing to do.
struct Remembered {
    seen: Seen,
    counts: Vec<Count>,
    at: Timestamp,
    until: Option<Timestamp>,
}

/// The memory of one controller, by key.
#[derive(Default)]
pub struct Memory(Mutex<HashMap<Key, Remembered>>);

impl Memory {
    /// Reconciles a key, unless nothing that its last reconcile read has changed.
    pub fn reconcile(
        &self,
        controller: &dyn Decide,
        informers: &Informers,
        failure: Option<Failure>,
        key: &Key,
    ) -> (CachedView, Plan) {
        let now = super::now();
        if failure.is_some() || !controller.remembers() {
            self.forget(key);
            let view = CachedView::new(informers.clone(), failure);
            let plan = controller.decide(&view, key, now);
            return (view, plan);
        }
        let mut view = CachedView::noting(informers.clone());
        if let Some(plan) = self.recall(key, now) {
            #[cfg(test)]
            self.compare(controller, &view, key, now);
            return (view, plan);
        }
        let plan = controller.decide(&view, key, now);
        self.remember(key, &plan, view.seen(), now);
        (view, plan)
    }

    /// Returns the plan for a key if nothing has changed since its last reconcile found nothing to do.
    fn recall(&self, key: &Key, now: Timestamp) -> Option<Plan> {
        #[cfg(test)]
        if tests::FORGETFUL.get() {
            return None;
        }
        let known = self.lock();
        let known = known.get(key)?;
        let left = match known.until {
            Some(until) => Some(Duration::try_from(until.duration_since(now)).ok().filter(|left| !left.is_zero())?),
            None => None,
        };
        // After the clock was set back, `until` says nothing about what is due.
        if now < known.at || !known.seen.is_unchanged() {
            return None;
        }
        #[cfg(test)]
        tests::RECALLED.set(tests::RECALLED.get() + 1);
        Some(Plan { requeue_after: left, counts: known.counts.clone(), ..Plan::nothing() })
    }

    /// Remembers the result of a reconcile that began at `now`.
    fn remember(&self, key: &Key, plan: &Plan, seen: Option<Seen>, now: Timestamp) {
        let Some(seen) = seen.filter(|seen| plan.is_empty() && seen.is_worth_it()) else { return self.forget(key) };
        let due = |after: Duration| now.checked_add(SignedDuration::try_from(after).ok()?).ok();
        let until = plan.requeue_after.and_then(due);
        let counts = plan.counts.clone();
        self.lock().insert(key.clone(), Remembered { seen, counts, at: now, until });
    }

    fn forget(&self, key: &Key) {
        self.lock().remove(key);
    }

    /// Checks that a fresh reconcile agrees with the remembered result, unless an object changed in between.
    #[cfg(test)]
    fn compare(&self, controller: &dyn Decide, view: &CachedView, key: &Key, now: Timestamp) {
        let fresh = controller.decide(view, key, now);
        let unchanged = self.lock().get(key).is_some_and(|known| known.seen.is_unchanged());
        if unchanged && !fresh.is_empty() {
            tests::WRONG.set(Some(format!("{} forgot for {key}: {:?}", controller.name(), fresh.actions)));
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Remembered>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
pub mod tests {
    use std::cell::Cell;

    thread_local! {
        /// Disables the memory on this thread.
        pub static FORGETFUL: Cell<bool> = const { Cell::new(false) };
        /// Adds a key again after a while although nothing was to do.
        pub static RESTLESS: Cell<bool> = const { Cell::new(false) };
        /// A remembered result that a fresh reconcile did not confirm.
        pub static WRONG: Cell<Option<String>> = const { Cell::new(None) };
        /// The number of remembered results.
        pub static RECALLED: Cell<u64> = const { Cell::new(0) };
    }
}
