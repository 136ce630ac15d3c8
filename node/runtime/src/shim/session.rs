//! Requests of the daemon: exec and attach become sessions, the others are answered at once.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::Shim;
use super::log::Stream;
use super::protocol::{self, Exit, Reply, Request};
use crate::executor::{self, Failure, Stdio, Step};

/// The time that a connected daemon may take to send its request: the shim does not read the container's output until
/// then.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The most concurrent sessions of one container: each holds descriptors of the shim, and a shim without free
/// descriptors serves none.
const MAX_SESSIONS: usize = 1000;
/// The most bytes that an attached client may lag behind before it is dropped.
const MAX_BACKLOG: usize = 4 << 20;

impl Shim {
    /// Accepts one connection and answers its request.
    pub(super) fn accept(&mut self) {
        let Ok((connection, _)) = self.listener.accept() else { return };
        let _ = connection.set_read_timeout(Some(REQUEST_TIMEOUT));
        let _ = connection.set_write_timeout(Some(REQUEST_TIMEOUT));
        let Ok(Some((request, fds))) = protocol::receive::<Request>(&connection) else { return };
        if let Err(failure) = self.answer(&connection, request, fds) {
            let _ = protocol::send(&connection, &Reply::Failed(failure), &[]);
        }
    }

    fn answer(&mut self, connection: &UnixStream, request: Request, fds: Vec<OwnedFd>) -> Result<(), Failure> {
        let is_session = matches!(request, Request::Exec { .. } | Request::Attach { .. });
        if is_session && self.execs.len() + self.attachments.len() >= MAX_SESSIONS {
            return Err(format!("the container has {MAX_SESSIONS} sessions already"));
        }
        match request {
            Request::Wait => self.waiters.push(Some(connection.try_clone().step("keep the connection")?)),
            Request::Signal { signal } => {
                match &self.spec.oci {
                    Some(runtime) => executor::oci::kill(runtime, &self.spec.id, signal)?,
                    None => {
                        let signal = Signal::try_from(signal).step(format!("signal {signal}"))?;
                        kill(self.init, signal).step("send the signal")?;
                    }
                }
                protocol::send(connection, &Reply::Ok, &[]).step("answer")?;
            }
            Request::ReopenLog => {
                self.log.reopen().step("open the log again")?;
                protocol::send(connection, &Reply::Ok, &[]).step("answer")?;
            }
            Request::Exec { args, terminal, stdin, stdout, stderr } => {
                let stdio = distribute(fds, [stdin, stdout, stderr]);
                self.exec(connection, args, terminal, stdio)?;
            }
            Request::Attach { stdin, stdout, stderr } => {
                let stdio = distribute(fds, [false, stdout, stderr]);
                self.attach(connection, stdin, stdio)?;
            }
        }
        Ok(())
    }

    fn exec(
        &mut self,
        connection: &UnixStream,
        args: Vec<String>,
        terminal: bool,
        stdio: Stdio,
    ) -> Result<(), Failure> {
        let mut process = self.spec.process.clone();
        process.args = args;
        process.terminal = terminal;
        let running = executor::Running { spec: &self.spec, init: self.init, identity: &self.identity };
        let started = executor::exec(&running, &process, stdio)?;
        let fds: Vec<i32> = started.terminal.iter().map(AsRawFd::as_raw_fd).collect();
        let kept = connection.try_clone().step("keep the connection")?;
        let session = ExecSession { pid: started.pid, connection: Some(kept), has_ended: false };
        let answered = protocol::send(connection, &Reply::Ok, &fds).step("answer");
        if answered.is_err() {
            session.kill();
        }
        self.execs.push(session);
        answered
    }

    /// Attaches a client, which writes input by itself: to the terminal, or to the pipe.
    fn attach(&mut self, connection: &UnixStream, stdin: bool, stdio: Stdio) -> Result<(), Failure> {
        let input = self.terminal.as_ref().or(if stdin { self.stdin.as_ref() } else { None });
        let fds: Vec<i32> = input.iter().map(|input| input.as_raw_fd()).collect();
        protocol::send(connection, &Reply::Ok, &fds).step("answer")?;
        let sink = |output: Option<OwnedFd>| {
            output.map(|output| {
                let _ = rustix::io::ioctl_fionbio(&output, true);
                Sink { output, backlog: Vec::new(), ended: false }
            })
        };
        self.attachments.push(Attachment {
            connection: connection.try_clone().step("keep the connection")?,
            stdout: sink(stdio.stdout),
            stderr: sink(stdio.stderr),
            stdin,
            input_ended: false,
            gone: false,
        });
        Ok(())
    }
}

fn distribute(fds: Vec<OwnedFd>, wanted: [bool; 3]) -> Stdio {
    let mut fds = fds.into_iter();
    let mut next = |wanted: bool| if wanted { fds.next() } else { None };
    Stdio { stdin: next(wanted[0]), stdout: next(wanted[1]), stderr: next(wanted[2]) }
}

/// A process that was started by exec, and the daemon that waits for it.
#[derive(Debug)]
pub(super) struct ExecSession {
    pid: Pid,
    /// The daemon's connection; `None` when it no longer waits. The session stays until its process is reaped.
    connection: Option<UnixStream>,
    /// Whether the process is reaped: its pid may belong to another process. The slot stays until the sweep, so that
    /// the other indexes of this turn stay valid.
    has_ended: bool,
}

impl ExecSession {
    /// Reports whether this is the session of a process that was just reaped.
    pub fn runs(&self, pid: Pid) -> bool {
        !self.has_ended && self.pid == pid
    }

    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    pub fn connection(&self) -> Option<&UnixStream> {
        self.connection.as_ref()
    }

