//! The HTTP request that switches protocols: the choice of the protocol, and the answer.

use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_util::sync::CancellationToken;

use super::websocket::Framing;
use super::{StreamingServer, Target};

/// The raw connection after the switch.
pub(super) type Upgraded = TokioIo<hyper::upgrade::Upgraded>;

type Answer = Response<Full<bytes::Bytes>>;

const STREAM_PROTOCOL: &str = "x-stream-protocol-version";
const PORT_FORWARD: &str = "portforward.k8s.io";
const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";

/// The protocol after the switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    WebSocket(Framing),
    /// Version of the remote command protocol; 0 for port-forward.
    Spdy(u8),
    SpdyInWebSocket,
}

/// A protocol and its name in the answer.
#[derive(Debug, PartialEq, Eq)]
struct Choice {
    protocol: Protocol,
    name: String,
}

/// Answers a request; the upgraded connection is served by a task of its own.
pub(super) fn answer(server: &StreamingServer, shutdown: &CancellationToken, mut request: Request<Incoming>) -> Answer {
    if !matches!(*request.method(), Method::GET | Method::POST) {
        return plain(StatusCode::METHOD_NOT_ALLOWED, "method not allowed");
    }
    let token = request.uri().path().rsplit('/').next().unwrap_or_default().to_string();
    let Some(target) = server.take(&token) else {
        return plain(StatusCode::NOT_FOUND, "the URL was used before, or has expired");
    };
    let Some(choice) = choose(request.headers(), matches!(target, Target::PortForward(_))) else {
        return plain(StatusCode::BAD_REQUEST, "unable to upgrade: no supported protocol was asked for");
    };
    // Channels are numbered by the ports that the request names; streams name theirs themselves.
    if let (Target::PortForward(wanted), Protocol::WebSocket(_)) = (&target, &choice.protocol)
        && wanted.port.is_empty()
    {
        return plain(StatusCode::BAD_REQUEST, "query parameter \"port\" is required\n");
    }
    let response = switch(request.headers(), &choice);
    let server = server.clone();
    let shutdown = shutdown.clone();
    let upgrading = hyper::upgrade::on(&mut request);
    let tasks = server.0.tasks.clone();
    tasks.spawn(async move {
        let serving = async {
            let Ok(upgraded) = upgrading.await else { return };
            server.serve(target, choice.protocol, TokioIo::new(upgraded)).await;
        };
        tokio::select! {
            () = serving => {}
            () = shutdown.cancelled() => {}
        }
    });
    response
}

fn plain(status: StatusCode, message: &'static str) -> Answer {
    let mut response = Response::new(Full::from(message));
    *response.status_mut() = status;
    response
}

/// Chooses by the headers alone, in the server's order of preference.
fn choose(headers: &HeaderMap, port_forward: bool) -> Option<Choice> {
    let upgrade = headers.get(header::UPGRADE)?.to_str().ok()?;
    if upgrade.eq_ignore_ascii_case("websocket") {
        return choose_websocket(&listed(headers, "sec-websocket-protocol"), port_forward);
    }
    if !upgrade.eq_ignore_ascii_case("SPDY/3.1") {
        return None;
    }
    let offered = listed(headers, STREAM_PROTOCOL);
    if port_forward {
        let known = offered.is_empty() || offered.iter().any(|name| name == PORT_FORWARD);
        return known.then(|| Choice { protocol: Protocol::Spdy(0), name: PORT_FORWARD.into() });
    }
    let versions =
        [(4, "v4.channel.k8s.io"), (3, "v3.channel.k8s.io"), (2, "v2.channel.k8s.io"), (1, "channel.k8s.io")];
    let found = versions.into_iter().find(|(_, name)| offered.iter().any(|offer| offer == name));
    match found {
        Some((version, name)) => Some(Choice { protocol: Protocol::Spdy(version), name: name.into() }),
        None => offered.is_empty().then(|| Choice { protocol: Protocol::Spdy(1), name: String::new() }),
    }
}

