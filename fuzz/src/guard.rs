//! Runs one input within bounds: it must not panic, and not take more memory or processor time than its size justifies.
//!
//! Processor time is that of the thread, so a busy machine fails no input. An input that aborts the process (a stack
//! overflow, an allocation failure) ends the fuzzer, which has written the input down before.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::time::Duration;

use crate::{Target, memory};

/// The most memory that an input of at most [`crate::mutate::LONGEST`] bytes may take.
const MOST_MEMORY: usize = 96 << 20;
/// The most processor time of an input, also in a debug build.
const MOST_TIME: Duration = Duration::from_secs(2);

/// The most address space of the fuzzer: an input that needs more ends the fuzzer, and not the machine.
const MOST_ADDRESSES: u64 = 8 << 30;
/// The largest file that an input may make.
const MOST_FILE: u64 = 64 << 20;

/// The failure of an input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The identity of the failure: the location of the panic, or the bound.
    pub place: String,
    pub message: String,
}

thread_local! {
    static PANICKED: RefCell<Option<Failure>> = const { RefCell::new(None) };
}

/// Prepares the process: panics are recorded instead of printed, and no file exceeds a bound, whatever an archive
/// claims.
pub fn prepare() {
    std::panic::set_hook(Box::new(|info| PANICKED.set(Some(failure_of(info)))));
    let limit = libc::rlimit { rlim_cur: MOST_FILE, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the call reads the limit, a struct of ours; ignoring a signal installs no handler. A write beyond the
    // limit then fails with EFBIG.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit);
    }
}

fn failure_of(info: &PanicHookInfo<'_>) -> Failure {
    let place = info.location().map(|place| format!("{}:{}", place.file(), place.line())).unwrap_or_default();
    Failure { place, message: info.payload_as_str().unwrap_or_default().to_owned() }
}

/// Limits the memory of the process, which must do nothing else.
pub fn confine() {
    let limit = libc::rlimit { rlim_cur: MOST_ADDRESSES, rlim_max: MOST_ADDRESSES };
    // SAFETY: the call reads the limit, a struct of ours.
    unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) };
}

/// Runs a target with an input.
pub fn run(target: &Target, input: &[u8]) -> Result<(), Failure> {
    PANICKED.take();
    memory::reset();
    let begin = processor_time();
    let _ = catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    // A panic that was caught counts too: the API server answers 500 and continues.
    if let Some(failure) = PANICKED.take() {
        return Err(failure);
    }
    let took = processor_time().saturating_sub(begin);
    let peak = memory::peak();
    if peak > MOST_MEMORY {
        return Err(Failure { place: "memory".into(), message: format!("{} MiB at once", peak >> 20) });
    }
    if took > MOST_TIME {
        return Err(Failure { place: "time".into(), message: format!("{took:?} of processor time") });
    }
    Ok(())
}

fn processor_time() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec of ours, which the call fills.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now) };
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}
