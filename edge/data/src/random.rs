//! Random choices: quick, and not for secrets.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};

thread_local! {
    static STATE: Cell<u64> = Cell::new(RandomState::new().hash_one(0u8) | 1);
}

/// Returns a random number.
pub(crate) fn number() -> u64 {
    STATE.with(|state| {
        let mut value = state.get();
        value ^= value << 13;
        value ^= value >> 7;
        value ^= value << 17;
        state.set(value);
        value
    })
}

/// Returns a random index below a length; none if the length is zero.
pub(crate) fn below(length: usize) -> Option<usize> {
    let length = u64::try_from(length).ok().filter(|length| *length > 0)?;
    usize::try_from((number() >> 11) % length).ok()
}

/// Returns a number whose every bit depends on every bit of the given one.
pub(crate) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
