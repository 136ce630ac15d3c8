//! The limits of HTTP connections: time and size of request heads, streams and resets of HTTP/2.

use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use hyper_util::server::conn::auto::Builder;

/// The longest time for the head of a request.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(32);
/// The concurrent requests of one HTTP/2 connection, upstream's number.
pub const MAX_STREAMS: u32 = 100;
/// The requests of one HTTP/2 connection that may be reset before they are handled. A client that resets more loses the
/// connection, as upstream does.
const MAX_RESETS: usize = 4 * MAX_STREAMS as usize;
/// The interval of the pings that find HTTP/2 clients which went away silently.
const PING_PERIOD: Duration = Duration::from_secs(60);
/// The biggest head of a request on HTTP/2.
const MAX_HEAD: u32 = 64 * 1024;
/// The most headers of a request on HTTP/1.
const MAX_HEADERS: usize = 100;
/// The biggest head of a request on HTTP/1.
const MAX_BUFFER: usize = 64 * 1024;

/// Returns the settings of a server's HTTP connections; a server that serves bigger heads raises its limits.
pub fn http() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    builder.http1().max_headers(MAX_HEADERS).max_buf_size(MAX_BUFFER);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(PING_PERIOD);
    builder.http2().max_concurrent_streams(MAX_STREAMS).max_header_list_size(MAX_HEAD);
    builder.http2().max_pending_accept_reset_streams(MAX_RESETS);
    builder
}

/// Returns the same settings for a server that speaks HTTP/1 alone. `http().http1_only()` is not that: it speaks HTTP/2 on
/// connections that can be upgraded, and contains all of it, compiled once more for its service.
pub fn http1() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    builder.max_headers(MAX_HEADERS).max_buf_size(MAX_BUFFER);
    builder
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use http_body_util::Full;
    use hyper::{Request, Response, body::Incoming, service::service_fn};
    use hyper_util::rt::TokioIo;
    use std::convert::Infallible;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    /// A connection that could be upgraded gets no frame of HTTP/2.
    #[tokio::test]
    async fn a_server_of_http1_does_not_speak_http2() {
        let (mut client, server) = duplex(4096);
        let service =
            service_fn(async |_: Request<Incoming>| Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())));
        let serving = tokio::spawn(http1().serve_connection(TokioIo::new(server), service).with_upgrades());
        client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.expect("the server reads");
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.expect("the server closes the connection");
        assert_eq!(String::from_utf8_lossy(&answer), "");
        assert!(serving.await.expect("no panic").is_err());
    }
}
