//! The daemon's side of a shim: starts one, and sends it requests.
//!
//! A shim may hang: it works on files that its container wrote, and a pod that sees the node's processes may stop it.
//! So nothing here holds a thread, and every answer has a deadline. Only the wait for a container's exit has none.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Interest};
use tokio::net::UnixStream;

use crate::Error;
use crate::output_pipe::output_pipe;
use crate::shim::protocol::{self, Exit, Outcome, Reply, Request};
use crate::shim::zygote::Zygote;

/// The deadline of a shim's answer: longer than the shim itself waits for a process to start.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(40);
/// The deadline of a container's start; a kubelet waits two minutes.
const START_TIMEOUT: Duration = Duration::from_secs(115);
/// The most bytes that a shim reports of a start.
const MAX_OUTCOME: u64 = 1 << 20;

/// Starts a shim for a spec and returns whether the container runs.
pub(crate) async fn start(id: &str, zygote: &Arc<Zygote>, spec: PathBuf) -> Result<Outcome, Error> {
    let (output, far) = output_pipe()?;
    let parent = zygote.clone();
    let forked = tokio::task::spawn_blocking(move || parent.fork(&spec, &far)).await;
    forked.map_err(|error| shim_error(id, error))?.map_err(|error| shim_error(id, error))?;
    let mut line = String::new();
    let mut output = BufReader::new(output.take(MAX_OUTCOME));
    match tokio::time::timeout(START_TIMEOUT, output.read_line(&mut line)).await {
        Ok(read) => read.map_err(|error| shim_error(id, error))?,
        Err(_) => {
            let silent = zygote.clone();
            let _ = tokio::task::spawn_blocking(move || silent.replace()).await;
            return Err(shim_error(id, "it did not report in time whether the container runs"));
        }
    };
    serde_json::from_str(&line).map_err(|error| shim_error(id, format!("it reported {line:?}: {error}")))
}

/// A session with a shim: exec or attach.
#[derive(Debug)]
pub(crate) struct Session {
    id: String,
    connection: UnixStream,
    /// The terminal, or the container's standard input.
    pub input: Option<OwnedFd>,
}

impl Session {
    /// Signals the end of input to the shim; output goes on.
    pub async fn end_input(&mut self) {
        let _ = tokio::io::AsyncWriteExt::shutdown(&mut self.connection).await;
    }

    /// Waits for the exit of an exec'd process.
    pub async fn exit(&mut self) -> Result<Exit, Error> {
        match read_reply(&mut self.connection, &mut Vec::new()).await {
            Ok(Some(Reply::Exited(exit))) => Ok(exit),
            Ok(Some(Reply::Failed(failure))) => Err(shim_error(&self.id, failure)),
            _ => Err(shim_error(&self.id, "the session ended without an exit")),
        }
    }
}

/// A client of one shim, connected by its socket.
#[derive(Debug, Clone)]
pub(crate) struct ShimClient {
    id: String,
    socket: PathBuf,
}

impl ShimClient {
    pub fn new(id: &str, socket: PathBuf) -> Self {
        Self { id: id.to_string(), socket }
    }

    /// Requests the container's exit; `Ending::exit` waits for it.
    pub async fn await_end(&self) -> Result<Ending, Error> {
        let answer = self.request(Request::Wait, Vec::new()).await?;
        let peer = answer.connection.peer_cred().ok().and_then(|peer| peer.pid());
        let shim = peer.and_then(rustix::process::Pid::from_raw).and_then(|pid| {
            let flags = rustix::process::PidfdFlags::empty();
            rustix::process::pidfd_open(pid, flags).ok()
        });
        Ok(Ending { id: self.id.clone(), connection: answer.connection, shim })
    }

    pub async fn signal(&self, signal: i32) -> Result<(), Error> {
        self.simple(Request::Signal { signal }).await
    }

    pub async fn reopen_log(&self) -> Result<(), Error> {
        self.simple(Request::ReopenLog).await
    }

    /// Runs a process with the given far ends of its streams.
    pub async fn exec(
        &self,
        args: Vec<String>,
        terminal: bool,
        streams: [Option<OwnedFd>; 3],
    ) -> Result<Session, Error> {
        let [stdin, stdout, stderr] = streams.each_ref().map(Option::is_some);
        let request = Request::Exec { args, terminal, stdin, stdout, stderr };
        self.session(request, streams.into_iter().flatten().collect()).await
    }

