//! WebSockets: channels by the first byte of each message, or a tunnel for SPDY.

use bytes::{Bytes, BytesMut};
use futures::{SinkExt, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::Utf8Bytes;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role};
use tokio_util::sync::CancellationToken;

use super::session::{Channel, Connection, QUEUE, Wanted};
use super::upgrade::Upgraded;
use base64::Engine;

/// The first byte of a message that closes the channel of its second byte; version 5.
const CLOSE: u8 = 255;
/// The close of a successful stream; clients take one without a status for a failure.
pub(super) const NORMAL: CloseFrame = CloseFrame { code: CloseCode::Normal, reason: Utf8Bytes::from_static("") };
/// The size of kubectl's tunnel messages.
const TUNNEL_CHUNK: usize = 32 << 10;

/// The framing of messages. Later ones are better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// Text messages with a digit and base64.
    Base64V1,
    V1,
    Base64V4,
    V4,
    V5,
}

impl Framing {
    pub const ALL: [Self; 5] = [Self::Base64V1, Self::V1, Self::Base64V4, Self::V4, Self::V5];

    pub fn name(self) -> &'static str {
        match self {
            Self::Base64V1 => "base64.channel.k8s.io",
            Self::V1 => "channel.k8s.io",
            Self::Base64V4 => "v4.base64.channel.k8s.io",
            Self::V4 => "v4.channel.k8s.io",
            Self::V5 => "v5.channel.k8s.io",
        }
    }

    fn is_base64(self) -> bool {
        matches!(self, Self::Base64V1 | Self::Base64V4)
    }

    pub fn encode(self, channel: u8, bytes: &[u8]) -> Message {
        if self.is_base64() {
            let encoded = base64::engine::general_purpose::STANDARD.encode(bytes);
            return Message::text(format!("{}{encoded}", char::from(b'0'.saturating_add(channel))));
        }
        let mut message = BytesMut::with_capacity(1 + bytes.len());
        message.extend_from_slice(&[channel]);
        message.extend_from_slice(bytes);
        Message::binary(message.freeze())
    }

    /// Returns the channel and the content of a message.
    pub fn decode(self, message: Bytes) -> Option<(u8, Bytes)> {
        let first = *message.first()?;
        if !self.is_base64() {
            return Some((first, message.slice(1..)));
        }
        let channel = first.checked_sub(b'0')?;
        let content = base64::engine::general_purpose::STANDARD.decode(&message[1..]).ok()?;
        Some((channel, Bytes::from(content)))
    }
}

/// Makes the channels of a WebSocket.
pub(super) async fn channels(upgraded: Upgraded, framing: Framing, wanted: Wanted) -> Connection {
    let socket = WebSocketStream::from_raw_socket(upgraded, Role::Server, None).await;
    let (stdin_sender, stdin) = mpsc::channel(QUEUE);
    let (resize_sender, resize) = mpsc::channel(QUEUE);
    let (output, outgoing) = mpsc::channel::<(Channel, Bytes)>(QUEUE);
    let gone = CancellationToken::new();
    let pump = Pump {
        framing,
        wanted,
        stdin: wanted.stdin.then_some(stdin_sender),
        resize: wanted.terminal.then_some(resize_sender),
        outgoing,
        gone: gone.clone(),
    };
    tokio::spawn(pump.run(socket));
    Connection {
        stdin: wanted.stdin.then_some(stdin),
        resize: wanted.terminal.then_some(resize),
        output,
        gone,
        plain_errors: matches!(framing, Framing::V1 | Framing::Base64V1),
    }
}

struct Pump {
    framing: Framing,
    wanted: Wanted,
    stdin: Option<mpsc::Sender<Bytes>>,
    resize: Option<mpsc::Sender<Bytes>>,
    outgoing: mpsc::Receiver<(Channel, Bytes)>,
    gone: CancellationToken,
}

