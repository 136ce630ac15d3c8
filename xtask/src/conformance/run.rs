//! One part of a run: the suite on the cluster's machine, until it ends or a signal interrupts it.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;

/// The time for an interrupted suite to write its report and to clean up.
const INTERRUPT_BOUND: Duration = Duration::from_secs(90);
const PAUSE: Duration = Duration::from_millis(200);

/// Blocked Ctrl-C and SIGTERM, so that they do not end this process before it has cleaned up.
pub struct Interrupts(SignalFd);

impl Interrupts {
    /// Blocks the signals. Must be called before other threads are started: each has its own mask.
    pub fn keep() -> Result<Interrupts> {
        let mut signals = SigSet::empty();
        signals.add(Signal::SIGINT);
        signals.add(Signal::SIGTERM);
        signals.add(Signal::SIGHUP);
        signals.thread_block()?;
        Ok(Interrupts(SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?))
    }

    /// Reports whether one came since the last call.
    pub fn came(&self) -> bool {
        matches!(self.0.read_signal(), Ok(Some(_)))
    }
}

/// The end of a part.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    ByItself,
    Interrupted,
}

/// Runs a command with its output in a file. Passes an interrupt on to it, so that it can write its report.
pub fn run(mut command: Command, log: &Path, interrupts: &Interrupts) -> Result<Ended> {
    let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    let mut child = command
        .stdout(file.try_clone()?)
        .stderr(file)
        // Its own process group: a Ctrl-C reaches it through this process alone, once.
        .process_group(0)
        .spawn()
        .with_context(|| format!("{:?} cannot be run", command.get_program()))?;
    let group = Pid::from_raw(i32::try_from(child.id())?);
    while child.try_wait()?.is_none() {
        if interrupts.came() {
            eprintln!("interrupted: waiting for the suite's report");
            interrupt(&mut child, group)?;
            return Ok(Ended::Interrupted);
        }
        std::thread::sleep(PAUSE);
    }
    Ok(Ended::ByItself)
}

fn interrupt(child: &mut Child, group: Pid) -> Result<()> {
    let start = Instant::now();
    let _ = killpg(group, Signal::SIGINT);
    // The first process of the group only entered the namespaces, and ends before its children.
    while killpg(group, None).is_ok() {
        child.try_wait()?;
        if start.elapsed() > INTERRUPT_BOUND {
            let _ = killpg(group, Signal::SIGKILL);
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_runs_until_its_end_with_its_output_in_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let mut command = Command::new("sh");
        command.args(["-c", "echo out; echo err >&2; exit 1"]);
        assert_eq!(run(command, &log, &Interrupts::keep().unwrap()).unwrap(), Ended::ByItself);
        assert_eq!(std::fs::read_to_string(log).unwrap(), "out\nerr\n");
    }
}
