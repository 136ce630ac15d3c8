//! The shim: one small process per container that holds everything that must outlive the daemon.
//!
//! It starts the container's first process, keeps its streams, writes its log, reaps it, writes its exit status to disk
//! and runs exec and attach for the daemon. One thread and one poll loop: the executor forks from here. It must never
//! depend on the daemon being alive.

pub(crate) mod log;
pub(crate) mod protocol;
mod session;
pub(crate) mod zygote;

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::cgroup;
use crate::executor::{self, Failure, Stdio, Step};
use crate::spec::Identity;
use crate::spec::Spec;
use log::{Log, Stream, now};
use protocol::{Exit, Outcome, Reply};
use session::{Attachment, ExecSession};

const READ_SIZE: usize = 16 << 10;
/// The most reads at once from one stream, so that none starves the others.
const READS_PER_TURN: usize = 16;
/// The time that attached clients have to read the last output.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs a shim for the spec in a file. Returns when the container has ended and its exit is on disk.
pub fn shim_main(spec_path: &Path) -> i32 {
    let (shim, outcome) = match Shim::start(spec_path) {
        Ok((shim, outcome)) => (Some(shim), outcome),
        Err(failure) => (None, Outcome::Failed(failure)),
    };
    report(&outcome);
    match shim {
        Some(mut shim) => shim.run(),
        None => 1,
    }
}

/// Reports the outcome of the start to the daemon, then closes the daemon's pipe.
fn report(outcome: &Outcome) {
    let mut line = serde_json::to_vec(outcome).unwrap_or_default();
    line.push(b'\n');
    let _ = std::io::stdout().write_all(&line);
    let _ = std::io::stdout().flush();
    if let Ok(null) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null") {
        for standard in 0..3 {
            // SAFETY: replaces the standard descriptors of a process with one thread.
            unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&null), standard) };
        }
    }
}

struct Shim {
    spec: Spec,
    init: Pid,
    /// The user of the container's first process, and of all exec'd processes.
    identity: Identity,
    listener: UnixListener,
    signals: SignalFd,
    log: Log,
    /// The streams that are read, with the terminal as standard output.
    outputs: Vec<(Stream, OwnedFd)>,
    /// The near end of the terminal, if there is one.
    terminal: Option<OwnedFd>,
    /// The container's standard input, kept open.
    stdin: Option<OwnedFd>,
    /// The connections that wait for the exit; `sweep` removes emptied slots.
    waiters: Vec<Option<UnixStream>>,
    execs: Vec<ExecSession>,
    attachments: Vec<Attachment>,
}

/// A source that is ready.
enum Ready {
    Signals,
    Listener,
    Output(usize),
    Waiter(usize),
    Exec(usize),
    Attachment(usize),
}

impl Shim {
    fn start(spec_path: &Path) -> Result<(Self, Outcome), Failure> {
        let signals = become_shim()?;
        let bytes = std::fs::read(spec_path).step(format!("read {}", spec_path.display()))?;
        let spec: Spec = serde_json::from_slice(&bytes).step("read the spec")?;
        drop(bytes);
        let log = Log::open(spec.log_path.as_deref()).step("open the log")?;
        let _ = std::fs::remove_file(&spec.socket_path);
        let listener = UnixListener::bind(&spec.socket_path).step("bind the socket of the shim")?;
        let pipes = Pipes::new(&spec)?;
        let started = match executor::start(&spec, pipes.far) {
            Ok(started) => started,
            Err(failure) => {
                let _ = std::fs::remove_file(&spec.socket_path);
                return Err(failure);
            }
        };
        let mut outputs = pipes.outputs;
        if let Some(terminal) = &started.terminal {
            outputs.push((Stream::Stdout, terminal.try_clone().step("hold the terminal")?));
        }
        for (_, output) in &outputs {
            rustix::io::ioctl_fionbio(output, true).step("prepare a stream")?;
        }
        let identity = started.identity;
        let outcome = Outcome::Started { pid: started.pid.as_raw(), started_at: now(), identity: identity.clone() };
        let shim = Self {
            init: started.pid,
            identity,
            listener,
            signals,
            log,
            outputs,
            terminal: started.terminal,
            stdin: pipes.stdin,
            waiters: Vec::new(),
            execs: Vec::new(),
            attachments: Vec::new(),
            spec,
        };
        Ok((shim, outcome))
    }