    /// Kills the process: the daemon is gone, or cancelled it.
    pub fn abandon(&mut self) {
        self.kill();
        self.connection = None;
    }

    /// Kills the process and the processes that it started in its session.
    pub fn kill(&self) {
        if self.has_ended {
            return;
        }
        let _ = kill(Pid::from_raw(-self.pid.as_raw()), Signal::SIGKILL);
        let _ = kill(self.pid, Signal::SIGKILL);
    }

    pub fn finish(&mut self, exit: Exit) {
        if let Some(connection) = self.connection.take() {
            let _ = protocol::send(&connection, &Reply::Exited(exit), &[]);
        }
        self.has_ended = true;
    }
}

/// An attached client.
#[derive(Debug)]
pub(super) struct Attachment {
    connection: UnixStream,
    stdout: Option<Sink>,
    stderr: Option<Sink>,
    stdin: bool,
    input_ended: bool,
    gone: bool,
}

/// A pipe to an attached client, and the output that did not fit into it yet.
#[derive(Debug)]
struct Sink {
    output: OwnedFd,
    backlog: Vec<u8>,
    ended: bool,
}

impl Attachment {
    /// Returns the descriptors that the loop must poll: the connection for its end, and full pipes for room.
    pub fn interests(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        // A hang-up is always reported; the end of input only once.
        let flags = if self.input_ended { PollFlags::empty() } else { PollFlags::POLLIN };
        let mut interests = vec![(self.connection.as_fd(), flags)];
        for sink in [&self.stdout, &self.stderr].into_iter().flatten() {
            if !sink.backlog.is_empty() {
                interests.push((sink.output.as_fd(), PollFlags::POLLOUT));
            }
        }
        interests
    }

    /// Handles the end of the connection, or a pipe that has room again.
    pub fn progress(&mut self) {
        let mut state = [PollFd::new(self.connection.as_fd(), PollFlags::POLLIN)];
        let events = match poll(&mut state, PollTimeout::ZERO) {
            Ok(_) => state[0].revents().unwrap_or(PollFlags::empty()),
            Err(_) => PollFlags::empty(),
        };
        self.gone |= events.intersects(PollFlags::POLLHUP | PollFlags::POLLERR);
        // An attached client sends nothing more on the connection: readable means that it has ended.
        self.input_ended |= events.contains(PollFlags::POLLIN);
        self.push();
    }

    pub fn write(&mut self, stream: Stream, output: &[u8]) {
        if let Some(sink) = self.sink(stream) {
            sink.backlog.extend_from_slice(output);
        }
        self.push();
    }

    pub fn end_of(&mut self, stream: Stream) {
        if let Some(sink) = self.sink(stream) {
            sink.ended = true;
        }
        self.push();
    }

    /// Closes the client's output.
    pub fn detach(&mut self) {
        self.end_of(Stream::Stdout);
        self.end_of(Stream::Stderr);
    }

    pub fn done(&self) -> bool {
        self.gone
    }

    /// Reports whether the client was typing, and has finished.
    pub fn finished_input(&self) -> bool {
        self.stdin && (self.input_ended || self.gone)
    }

    /// Delivers the last output before the shim exits, if the client reads it in time.
    pub fn flush(&mut self, deadline: Instant) {
        self.push();
        while self.wait_for_room(deadline) {
            self.push();
        }
    }

    /// Waits until a pipe with a backlog has room; returns false when there is none, or the time is up.
    fn wait_for_room(&self, deadline: Instant) -> bool {
        let behind = |sink: &&Sink| !sink.backlog.is_empty();
        let Some(sink) = [&self.stdout, &self.stderr].into_iter().flatten().find(behind) else { return false };
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
        let mut room = [PollFd::new(sink.output.as_fd(), PollFlags::POLLOUT)];
        !left.is_zero() && matches!(poll(&mut room, timeout), Ok(1..))
    }

    fn sink(&mut self, stream: Stream) -> Option<&mut Sink> {
        match stream {
            Stream::Stdout => self.stdout.as_mut(),
            Stream::Stderr => self.stderr.as_mut(),
        }
    }

    fn push(&mut self) {
        for slot in [&mut self.stdout, &mut self.stderr] {
            let Some(sink) = slot else { continue };
            match rustix::io::write(&sink.output, &sink.backlog) {
                Ok(written) => drop(sink.backlog.drain(..written)),
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                Err(_) => {
                    sink.ended = true;
                    sink.backlog.clear();
                }
            }
            let slow = sink.backlog.len() > MAX_BACKLOG;
            if slow || (sink.ended && sink.backlog.is_empty()) {
                *slot = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shim::log::now;

    #[test]
    fn a_session_whose_process_has_ended_kills_no_process_and_keeps_its_slot() {
        // Another process has the pid by now.
        let mut other = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = Pid::from_raw(i32::try_from(other.id()).unwrap());
        let (near, far) = UnixStream::pair().unwrap();
        let mut session = ExecSession { pid, connection: Some(near), has_ended: false };
        assert!(session.runs(pid));
        session.finish(Exit { code: 3, finished_at: now(), oom_killed: false });
        let reply = protocol::receive::<Reply>(&far).unwrap().unwrap().0;
        assert!(matches!(reply, Reply::Exited(exit) if exit.code == 3));
        // The daemon hung up in the same turn.
        session.abandon();
        assert!(session.has_ended() && !session.runs(pid));
        assert_eq!(other.try_wait().unwrap(), None, "it was killed");
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
