//! A child process that ends with this process, however it ends.
//!
//! The kernel sends the parent-death signal when the thread that started the child ends, and the runtime's threads are
//! not permanent. So a thread of its own starts the child and waits for it.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus};
use std::thread;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::sync::oneshot;

pub struct Companion {
    handle: OwnedFd,
    ended: oneshot::Receiver<io::Result<ExitStatus>>,
}

impl Companion {
    /// Starts the command; it gets SIGTERM when this process ends.
    pub async fn start(mut command: Command) -> io::Result<Companion> {
        // SAFETY: prctl is async-signal-safe, and nothing is allocated between fork and exec.
        unsafe {
            command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            });
        }
        let (report_start, start) = oneshot::channel();
        let (report_end, ended) = oneshot::channel();
        thread::Builder::new().name("companion".to_owned()).spawn(move || {
            let child = command.spawn().and_then(|child| {
                let handle = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
                Ok((child, handle))
            });
            match child {
                Err(error) => drop(report_start.send(Err(error))),
                Ok((mut child, handle)) => {
                    // If the caller is gone, nothing stops the child, so it is stopped here.
                    if report_start.send(Ok(handle)).is_err() {
                        drop(child.kill());
                    }
                    drop(report_end.send(child.wait()));
                }
            }
        })?;
        let handle = start.await.map_err(io::Error::other)??;
        Ok(Companion { handle, ended })
    }

    /// Waits until the process has ended.
    pub async fn ended(&mut self) -> io::Result<ExitStatus> {
        (&mut self.ended).await.map_err(io::Error::other)?
    }

    /// Stops the process, and waits until it has ended.
    pub async fn stop(mut self) -> io::Result<()> {
        match pidfd_send_signal(&self.handle, Signal::TERM) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => return Err(error.into()),
        }
        self.ended().await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn it_outlives_the_thread_that_started_it_and_ends_when_it_is_stopped() {
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let asking = thread::spawn(move || {
            let mut command = Command::new("sleep");
            command.arg("1000");
            runtime().block_on(Companion::start(command)).expect("a process")
        });
        let mut companion = asking.join().expect("the thread ends");
        runtime().block_on(async {
            tokio::time::timeout(Duration::from_millis(100), companion.ended()).await.expect_err("it ended");
            companion.stop().await.expect("it can be stopped");
        });
    }

    #[tokio::test]
    async fn a_command_that_cannot_be_run_is_an_error() {
        assert!(Companion::start(Command::new("/nowhere/at/all")).await.is_err());
    }
}