    /// Runs the loop until the first process has ended.
    fn run(&mut self) -> i32 {
        loop {
            for ready in self.wait() {
                match ready {
                    Ready::Signals => {
                        if let Some(code) = self.reap() {
                            return self.finish(code);
                        }
                    }
                    Ready::Listener => self.accept(),
                    Ready::Output(index) => self.copy_output(index),
                    Ready::Waiter(index) => self.waiters[index] = None,
                    Ready::Exec(index) => self.execs[index].abandon(),
                    Ready::Attachment(index) => self.attachments[index].progress(),
                }
            }
            self.sweep();
        }
    }

    fn wait(&mut self) -> Vec<Ready> {
        let mut kinds = vec![Ready::Signals, Ready::Listener];
        let mut fds = vec![
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.listener.as_fd(), PollFlags::POLLIN),
        ];
        for (index, (_, output)) in self.outputs.iter().enumerate() {
            kinds.push(Ready::Output(index));
            fds.push(PollFd::new(output.as_fd(), PollFlags::POLLIN));
        }
        for (index, waiter) in self.waiters.iter().enumerate() {
            if let Some(waiter) = waiter {
                kinds.push(Ready::Waiter(index));
                fds.push(PollFd::new(waiter.as_fd(), PollFlags::POLLIN));
            }
        }
        for (index, exec) in self.execs.iter().enumerate() {
            if let Some(connection) = exec.connection() {
                kinds.push(Ready::Exec(index));
                fds.push(PollFd::new(connection.as_fd(), PollFlags::POLLIN));
            }
        }
        for (index, attachment) in self.attachments.iter().enumerate() {
            for (fd, flags) in attachment.interests() {
                kinds.push(Ready::Attachment(index));
                fds.push(PollFd::new(fd, flags));
            }
        }
        if poll(&mut fds, PollTimeout::NONE).is_err() {
            return Vec::new();
        }
        let ready: Vec<bool> = fds.iter().map(|fd| fd.revents().is_some_and(|events| !events.is_empty())).collect();
        kinds.into_iter().zip(ready).filter_map(|(kind, ready)| ready.then_some(kind)).collect()
    }

    /// Reaps every child that has ended; returns the exit code if the first process was among them.
    fn reap(&mut self) -> Option<i32> {
        while let Ok(Some(_)) = self.signals.read_signal() {}
        let mut ended = None;
        loop {
            let (pid, code) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => (pid, code),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, 128 + signal as i32),
                Ok(WaitStatus::StillAlive) | Err(_) => return ended,
                Ok(_) => continue,
            };
            if pid == self.init {
                ended = Some(code);
            } else if let Some(exec) = self.execs.iter_mut().find(|exec| exec.runs(pid)) {
                exec.finish(Exit { code, finished_at: now(), oom_killed: false });
            }
        }
    }

    /// Copies a stream's output to the log and to attached clients.
    fn copy_output(&mut self, index: usize) {
        let Some((stream, output)) = self.outputs.get(index) else { return };
        let stream = *stream;
        let mut buffer = [0; READ_SIZE];
        for _ in 0..READS_PER_TURN {
            match rustix::io::read(output, &mut buffer) {
                Ok(0) | Err(rustix::io::Errno::IO) => {
                    self.log.finish(stream, now());
                    self.attachments.iter_mut().for_each(|attachment| attachment.end_of(stream));
                    // The slot stays until the sweep, so that the other indexes stay valid.
                    self.outputs[index].1 = closed();
                    return;
                }
                Ok(length) => {
                    self.log.write(stream, &buffer[..length], now());
                    for attachment in &mut self.attachments {
                        attachment.write(stream, &buffer[..length]);
                    }
                }
                Err(_) => return,
            }
        }
    }

    /// Removes sessions and streams that have ended.
    fn sweep(&mut self) {
        self.outputs.retain(|(_, output)| !is_closed(output));
        self.waiters.retain(Option::is_some);
        self.execs.retain(|exec| !exec.has_ended());
        self.end_inputs();
        self.attachments.retain(|attachment| !attachment.done());
    }

    /// Handles the end of a client's input: closes the container's input, so that the client sees the container exit,
    /// or detaches the client: the container may run on for other clients that type into it.
    fn end_inputs(&mut self) {
        let mut finished = self.attachments.iter_mut().filter(|attachment| attachment.finished_input());
        if !self.spec.stdin_once || self.spec.process.terminal {
            finished.for_each(Attachment::detach);
        } else if finished.next().is_some() {
            self.stdin = None;
        }
    }

    /// Drains the output, records the exit, reports it, and returns the shim's exit code.
    fn finish(&mut self, code: i32) -> i32 {
        for index in 0..self.outputs.len() {
            // Bounded, because a process outside of the container's pid namespace may go on writing.
            for _ in 0..64 {
                self.copy_output(index);
            }
            let stream = self.outputs[index].0;
            self.log.finish(stream, now());
        }
        let killed = self.spec.oom_counter.as_deref().is_some_and(|counter| cgroup::oom_kills(counter) > 0);
        let exit = Exit { code, finished_at: now(), oom_killed: killed && code != 0 };
        if let Err(failure) = record(&self.spec.exit_path, &exit) {
            // Only the daemon reads a shim's output, and it will see the missing file.
            let _ = std::io::stderr().write_all(failure.as_bytes());
        }
        let _ = std::fs::remove_file(&self.spec.socket_path);
        for waiter in self.waiters.iter().flatten() {
            let _ = protocol::send(waiter, &Reply::Exited(exit.clone()), &[]);
        }
        for exec in &mut self.execs {
            exec.kill();
            exec.finish(Exit { code: 137, finished_at: now(), oom_killed: false });
        }
        // Last, because a client may be slow: nothing that the daemon waits for depends on it.
        let deadline = Instant::now() + FLUSH_TIMEOUT;
        self.attachments.iter_mut().for_each(|attachment| attachment.flush(deadline));
        0
    }
}

