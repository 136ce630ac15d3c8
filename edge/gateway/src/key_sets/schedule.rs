//! The times at which a key set is fetched. Pure: the clock comes in as an argument.

use std::time::Duration;

use tokio::time::Instant;

/// The time after which keys are fetched again unless the server names one.
const USUAL: Duration = Duration::from_secs(10 * 60);
/// The bounds of the time that the server names.
const SHORTEST: Duration = Duration::from_secs(60);
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// The pause after the first fetch that failed, and the longest.
const FIRST_RETRY: Duration = Duration::from_secs(5);
const LONGEST_RETRY: Duration = Duration::from_secs(5 * 60);
/// The pause between fetches because of keys that tokens name and the set lacks.
const UNKNOWN_KEY: Duration = Duration::from_secs(60);

/// The schedule of one key set.
#[derive(Clone, Debug)]
pub struct Schedule {
    next: Instant,
    /// The end of the last fetch.
    last: Option<Instant>,
    failures: u32,
}

impl Schedule {
    /// Returns the schedule of a set that was never fetched.
    pub fn new(now: Instant) -> Schedule {
        Schedule { next: now, last: None, failures: 0 }
    }

    /// Returns the time of the next fetch.
    pub fn next(&self) -> Instant {
        self.next
    }

    /// Takes note of a fetch that succeeded. `max_age` is the time for which the server lets clients keep the keys.
    pub fn succeeded(&mut self, max_age: Option<Duration>, now: Instant) {
        self.failures = 0;
        self.last = Some(now);
        self.next = now + max_age.unwrap_or(USUAL).clamp(SHORTEST, LONGEST);
    }

    /// Takes note of a fetch that failed.
    pub fn failed(&mut self, now: Instant) {
        let factor = 2_u32.saturating_pow(self.failures.min(10));
        self.failures += 1;
        self.last = Some(now);
        self.next = now + FIRST_RETRY.saturating_mul(factor).min(LONGEST_RETRY);
    }

    /// Lets the set be fetched soon because a token named a key that it lacks, at most once a minute.
    pub fn lacks_key(&mut self, now: Instant) {
        let earliest = self.last.map_or(now, |last| last + UNKNOWN_KEY);
        self.next = self.next.min(earliest.max(now));
    }

    /// Lets the set be fetched at once because its source changed.
    pub fn changed(&mut self, now: Instant) {
        self.failures = 0;
        self.next = now;
    }
}

/// Returns the time for which an answer may be kept, by its header Cache-Control; None if it names none.
pub fn max_age(cache_control: &str) -> Option<Duration> {
    let mut found = None;
    for directive in cache_control.split(',') {
        let (name, value) = directive.split_once('=').unwrap_or((directive, ""));
        match name.trim().to_ascii_lowercase().as_str() {
            "no-cache" | "no-store" => return Some(Duration::ZERO),
            "max-age" => {
                let seconds: u64 = value.trim().trim_matches('"').parse().ok()?;
                found = Some(Duration::from_secs(seconds));
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_read() {
        let seconds = |text: &str| max_age(text).map(|age| age.as_secs());
        for (header, expected) in [
            ("max-age=300", Some(300)),
            ("public, Max-Age = 300, must-revalidate", Some(300)),
            ("max-age=\"7\"", Some(7)),
            ("no-store, max-age=300", Some(0)),
            ("no-cache", Some(0)),
            ("public", None),
            ("max-age", None),
            ("max-age=-1", None),
            ("", None),
        ] {
            assert_eq!(seconds(header), expected, "{header:?}");
        }
    }

    #[test]
    fn the_time_of_the_server_has_bounds() {
        let start = Instant::now();
        let next = |age: Option<u64>| {
            let mut schedule = Schedule::new(start);
            schedule.succeeded(age.map(Duration::from_secs), start);
            (schedule.next() - start).as_secs()
        };
        assert_eq!(next(None), 600);
        assert_eq!(next(Some(0)), 60);
        assert_eq!(next(Some(3600)), 3600);
        assert_eq!(next(Some(u64::MAX)), 86400);
    }

    #[test]
    fn failures_wait_longer_each_time() {
        let start = Instant::now();
        let mut schedule = Schedule::new(start);
        let mut waits = Vec::new();
        for _ in 0..9 {
            schedule.failed(start);
            waits.push((schedule.next() - start).as_secs());
        }
        assert_eq!(waits, [5, 10, 20, 40, 80, 160, 300, 300, 300]);
        schedule.succeeded(None, start);
        schedule.failed(start);
        assert_eq!((schedule.next() - start).as_secs(), 5);
    }

    #[test]
    fn an_unknown_key_fetches_once_a_minute() {
        let start = Instant::now();
        let at = |second: u64| start + Duration::from_secs(second);
        let mut schedule = Schedule::new(start);
        schedule.succeeded(None, start);
        schedule.lacks_key(at(10));
        assert_eq!(schedule.next(), at(60));
        schedule.succeeded(None, at(60));
        schedule.lacks_key(at(200));
        assert_eq!(schedule.next(), at(200));
        schedule.failed(at(200));
        schedule.lacks_key(at(201));
        assert_eq!(schedule.next(), at(205), "a retry that comes sooner stays");
    }
}
