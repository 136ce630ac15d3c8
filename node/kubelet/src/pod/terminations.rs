//! Terminations of pods that the node orders: eviction, preemption, shutdown. The order waits here until the pod's
//! worker takes it; only the worker stops containers.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::waker::Waker;

/// The reason of a termination, and its grace period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodTermination {
    pub reason: String,
    pub message: String,
    /// The longest grace period of the containers, in seconds.
    pub grace: i64,
    /// Whether the pod gets the condition `DisruptionTarget`.
    pub disrupted: bool,
}

#[derive(Default)]
pub struct Terminations {
    workers: Mutex<HashMap<String, Entry>>,
}

struct Entry {
    waker: Waker,
    end: Option<PodTermination>,
}

impl Terminations {
    /// Registers the worker of a pod.
    pub fn register(&self, uid: &str, waker: &Waker) {
        self.lock().insert(uid.to_owned(), Entry { waker: waker.clone(), end: None });
    }

    pub fn forget(&self, uid: &str) {
        self.lock().remove(uid);
    }

    /// Orders the termination; false if the pod has no worker, or has an order already.
    pub fn end(&self, uid: &str, end: PodTermination) -> bool {
        let mut workers = self.lock();
        let Some(entry) = workers.get_mut(uid).filter(|entry| entry.end.is_none()) else { return false };
        entry.end = Some(end);
        entry.waker.wake();
        true
    }

    /// Returns the order for this pod, which stays in force.
    pub fn of(&self, uid: &str) -> Option<PodTermination> {
        self.lock().get(uid)?.end.clone()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_termination_is_ordered_once_and_wakes_the_worker() {
        let terminations = Terminations::default();
        let waker = Waker::default();
        let end = PodTermination { reason: "Evicted".into(), message: "m".into(), grace: 1, disrupted: true };
        assert!(!terminations.end("u", end.clone()), "nobody listens");
        terminations.register("u", &waker);
        assert!(terminations.end("u", end.clone()));
        tokio::time::timeout(std::time::Duration::from_secs(300), waker.woken()).await.unwrap();
        assert_eq!(terminations.of("u"), Some(end.clone()));
        assert!(!terminations.end("u", PodTermination { grace: 0, ..end }), "the first order holds");
        terminations.forget("u");
        assert_eq!(terminations.of("u"), None);
    }
}
