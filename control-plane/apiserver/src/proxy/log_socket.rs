//! A log over a WebSocket: made here, as kubelets of every make send their logs as plain bodies. One direction only;
//! what the client sends is read and dropped.

use base64::Engine;
use bytes::Bytes;
use corten_meta::Status;
use futures::stream::BoxStream;
use futures::{SinkExt, StreamExt};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;
use tracing::debug;

use crate::body::{Body, Reply};
use crate::pipeline::Context;
use crate::server::Server;

const BINARY: &str = "binary.k8s.io";
const BASE64: &str = "base64.binary.k8s.io";

/// The chunks of a log.
type Log = BoxStream<'static, Result<Bytes, std::io::Error>>;

/// Whether the client wants a WebSocket.
pub fn is_asked_for(headers: &HeaderMap) -> bool {
    let upgrade = headers.get(header::UPGRADE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    super::is_upgrade(headers) && upgrade.eq_ignore_ascii_case("websocket")
}

/// Switches protocols and sends the log.
pub fn switch(server: &Server, context: &Context, log: Log) -> Result<Reply, Status> {
    let key = context.headers.get(header::SEC_WEBSOCKET_KEY).map(|key| derive_accept_key(key.as_bytes()));
    let key = key.ok_or_else(|| Status::bad_request("a WebSocket needs a Sec-WebSocket-Key"))?;
    let client = context.upgrade.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
    let client = client.ok_or_else(|| Status::bad_request("Upgrade request required"))?;
    let protocol = choose(&context.headers);
    let shutdown = server.shutdown.clone();
    tokio::spawn(async move {
        let sent = async {
            let socket = TokioIo::new(client.await.map_err(|error| error.to_string())?);
            let socket = WebSocketStream::from_raw_socket(socket, Role::Server, None).await;
            send(socket, log, protocol == Some(BASE64)).await.map_err(|error| error.to_string())
        };
        tokio::select! {
            sent = sent => if let Err(error) = sent { debug!(error, "log not sent to the end") },
            () = shutdown.cancelled() => {}
        }
    });
    Ok(switching(&key, protocol))
}

/// The first protocol of the client's that is known; a client may also name none.
fn choose(headers: &HeaderMap) -> Option<&'static str> {
    let asked = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
    asked
        .flat_map(|value| value.split(','))
        .find_map(|name| [BINARY, BASE64].into_iter().find(|one| name.trim() == *one))
}

fn switching(accept: &str, protocol: Option<&'static str>) -> Reply {
    let mut response = Reply::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    if let Ok(accept) = HeaderValue::from_str(accept) {
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    }
    if let Some(protocol) = protocol {
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol));
    }
    response
}

/// Every chunk a message, an empty one first so that the client sees the stream stand, a close at the end.
async fn send<S>(
    socket: WebSocketStream<S>,
    mut log: Log,
    base64: bool,
) -> Result<(), tokio_tungstenite::tungstenite::Error>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let message = |bytes: Bytes| {
        if base64 {
            Message::text(base64::engine::general_purpose::STANDARD.encode(bytes))
        } else {
            Message::binary(bytes)
        }
    };
    let (mut to, mut from) = socket.split();
    let sending = async {
        to.send(message(Bytes::new())).await?;
        while let Some(Ok(bytes)) = log.next().await {
            to.send(message(bytes)).await?;
        }
        to.send(Message::Close(None)).await
    };
    // Reading answers pings and notices a client that went away.
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
    async fn a_log_becomes_messages_and_a_close() {
        for (base64, expected) in [(false, Message::binary("line\n")), (true, Message::text("bGluZQo="))] {
            let (client, server) = tokio::io::duplex(1024);
            let server = WebSocketStream::from_raw_socket(server, Role::Server, None).await;
            let mut client = WebSocketStream::from_raw_socket(client, Role::Client, None).await;
            let sending =
                tokio::spawn(send(server, futures::stream::iter([Ok(Bytes::from("line\n"))]).boxed(), base64));
            let first = client.next().await.unwrap().unwrap();
            assert!(first.is_empty(), "{first:?}");
            assert_eq!(client.next().await.unwrap().unwrap(), expected);
            assert!(client.next().await.unwrap().unwrap().is_close());
            sending.await.unwrap().unwrap();
        }
    }

    #[test]
    fn the_protocol_is_the_clients_first_that_is_known() {
        for (asked, expected) in [
            (None, None),
            (Some("binary.k8s.io"), Some(BINARY)),
            (Some("other, base64.binary.k8s.io"), Some(BASE64)),
            (Some("other"), None),
        ] {
            let mut headers = HeaderMap::new();
            asked.map(|asked| headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(asked)));
            assert_eq!(choose(&headers), expected, "{asked:?}");
        }
    }
}