impl Pump {
    async fn run(mut self, socket: WebSocketStream<Upgraded>) {
        let (mut sink, mut source) = socket.split();
        // An empty message reports to the client that the connection is established.
        let lowest = match (self.wanted.stdout, self.wanted.stderr) {
            (true, _) => Channel::Stdout,
            (false, true) => Channel::Stderr,
            (false, false) => Channel::Error,
        };
        if sink.send(self.framing.encode(lowest as u8, b"")).await.is_err() {
            return self.gone.cancel();
        }
        let framing = self.framing;
        let mut outgoing = std::mem::replace(&mut self.outgoing, mpsc::channel(1).1);
        let writing = async {
            while let Some((channel, bytes)) = outgoing.recv().await {
                if sink.send(framing.encode(channel as u8, &bytes)).await.is_err() {
                    return;
                }
            }
            let _ = sink.send(Message::Close(Some(NORMAL))).await;
            let _ = sink.flush().await;
        };
        let gone = self.gone.clone();
        let reading = async {
            while let Some(Ok(message)) = source.next().await {
                match message {
                    Message::Binary(bytes) => self.receive(bytes).await,
                    Message::Text(text) => self.receive(text.into()).await,
                    Message::Close(_) => break,
                    _ => {}
                }
            }
            self.stdin = None;
            gone.cancel();
        };
        tokio::pin!(reading);
        tokio::pin!(writing);
        tokio::select! {
            () = &mut writing => {
                // The client answers the close; until then it may still be reading.
                let _ = tokio::time::timeout(std::time::Duration::from_secs(5), reading).await;
            }
            () = &mut reading => {
                let _ = tokio::time::timeout(std::time::Duration::from_secs(5), writing).await;
            }
        }
    }

    async fn receive(&mut self, message: Bytes) {
        if self.framing == Framing::V5 && message.first() == Some(&CLOSE) {
            if message.get(1) == Some(&(Channel::Stdin as u8)) {
                self.stdin = None;
            }
            return;
        }
        let Some((channel, content)) = self.framing.decode(message) else { return };
        let sender = match channel {
            0 => &self.stdin,
            4 => &self.resize,
            _ => &None,
        };
        if let (Some(sender), false) = (sender, content.is_empty()) {
            let _ = sender.send(content).await;
        }
    }
}

/// Returns the byte stream inside of a WebSocket: each binary message is a piece of it.
pub(super) async fn tunnel(upgraded: Upgraded) -> DuplexStream {
    let socket = WebSocketStream::from_raw_socket(upgraded, Role::Server, None).await;
    let (near, far) = tokio::io::duplex(TUNNEL_CHUNK * 2);
    tokio::spawn(async move {
        let (mut sink, mut source) = socket.split();
        let (mut reader, mut writer) = tokio::io::split(far);
        let inward = async {
            while let Some(Ok(message)) = source.next().await {
                match message {
                    Message::Binary(bytes) if writer.write_all(&bytes).await.is_ok() => {}
                    Message::Binary(_) | Message::Close(_) => break,
                    _ => {}
                }
            }
            let _ = writer.shutdown().await;
        };
        let outward = async {
            let mut buffer = BytesMut::with_capacity(TUNNEL_CHUNK);
            while reader.read_buf(&mut buffer).await.is_ok_and(|length| length > 0) {
                if sink.send(Message::binary(buffer.split().freeze())).await.is_err() {
                    return;
                }
                buffer.reserve(TUNNEL_CHUNK);
            }
            let _ = sink.send(Message::Close(Some(NORMAL))).await;
        };
        tokio::pin!(inward);
        tokio::select! {
            () = outward => drop(tokio::time::timeout(std::time::Duration::from_secs(5), inward).await),
            () = &mut inward => {}
        }
    });
    near
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_decoded_as_they_were_encoded() {
        for framing in Framing::ALL {
            let message = framing.encode(Channel::Stderr as u8, b"text").into_data();
            assert_eq!(framing.decode(message), Some((2, Bytes::from_static(b"text"))), "{framing:?}");
        }
        assert_eq!(Framing::V4.decode(Bytes::new()), None);
        assert_eq!(Framing::Base64V4.decode(Bytes::from_static(b"1???")), None);
    }
}
