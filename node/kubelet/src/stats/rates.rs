//! Rates from counters: nanoseconds of CPU per second, from two samples some seconds apart. Pure; time comes in as an
//! argument.

use std::collections::HashMap;

/// The shortest window: of closer samples, the older one stays the base of the rate.
const LEAST_WINDOW_NANOSECONDS: i64 = 5_000_000_000;

#[derive(Clone, Copy, Debug)]
struct Reading {
    at: i64,
    nanoseconds: u64,
}

#[derive(Clone, Copy, Debug)]
struct History {
    base: Option<Reading>,
    latest: Reading,
}

/// The last samples of every counter, by name.
#[derive(Debug, Default)]
pub struct Rates {
    histories: HashMap<String, History>,
}

impl Rates {
    /// Adds a sample and returns the rate. The base of a counter's first sample is zero at `since`, the start of the
    /// counter; without it there is no rate yet. A sample close to the latest is not kept, so that frequent callers
    /// see windows of one to two times the shortest one.
    pub fn note(&mut self, name: &str, at: i64, nanoseconds: u64, since: Option<i64>) -> Option<u64> {
        let latest = Reading { at, nanoseconds };
        // A counter that decreased belongs to a new container of the same name.
        let known = self.histories.get(name).copied().filter(|known| known.latest.nanoseconds <= nanoseconds);
        let base = match known.filter(|known| at - known.latest.at < LEAST_WINDOW_NANOSECONDS) {
            Some(close) => close.base,
            None => {
                let base = known.map(|known| known.latest);
                self.histories.insert(name.to_owned(), History { base, latest });
                base
            }
        };
        let base = base.or_else(|| since.map(|at| Reading { at, nanoseconds: 0 }))?;
        let elapsed = u128::try_from(at - base.at).ok().filter(|elapsed| *elapsed > 0)?;
        let used = u128::from(nanoseconds.saturating_sub(base.nanoseconds));
        u64::try_from(used * 1_000_000_000 / elapsed).ok()
    }

    /// Removes the counters without a sample since then.
    pub fn forget_before(&mut self, at: i64) {
        self.histories.retain(|_, history| history.latest.at >= at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    #[test]
    fn a_rate_is_taken_over_some_seconds_at_least() {
        let mut rates = Rates::default();
        assert_eq!(rates.note("a", 100 * SECOND, 10, None), None);
        assert_eq!(rates.note("b", 100 * SECOND, 2_000_000_000, Some(96 * SECOND)), Some(500_000_000));
        // One second later: too close for a window of its own.
        assert_eq!(rates.note("a", 101 * SECOND, 10, None), None);
        assert_eq!(rates.note("a", 110 * SECOND, 10 + 10 * 250_000_000, None), Some(250_000_000));
        // The base stays while samples are close.
        assert_eq!(rates.note("a", 111 * SECOND, 10 + 11 * 250_000_000, None), Some(250_000_000));
    }

    #[test]
    fn frequent_samples_do_not_stretch_the_window() {
        let mut rates = Rates::default();
        for at in 100..200 {
            rates.note("a", at * SECOND, 0, None);
        }
        // From idle to one CPU: ten seconds later no idle time is left in the window.
        let busy = |at: i64| u64::try_from((at - 200) * SECOND).unwrap();
        let last = (200..=210).map(|at| rates.note("a", at * SECOND, busy(at), None)).last();
        assert_eq!(last, Some(Some(1_000_000_000)));
    }

    #[test]
    fn a_counter_that_decreased_starts_again() {
        let mut rates = Rates::default();
        rates.note("a", 100 * SECOND, 5_000, None);
        assert_eq!(rates.note("a", 110 * SECOND, 1_000_000_000, None), Some(99_999_500));
        assert_eq!(rates.note("a", 120 * SECOND, 7, None), None);
        rates.forget_before(121 * SECOND);
        assert!(rates.histories.is_empty());
    }
}
