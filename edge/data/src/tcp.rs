//! Connections whose bytes pass through: TCP listeners, and TLS that endpoints end themselves.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncWriteExt, copy_bidirectional_with_sizes};

use crate::backend::{Client, InFlight, connect_stream};
use crate::stream::Stream;
use crate::table::Targets;

/// The most endpoints that a connection tries.
const MAX_CONNECTS: usize = 5;
/// The bytes that are passed on at once.
const BUFFER: usize = 32 * 1024;

/// A connection to an endpoint.
pub(crate) struct Relayed {
    stream: Stream,
    /// Counts the connection until it ends.
    _connection: InFlight,
}

/// Connects to an endpoint of a target, and writes the bytes that were read from the client already.
pub(crate) async fn connect(targets: &Targets, client: Client, read: &[u8]) -> io::Result<Relayed> {
    let none = || io::Error::new(io::ErrorKind::NotConnected, "no endpoint takes the connection");
    let backend = targets.choose().and_then(|target| target.backend.as_ref()).ok_or_else(none)?;
    let settings = backend.settings();
    let mut tried: Vec<SocketAddr> = Vec::new();
    while tried.len() < MAX_CONNECTS {
        let endpoint = backend.choose(&tried).ok_or_else(none)?;
        match connect_stream(&endpoint, &settings, client).await {
            Ok(mut stream) => {
                stream.write_all(read).await?;
                return Ok(Relayed { stream, _connection: endpoint.begin() });
            }
            Err(error) => {
                tracing::debug!(%error, endpoint = %endpoint.address, "no connection");
                tried.push(endpoint.address);
            }
        }
    }
    Err(none())
}

/// Passes bytes both ways until both sides have closed.
pub(crate) async fn relay(mut client: Stream, mut endpoint: Relayed) -> io::Result<()> {
    for stream in [&client, &endpoint.stream] {
        if let Stream::Tcp(tcp) = stream {
            // A peer that is gone without a word is found by the kernel.
            rustix::net::sockopt::set_socket_keepalive(tcp, true)?;
        }
    }
    copy_bidirectional_with_sizes(&mut client, &mut endpoint.stream, BUFFER, BUFFER).await?;
    Ok(())
}
