//! How the rest of the kubelet gets a pod worker to look again. Waking twice is waking once; a wake is
//! never lost, because the worker takes it before it looks.

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
    /// Something happened to the pod or its containers.
    pub fn wake(&self) {
        self.inner.notify.notify_one();
    }

    /// Something that its volumes or environment show has changed.
    pub fn refresh(&self) {
        self.inner.refresh.store(true, Ordering::Release);
        self.wake();
    }

    pub async fn woken(&self) {
        self.inner.notify.notified().await;
    }

    /// Whether a refresh was asked for since the last call.
    pub fn take_refresh(&self) -> bool {
        self.inner.refresh.swap(false, Ordering::AcqRel)
    }
}
