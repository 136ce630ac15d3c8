//! The time since the process began to measure it.

use std::sync::OnceLock;
use std::time::Instant;

static START: OnceLock<Instant> = OnceLock::new();

/// Returns the milliseconds since the first call, and one: zero is never returned.
pub(crate) fn milliseconds() -> u64 {
    let elapsed = START.get_or_init(Instant::now).elapsed().as_millis();
    u64::try_from(elapsed).unwrap_or(u64::MAX - 1) + 1
}
