//! Waits for a condition, with a time limit and with the last observation when it expires.

use std::time::{Duration, Instant};

/// The longest single wait, also on a slow and busy machine; a passing test never reaches it.
pub const BOUND: Duration = Duration::from_secs(300);

/// Calls a function until it returns `Ok`; panics with the last `Err` when the time is up.
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
