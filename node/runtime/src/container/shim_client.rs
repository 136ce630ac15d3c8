//! The daemon's side of a shim: starting one, and asking it.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::UnixStream;

use crate::Error;
use crate::daemon::output_pipe;
use crate::shim::protocol::{self, Exit, Outcome, Reply, Request};
use crate::shim::zygote::Zygote;

/// Starts a shim for a spec and hears whether the container runs.
pub(crate) async fn start(id: &str, zygote: &Arc<Zygote>, spec: PathBuf) -> Result<Outcome, Error> {
    let (output, far) = output_pipe()?;
    let zygote = zygote.clone();
    let forked = tokio::task::spawn_blocking(move || zygote.fork(&spec, &far)).await;
    forked.map_err(|error| shim_error(id, error))?.map_err(|error| shim_error(id, error))?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line).await.map_err(|error| shim_error(id, error))?;
    serde_json::from_str(&line).map_err(|error| shim_error(id, format!("it said {line:?}: {error}")))
}

/// A session with a shim: exec or attach.
#[derive(Debug)]
pub(crate) struct Session {
    id: String,
    connection: UnixStream,
    /// The terminal, or the container's input.
    pub input: Option<OwnedFd>,
}

impl Session {
    /// Tells the shim that no more input comes; output goes on.
    pub async fn end_input(&mut self) {
        let _ = tokio::io::AsyncWriteExt::shutdown(&mut self.connection).await;
    }

    /// How the process of an exec ended.
    pub async fn exit(&mut self) -> Result<Exit, Error> {
        match read_reply(&self.id, &mut self.connection).await? {
            Some(Reply::Exited(exit)) => Ok(exit),
            Some(Reply::Failed(failure)) => Err(shim_error(&self.id, failure)),
            _ => Err(shim_error(&self.id, "the session ended without an exit")),
        }
    }
}

/// A shim by its socket.
#[derive(Debug, Clone)]
pub(crate) struct ShimClient {
    id: String,
    socket: PathBuf,
}

impl ShimClient {
    pub fn new(id: &str, socket: PathBuf) -> Self {
        Self { id: id.to_string(), socket }
    }

    /// Waits for the container's end. `None` when the shim is gone without having told one.
    pub async fn wait(&self) -> Option<Exit> {
        let (_, _, mut connection) = self.request(Request::Wait, Vec::new()).await.ok()?;
        match read_reply(&self.id, &mut connection).await {
            Ok(Some(Reply::Exited(exit))) => Some(exit),
            _ => None,
        }
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

    /// Reads along with a container, and takes over its input.
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
        let (reply, received, connection) = self.request(request, fds).await?;
        match reply {
            Some(Reply::Ok) => Ok(Session { id: self.id.clone(), connection, input: received.into_iter().next() }),
            Some(Reply::Failed(failure)) => Err(Error::Start(failure)),
            _ => Err(shim_error(&self.id, "it answered out of turn")),
        }
    }

    /// Sends a request in a blocking thread, because descriptors travel with it. A wait has no first
    /// reply.
    async fn request(
        &self,
        request: Request,
        fds: Vec<OwnedFd>,
    ) -> Result<(Option<Reply>, Vec<OwnedFd>, UnixStream), Error> {
        let socket = self.socket.clone();
        let asked = tokio::task::spawn_blocking(move || {
            let stream = std::os::unix::net::UnixStream::connect(socket)?;
            let raw: Vec<RawFd> = fds.iter().map(|fd| fd.as_fd().as_raw_fd()).collect();
            protocol::send(&stream, &request, &raw)?;
            drop(fds);
            let (reply, received) = match request {
                Request::Wait => (None, Vec::new()),
                _ => protocol::receive::<Reply>(&stream)?.map_or((None, Vec::new()), |(reply, fds)| (Some(reply), fds)),
            };
            stream.set_nonblocking(true)?;
            Ok::<_, std::io::Error>((reply, received, stream))
        });
        let asked = asked.await.map_err(|error| shim_error(&self.id, error))?;
        let (reply, received, stream) = asked.map_err(|error| shim_error(&self.id, error))?;
        let stream = UnixStream::from_std(stream).map_err(|error| shim_error(&self.id, error))?;
        Ok((reply, received, stream))
    }
}

async fn read_reply(id: &str, connection: &mut UnixStream) -> Result<Option<Reply>, Error> {
    let mut length = [0; 4];
    if connection.read_exact(&mut length).await.is_err() {
        return Ok(None);
    }
    let mut body = vec![0; (u32::from_le_bytes(length) as usize).min(1 << 20)];
    connection.read_exact(&mut body).await.map_err(|error| shim_error(id, error))?;
    serde_json::from_slice(&body).map(Some).map_err(|error| shim_error(id, error))
}

fn shim_error(id: &str, message: impl ToString) -> Error {
    Error::Shim { id: id.to_string(), message: message.to_string() }
}
