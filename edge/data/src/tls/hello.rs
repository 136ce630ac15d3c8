//! Reads the ClientHello of a connection: its server name decides whose certificate is shown, or where the bytes go.

use std::io;

use rustls::server::{Accepted, Acceptor};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The most bytes of a ClientHello. Those with keys for quantum computers have about two thousand.
const MAX_HELLO: usize = 64 * 1024;

/// The protocol of clients that validate a challenge of ACME (RFC 8737).
pub(super) const ACME_PROTOCOL: &[u8] = b"acme-tls/1";

/// A ClientHello that was read.
pub(crate) struct Hello {
    pub(crate) accepted: Accepted,
    /// The bytes as they came, for an endpoint that ends TLS itself.
    pub(crate) bytes: Vec<u8>,
    /// In lower case.
    pub(crate) server_name: Option<String>,
    /// Whether the client validates a challenge of ACME.
    pub(crate) is_challenge: bool,
}

/// Reads a ClientHello. The caller bounds the time.
pub(crate) async fn read_hello(stream: &mut TcpStream) -> io::Result<Hello> {
    let mut acceptor = Acceptor::default();
    let mut bytes = Vec::with_capacity(2048);
    loop {
        let start = bytes.len();
        if start >= MAX_HELLO {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the ClientHello is too long"));
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut unread = bytes.get(start..).unwrap_or_default();
        while !unread.is_empty() {
            acceptor.read_tls(&mut unread)?;
        }
        match acceptor.accept() {
            Ok(None) => {}
            Ok(Some(accepted)) => {
                let hello = accepted.client_hello();
                let server_name = hello.server_name().map(str::to_ascii_lowercase);
                let is_challenge = hello.alpn().is_some_and(|mut protocols| protocols.all(|one| one == ACME_PROTOCOL));
                return Ok(Hello { accepted, bytes, server_name, is_challenge });
            }
            Err((error, mut alert)) => {
                let mut answer = Vec::new();
                alert.write_all(&mut answer)?;
                stream.write_all(&answer).await?;
                return Err(io::Error::new(io::ErrorKind::InvalidData, error));
            }
        }
    }
}
