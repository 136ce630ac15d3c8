//! The limits of HTTP connections: time and size of request heads, streams and resets of HTTP/2.

use std::time::Duration;

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
