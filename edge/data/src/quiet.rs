//! A future beside a busy one: it is polled only when it was woken itself.
//!
//! A connection's task is woken several times for each request. The signals that may end the connection hardly ever come,
//! and to poll them takes locks that all connections of a listener share.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

pub(crate) struct Quiet<F> {
    future: Pin<Box<F>>,
    signal: Option<Arc<Signal>>,
}

struct Signal {
    is_woken: AtomicBool,
    task: Waker,
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        self.task.wake_by_ref();
    }
}

impl<F: Future> Quiet<F> {
    pub(crate) fn new(future: F) -> Quiet<F> {
        Quiet { future: Box::pin(future), signal: None }
    }
}

impl<F: Future> Future for Quiet<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let known = self.signal.as_ref().filter(|signal| signal.task.will_wake(context.waker()));
        let signal = match known {
            Some(signal) if !signal.is_woken.load(Ordering::Relaxed) => return Poll::Pending,
            Some(signal) => Arc::clone(signal),
            None => Arc::new(Signal { is_woken: AtomicBool::new(true), task: context.waker().clone() }),
        };
        signal.is_woken.swap(false, Ordering::Acquire);
        self.signal = Some(Arc::clone(&signal));
        self.future.as_mut().poll(&mut Context::from_waker(&Waker::from(signal)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use tokio::sync::Notify;

    #[tokio::test]
    async fn a_quiet_future_is_polled_when_it_is_woken() {
        let notify = Notify::new();
        let polls = AtomicUsize::new(0);
        let mut inner = Box::pin(notify.notified());
        let counted = std::future::poll_fn(|context| {
            polls.fetch_add(1, Ordering::Relaxed);
            inner.as_mut().poll(context)
        });
        let mut quiet = Quiet::new(counted);
        let busy = async {
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            notify.notify_one();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = &mut quiet => {}
            () = busy => {}
        }
        assert_eq!(polls.load(Ordering::Relaxed), 2);
    }
}
