//! Waiting for a condition, with a bound and with the last thing seen when it runs out.

use std::time::{Duration, Instant};

/// Asks again and again until the answer is `Ok`; panics with the last `Err` when the time is up.
#[track_caller]
pub fn until<T>(what: &str, bound: Duration, mut condition: impl FnMut() -> Result<T, String>) -> T {
    let start = Instant::now();
    loop {
        match condition() {
            Ok(found) => return found,
            Err(last) if start.elapsed() >= bound => panic!("{what}: not within {bound:?}; last seen: {last}"),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}
