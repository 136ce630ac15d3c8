//! The channels of an exec or attach, the same for every protocol, and the status at its end.

use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::spdy;

/// The number of chunks in a channel before its sender blocks.
pub(super) const QUEUE: usize = 32;
/// The time that a client may take to open its streams.
const STREAMS_TIMEOUT: Duration = Duration::from_secs(30);

/// The numbers of channels on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Channel {
    Stdin = 0,
    Stdout = 1,
    Stderr = 2,
    Error = 3,
    Resize = 4,
}

/// The channels that a request asks for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub terminal: bool,
}

/// The size of a terminal, as clients send it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct TerminalSize {
    pub width: u16,
    pub height: u16,
}

/// A client with its channels.
pub(super) struct Connection {
    pub stdin: Option<mpsc::Receiver<Bytes>>,
    pub resize: Option<mpsc::Receiver<Bytes>>,
    pub output: mpsc::Sender<(Channel, Bytes)>,
    /// Cancelled when the client is gone.
    pub gone: CancellationToken,
    /// Whether the error channel carries plain text, and nothing after a success: before version 4.
    pub plain_errors: bool,
}

/// The channels of the running command.
pub(super) struct Streams {
    pub stdin: Option<mpsc::Receiver<Bytes>>,
    pub resize: Resizes,
    pub output: mpsc::Sender<(Channel, Bytes)>,
    pub gone: CancellationToken,
}

/// The channel of the final status.
pub(super) struct StatusWriter {
    output: mpsc::Sender<(Channel, Bytes)>,
    plain: bool,
}

impl Connection {
    pub fn split(self) -> (Streams, StatusWriter) {
        let status = StatusWriter { output: self.output.clone(), plain: self.plain_errors };
        let resize = Resizes { messages: self.resize, buffer: Vec::new() };
        (Streams { stdin: self.stdin, resize, output: self.output, gone: self.gone }, status)
    }
}

/// The outcome of a command, for its client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    Success,
    ExitCode(i32),
    Failure(String),
}

impl Outcome {
    /// Returns the Status object of protocol version 4.
    fn status(&self) -> String {
        let status = match self {
            Self::Success => serde_json::json!({"metadata": {}, "status": "Success"}),
            Self::ExitCode(code) => serde_json::json!({
                "metadata": {},
                "status": "Failure",
                "message": format!("command terminated with non-zero exit code: exit status {code}"),
                "reason": "NonZeroExitCode",
                "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
            }),
            Self::Failure(message) => serde_json::json!({
                "metadata": {},
                "status": "Failure",
                "message": format!("Internal error occurred: error executing command in container: {message}"),
                "reason": "InternalError",
                "details": {"causes": [{"message": format!("error executing command in container: {message}")}]},
                "code": 500,
            }),
        };
        status.to_string()
    }

    fn plain_text(&self) -> String {
        match self {
            Self::Success => String::new(),
            Self::ExitCode(code) => format!("command terminated with non-zero exit code: exit status {code}"),
            Self::Failure(message) => format!("error executing command in container: {message}"),
        }
    }
}

impl StatusWriter {
    /// Writes the outcome; the connection closes when this is dropped.
    pub async fn report(self, outcome: impl Into<Outcome>) {
        let outcome = outcome.into();
        let report = if self.plain { outcome.plain_text() } else { outcome.status() };
        if !report.is_empty() {
            let _ = self.output.send((Channel::Error, Bytes::from(report))).await;
        }
    }
}

/// The longest JSON of a terminal size.
const MAX_SIZE_TEXT: usize = 4 << 10;

/// The sizes of the terminal, however the client splits their JSON.
pub(crate) struct Resizes {
    pub messages: Option<mpsc::Receiver<Bytes>>,
    pub buffer: Vec<u8>,
}

impl Resizes {
    /// Returns the next size; never returns when there will be none.
    pub async fn next(&mut self) -> TerminalSize {
        loop {
            if let Some(size) = self.parse() {
                return size;
            }
            match &mut self.messages {
                Some(messages) => match messages.recv().await {
                    // A longer message is not a size.
                    Some(message) if self.buffer.len() + message.len() > MAX_SIZE_TEXT => self.buffer.clear(),
                    Some(message) => self.buffer.extend_from_slice(&message),
                    None => self.messages = None,
                },
                None => std::future::pending().await,
            }
        }
    }

