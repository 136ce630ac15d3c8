//! An allocator that counts the current and the peak memory of the current thread.
//!
//! Only the fuzzer's binary and its test install it. A thread that frees memory of another may make its count negative:
//! targets use one thread, so the count is that of the current input.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// The system's allocator with counters.
pub struct Counting;

/// Resets the counters.
pub fn reset() {
    HELD.set(0);
    PEAK.set(0);
}

/// Returns the most bytes that this thread held at once since [`reset`].
pub fn peak() -> usize {
    usize::try_from(PEAK.get()).unwrap_or(0)
}

/// Adds to the counters. A thread that ends has none any more; its frees are not counted.
fn count(bytes: isize) {
    let _ = HELD.try_with(|held| {
        held.set(held.get().saturating_add(bytes));
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(held.get())));
    });
}

// SAFETY: every call is passed on to the system's allocator unchanged; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are those that the system's allocator requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
