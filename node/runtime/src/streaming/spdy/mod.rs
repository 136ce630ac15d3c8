//! The server side of SPDY/3.1, as far as kubectl speaks it: streams that the client opens, each with
//! headers and data in both directions.
//!
//! Windows: received data is acknowledged, for peers that count; sent data is not held back, because kubectl's library
//! never opens a window again and would wait for ever. Memory is bounded all the same: queues are bounded, and TCP
//! holds a fast sender back.

mod dictionary;
pub(crate) mod frame;
pub(crate) mod headers;

use std::collections::HashMap;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

use frame::{Frame, MAX_DATA};
use headers::{Decoder, Encoder, Headers};

/// The number of chunks in a stream before its sender blocks.
const QUEUE: usize = 64;
/// The most streams that a client may have open.
const MAX_STREAMS: usize = 4096;
/// The time that a client may take to hang up.
const LINGER: std::time::Duration = std::time::Duration::from_secs(5);
const STATUS_REFUSED: u32 = 3;
const STATUS_CANCEL: u32 = 5;

/// A stream that the client opened.
#[derive(Debug)]
pub(crate) struct Stream {
    headers: Headers,
    /// The client's data; ends when the client has finished.
    pub incoming: mpsc::Receiver<Bytes>,
    pub outgoing: StreamWriter,
}

impl Stream {
    /// Returns a header by its lower-case name.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }
}

/// The server's half of a stream.
#[derive(Debug, Clone)]
pub(crate) struct StreamWriter {
    stream: u32,
    frames: mpsc::Sender<Frame>,
}

impl StreamWriter {
    /// Sends data; returns false when the connection is gone.
    pub async fn send(&self, mut data: Bytes) -> bool {
        while !data.is_empty() {
            let piece = data.split_to(data.len().min(MAX_DATA));
            if self.frames.send(Frame::Data { stream: self.stream, fin: false, data: piece }).await.is_err() {
                return false;
            }
        }
        true
    }

    /// Sends the end of the data.
    pub async fn finish(&self) {
        let _ = self.frames.send(Frame::Data { stream: self.stream, fin: true, data: Bytes::new() }).await;
    }

    /// Ends both directions at once.
    pub async fn reset(&self) {
        let _ = self.frames.send(Frame::Reset { stream: self.stream, status: STATUS_CANCEL }).await;
    }
}

/// The streams that a client opens, as they come. The connection stays open for more of them while this is held;
/// without it, it is closed when the last stream is dropped.
pub(crate) struct Incoming {
    opened: mpsc::Receiver<Stream>,
    _open: mpsc::Sender<Frame>,
}

impl Incoming {
    /// Returns the next stream; `None` when the client is gone.
    pub async fn recv(&mut self) -> Option<Stream> {
        self.opened.recv().await
    }

    /// Expects no further streams: the connection ends with the open ones. The returned receiver ends when the client
    /// is gone.
    pub fn complete(self) -> mpsc::Receiver<Stream> {
        self.opened
    }
}

/// Serves a connection until the client is gone, or until it and all its streams are dropped.
pub(crate) fn serve<I>(io: I) -> Incoming
where
    I: AsyncRead + AsyncWrite + Send + 'static,
{
    let (reader, writer) = tokio::io::split(io);
    let (frames, queue) = mpsc::channel(QUEUE);
    let (opened, streams) = mpsc::channel(QUEUE);
    let writing = tokio::spawn(write(writer, queue));
    let incoming = Incoming { opened: streams, _open: frames.clone() };
    tokio::spawn(async move {
        let mut connection = Connection {
            frames: frames.downgrade(),
            decoder: Decoder::new(),
            open: HashMap::new(),
            opened,
            last_stream: 0,
        };
        drop(frames);
        let reading = connection.read(reader);
        tokio::pin!(reading);
        tokio::select! {
            () = &mut reading => {}
            // All streams are dropped and everything is written. Closing while the client still sends could make it
            // lose unread data, so it gets a moment to hang up by itself.
            _ = writing => drop(tokio::time::timeout(LINGER, reading).await),
        }
    });
    incoming
}