    pub(crate) fn parse(&mut self) -> Option<TerminalSize> {
        let mut sizes = serde_json::Deserializer::from_slice(&self.buffer).into_iter::<TerminalSize>();
        match sizes.next()? {
            Ok(size) => {
                let taken = sizes.byte_offset();
                self.buffer.drain(..taken);
                Some(size)
            }
            Err(error) => {
                if !error.is_eof() {
                    self.buffer.clear();
                }
                None
            }
        }
    }
}

/// Waits for the streams of a SPDY client and connects them.
pub(super) async fn from_spdy(mut streams: spdy::Incoming, wanted: Wanted, version: u8) -> Option<Connection> {
    let mut expected = vec!["error"];
    expected.extend(wanted.stdin.then_some("stdin"));
    expected.extend(wanted.stdout.then_some("stdout"));
    expected.extend((wanted.stderr && !wanted.terminal).then_some("stderr"));
    expected.extend((wanted.terminal && version >= 3).then_some("resize"));
    let mut found: Vec<(Channel, spdy::Stream)> = Vec::new();
    let deadline = tokio::time::Instant::now() + STREAMS_TIMEOUT;
    while found.len() < expected.len() {
        let stream = tokio::time::timeout_at(deadline, streams.recv()).await.ok()??;
        let Some(channel) = channel(stream.header("streamtype")) else {
            stream.outgoing.reset().await;
            continue;
        };
        found.push((channel, stream));
    }
    Some(bridge(streams.complete(), found, version))
}

fn channel(name: &str) -> Option<Channel> {
    Some(match name {
        "stdin" => Channel::Stdin,
        "stdout" => Channel::Stdout,
        "stderr" => Channel::Stderr,
        "error" => Channel::Error,
        "resize" => Channel::Resize,
        _ => return None,
    })
}

/// Connects streams to channels, and notices when the client is gone.
fn bridge(mut streams: mpsc::Receiver<spdy::Stream>, found: Vec<(Channel, spdy::Stream)>, version: u8) -> Connection {
    let (output, mut outgoing) = mpsc::channel::<(Channel, Bytes)>(QUEUE);
    let mut stdin = None;
    let mut resize = None;
    let mut writers = Vec::new();
    for (channel, stream) in found {
        writers.push((channel, stream.outgoing));
        match channel {
            Channel::Stdin => stdin = Some(stream.incoming),
            Channel::Resize => resize = Some(stream.incoming),
            _ => {}
        }
    }
    let gone = CancellationToken::new();
    let watched = gone.clone();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                frame = outgoing.recv() => {
                    let Some((channel, bytes)) = frame else { break };
                    let writer = writers.iter().find(|(found, _)| *found == channel);
                    if let Some((_, writer)) = writer && !writer.send(bytes).await {
                        break;
                    }
                }
                // No client opens more streams; the end of them is the end of the connection.
                stream = streams.recv() => match stream {
                    Some(stream) => stream.outgoing.reset().await,
                    None => {
                        watched.cancel();
                        break;
                    }
                },
            }
        }
        for (_, writer) in &writers {
            writer.finish().await;
        }
    });
    Connection { stdin, resize, output, gone, plain_errors: version < 4 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outcome_becomes_a_status() {
        let parse = |outcome: &Outcome| serde_json::from_str::<serde_json::Value>(&outcome.status()).expect("JSON");
        assert_eq!(parse(&Outcome::Success)["status"], "Success");
        let exited = parse(&Outcome::ExitCode(3));
        assert_eq!(exited["reason"], "NonZeroExitCode");
        assert_eq!(exited["details"]["causes"][0], serde_json::json!({"reason": "ExitCode", "message": "3"}));
        let failed = parse(&Outcome::Failure("no such container".into()));
        assert_eq!(
            failed["message"],
            "Internal error occurred: error executing command in container: no such container"
        );
    }

    #[tokio::test]
    async fn sizes_are_read_however_they_are_split() {
        let (sender, messages) = mpsc::channel(8);
        let mut resizes = Resizes { messages: Some(messages), buffer: Vec::new() };
        for piece in [r#"{"Width":80,"Hei"#, r#"ght":24}"#, "\n", r#"{"Width":1,"Height":2}{"Width":3,"Height":4}"#] {
            sender.send(Bytes::from_static(piece.as_bytes())).await.expect("send");
        }
        for (width, height) in [(80, 24), (1, 2), (3, 4)] {
            assert_eq!(resizes.next().await, TerminalSize { width, height });
        }
    }
}
