//! Streams over a WebSocket: logs, and watches with one message for each event. They have one direction only: messages
//! of the client are read and dropped.

use bytes::Bytes;
use corten_access::Verb;
use corten_protobuf as protobuf;
use futures::stream::BoxStream;
use futures::{SinkExt, StreamExt};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role};
use tokio_tungstenite::tungstenite::{Error, Message, Utf8Bytes};
use tracing::debug;

use crate::body::{Body, Reply};
use crate::context::Context;
use crate::tasks::Tasks;

/// The only version of the protocol.
const VERSION: &str = "13";

/// The messages that are sent, in order.
pub type Messages = BoxStream<'static, Message>;

/// Returns whether the client wants to switch protocols.
pub fn is_upgrade(headers: &HeaderMap) -> bool {
    let connection = headers.get(header::CONNECTION).and_then(|v| v.to_str().ok()).unwrap_or_default();
    connection.split(',').any(|token| token.trim().eq_ignore_ascii_case("upgrade"))
}

/// Returns whether the client wants a WebSocket.
pub fn is_websocket(headers: &HeaderMap) -> bool {
    is_upgrade(headers) && header_value(headers, header::UPGRADE).eq_ignore_ascii_case("websocket")
}

/// Returns a watch as its client wants it: as a response, or as messages over a WebSocket.
pub fn watch(tasks: &Tasks, context: &Context, reply: Reply) -> Reply {
    let is_watch = context.info.verb == Verb::Watch && reply.status() == StatusCode::OK;
    if !is_watch || !is_websocket(&context.headers) {
        return reply;
    }
    let protocol = match negotiate_protocol(&context.headers) {
        Ok(protocol) => protocol,
        Err((status, why)) => return refused(status, why),
    };
    let binary = reply.headers().get(header::CONTENT_TYPE).is_some_and(|value| value == protobuf::STREAMED);
    let events = match reply.into_body() {
        Body::Watch(watch) => watch.messages(),
        Body::Full(bytes) => futures::stream::iter([bytes]).boxed(),
        Body::List(_) | Body::Stream(_) => futures::stream::empty().boxed(),
    };
    let events = events.map(move |event| if binary { Message::binary(unframed(event)) } else { text(event) });
    switch(tasks, context, protocol, events.boxed())
}

/// Switches protocols and sends the messages.
pub fn switch(tasks: &Tasks, context: &Context, protocol: Option<HeaderValue>, messages: Messages) -> Reply {
    let Some(key) = context.headers.get(header::SEC_WEBSOCKET_KEY).filter(|key| !key.is_empty()) else {
        return refused(StatusCode::BAD_REQUEST, "mismatch challenge/response");
    };
    let client = context.upgrade.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
    let Some(client) = client else { return refused(StatusCode::BAD_REQUEST, "not websocket protocol") };
    tasks.spawn_until_shutdown(async move {
        let sent = async {
            let socket = TokioIo::new(client.await.map_err(|error| error.to_string())?);
            let socket = WebSocketStream::from_raw_socket(socket, Role::Server, None).await;
            send(socket, messages).await.map_err(|error| error.to_string())
        };
        if let Err(error) = sent.await {
            debug!(error, "a stream over a WebSocket broke off");
        }
    });
    let mut reply = Reply::new(Body::empty());
    *reply.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = reply.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    if let Ok(accept) = HeaderValue::from_str(&derive_accept_key(key.as_bytes())) {
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    }
    protocol.map(|protocol| headers.insert(header::SEC_WEBSOCKET_PROTOCOL, protocol));
    reply
}

/// Checks the handshake of a watch, and returns the subprotocol. As upstream, the client must send an Origin, as
/// browsers do, and may name one subprotocol at most, which is accepted as it is.
fn negotiate_protocol(headers: &HeaderMap) -> Result<Option<HeaderValue>, (StatusCode, &'static str)> {
    if header_value(headers, header::SEC_WEBSOCKET_KEY).is_empty() {
        return Err((StatusCode::BAD_REQUEST, "mismatch challenge/response"));
    }
    if header_value(headers, header::SEC_WEBSOCKET_VERSION) != VERSION {
        return Err((StatusCode::BAD_REQUEST, "missing or bad WebSocket Version"));
    }
    let origin: Option<http::Uri> = header_value(headers, header::ORIGIN).parse().ok();
    if !origin.is_some_and(|origin| origin.scheme().is_some() || origin.path().starts_with('/')) {
        return Err((StatusCode::FORBIDDEN, ""));
    }
    let protocol = header_value(headers, header::SEC_WEBSOCKET_PROTOCOL).trim();
    match protocol.contains(',') {
        true => Err((StatusCode::BAD_REQUEST, "")),
        false => Ok(HeaderValue::from_str(protocol).ok().filter(|protocol| !protocol.is_empty())),
    }
}

