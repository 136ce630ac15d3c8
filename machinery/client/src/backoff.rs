//! Delays that grow after every failure and differ between clients.

use std::cell::Cell;
use std::time::Duration;

thread_local! {
    /// The state of the random numbers of a simulation on this thread.
    static REPLAYED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Makes this thread draw the same numbers for the same seed from now on, so that a simulation is repeatable.
pub fn replay(seed: u64) {
    REPLAYED.set(Some(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1));
}

/// Returns a number from 0 to 1. Spreading clients needs no quality of randomness.
pub(crate) fn jitter() -> f64 {
    let draw = match REPLAYED.get() {
        None => uuid::Uuid::new_v4().as_u128() >> 76,
        Some(mut state) => {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            REPLAYED.set(Some(state));
            u128::from(state >> 12)
        }
    };
    draw as f64 / (1u64 << 52) as f64
}

/// Doubling delays between `first` and `most`.
pub(crate) struct Backoff {
    first: Duration,
    most: Duration,
    next: Duration,
}

impl Backoff {
    pub(crate) fn new(first: Duration, most: Duration) -> Backoff {
        Backoff { first, most, next: first }
    }

    /// Returns the next delay: up to twice the base, so that clients spread.
    pub(crate) fn delay(&mut self) -> Duration {
        let base = self.next;
        self.next = (base * 2).min(self.most);
        base.mul_f64(1.0 + jitter()).min(self.most)
    }

    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_to_the_most_and_resets() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
        let delays: Vec<_> = (0..6).map(|_| backoff.delay()).collect();
        assert!(delays[0] >= Duration::from_millis(100) && delays[0] <= Duration::from_millis(200));
        assert!(delays[1] >= Duration::from_millis(200) && delays[1] <= Duration::from_millis(400));
        assert_eq!(delays[5], Duration::from_secs(1));
        backoff.reset();
        assert!(backoff.delay() <= Duration::from_millis(200));
    }

    #[test]
    fn a_replayed_thread_draws_the_same_again() {
        let draws = |seed: u64| {
            let drawing = move || {
                replay(seed);
                (0..20).map(|_| jitter()).collect::<Vec<f64>>()
            };
            std::thread::spawn(drawing).join().unwrap()
        };
        assert_eq!(draws(7), draws(7));
        assert_ne!(draws(7), draws(8));
        assert!(draws(7).iter().all(|d| (0.0..1.0).contains(d)));
    }

    #[test]
    fn jitter_spreads() {
        let draws: Vec<f64> = (0..100).map(|_| jitter()).collect();
        assert!(draws.iter().all(|d| (0.0..1.0).contains(d)));
        assert!(draws.iter().any(|d| *d < 0.5) && draws.iter().any(|d| *d > 0.5));
    }
}
