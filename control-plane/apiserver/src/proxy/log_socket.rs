//! Logs over a WebSocket: this server makes the messages, as all kubelets send their logs as plain bodies.

use base64::Engine;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use http::{HeaderMap, HeaderValue, header};
use tokio_tungstenite::tungstenite::Message;

use crate::body::Reply;
use crate::context::Context;
use crate::tasks::Tasks;
use crate::websocket::{self, Messages};

const BINARY: &str = "binary.k8s.io";
const BASE64: &str = "base64.binary.k8s.io";

/// The chunks of a log.
type Log = BoxStream<'static, Result<Bytes, std::io::Error>>;

/// Switches protocols and sends the log.
pub fn switch(tasks: &Tasks, context: &Context, log: Log) -> Reply {
    let protocol = choose(&context.headers);
    let messages = messages(log, protocol == Some(BASE64));
    websocket::switch(tasks, context, protocol.map(HeaderValue::from_static), messages)
}

/// Returns the first known protocol of the client; a client may also name none.
fn choose(headers: &HeaderMap) -> Option<&'static str> {
    let requested = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
    requested
        .flat_map(|value| value.split(','))
        .find_map(|name| [BINARY, BASE64].into_iter().find(|one| name.trim() == *one))
}

/// Makes a message of every chunk, after an empty one that shows the client that the stream is open.
fn messages(log: Log, base64: bool) -> Messages {
    let chunks = log.take_while(|chunk| std::future::ready(chunk.is_ok())).filter_map(|chunk| async { chunk.ok() });
    let message = move |bytes: Bytes| {
        if base64 {
            Message::text(base64::engine::general_purpose::STANDARD.encode(bytes))
        } else {
            Message::binary(bytes)
        }
    };
    futures::stream::iter([Bytes::new()]).chain(chunks).map(message).boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_log_becomes_messages() {
        let log = || {
            let broken = Err(std::io::Error::other("broken"));
            futures::stream::iter([Ok(Bytes::from("line\n")), broken, Ok(Bytes::from("lost"))]).boxed()
        };
        let sent: Vec<Message> = messages(log(), false).collect().await;
        assert_eq!(sent, [Message::binary(""), Message::binary("line\n")]);
        let sent: Vec<Message> = messages(log(), true).collect().await;
        assert_eq!(sent, [Message::text(""), Message::text("bGluZQo=")]);
    }

    #[test]
    fn the_protocol_is_the_clients_first_that_is_known() {
        for (requested, expected) in [
            (None, None),
            (Some("binary.k8s.io"), Some(BINARY)),
            (Some("other, base64.binary.k8s.io"), Some(BASE64)),
            (Some("other"), None),
        ] {
            let mut headers = HeaderMap::new();
            requested
                .map(|requested| headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(requested)));
            assert_eq!(choose(&headers), expected, "{requested:?}");
        }
    }
}
