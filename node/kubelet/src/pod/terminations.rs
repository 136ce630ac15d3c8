//! Orders to end a pod, from whoever watches over the node: eviction, preemption, shutdown. The order waits here
//! until the pod's worker takes it; only the worker ends anything.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::waker::Waker;

/// Why a pod must end, and how quickly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodTermination {
    pub reason: String,
    pub message: String,
    /// The most seconds its containers get.
    pub grace: i64,
    /// Whether the pod is told by a condition that it was disrupted, not that it failed.
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
    /// The worker of this pod listens from now on.
    pub fn register(&self, uid: &str, waker: &Waker) {
        self.lock().insert(uid.to_owned(), Entry { waker: waker.clone(), end: None });
    }

    pub fn forget(&self, uid: &str) {
        self.lock().remove(uid);
    }

    /// Has the pod ended; false if there is no such pod, or it has its order already.
    pub fn end(&self, uid: &str, end: PodTermination) -> bool {
        let mut workers = self.lock();
        let Some(entry) = workers.get_mut(uid).filter(|entry| entry.end.is_none()) else { return false };
        entry.end = Some(end);
        entry.waker.wake();
        true
    }

    /// The order for this pod, which stays in force.
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
    async fn an_order_is_given_once_and_wakes_the_worker() {
        let (terminations, waker) = (Terminations::default(), Waker::default());
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
