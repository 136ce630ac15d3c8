//! Exec with streams: the client's channels, connected to a process in the container.

use std::time::Duration;

use bytes::Bytes;
use corten_cri::v1;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::sync::mpsc;

use super::Ended;
use super::session::{Channel, Streams};
use super::terminal::Terminal;
use crate::Error;
use crate::container::shim_client::Session;
use crate::daemon::Daemon;
use crate::output_pipe::output_pipe;

const CHUNK: usize = 32 << 10;
/// The longest wait for the pipes after the exit: a process that the command left behind may hold them.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs a command until it exits. When its client is gone, a command with a terminal is killed, as a hang-up does. Any
/// other goes on with the input that it got, and its output is dropped: some clients send a file and hang up.
pub(super) async fn run(daemon: &Daemon, request: v1::ExecRequest, streams: &mut Streams) -> Ended {
    let container = daemon.container(&request.container_id)?;
    container.require_running()?;
    let shim = daemon.shim(&container);
    if request.tty {
        let gone = streams.gone.clone();
        let session = shim.exec(request.cmd, true, [None, None, None]).await?;
        return tokio::select! {
            ended = with_terminal(session, streams) => ended,
            () = gone.cancelled() => Err(Error::State("the client is gone".into())),
        };
    }
    let (stdin, stdin_far) = if request.stdin { input_pipe()? } else { (None, None) };
    let (stdout, stdout_far) = output_pipe()?;
    let (stderr, stderr_far) = output_pipe()?;
    let far = [stdin_far, request.stdout.then_some(stdout_far), request.stderr.then_some(stderr_far)];
    let session = shim.exec(request.cmd, false, far).await?;
    with_pipes(session, streams, stdin, stdout, stderr).await
}

async fn with_terminal(mut session: Session, streams: &mut Streams) -> Ended {
    let fd = session.input.take().ok_or_else(|| Error::State("the command got no terminal".into()))?;
    let terminal = Terminal::new(fd).map_err(Error::system("open the terminal"))?;
    let output = streams.output.clone();
    let reading = copy_terminal(&terminal, output);
    let typing = copy_input(&terminal, streams);
    tokio::pin!(reading);
    tokio::select! {
        exit = session.exit() => {
            // The last output is still in the terminal.
            let _ = tokio::time::timeout(DRAIN_TIMEOUT, reading).await;
            Ok(exit?.code)
        }
        () = &mut reading => Ok(session.exit().await?.code),
        () = typing => Err(Error::State("the terminal is closed".into())),
    }
}

/// Copies a terminal's output, until it closes.
pub(super) async fn copy_terminal(terminal: &Terminal, output: mpsc::Sender<(Channel, Bytes)>) {
    let mut buffer = vec![0; CHUNK];
    while let Ok(length) = terminal.read(&mut buffer).await {
        if length == 0 || output.send((Channel::Stdout, Bytes::copy_from_slice(&buffer[..length]))).await.is_err() {
            return;
        }
    }
}

/// Copies the client's input and window sizes. Never ends by itself: a client that has no more input still reads the
/// output.
pub(super) async fn copy_input(terminal: &Terminal, streams: &mut Streams) {
    loop {
        let typed = async {
            match &mut streams.stdin {
                Some(stdin) => stdin.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            bytes = typed => match bytes {
                Some(bytes) if terminal.write_all(&bytes).await.is_ok() => {}
                _ => streams.stdin = None,
            },
            size = streams.resize.next() => terminal.resize(size),
        }
    }
}

async fn with_pipes(
    mut session: Session,
    streams: &mut Streams,
    stdin: Option<pipe::Sender>,
    stdout: pipe::Receiver,
    stderr: pipe::Receiver,
) -> Ended {
    let feeding = feed(streams.stdin.take(), stdin);
    let outputs = futures::future::join(
        copy_pipe(stdout, Channel::Stdout, streams.output.clone()),
        copy_pipe(stderr, Channel::Stderr, streams.output.clone()),
    );
    tokio::pin!(feeding);
    tokio::pin!(outputs);
    let exited = session.exit();
    tokio::pin!(exited);
    let mut drained = false;
    loop {
        tokio::select! {
            exit = &mut exited => {
                if !drained {
                    let _ = tokio::time::timeout(DRAIN_TIMEOUT, outputs).await;
                }
                return Ok(exit?.code);
            }
            _ = &mut outputs, if !drained => drained = true,
            () = &mut feeding => {}
        }
    }
}

/// Copies input until it ends, closes the pipe, and never returns: the command ends the session.
async fn feed(stdin: Option<mpsc::Receiver<Bytes>>, pipe: Option<pipe::Sender>) {
    if let (Some(mut stdin), Some(mut pipe)) = (stdin, pipe) {
        while let Some(bytes) = stdin.recv().await {
            if pipe.write_all(&bytes).await.is_err() {
                // The command no longer reads; further input is dropped so that the client does not block.
                while stdin.recv().await.is_some() {}
            }
        }
    }
    std::future::pending().await
}

/// Copies output until it ends; drops it when the client is gone.
pub(super) async fn copy_pipe(mut pipe: pipe::Receiver, channel: Channel, output: mpsc::Sender<(Channel, Bytes)>) {
    let mut buffer = vec![0; CHUNK];
    while let Ok(length) = pipe.read(&mut buffer).await {
        if length == 0 {
            return;
        }
        let _ = output.send((channel, Bytes::copy_from_slice(&buffer[..length]))).await;
    }
}

type InputPipe = (Option<pipe::Sender>, Option<std::os::fd::OwnedFd>);

fn input_pipe() -> Result<InputPipe, Error> {
    let (far, near) = std::io::pipe().map_err(Error::system("make a pipe"))?;
    rustix::io::ioctl_fionbio(&near, true).map_err(Error::system("prepare a pipe"))?;
    let near = pipe::Sender::from_owned_fd(near.into()).map_err(Error::system("write a pipe"))?;
    Ok((Some(near), Some(far.into())))
}