fn choose_websocket(offered: &[String], port_forward: bool) -> Option<Choice> {
    if port_forward && offered.iter().any(|name| name == TUNNEL) {
        return Some(Choice { protocol: Protocol::SpdyInWebSocket, name: TUNNEL.into() });
    }
    let known = |framing: &Framing| !port_forward || matches!(framing, Framing::Base64V4 | Framing::V4);
    let mut framings = Framing::ALL.into_iter().filter(known);
    let found = framings.rfind(|framing| offered.iter().any(|name| name == framing.name()));
    match found {
        Some(framing) => Some(Choice { protocol: Protocol::WebSocket(framing), name: framing.name().into() }),
        None => offered.is_empty().then(|| Choice { protocol: Protocol::WebSocket(Framing::V1), name: String::new() }),
    }
}

/// Returns the values of a header that may be repeated, or joined by commas.
fn listed(headers: &HeaderMap, name: &str) -> Vec<String> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values
        .flat_map(|value| value.split(','))
        .map(|value| value.trim().to_string())
        .filter(|value| !value.is_empty())
        .collect()
}

fn switch(headers: &HeaderMap, choice: &Choice) -> Answer {
    let mut response =
        Response::builder().status(StatusCode::SWITCHING_PROTOCOLS).header(header::CONNECTION, "Upgrade");
    if let Protocol::Spdy(_) = choice.protocol {
        response = response.header(header::UPGRADE, "SPDY/3.1");
        if !choice.name.is_empty() {
            response = response.header(STREAM_PROTOCOL, &choice.name);
        }
    } else {
        let key = headers.get(header::SEC_WEBSOCKET_KEY).map(|key| derive_accept_key(key.as_bytes()));
        response =
            response.header(header::UPGRADE, "websocket").header(header::SEC_WEBSOCKET_ACCEPT, key.unwrap_or_default());
        if !choice.name.is_empty() {
            response = response.header(header::SEC_WEBSOCKET_PROTOCOL, &choice.name);
        }
    }
    response.body(Full::default()).unwrap_or_else(|_| plain(StatusCode::BAD_REQUEST, "malformed request"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(upgrade: &str, name: &str, offered: &[&str], port_forward: bool) -> Option<Protocol> {
        let mut headers = HeaderMap::new();
        headers.insert(header::UPGRADE, upgrade.parse().expect("a value"));
        for offer in offered {
            let name: http::HeaderName = name.parse().expect("a name");
            headers.append(name, offer.parse().expect("a value"));
        }
        choose(&headers, port_forward).map(|choice| choice.protocol)
    }

    #[test]
    fn the_best_common_protocol_is_chosen() {
        let websocket =
            |offered: &[&str], port_forward| chosen("websocket", "sec-websocket-protocol", offered, port_forward);
        let spdy = |offered: &[&str], port_forward| chosen("SPDY/3.1", STREAM_PROTOCOL, offered, port_forward);
        let v4 = "v4.channel.k8s.io";
        assert_eq!(websocket(&["v5.channel.k8s.io"], false), Some(Protocol::WebSocket(Framing::V5)));
        assert_eq!(websocket(&["v4.channel.k8s.io, v5.channel.k8s.io"], false), Some(Protocol::WebSocket(Framing::V5)));
        assert_eq!(websocket(&[], false), Some(Protocol::WebSocket(Framing::V1)));
        assert_eq!(websocket(&[TUNNEL], true), Some(Protocol::SpdyInWebSocket));
        assert_eq!(websocket(&[v4], true), Some(Protocol::WebSocket(Framing::V4)));
        assert_eq!(websocket(&["v5.channel.k8s.io"], true), None);
        assert_eq!(websocket(&["v9"], false), None);
        assert_eq!(spdy(&["v5.channel.k8s.io", v4, "v3.channel.k8s.io"], false), Some(Protocol::Spdy(4)));
        assert_eq!(spdy(&[PORT_FORWARD], true), Some(Protocol::Spdy(0)));
        assert_eq!(spdy(&["other"], true), None);
        assert_eq!(chosen("h2c", STREAM_PROTOCOL, &[v4], false), None);
    }
}