    /// Copies the container's output, and takes over its input.
    pub async fn attach(
        &self,
        stdin: bool,
        stdout: Option<OwnedFd>,
        stderr: Option<OwnedFd>,
    ) -> Result<Session, Error> {
        let request = Request::Attach { stdin, stdout: stdout.is_some(), stderr: stderr.is_some() };
        self.session(request, [stdout, stderr].into_iter().flatten().collect()).await
    }

    async fn simple(&self, request: Request) -> Result<(), Error> {
        self.session(request, Vec::new()).await.map(drop)
    }

    async fn session(&self, request: Request, fds: Vec<OwnedFd>) -> Result<Session, Error> {
        let Answer { reply, fds, connection } = self.request(request, fds).await?;
        match reply {
            Some(Reply::Ok) => Ok(Session { id: self.id.clone(), connection, input: fds.into_iter().next() }),
            Some(Reply::Failed(failure)) => Err(Error::Start(failure)),
            _ => Err(shim_error(&self.id, "it answered out of turn")),
        }
    }

    async fn request(&self, request: Request, fds: Vec<OwnedFd>) -> Result<Answer, Error> {
        match tokio::time::timeout(ANSWER_TIMEOUT, self.ask(request, fds)).await {
            Ok(answer) => answer.map_err(|error| shim_error(&self.id, error)),
            Err(_) => Err(shim_error(&self.id, "it did not answer in time")),
        }
    }

    /// Sends a request and reads the first reply. `Wait` has none.
    async fn ask(&self, request: Request, fds: Vec<OwnedFd>) -> io::Result<Answer> {
        let mut connection = UnixStream::connect(&self.socket).await?;
        let frame = protocol::frame(&request)?;
        let raw: Vec<RawFd> = fds.iter().map(|fd| fd.as_fd().as_raw_fd()).collect();
        let send = || protocol::send_part(&connection, &frame, &raw);
        let sent = connection.async_io(Interest::WRITABLE, send).await?;
        connection.write_all(&frame[sent..]).await?;
        drop(fds);
        let mut received = Vec::new();
        let reply = match request {
            Request::Wait => None,
            _ => read_reply(&mut connection, &mut received).await?,
        };
        Ok(Answer { reply, fds: received, connection })
    }
}

/// The first reply to a request, the descriptors that came with it, and the open connection.
struct Answer {
    reply: Option<Reply>,
    fds: Vec<OwnedFd>,
    connection: UnixStream,
}

/// A shim that was asked for its container's exit.
#[derive(Debug)]
pub(crate) struct Ending {
    id: String,
    connection: UnixStream,
    /// The shim's process. A descriptor, because its pid may be reused later.
    pub shim: Option<OwnedFd>,
}

impl Ending {
    /// Waits for the exit. Returns `None` when the shim is gone without having reported one.
    pub async fn exit(mut self) -> Option<Exit> {
        match read_reply(&mut self.connection, &mut Vec::new()).await {
            Ok(Some(Reply::Exited(exit))) => Some(exit),
            Ok(_) => None,
            Err(error) => {
                tracing::debug!(container = self.id, %error, "the shim did not report the exit of its container");
                None
            }
        }
    }
}

/// Reads a reply; returns `None` when the shim is gone.
async fn read_reply(connection: &mut UnixStream, fds: &mut Vec<OwnedFd>) -> io::Result<Option<Reply>> {
    let mut length = [0; protocol::LENGTH];
    let mut filled = 0;
    while filled < length.len() {
        let read = || protocol::receive_part(connection, &mut length[filled..], fds);
        match connection.async_io(Interest::READABLE, read).await? {
            0 => return Ok(None),
            bytes => filled += bytes,
        }
    }
    let mut body = vec![0; protocol::body_length(length)?];
    connection.read_exact(&mut body).await?;
    Ok(Some(serde_json::from_slice(&body)?))
}

fn shim_error(id: &str, message: impl ToString) -> Error {
    Error::Shim { id: id.to_string(), message: message.to_string() }
}
