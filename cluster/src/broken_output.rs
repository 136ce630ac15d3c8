//! The end of a command whose output has no reader any more, as of `corten logs | head`.
//!
//! The kernel sends SIGPIPE for every write that nothing reads: of output, after which the command has nothing left to do, but also of
//! a request on the socket of a server that stops, which is an error like others. So the signal ends the process only if its
//! output is the one that broke.

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// Ends this process quietly when the reader of its output has ended.
pub fn end_with_the_reader() {
    let action = SigAction::new(SigHandler::Handler(end_without_reader), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler calls only functions that are safe in a signal handler, and touches no memory of others.
    let _ = unsafe { sigaction(Signal::SIGPIPE, &action) };
}

extern "C" fn end_without_reader(signal: libc::c_int) {
    let errno = nix::errno::Errno::last_raw();
    if is_broken(libc::STDOUT_FILENO) || is_broken(libc::STDERR_FILENO) {
        // SAFETY: both functions are safe in a signal handler. The signal comes when this one returns.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
    }
    nix::errno::Errno::set_raw(errno);
}

/// Reports whether what is written to a descriptor has no reader.
fn is_broken(descriptor: libc::c_int) -> bool {
    let mut polled = libc::pollfd { fd: descriptor, events: 0, revents: 0 };
    // SAFETY: the structure outlives the call, which does not wait.
    let ready = unsafe { libc::poll(&raw mut polled, 1, 0) };
    ready == 1 && polled.revents & (libc::POLLERR | libc::POLLHUP) != 0
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, ErrorKind, IoSlice, Write};
    use std::os::unix::net::UnixStream;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};

    use super::*;

    /// The line that the child prints.
    const LINE: &str = "a line";
    /// The variable that is set where a test runs as a process of its own.
    const ROLE: &str = "BROKEN_OUTPUT_ROLE";

    /// Runs a test of this program as a process of its own.
    fn itself(test: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &format!("broken_output::tests::{test}"), "--nocapture"]).env(ROLE, "child");
        command
    }

    fn is_child() -> bool {
        std::env::var_os(ROLE).is_some()
    }

    #[test]
    fn a_socket_without_a_reader_is_an_error() {
        if !is_child() {
            assert!(itself("a_socket_without_a_reader_is_an_error").output().unwrap().status.success());
            return;
        }
        end_with_the_reader();
        let (mut near, far) = UnixStream::pair().unwrap();
        drop(far);
        // The clients write in several parts, which sockets have no flag against the signal for.
        let parts = [IoSlice::new(b"head"), IoSlice::new(b"body")];
        assert_eq!(near.write_vectored(&parts).unwrap_err().kind(), ErrorKind::BrokenPipe);
    }

    #[test]
    fn output_without_a_reader_ends_the_process() {
        if !is_child() {
            let mut child = itself("output_without_a_reader_ends_the_process");
            let mut child = child.stdout(Stdio::piped()).spawn().unwrap();
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
            assert!(lines.any(|line| line == LINE));
            drop(lines);
            assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGPIPE));
            return;
        }
        end_with_the_reader();
        for _ in 0..1_000_000 {
            println!("{LINE}");
        }
    }
}