/// Writes frames in their order; closes the connection after the last.
async fn write(mut io: impl AsyncWrite + Unpin, mut queue: mpsc::Receiver<Frame>) {
    let mut buffer = BytesMut::new();
    let mut encoder = Encoder::new();
    while let Some(frame) = queue.recv().await {
        encode(&mut encoder, frame, &mut buffer);
        // Further ready frames are part of the same write.
        while buffer.len() < MAX_DATA
            && let Ok(frame) = queue.try_recv()
        {
            encode(&mut encoder, frame, &mut buffer);
        }
        if io.write_all_buf(&mut buffer).await.is_err() || io.flush().await.is_err() {
            return;
        }
    }
    let _ = io.shutdown().await;
}

/// Encodes a frame. Replies carry no headers, but even none must pass through the compressor.
fn encode(encoder: &mut Encoder, frame: Frame, buffer: &mut BytesMut) {
    match frame {
        Frame::SynReply { stream, fin, .. } => {
            Frame::SynReply { stream, fin, headers: encoder.encode(&Headers::new()) }.encode(buffer);
        }
        other => other.encode(buffer),
    }
}

struct Connection {
    /// Weak, so that the connection ends when its streams do.
    frames: mpsc::WeakSender<Frame>,
    decoder: Decoder,
    open: HashMap<u32, mpsc::Sender<Bytes>>,
    opened: mpsc::Sender<Stream>,
    last_stream: u32,
}

impl Connection {
    /// Reads frames until the client is gone.
    async fn read(&mut self, mut io: impl AsyncRead + Unpin) {
        let mut buffer = BytesMut::with_capacity(MAX_DATA);
        loop {
            loop {
                match Frame::decode(&mut buffer) {
                    Ok(Some(frame)) => {
                        if !self.handle(frame).await {
                            return;
                        }
                    }
                    Ok(None) => break,
                    Err(error) => {
                        tracing::debug!(%error, "a SPDY connection is closed");
                        return;
                    }
                }
            }
            match io.read_buf(&mut buffer).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
    }

    /// Handles one frame; returns false to end the connection.
    async fn handle(&mut self, frame: Frame) -> bool {
        match frame {
            Frame::SynStream { stream, fin, headers } => {
                let Ok(headers) = self.decoder.decode(&headers) else { return false };
                let Some(frames) = self.frames.upgrade() else { return false };
                return self.open_stream(stream, fin, headers, frames).await;
            }
            // The block must be read, because the next one builds on it.
            Frame::SynReply { headers, .. } | Frame::Headers { headers, .. } => {
                return self.decoder.decode(&headers).is_ok();
            }
            Frame::Data { stream, fin, data } => self.data(stream, fin, data).await,
            Frame::Reset { stream, .. } => drop(self.open.remove(&stream)),
            Frame::Ping { id } => self.send(Frame::Ping { id }).await,
            Frame::GoAway { .. } => return false,
            Frame::WindowUpdate { .. } | Frame::Settings | Frame::Unknown => {}
        }
        true
    }

    async fn open_stream(&mut self, stream: u32, fin: bool, headers: Headers, frames: mpsc::Sender<Frame>) -> bool {
        // Clients open odd streams, in ascending order.
        if stream <= self.last_stream || stream.is_multiple_of(2) {
            return false;
        }
        self.last_stream = stream;
        if self.open.len() >= MAX_STREAMS {
            self.send(Frame::Reset { stream, status: STATUS_REFUSED }).await;
            return true;
        }
        let (sender, incoming) = mpsc::channel(QUEUE);
        if !fin {
            self.open.insert(stream, sender);
        }
        let reply = Frame::SynReply { stream, fin: false, headers: Bytes::new() };
        let outgoing = StreamWriter { stream, frames };
        outgoing.frames.send(reply).await.is_ok()
            && self.opened.send(Stream { headers, incoming, outgoing }).await.is_ok()
    }

    async fn data(&mut self, stream: u32, fin: bool, data: Bytes) {
        let length = data.len() as u32;
        if let Some(sender) = self.open.get(&stream) {
            if !data.is_empty() && sender.send(data).await.is_ok() {
                self.send(Frame::WindowUpdate { stream, delta: length }).await;
            }
            if fin {
                self.open.remove(&stream);
            }
        }
    }

    async fn send(&self, frame: Frame) {
        if let Some(frames) = self.frames.upgrade() {
            let _ = frames.send(frame).await;
        }
    }
}

#[cfg(test)]
pub(super) mod client {
    //! A client for tests: opens streams and reads frames.