fn header_value(headers: &HeaderMap, name: HeaderName) -> &str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

fn refused(status: StatusCode, why: &'static str) -> Reply {
    let mut reply = Reply::new(Body::Full(Bytes::from_static(why.as_bytes())));
    *reply.status_mut() = status;
    reply.headers_mut().insert(header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static(VERSION));
    reply
}

fn text(event: Bytes) -> Message {
    match Utf8Bytes::try_from(event) {
        Ok(text) => Message::Text(text),
        Err(_) => Message::Close(None),
    }
}

/// Returns an event without its length prefix: a message has its length already.
fn unframed(mut event: Bytes) -> Bytes {
    event.split_off(event.len().min(size_of::<u32>()))
}

/// Sends every message, and a close at the end.
async fn send<S>(socket: WebSocketStream<S>, mut messages: Messages) -> Result<(), Error>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let (mut to, mut from) = socket.split();
    let sending = async {
        while let Some(message) = messages.next().await {
            to.send(message).await?;
        }
        to.send(Message::Close(Some(CloseFrame { code: CloseCode::Normal, reason: Utf8Bytes::default() }))).await
    };
    // Reading answers pings and notices a client that has disconnected.
    let reading = async { while let Some(Ok(_)) = from.next().await {} };
    tokio::select! {
        sent = sending => sent,
        () = reading => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn messages_and_a_close_are_sent() {
        let (client, server) = tokio::io::duplex(1024);
        let server = WebSocketStream::from_raw_socket(server, Role::Server, None).await;
        let mut client = WebSocketStream::from_raw_socket(client, Role::Client, None).await;
        let messages = [Message::binary("line\n"), Message::text("bGluZQo=")];
        let sending = tokio::spawn(send(server, futures::stream::iter(messages.clone()).boxed()));
        for expected in messages {
            assert_eq!(client.next().await.unwrap().unwrap(), expected);
        }
        assert!(client.next().await.unwrap().unwrap().is_close());
        sending.await.unwrap().unwrap();
    }

    #[test]
    fn a_handshake_needs_a_key_a_version_and_an_origin() {
        let valid = [
            (header::SEC_WEBSOCKET_KEY, "dGhlIHNhbXBsZSBub25jZQ=="),
            (header::SEC_WEBSOCKET_VERSION, "13"),
            (header::ORIGIN, "https://a.example"),
        ];
        let agreed = |changed: &[(HeaderName, &'static str)]| {
            let sent = valid.iter().chain(changed).map(|(name, value)| (name.clone(), *value));
            let mut headers = HeaderMap::new();
            for (name, value) in sent {
                headers.insert(name, HeaderValue::from_static(value));
            }
            negotiate_protocol(&headers)
        };
        assert_eq!(agreed(&[]), Ok(None));
        let protocol = header::SEC_WEBSOCKET_PROTOCOL;
        assert_eq!(agreed(&[(protocol.clone(), " any ")]), Ok(Some(HeaderValue::from_static("any"))));
        for (name, value, code, why) in [
            (header::SEC_WEBSOCKET_KEY, "", 400, "mismatch challenge/response"),
            (header::SEC_WEBSOCKET_VERSION, "12", 400, "missing or bad WebSocket Version"),
            (header::ORIGIN, "", 403, ""),
            (header::ORIGIN, "null", 403, ""),
            (protocol, "a, b", 400, ""),
        ] {
            let expected = Err((StatusCode::from_u16(code).unwrap(), why));
            assert_eq!(agreed(&[(name.clone(), value)]), expected, "{name}");
        }
    }
}
