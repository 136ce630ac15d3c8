//! Pacing of the watchers of a resource: they are woken at once, unless they are many.
//!
//! To wake a watcher, send it the news and go to sleep again costs about the same for one event as for ten. With a
//! thousand watchers and hundreds of writes a second, to wake all of them for each write would take more than the
//! machine has. So the more watchers a resource has, the longer the pause between two wakings: a change after a quiet
//! time still goes out at once, and a change in a storm of writes waits until the pause is over, together with the
//! others of its time. In a storm each group of watchers has its turn at another moment of the pause, so that a writer
//! never waits for more than one group.
//!
//! It belongs to the feed of the caches and does nothing by itself. Reads never wait for it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::ResourceCache;
use super::groups::GROUPS;

/// The number of watchers up to which all are always woken at once.
pub const FEW: usize = 32;
/// The pause for each watcher: with it, waking all of them keeps less than half a processor busy.
const PAUSE_EACH: Duration = Duration::from_micros(25);
/// The longest pause, which bounds the delay of an event.
const LONGEST_PAUSE: Duration = Duration::from_millis(25);

/// Returns the pause between two wakings of so many watchers.
fn pause(watchers: usize) -> Duration {
    match u32::try_from(watchers) {
        Ok(_) if watchers <= FEW => Duration::ZERO,
        Ok(count) => (PAUSE_EACH * count).min(LONGEST_PAUSE),
        Err(_) => LONGEST_PAUSE,
    }
}

/// Returns the time until the next turn of a group, `elapsed` after the start: more than zero and at most a pause.
fn until_turn(group: usize, pause: Duration, elapsed: Duration) -> Duration {
    let period = pause.as_micros().max(1);
    let first = period * (group % GROUPS) as u128 / GROUPS as u128;
    let since_turn = (elapsed.as_micros() + period - first) % period;
    Duration::from_micros(u64::try_from(period - since_turn).unwrap_or(u64::MAX))
}

/// The groups whose watchers have still to be woken.
pub struct Pacer {
    began: Instant,
    waiting: Vec<(Instant, Arc<ResourceCache>, usize)>,
}

impl Pacer {
    pub fn new(now: Instant) -> Pacer {
        Pacer { began: now, waiting: Vec::new() }
    }

    /// Wakes the watchers of a changed resource, now or when the turn of their group comes.
    pub fn changed(&mut self, cache: &Arc<ResourceCache>, now: Instant) {
        let pause = pause(cache.groups.watchers());
        let revision = cache.revision();
        cache.subscribers.wake(revision);
        for (number, group) in cache.groups.iter().enumerate().filter(|(_, group)| group.is_idle()) {
            if group.woken().is_some_and(|at| at + pause > now) {
                let due = now + until_turn(number, pause, now.duration_since(self.began));
                group.wait();
                self.waiting.push((due, Arc::clone(cache), number));
            } else {
                group.wake(revision, now);
            }
        }
    }

    /// Waits until [`Pacer::wake_due`] is to be called.
    pub async fn due(&self) {
        match self.waiting.iter().map(|(due, ..)| *due).min() {
            Some(due) => tokio::time::sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    pub fn wake_due(&mut self, now: Instant) {
        self.waiting.retain(|(due, cache, number)| {
            let waits = *due > now;
            if !waits {
                cache.groups.get(*number).wake(cache.revision(), now);
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
        assert_eq!(pause(800), Duration::from_millis(20));
        assert_eq!(pause(usize::MAX), LONGEST_PAUSE);
        assert!((0..5000).is_sorted_by_key(pause));
    }

    /// Returns a cache with so many watchers.
    fn watched(count: usize) -> (Arc<ResourceCache>, Vec<tokio::sync::watch::Receiver<u64>>) {
        let kind = corten_api::kinds().first().expect("there are kinds");
        let directory = tempfile::tempdir().unwrap();
        let store = corten_store::Embedded::open(corten_store::Config::new(directory.path())).unwrap();
        let feed = Arc::new(crate::cache::Feed::new(store, "/registry/".to_owned()));
        let cache = Arc::new(ResourceCache::new(Arc::clone(kind), feed));
        let watchers = (0..count).map(|_| cache.changes()).collect();
        (cache, watchers)
    }

    #[test]
    fn the_turns_of_groups_are_spread_over_the_pause() {
        let pause = Duration::from_millis(24);
        for elapsed in [0, 1, 23_999, 24_000, 1_000_001].map(Duration::from_micros) {
            let mut turns: Vec<Duration> = (0..GROUPS).map(|group| until_turn(group, pause, elapsed)).collect();
            assert!(turns.iter().all(|turn| !turn.is_zero() && *turn <= pause), "{turns:?}");
            turns.sort_unstable();
            assert!(turns.windows(2).all(|pair| pair[1] - pair[0] == pause / GROUPS as u32), "{turns:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn changes_in_a_storm_wake_once_a_pause() {
        let (cache, mut watchers) = watched(1000);
        let mut pacer = Pacer::new(Instant::now());
        pacer.changed(&cache, Instant::now());
        assert!(watchers.iter().all(|watcher| watcher.has_changed().unwrap()), "the first change goes out at once");
        watchers.iter_mut().for_each(tokio::sync::watch::Receiver::mark_unchanged);
        let began = Instant::now();
        for _ in 0..5 {
            pacer.changed(&cache, Instant::now());
        }
        assert!(!watchers.iter().any(|watcher| watcher.has_changed().unwrap()));
        for woken in 1..=GROUPS {
            pacer.due().await;
            pacer.wake_due(Instant::now());
            let count = watchers.iter().filter(|watcher| watcher.has_changed().unwrap()).count();
            assert_eq!(count, woken * 1000 / GROUPS);
        }
        assert!(began.elapsed() <= pause(1000));
        assert!(pacer.waiting.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn few_watchers_never_wait() {
        let (cache, mut watchers) = watched(FEW);
        let mut pacer = Pacer::new(Instant::now());
        for _ in 0..3 {
            pacer.changed(&cache, Instant::now());
            assert!(watchers[0].has_changed().unwrap());
            watchers[0].mark_unchanged();
        }
    }
}
