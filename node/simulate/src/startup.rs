//! The times of pods whose creation the simulation has seen: until they are bound, and until they run.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use corten_meta::Key;

use crate::histogram::Histogram;

/// The times of pods. A pod counts from the request that creates it to the event of a watch that shows it.
#[derive(Default)]
pub struct StartupTimes(Mutex<State>);

#[derive(Default)]
struct State {
    created: HashMap<Key, Created>,
    measured: Measured,
}

struct Created {
    at: Instant,
    is_bound: bool,
}

/// The times of all pods.
#[derive(Debug, Clone, Default)]
pub struct Measured {
    pub bound: Histogram,
    pub running: Histogram,
}

impl StartupTimes {
    /// Records that a pod is about to be created.
    pub fn creating(&self, key: Key) {
        self.lock().created.insert(key, Created { at: Instant::now(), is_bound: false });
    }

    /// Records that a watch has shown a bound pod, which runs or not.
    pub fn seen(&self, key: &Key, at: Instant, runs: bool) {
        let mut state = self.lock();
        let State { created, measured } = &mut *state;
        let Some(pod) = created.get_mut(key) else { return };
        let took = at.saturating_duration_since(pod.at);
        if !pod.is_bound {
            pod.is_bound = true;
            measured.bound.add(took);
        }
        if runs {
            measured.running.add(took);
            created.remove(key);
        }
    }

    /// Forgets a pod that was not created, or is deleted.
    pub fn forget(&self, key: &Key) {
        self.lock().created.remove(key);
    }

    /// Returns the times so far, and begins again.
    pub fn take(&self) -> Measured {
        std::mem::take(&mut self.lock().measured)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pod_is_bound_once_and_runs_once() {
        let times = StartupTimes::default();
        let web = Key::new("prod", "web");
        times.creating(web.clone());
        let now = Instant::now();
        times.seen(&web, now, false);
        times.seen(&web, now, false);
        times.seen(&web, now, true);
        times.seen(&web, now, true);
        times.seen(&Key::new("prod", "other"), now, true);
        let gone = Key::new("prod", "gone");
        times.creating(gone.clone());
        times.forget(&gone);
        times.seen(&gone, now, true);
        let measured = times.take();
        assert_eq!((measured.bound.count(), measured.running.count()), (1, 1));
        assert_eq!(times.take().bound.count(), 0);
    }
}
