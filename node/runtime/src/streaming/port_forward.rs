//! Port-forward: pairs of SPDY streams, or of channels in a WebSocket, each connected to a port inside of the pod.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use corten_cri::v1;
use futures::{SinkExt, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::session::QUEUE;
use super::spdy::{Incoming, Stream, StreamWriter};
use super::upgrade::Upgraded;
use super::websocket::{Framing, NORMAL};
use crate::Error;
use crate::daemon::Daemon;
use crate::sandbox::namespaces;

const CHUNK: usize = 32 << 10;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// The time that a server which closed its side still reads from the client.
const GRACE: Duration = Duration::from_secs(1);
/// The most requests whose second stream has not come yet.
const MAX_UNPAIRED: usize = 256;

/// Serves a connection: the client opens an error stream and a data stream for each request.
pub(super) async fn run(daemon: &Arc<Daemon>, sandbox_id: &str, mut streams: Incoming) {
    let mut unpaired: HashMap<String, Stream> = HashMap::new();
    let mut forwarding = JoinSet::new();
    while let Some(stream) = streams.recv().await {
        let request = stream.header("requestid").to_string();
        let (error, mut data) = match (stream.header("streamtype"), unpaired.remove(&request)) {
            ("error", Some(data)) => (stream, data),
            ("data", Some(error)) => (error, stream),
            ("error" | "data", None) if unpaired.len() < MAX_UNPAIRED => {
                unpaired.insert(request, stream);
                continue;
            }
            _ => {
                stream.outgoing.reset().await;
                continue;
            }
        };
        let daemon = daemon.clone();
        let sandbox_id = sandbox_id.to_string();
        forwarding.spawn(async move {
            let port = data.header("port").to_string();
            let there = (&mut data.incoming, &data.outgoing);
            forward(&daemon, &sandbox_id, &port, there, &error.outgoing).await;
        });
        while forwarding.try_join_next().is_some() {}
    }
    while forwarding.join_next().await.is_some() {}
}

/// Serves a WebSocket whose request named the ports. Each port has two channels, for its data and for its errors; the
/// first message of each is the port. The clients of Python, Java and JavaScript forward ports this way.
pub(super) async fn run_in_channels(
    daemon: &Arc<Daemon>,
    request: v1::PortForwardRequest,
    framing: Framing,
    upgraded: Upgraded,
) {
    let socket = WebSocketStream::from_raw_socket(upgraded, Role::Server, None).await;
    let (mut sink, mut source) = socket.split();
    let (messages, mut outgoing) = mpsc::channel(QUEUE);
    let mut inward = Vec::new();
    let mut forwarding = JoinSet::new();
    for (first, port) in (0..=u8::MAX).step_by(2).zip(request.port) {
        let [data, error] = [first, first + 1].map(|number| Channel { number, messages: messages.clone() });
        let (sender, mut incoming) = mpsc::channel(QUEUE);
        inward.push(sender);
        let daemon = daemon.clone();
        let sandbox_id = request.pod_sandbox_id.clone();
        forwarding.spawn(async move {
            for channel in [&data, &error] {
                channel.send(Bytes::copy_from_slice(&(port as u16).to_le_bytes())).await;
            }
            forward(&daemon, &sandbox_id, &port.to_string(), (&mut incoming, &data), &error).await;
        });
    }
    drop(messages);
    let writing = async {
        while let Some((channel, bytes)) = outgoing.recv().await {
            if sink.send(framing.encode(channel, &bytes)).await.is_err() {
                return;
            }
        }
        let _ = sink.send(Message::Close(Some(NORMAL))).await;
    };
    let reading = async {
        while let Some(Ok(message)) = source.next().await {
            if let Message::Close(_) = message {
                return;
            }
            let Some((channel, bytes)) = framing.decode(message.into_data()) else { continue };
            if let (Some(sender), true) = (inward.get(usize::from(channel / 2)), channel % 2 == 0) {
                let _ = sender.send(bytes).await;
            }
        }
    };
    // Tasks that have no peer left end with the others.
    tokio::select! {
        () = writing => {}
        () = reading => {}
    }
}

/// The direction back to the client.
trait Outgoing {
    async fn send(&self, bytes: Bytes) -> bool;
    async fn finish(&self);
}

impl Outgoing for StreamWriter {
    async fn send(&self, bytes: Bytes) -> bool {
        StreamWriter::send(self, bytes).await
    }

    async fn finish(&self) {
        StreamWriter::finish(self).await;
    }
}

/// A channel of a WebSocket. It cannot be closed by itself.
struct Channel {
    number: u8,
    messages: mpsc::Sender<(u8, Bytes)>,
}

impl Outgoing for Channel {
    async fn send(&self, bytes: Bytes) -> bool {
        self.messages.send((self.number, bytes)).await.is_ok()
    }

    async fn finish(&self) {}
}

/// Connects a port with the client's data and the direction back to the client.
async fn forward(
    daemon: &Arc<Daemon>,
    sandbox_id: &str,
    port: &str,
    (incoming, data): (&mut mpsc::Receiver<Bytes>, &impl Outgoing),
    error: &impl Outgoing,
) {
    match dial(daemon, sandbox_id, port).await {
        Ok(socket) => copy(socket, incoming, data).await,
        Err(failure) => {
            let pod = daemon.sandbox(sandbox_id).ok().and_then(|sandbox| sandbox.config.metadata.clone());
            let uid = pod.map(|metadata| metadata.uid).unwrap_or_default();
            let text = format!("error forwarding port {port} to pod {sandbox_id}, uid : {uid}: {failure}");
            error.send(Bytes::from(text)).await;
            data.finish().await;
        }
    }
    error.finish().await;
}

/// Connects to a port of the pod's loopback, IPv4 first.
async fn dial(daemon: &Arc<Daemon>, sandbox_id: &str, port: &str) -> Result<TcpStream, Error> {
    let port: u16 = port.parse().map_err(|_| Error::Invalid(format!("{port:?} is not a port")))?;
    let sandbox = daemon.sandbox(sandbox_id)?;
    let namespace = (!sandbox.uses_node_network()).then(|| daemon.paths.run_sandbox(&sandbox.id).join("net"));
    let dialled = tokio::task::spawn_blocking(move || {
        namespaces::in_network(namespace.as_deref(), || {
            let loopback =
                [SocketAddr::from((Ipv4Addr::LOCALHOST, port)), SocketAddr::from((Ipv6Addr::LOCALHOST, port))];
            let mut refused = None;
            for address in loopback {
                match std::net::TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
                    Ok(socket) => return Ok(socket),
                    Err(error) => drop(refused.get_or_insert(error)),
                }
            }
            let reason = refused.map(|error| error.to_string()).unwrap_or_default();
            Err(Error::State(format!("failed to connect to localhost:{port} inside the pod's network: {reason}")))
        })
    });
    let socket = dialled.await.unwrap_or_else(|error| Err(Error::State(error.to_string())))?;
    socket.set_nonblocking(true).map_err(Error::system("prepare the connection"))?;
    TcpStream::from_std(socket).map_err(Error::system("prepare the connection"))
}

/// Copies both ways; each direction ends by itself. The client learns last that the server ended: clients then drop
/// unsent data, and a server may close its side before it has read everything.
async fn copy(socket: TcpStream, incoming: &mut mpsc::Receiver<Bytes>, outgoing: &impl Outgoing) {
    let (mut reader, mut writer) = socket.into_split();
    let inward = async {
        while let Some(bytes) = incoming.recv().await {
            if writer.write_all(&bytes).await.is_err() {
                return;
            }
        }
        let _ = writer.shutdown().await;
    };
    let outward = async {
        let mut buffer = vec![0; CHUNK];
        while let Ok(length) = reader.read(&mut buffer).await {
            if length == 0 || !outgoing.send(Bytes::copy_from_slice(&buffer[..length])).await {
                break;
            }
        }
    };
    tokio::pin!(inward);
    tokio::pin!(outward);
    tokio::select! {
        // A client that continues after that gets no answer.
        () = &mut outward => drop(tokio::time::timeout(GRACE, inward).await),
        () = &mut inward => outward.await,
    }
    outgoing.finish().await;
}
