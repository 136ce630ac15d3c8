//! Attach: the client's channels, connected to the container's first process.

use corten_cri::v1;

use super::Ended;
use super::exec::{copy_input, copy_pipe};
use super::session::{Channel, Streams};
use super::terminal::Terminal;
use crate::Error;
use crate::container::shim_client::Session;
use crate::daemon::Daemon;
use crate::output_pipe::output_pipe;

/// Copies the container's output until it ends or the client is gone.
pub(super) async fn run(daemon: &Daemon, request: v1::AttachRequest, streams: &mut Streams) -> Ended {
    let container = daemon.container(&request.container_id)?;
    container.require_running()?;
    let (stdout, stdout_far) = output_pipe()?;
    let (stderr, stderr_far) = output_pipe()?;
    let far = (request.stdout.then_some(stdout_far), request.stderr.then_some(stderr_far));
    let mut session = daemon.shim(&container).attach(request.stdin, far.0, far.1).await?;
    let input = session.input.take().map(Terminal::new).transpose().map_err(Error::system("open the input"))?;
    let gone = streams.gone.clone();
    let output = streams.output.clone();
    let reading = futures::future::join(
        copy_pipe(stdout, Channel::Stdout, output.clone()),
        copy_pipe(stderr, Channel::Stderr, output),
    );
    let typing = write_input(input, &mut session, container.config.tty, streams);
    tokio::pin!(reading);
    tokio::select! {
        _ = &mut reading, if request.stdout || request.stderr => {}
        () = typing => {}
        () = gone.cancelled() => return Ok(0),
        () = container.wait() => {
            let _ = tokio::time::timeout(std::time::Duration::from_secs(2), reading).await;
        }
    }
    Ok(0)
}

/// Copies input and signals its end to the shim, which closes the container's input for stdinOnce, and else detaches
/// the client. Never returns: the container or the shim ends the session.
async fn write_input(input: Option<Terminal>, session: &mut Session, terminal: bool, streams: &mut Streams) {
    match (input, terminal) {
        (Some(input), true) => copy_input(&input, streams).await,
        (Some(input), false) => {
            if let Some(stdin) = &mut streams.stdin {
                while let Some(bytes) = stdin.recv().await {
                    if input.write_all(&bytes).await.is_err() {
                        break;
                    }
                }
            }
            drop(input);
            session.end_input().await;
        }
        (None, _) => {}
    }
    std::future::pending().await
}