/// Makes a session, becomes the subreaper of orphans, and receives signals by a descriptor.
fn become_shim() -> Result<SignalFd, Failure> {
    let _ = nix::unistd::setsid();
    // SAFETY: the option takes a number and changes only this process.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
    // SAFETY: sets the name of this process in process lists.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"corten-shim".as_ptr(), 0, 0, 0) };
    let mut caught = SigSet::empty();
    for signal in [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        caught.add(signal);
    }
    caught.thread_block().step("block signals")?;
    SignalFd::with_flags(&caught, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).step("catch signals")
}

/// The streams of a container without a terminal.
struct Pipes {
    far: Stdio,
    outputs: Vec<(Stream, OwnedFd)>,
    stdin: Option<OwnedFd>,
}

impl Pipes {
    fn new(spec: &Spec) -> Result<Self, Failure> {
        if spec.process.terminal {
            return Ok(Self { far: Stdio::default(), outputs: Vec::new(), stdin: None });
        }
        let (out_near, out_far) = std::io::pipe().step("make a pipe")?;
        let (err_near, err_far) = std::io::pipe().step("make a pipe")?;
        let (stdin_far, stdin_near) = match spec.stdin {
            true => std::io::pipe().map(|(far, near)| (Some(far.into()), Some(near.into()))).step("make a pipe")?,
            false => (None, None),
        };
        Ok(Self {
            far: Stdio { stdin: stdin_far, stdout: Some(out_far.into()), stderr: Some(err_far.into()) },
            outputs: vec![(Stream::Stdout, out_near.into()), (Stream::Stderr, err_near.into())],
            stdin: stdin_near,
        })
    }
}

/// Writes the exit to disk, before any process learns of it.
fn record(path: &Path, exit: &Exit) -> Result<(), Failure> {
    let bytes = serde_json::to_vec(exit).step("encode the exit")?;
    corten_durable::write(path, &bytes, 0o600).step("write the exit record")
}

/// Returns a stand-in for a stream that has ended, until it is swept.
fn closed() -> OwnedFd {
    let null = std::fs::File::open("/dev/null").map(OwnedFd::from);
    null.expect("/dev/null exists on every node")
}

fn is_closed(output: &OwnedFd) -> bool {
    // Streams are pipes and terminals; only the stand-in is the null device.
    rustix::fs::fstat(output).is_ok_and(|found| found.st_rdev == rustix::fs::makedev(1, 3))
}
