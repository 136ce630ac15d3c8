//! An allocator that counts what the current thread holds, and how much it held at most.
//!
//! Only the fuzzer's binary and its test install it. What a thread frees that another has allocated may make the count
//! negative: targets work on one thread, so the count is of the one input that runs.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// The system's allocator, counted.
pub struct Counting;

/// Begins to count anew.
pub fn reset() {
    HELD.set(0);
    PEAK.set(0);
}

/// The most bytes that this thread held at once since [`reset`].
pub fn peak() -> usize {
    usize::try_from(PEAK.get()).unwrap_or(0)
}

/// A thread that ends has no counters any more; what it frees then is not counted.
fn count(bytes: isize) {
    let _ = HELD.try_with(|held| {
        held.set(held.get().saturating_add(bytes));
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(held.get())));
    });
}

// SAFETY: every call is passed on to the system's allocator as it came; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are those that the system's allocator asks for.
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