    use super::*;

    pub struct Client<I> {
        io: I,
        encoder: Encoder,
        decoder: Decoder,
        buffer: BytesMut,
        next: u32,
    }

    impl<I: AsyncRead + AsyncWrite + Unpin> Client<I> {
        pub fn new(io: I) -> Self {
            let encoder = Encoder::new();
            let decoder = Decoder::new();
            Self { io, encoder, decoder, buffer: BytesMut::new(), next: 1 }
        }

        pub async fn open(&mut self, headers: &[(&str, &str)]) -> u32 {
            let headers = headers.iter().map(|(name, value)| ((*name).to_string(), (*value).to_string())).collect();
            let stream = self.next;
            self.next += 2;
            let headers = self.encoder.encode(&headers);
            self.send(Frame::SynStream { stream, fin: false, headers }).await;
            stream
        }

        pub async fn data(&mut self, stream: u32, data: &[u8], fin: bool) {
            self.send(Frame::Data { stream, fin, data: Bytes::copy_from_slice(data) }).await;
        }

        pub async fn ping(&mut self) {
            self.send(Frame::Ping { id: 77 }).await;
        }

        async fn send(&mut self, frame: Frame) {
            let mut bytes = BytesMut::new();
            frame.encode(&mut bytes);
            self.io.write_all(&bytes).await.expect("write");
        }

        /// Returns the next frame that is not an acknowledgement: its stream, its data, whether it is the last.
        pub async fn next(&mut self) -> Option<(u32, Bytes, bool)> {
            loop {
                match Frame::decode(&mut self.buffer).expect("a frame") {
                    Some(Frame::Data { stream, fin, data }) => return Some((stream, data, fin)),
                    Some(Frame::Ping { id }) => return Some((0, Bytes::from(id.to_string()), false)),
                    Some(Frame::SynReply { headers, .. }) => drop(self.decoder.decode(&headers).expect("a block")),
                    Some(_) => {}
                    None => {
                        if self.io.read_buf(&mut self.buffer).await.expect("read") == 0 {
                            return None;
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_without_streams_waits_for_more() {
        let (near, far) = tokio::io::duplex(1024);
        let mut incoming = serve(far);
        let mut client = client::Client::new(near);
        for port in ["80", "81"] {
            client.open(&[("streamtype", "data"), ("port", port)]).await;
            let stream = incoming.recv().await.expect("a stream");
            assert_eq!(stream.header("port"), port);
            stream.outgoing.finish().await;
            drop(stream);
            assert!(client.next().await.is_some_and(|(_, _, fin)| fin));
            client.ping().await;
            assert!(client.next().await.is_some_and(|(stream, _, _)| stream == 0), "the connection lives");
        }
    }

    #[tokio::test]
    async fn streams_carry_headers_and_data_both_ways_and_end_the_connection() {
        let (near, far) = tokio::io::duplex(1024);
        let mut streams = serve(far);
        let mut client = client::Client::new(near);
        client.open(&[("streamtype", "error")]).await;
        let data = client.open(&[("streamtype", "data"), ("port", "80")]).await;
        client.data(data, b"question", true).await;
        client.ping().await;

        let error = streams.recv().await.expect("a stream");
        let mut stream = streams.recv().await.expect("a stream");
        assert_eq!((error.header("streamtype"), stream.header("port")), ("error", "80"));
        assert_eq!(stream.incoming.recv().await.as_deref(), Some(b"question".as_slice()));
        assert_eq!(stream.incoming.recv().await, None, "the client has finished");
        let answer = tokio::spawn(async move {
            assert!(stream.outgoing.send(Bytes::from(vec![7; 100_000])).await);
            stream.outgoing.finish().await;
            drop((stream, error, streams));
        });
        let mut received = 0;
        let mut ponged = false;
        let mut finished = false;
        while let Some((stream, bytes, fin)) = client.next().await {
            match stream {
                0 => ponged = bytes.as_ref() == b"77",
                _ => received += bytes.len(),
            }
            finished |= fin;
        }
        answer.await.expect("the answer");
        assert_eq!((received, ponged, finished), (100_000, true, true));
    }
}
