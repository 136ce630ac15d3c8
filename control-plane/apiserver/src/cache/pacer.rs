//! When the watchers of a resource are woken: at once, unless they are many.
//!
//! To wake a watcher, send it what is new and go to sleep again costs about the same for one event as for ten. With
//! a thousand watchers and hundreds of writes a second, waking all of them for each write would take more than the
//! machine has. So the more watchers a resource has, the longer the pause between two wakings: a change after a
//! quiet time still goes out at once, and one in a storm waits until the pause is over, with the others of its time.
//!
//! It belongs to the feed of the caches and does nothing by itself. Reads never wait for it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::ResourceCache;

/// So few watchers are woken at once, always.
const FEW: usize = 32;
/// The pause for each watcher: so that waking all of them keeps less than half a processor busy.
const PAUSE_EACH: Duration = Duration::from_micros(20);
/// The longest pause, which bounds how late an event can be by this.
const LONGEST_PAUSE: Duration = Duration::from_millis(25);

/// The pause between two wakings of so many watchers.
fn pause(watchers: usize) -> Duration {
    match u32::try_from(watchers) {
        Ok(_) if watchers <= FEW => Duration::ZERO,
        Ok(count) => (PAUSE_EACH * count).min(LONGEST_PAUSE),
        Err(_) => LONGEST_PAUSE,
    }
}

/// The resources whose watchers have still to be woken.
#[derive(Default)]
pub struct Pacer {
    waiting: Vec<(Instant, Arc<ResourceCache>)>,
}

impl Pacer {
    /// Wakes the watchers of a resource that has changed, or remembers to.
    pub fn changed(&mut self, cache: &Arc<ResourceCache>, now: Instant) {
        if self.waiting.iter().any(|(_, waiting)| Arc::ptr_eq(waiting, cache)) {
            return;
        }
        match cache.woken().map(|at| at + pause(cache.watchers())).filter(|due| *due > now) {
            Some(due) => self.waiting.push((due, Arc::clone(cache))),
            None => cache.wake(now),
        }
    }

    /// When [`Pacer::wake_due`] is to be called next.
    pub async fn due(&self) {
        match self.waiting.iter().map(|(due, _)| *due).min() {
            Some(due) => tokio::time::sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    pub fn wake_due(&mut self, now: Instant) {
        self.waiting.retain(|(due, cache)| {
            let waits = *due > now;
            if !waits {
                cache.wake(now);
            }
            waits
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_watchers_pause_longer_but_not_for_ever() {
        assert_eq!(pause(0), Duration::ZERO);
        assert_eq!(pause(FEW), Duration::ZERO);
        assert_eq!(pause(1000), Duration::from_millis(20));
        assert_eq!(pause(usize::MAX), LONGEST_PAUSE);
        assert!((0..5000).is_sorted_by_key(pause));
    }

    /// A cache with so many watchers.
    fn watched(count: usize) -> (Arc<ResourceCache>, Vec<tokio::sync::watch::Receiver<u64>>) {
        let kind = corten_api::kinds().first().expect("there are kinds");
        let cache = Arc::new(ResourceCache::new(Arc::clone(kind)));
        let watchers = (0..count).map(|_| cache.changes()).collect();
        (cache, watchers)
    }

    #[tokio::test(start_paused = true)]
    async fn changes_in_a_storm_wake_once_a_pause() {
        let (cache, mut watchers) = watched(1000);
        let mut pacer = Pacer::default();
        pacer.changed(&cache, Instant::now());
        assert!(watchers[0].has_changed().unwrap(), "the first change goes out at once");
        watchers[0].mark_unchanged();
        for _ in 0..5 {
            pacer.changed(&cache, Instant::now());
        }
        assert!(!watchers[0].has_changed().unwrap());
        let began = Instant::now();
        pacer.due().await;
        assert_eq!(began.elapsed(), pause(1000));
        pacer.wake_due(Instant::now());
        assert!(watchers[0].has_changed().unwrap());
        assert!(pacer.waiting.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn few_watchers_never_wait() {
        let (cache, mut watchers) = watched(FEW);
        let mut pacer = Pacer::default();
        for _ in 0..3 {
            pacer.changed(&cache, Instant::now());
            assert!(watchers[0].has_changed().unwrap());
            watchers[0].mark_unchanged();
        }
    }
}
