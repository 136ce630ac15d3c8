//! Waiting for a condition, with a bound and with the last thing seen when it runs out.

use std::time::{Duration, Instant};

/// No single wait takes longer than this, also on a machine that is slow and busy; a test that passes never sees it.
pub const BOUND: Duration = Duration::from_secs(300);

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
