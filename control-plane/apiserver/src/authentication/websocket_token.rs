//! The token of a WebSocket: a browser cannot set the headers of a WebSocket, so it sends the token as an additional
//! subprotocol.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderMap, HeaderValue, header};

use crate::websocket;

const PREFIX: &str = "base64url.bearer.authorization.k8s.io.";

/// Returns the token that a client sends as a subprotocol, if the request is for a WebSocket.
pub fn named(headers: &HeaderMap) -> Result<Option<String>, &'static str> {
    if !websocket::is_websocket(headers) {
        return Ok(None);
    }
    let mut tokens = Vec::new();
    let mut others = 0;
    for protocol in protocols(headers) {
        match protocol.strip_prefix(PREFIX) {
            Some(encoded) => tokens.push(encoded),
            None => others += 1,
        }
    }
    let encoded = match tokens.as_slice() {
        [] => return Ok(None),
        [encoded] => encoded,
        _ => return Err("multiple base64.bearer.authorization tokens specified"),
    };
    let decoded = URL_SAFE_NO_PAD.decode(encoded);
    let decoded = decoded.map_err(|_| "invalid base64.bearer.authorization token encoding")?;
    let token = String::from_utf8(decoded).map_err(|_| "invalid base64.bearer.authorization token")?;
    match others {
        _ if token.is_empty() => Ok(None),
        0 => Err("missing additional subprotocol"),
        _ => Ok(Some(token)),
    }
}

/// Removes the token from the headers: it is no protocol to negotiate, and the server behind the stream must not see
/// it.
pub fn remove(headers: &mut HeaderMap) {
    if !protocols(headers).any(|protocol| protocol.starts_with(PREFIX)) {
        return;
    }
    let left: Vec<&str> = protocols(headers).filter(|protocol| !protocol.starts_with(PREFIX)).collect();
    if let Ok(left) = HeaderValue::from_str(&left.join(",")) {
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, left);
    }
}

fn protocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let named = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
    named.flat_map(|value| value.split(',')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(protocols: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_str(protocols).unwrap());
        headers
    }

    #[test]
    fn a_token_needs_a_protocol_beside_it() {
        let token = format!("{PREFIX}dG9r");
        for (protocols, expected) in [
            ("v5.channel.k8s.io".to_owned(), Ok(None)),
            (format!("{token}, v5.channel.k8s.io"), Ok(Some("tok".to_owned()))),
            (format!("a,{PREFIX}"), Ok(None)),
            (token.clone(), Err("missing additional subprotocol")),
            (format!("a,{token},{token}"), Err("multiple base64.bearer.authorization tokens specified")),
            (format!("a,{token}="), Err("invalid base64.bearer.authorization token encoding")),
            (format!("a,{PREFIX}_w"), Err("invalid base64.bearer.authorization token")),
        ] {
            assert_eq!(named(&headers(&protocols)), expected, "{protocols}");
        }
        let mut plain = headers(&format!("a,{token}"));
        plain.remove(header::UPGRADE);
        assert_eq!(named(&plain), Ok(None));
    }

    #[test]
    fn the_token_is_removed_from_the_headers() {
        for (protocols, expected) in [("a, b", "a, b"), ("a, base64url.bearer.authorization.k8s.io.dG9r , b", "a,b")] {
            let mut headers = headers(protocols);
            remove(&mut headers);
            assert_eq!(headers[header::SEC_WEBSOCKET_PROTOCOL], expected);
        }
    }
}
