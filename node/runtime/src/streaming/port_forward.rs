//! Port-forward: pairs of SPDY streams, each connected to a port inside of the pod.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::spdy::{Incoming, Stream};
use crate::Error;
use crate::daemon::Daemon;
use crate::sandbox::namespaces;

const CHUNK: usize = 32 << 10;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Requests whose second stream has not come yet.
const MAX_UNPAIRED: usize = 256;

/// Serves a connection: the client opens an error stream and a data stream for each request.
pub(super) async fn run(daemon: &Arc<Daemon>, sandbox_id: &str, mut streams: Incoming) {
    let mut unpaired: HashMap<String, Stream> = HashMap::new();
    while let Some(stream) = streams.recv().await {
        let request = stream.header("requestid").to_string();
        let (error, data) = match (stream.header("streamtype"), unpaired.remove(&request)) {
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
        let (daemon, sandbox_id) = (daemon.clone(), sandbox_id.to_string());
        tokio::spawn(async move { forward(&daemon, &sandbox_id, error, data).await });
    }
}

async fn forward(daemon: &Arc<Daemon>, sandbox_id: &str, error: Stream, data: Stream) {
    let port = data.header("port").to_string();
    match dial(daemon, sandbox_id, &port).await {
        Ok(socket) => copy(socket, data).await,
        Err(failure) => {
            let pod = daemon.sandbox(sandbox_id).ok().and_then(|sandbox| sandbox.config.metadata.clone());
            let uid = pod.map(|metadata| metadata.uid).unwrap_or_default();
            let text = format!("error forwarding port {port} to pod {sandbox_id}, uid : {uid}: {failure}");
            error.outgoing.send(Bytes::from(text)).await;
            data.outgoing.finish().await;
        }
    }
    error.outgoing.finish().await;
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

/// Copies both ways; each direction ends by itself.
async fn copy(socket: TcpStream, mut data: Stream) {
    let (mut reader, mut writer) = socket.into_split();
    let inward = async {
        while let Some(bytes) = data.incoming.recv().await {
            if writer.write_all(&bytes).await.is_err() {
                return;
            }
        }
        let _ = writer.shutdown().await;
    };
    let outgoing = data.outgoing.clone();
    let outward = async {
        let mut buffer = vec![0; CHUNK];
        while let Ok(length) = reader.read(&mut buffer).await {
            if length == 0 || !outgoing.send(Bytes::copy_from_slice(&buffer[..length])).await {
                break;
            }
        }
        outgoing.finish().await;
    };
    tokio::pin!(inward);
    tokio::pin!(outward);
    // When the pod has finished, nothing that the client still says can be answered.
    tokio::select! {
        () = &mut outward => {}
        () = &mut inward => outward.await,
    }
}
