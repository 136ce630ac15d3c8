//! Exponential back-off as upstream's kubelet keeps it, for restarting containers and for pulling images: 10 s, doubled
//! at each failure up to 5 min, and reset after 10 min without a failure. Time comes in as an argument.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;

const INITIAL: Duration = Duration::from_secs(10);
const MAXIMUM: Duration = Duration::from_secs(300);

/// The back-offs of one pod's containers, or of its images, by name.
#[derive(Clone, Debug, Default)]
pub struct Backoffs {
    entries: HashMap<String, Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    delay: Duration,
    updated: Timestamp,
}

impl Backoffs {
    /// Returns the time of the next attempt after a failure at `failed`; `None` if it may be made now.
    pub fn until(&self, key: &str, failed: Timestamp, now: Timestamp) -> Option<Timestamp> {
        let entry = self.entries.get(key).filter(|entry| !entry.expired(failed))?;
        let until = failed.checked_add(entry.delay).unwrap_or(now);
        (until > now).then_some(until)
    }

    /// Returns the current delay, for messages.
    pub fn delay(&self, key: &str) -> Duration {
        self.entries.get(key).map_or(Duration::ZERO, |entry| entry.delay)
    }

    /// Counts one more attempt: the next failure waits twice as long as the last.
    pub fn next(&mut self, key: &str, now: Timestamp) {
        let delay = match self.entries.get(key).filter(|entry| !entry.expired(now)) {
            Some(entry) => (entry.delay * 2).min(MAXIMUM),
            None => INITIAL,
        };
        self.entries.insert(key.to_owned(), Entry { delay, updated: now });
    }

    /// Resets the back-off of the key after a success.
    pub fn forget(&mut self, key: &str) {
        self.entries.remove(key);
    }
}

impl Entry {
    fn expired(&self, at: Timestamp) -> bool {
        Duration::try_from(at.duration_since(self.updated)).is_ok_and(|age| age > MAXIMUM * 2)
    }
}

/// Formats a duration as Go does, to the second: `10s`, `1m20s`, `5m0s`, `1h0m0s`.
pub fn go_seconds(duration: Duration) -> String {
    let total = duration.as_secs();
    let hours = total / 3600;
    let minutes = total / 60 % 60;
    let seconds = total % 60;
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{minutes}m{seconds}s"),
        _ => format!("{hours}h{minutes}m{seconds}s"),
    }
}

/// Formats a duration as Go does, truncated to the millisecond: `0s`, `7ms`, `1.234s`, `1m2.5s`.
pub fn go_millis(duration: Duration) -> String {
    let millis = duration.as_millis();
    if millis == 0 {
        return "0s".into();
    }
    if millis < 1000 {
        return format!("{millis}ms");
    }
    let minutes = millis / 60_000;
    let mut seconds = format!("{}.{:03}", millis % 60_000 / 1000, millis % 1000);
    seconds.truncate(seconds.trim_end_matches('0').trim_end_matches('.').len());
    if minutes == 0 { format!("{seconds}s") } else { format!("{minutes}m{seconds}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).expect("in range")
    }

    #[test]
    fn delays_double_to_five_minutes_and_are_forgotten_in_peace() {
        let mut backoffs = Backoffs::default();
        assert_eq!(backoffs.until("c", at(0), at(0)), None, "the first restart is immediate");
        let mut now = 0;
        let mut delays = Vec::new();
        for _ in 0..7 {
            backoffs.next("c", at(now));
            let until = backoffs.until("c", at(now), at(now)).expect("backing off");
            delays.push(until.duration_since(at(now)).as_secs());
            now += 300;
        }
        assert_eq!(delays, [10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(backoffs.until("c", at(now + 601), at(now + 601)), None, "a long run clears it");
        backoffs.next("c", at(now + 1000));
        assert_eq!(backoffs.delay("c"), Duration::from_secs(10));
    }

    #[test]
    fn durations_print_as_go_prints_them() {
        let seconds: Vec<_> = [10, 80, 300, 3600].map(|s| go_seconds(Duration::from_secs(s))).to_vec();
        assert_eq!(seconds, ["10s", "1m20s", "5m0s", "1h0m0s"]);
        let millis: Vec<_> = [0, 7, 1000, 1234, 62_500].map(|ms| go_millis(Duration::from_millis(ms))).to_vec();
        assert_eq!(millis, ["0s", "7ms", "1s", "1.234s", "1m2.5s"]);
    }
}
