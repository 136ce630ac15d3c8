//! ExecSync: a command, its output and its exit code.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use super::Daemon;
use crate::Error;
use crate::container::Container;
use crate::container::shim_client::Session;
use crate::output_pipe::output_pipe;

/// The most output of a probe that the kubelet takes.
const MAX_OUTPUT: usize = 16 << 20;
/// The longest wait for the pipes after the exit: a process that the command left behind may hold them.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// The output of a command.
#[derive(Debug, Default)]
pub(crate) struct ExecOutput {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub code: i32,
}

impl Daemon {
    /// Runs a command until it exits. A timeout of zero means none.
    pub async fn exec_sync(&self, id: &str, command: Vec<String>, timeout: i64) -> Result<ExecOutput, Error> {
        let container = self.container(id)?;
        container.require_running()?;
        let shown = command.join(" ");
        let running = self.run_command(&container, command);
        if timeout <= 0 {
            return running.await;
        }
        // Dropping the session closes its connection, which makes the shim kill the process.
        let timeout = Duration::from_secs(timeout.unsigned_abs());
        tokio::time::timeout(timeout, running).await.unwrap_or(Err(Error::ExecTimeout { command: shown }))
    }

    async fn run_command(&self, container: &Arc<Container>, command: Vec<String>) -> Result<ExecOutput, Error> {
        let (stdout, stdout_far) = output_pipe()?;
        let (stderr, stderr_far) = output_pipe()?;
        let streams = [None, Some(stdout_far), Some(stderr_far)];
        let session = self.shim(container).exec(command, false, streams).await?;
        collect(session, stdout, stderr).await
    }
}

async fn collect(mut session: Session, stdout: pipe::Receiver, stderr: pipe::Receiver) -> Result<ExecOutput, Error> {
    let mut output = ExecOutput::default();
    let mut stdout = Stream::new(stdout);
    let mut stderr = Stream::new(stderr);
    let exit = {
        let exited = session.exit();
        tokio::pin!(exited);
        loop {
            tokio::select! {
                exit = &mut exited => break exit?,
                () = stdout.read(&mut output.stdout), if !stdout.ended => {}
                () = stderr.read(&mut output.stderr), if !stderr.ended => {}
            }
        }
    };
    let drained = async {
        while !stdout.ended {
            stdout.read(&mut output.stdout).await;
        }
        while !stderr.ended {
            stderr.read(&mut output.stderr).await;
        }
    };
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, drained).await;
    output.code = exit.code;
    Ok(output)
}

struct Stream {
    pipe: pipe::Receiver,
    ended: bool,
    buffer: Vec<u8>,
}

impl Stream {
    fn new(pipe: pipe::Receiver) -> Self {
        Self { pipe, ended: false, buffer: vec![0; 16 << 10] }
    }

    /// Reads once; beyond the limit, output is read and dropped so that the command does not block.
    async fn read(&mut self, into: &mut Vec<u8>) {
        match self.pipe.read(&mut self.buffer).await {
            Ok(0) | Err(_) => self.ended = true,
            Ok(length) => {
                let room = MAX_OUTPUT.saturating_sub(into.len()).min(length);
                into.extend_from_slice(&self.buffer[..room]);
            }
        }
    }
}
