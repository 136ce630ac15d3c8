//! Wakes a pod worker for another reconcile. Waking twice is waking once; a wake is never lost, because the worker
//! takes it before it observes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

#[derive(Clone, Default)]
pub struct Waker {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    notify: Notify,
    refresh: AtomicBool,
}

impl Waker {
    /// Wakes the worker after a change of the pod or its containers.
    pub fn wake(&self) {
        self.inner.notify.notify_one();
    }

    /// Wakes the worker after a change of an object that its volumes or environment show.
    pub fn refresh(&self) {
        self.inner.refresh.store(true, Ordering::Release);
        self.wake();
    }

    pub async fn woken(&self) {
        self.inner.notify.notified().await;
    }

    /// Reports whether a refresh was requested since the last call.
    pub fn take_refresh(&self) -> bool {
        self.inner.refresh.swap(false, Ordering::AcqRel)
    }
}
