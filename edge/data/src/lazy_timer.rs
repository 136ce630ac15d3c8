//! The timer of clients' connections: cheap to set, and late by up to [`TICK`].
//!
//! hyper sets a timer for the head of every request, which hardly ever expires. A timer of the runtime costs two locks and
//! an entry in its wheel. A sleep of this one only compares the time when it is polled; a connection polls its own every
//! [`TICK`].

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::rt::{Sleep, Timer};

/// The interval at which a connection looks at its sleeps.
const TICK: Duration = Duration::from_secs(8);

#[derive(Clone, Copy, Debug)]
pub(crate) struct LazyTimer;

struct LazySleep {
    deadline: Instant,
}

fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

impl Future for LazySleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if now() >= self.deadline { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Sleep for LazySleep {}

impl Timer for LazyTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(now() + duration)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(LazySleep { deadline })
    }

    fn now(&self) -> Instant {
        now()
    }
}

/// Wakes the task that polls it every [`TICK`], and never ends.
pub(crate) async fn ticks() {
    loop {
        tokio::time::sleep(TICK).await;
    }
}
