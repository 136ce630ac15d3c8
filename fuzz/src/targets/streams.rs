//! Streams of exec, attach and port-forward: SPDY, WebSockets, terminal sizes; and those between the nodes of a volume.

use tokio_tungstenite::tungstenite::protocol::{Role, WebSocket};

use super::{block_on, texts};
use crate::Target;

pub const TARGETS: &[Target] = &[
    Target { name: "spdy", seeds: spdy_seeds, run: spdy },
    Target { name: "spdy-headers", seeds: spdy_header_seeds, run: spdy_headers },
    Target { name: "websocket", seeds: websocket_seeds, run: websocket },
    Target { name: "terminal-size", seeds: size_seeds, run: terminal_size },
    Target { name: "volume-increments", seeds: increment_seeds, run: corten_storage_control::fuzz::messages },
];

fn increment_seeds() -> Vec<Vec<u8>> {
    let hello = br#"{"replica":"pv","epoch":1,"base":""}"#.to_vec();
    vec![corten_storage_control::fuzz::sample(), hello, br#"{"refused":"no"}"#.to_vec()]
}

fn spdy_seeds() -> Vec<Vec<u8>> {
    vec![corten_runtime::fuzz::spdy_sample()]
}

fn spdy(input: &[u8]) {
    let opened = block_on(corten_runtime::fuzz::spdy(input.to_vec()));
    assert!(opened <= input.len() / 18, "a stream is not opened by less than a frame");
}

/// Returns the header block of the second frame of a connection.
fn spdy_header_seeds() -> Vec<Vec<u8>> {
    let wire = corten_runtime::fuzz::spdy_sample();
    vec![wire.get(12 + 18..).unwrap_or_default().to_vec()]
}

fn spdy_headers(input: &[u8]) {
    if let Some([read, again]) = corten_runtime::fuzz::spdy_headers(input) {
        assert_eq!(read, again, "headers are read as they were written");
    }
}

/// Returns frames of a client: masked text, binary in two parts, ping, close.
fn websocket_seeds() -> Vec<Vec<u8>> {
    vec![b"\x81\x83\x01\x02\x03\x04\x31\x43\x42\x02\x82\x01\x02\x03\x04\x01\x63\x80\x81\x01\x02\x03\x04\x65\x89\x80\x01\x02\x03\x04\x88\x82\x01\x02\x03\x04\x02\xea".to_vec()]
}

/// A client's side of a connection; data for the client is dropped.
struct Client<'a>(&'a [u8]);

impl std::io::Read for Client<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(buffer)
    }
}

impl std::io::Write for Client<'_> {
    fn write(&mut self, buffer: &[u8]) -> std::io::Result<usize> {
        Ok(buffer.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn websocket(input: &[u8]) {
    let mut socket = WebSocket::from_raw_socket(Client(input), Role::Server, None);
    while let Ok(message) = socket.read() {
        let _ = corten_runtime::fuzz::websocket_message(&message.into_data());
    }
    let _ = corten_runtime::fuzz::websocket_message(input);
}

fn size_seeds() -> Vec<Vec<u8>> {
    texts(&[r#"{"Width":80,"Height":24}{"Width":1,"Height":65535}"#])
}

fn terminal_size(input: &[u8]) {
    let _ = corten_runtime::fuzz::terminal_sizes(input);
}
