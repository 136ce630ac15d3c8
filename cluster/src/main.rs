//! `corten`: Kubernetes in one binary.
//!
//! Chooses the allocator, which a library must not; all else is in `lib.rs`.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The allocator's option for the time for which freed memory is kept for the next allocation.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
/// The value in milliseconds, instead of a second: long enough for the next chunk of a list to reuse the memory of the
/// one before, and short enough that a burst of writes leaves nothing behind.
const PURGE_AFTER: std::ffi::c_long = 3;

fn main() -> ExitCode {
    if let Some(code) = corten::run_as_another() {
        return code;
    }
    // SAFETY: the allocator takes any number for this option at any time.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, PURGE_AFTER) };
    corten::run()
}
