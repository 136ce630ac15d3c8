//! Descriptors that another process inherits at fixed numbers.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The lowest number of the copies that are made before any is placed: above all places, so that no descriptor
/// replaces one that is still to be placed.
const ABOVE: RawFd = 128;

/// Lets a command have descriptors at the numbers from `first` on.
pub fn pass(command: &mut Command, first: RawFd, descriptors: &[OwnedFd]) -> io::Result<()> {
    let copies: Result<Vec<OwnedFd>, _> =
        descriptors.iter().map(|one| rustix::io::fcntl_dupfd_cloexec(one, ABOVE)).collect();
    let copies = copies?;
    // SAFETY: dup2 is async-signal-safe, and nothing is allocated between fork and exec. A descriptor of the parent that
    // is replaced would have been closed at exec.
    unsafe {
        command.pre_exec(move || {
            for (place, copy) in (first..).zip(&copies) {
                if libc::dup2(copy.as_raw_fd(), place) != place {
                    return Err(io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
    Ok(())
}

/// Takes a descriptor that this process inherited, and keeps it from processes that it starts.
pub fn take(descriptor: RawFd) -> Option<OwnedFd> {
    // SAFETY: fcntl fails on a descriptor that is not open.
    if unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
        return None;
    }
    // SAFETY: the descriptor is open, and the process that started this one gave it to nothing else.
    Some(unsafe { OwnedFd::from_raw_fd(descriptor) })
}
