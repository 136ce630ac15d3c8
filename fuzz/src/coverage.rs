//! The coverage of an input, by the counters that the compiler puts at every edge (`-Cpasses=sancov-module`, which the
//! stable compiler has). Without them, as in the tests, there are no counters and nothing is ever new.
//!
//! The code under test writes the counters without synchronization, on one thread; a count that a helper thread loses
//! only makes an input look less interesting.

use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

static START: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static LENGTH: AtomicUsize = AtomicUsize::new(0);

/// Registers the counters. The instrumented code calls it before `main`, once per compilation unit, each time with the
/// one section of counters.
///
/// # Safety
/// `start` and `stop` must be the bounds of a section of bytes that lives as long as the process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __sanitizer_cov_8bit_counters_init(start: *mut u8, stop: *mut u8) {
    START.store(start, Ordering::Relaxed);
    LENGTH.store((stop as usize).saturating_sub(start as usize), Ordering::Relaxed);
}

/// Ignores the table of the counters' addresses.
#[unsafe(no_mangle)]
pub extern "C" fn __sanitizer_cov_pcs_init(_start: *const usize, _stop: *const usize) {}

/// The coverage of all inputs so far.
pub struct Coverage {
    /// The magnitudes of each counter that were seen, as bits.
    seen: Vec<u8>,
    edges: usize,
}

impl Coverage {
    pub fn new() -> Coverage {
        Coverage { seen: vec![0; LENGTH.load(Ordering::Relaxed)], edges: 0 }
    }

    /// Reports whether the code is instrumented.
    pub fn is_counted(&self) -> bool {
        !self.seen.is_empty()
    }

    /// Returns the number of edges that any input reached.
    pub fn edges(&self) -> usize {
        self.edges
    }

    /// Zeroes the counters before an input.
    pub fn begin(&self) {
        counters().fill(0);
    }

    /// Records the coverage of the input, and returns whether any of it is new.
    pub fn end(&mut self) -> bool {
        let mut is_new = false;
        let counted = counters().chunks(64).zip(self.seen.chunks_mut(64));
        for (counts, seen) in counted.filter(|(counts, _)| counts.iter().fold(0, |all, count| all | count) != 0) {
            for (count, seen) in counts.iter().zip(seen) {
                let magnitude = magnitude(*count);
                if magnitude & !*seen != 0 {
                    self.edges += usize::from(*seen == 0);
                    *seen |= magnitude;
                    is_new = true;
                }
            }
        }
        is_new
    }
}

impl Default for Coverage {
    fn default() -> Coverage {
        Coverage::new()
    }
}

fn counters() -> &'static mut [u8] {
    let start = START.load(Ordering::Relaxed);
    if start.is_null() {
        return &mut [];
    }
    // SAFETY: the bounds are those of the section that the compiler made for the counters. The fuzzer's only thread
    // uses the slice between two inputs, when no instrumented code runs on it.
    unsafe { std::slice::from_raw_parts_mut(start, LENGTH.load(Ordering::Relaxed)) }
}

/// Returns the magnitude of a count: a loop that runs 5 times counts as one that runs 6 times.
fn magnitude(count: u8) -> u8 {
    match count {
        0 => 0,
        1 => 1,
        2 => 2,
        3 => 4,
        4..=7 => 8,
        8..=15 => 16,
        16..=31 => 32,
        32..=127 => 64,
        128..=255 => 128,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn magnitudes_are_single_bits_that_grow() {
        let all: Vec<u8> = (0..=255).map(magnitude).collect();
        assert!(all.is_sorted());
        assert!(all.iter().all(|bits| bits.count_ones() <= 1));
    }
}
