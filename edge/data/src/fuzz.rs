//! Entry points for the fuzz targets: the bytes that clients and proxies send to the edge. Nothing else may use this.

use std::net::SocketAddr;
use std::sync::Arc;

use corten_routing::{BasicAuth, Jwt, ProxyVersion};
use http::{HeaderMap, HeaderValue, header};

pub use crate::backend::ReadResponse;
use crate::policy::basic_auth::Users;
use crate::policy::jwt::TokenVerifier;
use crate::proxy_protocol;

/// Reads a header of the PROXY protocol; returns the addresses of a valid one that has some.
pub async fn proxy_header(mut bytes: &[u8]) -> Option<[SocketAddr; 2]> {
    let addresses = proxy_protocol::read(&mut bytes).await.ok()??;
    Some([addresses.source, addresses.destination])
}

/// Reads an endpoint's response in pieces of some length; `None` if it is invalid.
pub fn read_response(response: &[u8], is_head: bool, length: usize) -> Option<ReadResponse> {
    let method = if is_head { http::Method::HEAD } else { http::Method::GET };
    crate::backend::read_in_pieces(response, &method, length)
}

/// Returns the headers of both versions of the PROXY protocol.
pub fn proxy_headers(source: SocketAddr, destination: SocketAddr) -> [Vec<u8>; 2] {
    [ProxyVersion::V1, ProxyVersion::V2].map(|version| proxy_protocol::header(version, source, destination))
}

/// Reports whether a bearer token is accepted by a set of keys.
pub fn accepts_token(keys: &[u8], token: &[u8]) -> bool {
    let policy = Jwt {
        issuer: None,
        audiences: Vec::new(),
        keys_json: Arc::from(keys),
        key_set: None,
        claim_headers: Vec::new(),
    };
    TokenVerifier::new(&policy, &Arc::default()).accept(&mut authorization(b"Bearer ", token))
}

/// Reports whether Basic credentials are those of a user without a password.
pub fn accepts_credentials(credentials: &[u8]) -> bool {
    let users = [("user".to_owned(), "no hash".to_owned())].into();
    Users::new(&BasicAuth { realm: "fuzz".into(), users }).accept(&authorization(b"Basic ", credentials))
}

fn authorization(scheme: &[u8], credentials: &[u8]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if let Ok(value) = HeaderValue::from_bytes(&[scheme, credentials].concat()) {
        headers.insert(header::AUTHORIZATION, value);
    }
    headers
}
