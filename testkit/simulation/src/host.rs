//! The simulated machine: its clock, its random bytes, its waits and its disk.
//!
//! The functions of the C library by which Rust's standard library and tokio reach the machine are defined here, and so
//! replaced in every program that links this package. While a simulation runs, time passes only when a thread waits for
//! events and there are none: it passes by as much as the thread would have waited. Outside of a simulation, the functions
//! do what the system's do.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use libc::{c_int, c_long, c_void, clockid_t, epoll_event, size_t, ssize_t, timespec};
use testkit_machine::random::Random;

/// The time at the begin of each simulation: 2026-01-01 as seconds since 1970.
const EPOCH_SECONDS: i64 = 1_767_225_600;
const NANOSECONDS: u64 = 1_000_000_000;
/// The distance of two seeds of random bytes, as in SplitMix64.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
/// The polls without a pause after which the world does not get on.
const MOST_POLLS: u64 = 20_000_000;

static IS_SIMULATED: AtomicBool = AtomicBool::new(false);
/// The nanoseconds since the begin.
static ELAPSED: AtomicU64 = AtomicU64::new(0);
/// The seconds by which the clock of the day is wrong.
static SKEW: AtomicI64 = AtomicI64::new(0);
static ENTROPY: AtomicU64 = AtomicU64::new(0);
static POLLS: AtomicU64 = AtomicU64::new(0);
/// The syncs of files until one fails; 0 if none does.
static SYNCS_UNTIL_FAILURE: AtomicU64 = AtomicU64::new(0);

std::thread_local! {
    /// Whether this thread is that of the simulation. Others compute a part for it, and must not disturb its numbers.
    static IS_OWN: Cell<bool> = const { Cell::new(false) };
}

/// Begins a simulation in this thread.
pub fn begin(seed: u64) {
    IS_OWN.set(true);
    ELAPSED.store(NANOSECONDS, Ordering::SeqCst);
    SKEW.store(0, Ordering::SeqCst);
    ENTROPY.store(seed, Ordering::SeqCst);
    POLLS.store(0, Ordering::SeqCst);
    SYNCS_UNTIL_FAILURE.store(0, Ordering::SeqCst);
    IS_SIMULATED.store(true, Ordering::SeqCst);
}

/// Ends it: time is the machine's again.
pub fn end() {
    IS_SIMULATED.store(false, Ordering::SeqCst);
}

/// Returns the seconds since the begin.
pub fn seconds() -> f64 {
    ELAPSED.load(Ordering::SeqCst) as f64 / NANOSECONDS as f64
}

/// Sets the clock of the day wrong by so many seconds.
pub fn set_clock_wrong_by(seconds: i64) {
    SKEW.store(seconds, Ordering::SeqCst);
}

/// Lets the sync after so many others fail, as a dying disk does.
pub fn fail_sync_after(syncs: u64) {
    SYNCS_UNTIL_FAILURE.store(syncs + 1, Ordering::SeqCst);
}

/// Lets no sync fail.
pub fn heal_disk() {
    SYNCS_UNTIL_FAILURE.store(0, Ordering::SeqCst);
}

fn is_simulated() -> bool {
    IS_SIMULATED.load(Ordering::SeqCst)
}

/// Calls the kernel; the result is that of a function of the C library.
macro_rules! kernel {
    ($($argument:expr),+) => {
        // SAFETY: the arguments are those that the caller gave for the function of the C library that this replaces.
        unsafe { libc::syscall($($argument),+) }
    };
}

/// Replaces the C library's function.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: clockid_t, time: *mut timespec) -> c_int {
    let origin = match clock {
        libc::CLOCK_MONOTONIC | libc::CLOCK_BOOTTIME | libc::CLOCK_MONOTONIC_COARSE => 0,
        libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE => EPOCH_SECONDS + SKEW.load(Ordering::SeqCst),
        _ => return kernel!(libc::SYS_clock_gettime, c_long::from(clock), time) as c_int,
    };
    if !is_simulated() {
        return kernel!(libc::SYS_clock_gettime, c_long::from(clock), time) as c_int;
    }
    let elapsed = ELAPSED.load(Ordering::SeqCst);
    let now = timespec { tv_sec: origin + (elapsed / NANOSECONDS) as i64, tv_nsec: (elapsed % NANOSECONDS) as c_long };
    // SAFETY: the caller gives a pointer to a timespec that it may write.
    unsafe { time.write(now) };
    0
}

/// Replaces the C library's function.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(buffer: *mut c_void, length: size_t, flags: libc::c_uint) -> ssize_t {
    if !is_simulated() {
        return kernel!(libc::SYS_getrandom, buffer, length, flags) as ssize_t;
    }
    // SAFETY: the caller gives a buffer of this length that it may write.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length) };
    let mut of_others = Random::new(0);
    for part in bytes.chunks_mut(8) {
        let number = match IS_OWN.get() {
            true => Random::new(ENTROPY.fetch_add(GAMMA, Ordering::SeqCst)).number(),
            false => of_others.number(),
        };
        part.copy_from_slice(&number.to_ne_bytes()[..part.len()]);
    }
    length as ssize_t
}

/// Replaces the C library's function: a wait without events is over at once, and its time has passed.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_wait(poll: c_int, events: *mut epoll_event, most: c_int, timeout: c_int) -> c_int {
    let simulated = is_simulated();
    let wait = if simulated { 0 } else { timeout };
    let [poll, most, wait] = [poll, most, wait].map(c_long::from);
    let found = kernel!(libc::SYS_epoll_wait, poll, events, most, wait) as c_int;
    if !simulated || found != 0 {
        return found;
    }
    match u64::try_from(timeout) {
        Ok(0) => {
            if POLLS.fetch_add(1, Ordering::SeqCst) > MOST_POLLS {
                give_up("tasks go on without a pause");
            }
        }
        Ok(milliseconds) => {
            POLLS.store(0, Ordering::SeqCst);
            ELAPSED.fetch_add(milliseconds * 1_000_000, Ordering::SeqCst);
        }
        Err(_) => give_up("every task waits, and for no time"),
    }
    0
}

/// Replaces the C library's function: the disk of the simulation is memory, so only failures are simulated.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdatasync(file: c_int) -> c_int {
    if !is_simulated() {
        return kernel!(libc::SYS_fdatasync, c_long::from(file)) as c_int;
    }
    let countdown = |left: u64| (left > 0).then(|| left - 1);
    if SYNCS_UNTIL_FAILURE.fetch_update(Ordering::SeqCst, Ordering::SeqCst, countdown) != Ok(1) {
        return 0;
    }
    // SAFETY: the location is that of this thread's error.
    unsafe { *libc::__errno_location() = libc::EIO };
    -1
}

/// Ends the program: a function of the C library cannot fail in this way.
fn give_up(reason: &str) -> ! {
    eprintln!("the simulation stands still after {} s: {reason}", seconds());
    std::process::abort();
}
