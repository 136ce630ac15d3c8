//! Bytes that clients and proxies send to the front door.

use super::{block_on, joined, parts, text, texts};
use crate::Target;

pub const TARGETS: &[Target] = &[
    Target { name: "edge-path", seeds: path_seeds, run: path },
    Target { name: "edge-proxy-header", seeds: header_seeds, run: proxy_header },
    Target { name: "edge-credentials", seeds: credential_seeds, run: credentials },
    Target { name: "edge-response", seeds: response_seeds, run: response },
];

fn path_seeds() -> Vec<Vec<u8>> {
    texts(&["/a/../b", "/a/%2e%2E/./b", "/..", "/a//b\\..\\c", "/.well-known/x"])
}

/// A path without dot segments has none when it is normalized again.
fn path(input: &[u8]) {
    let Some(Ok(normalized)) = text(input).map(corten_routing::normalize) else { return };
    assert_eq!(corten_routing::normalize(&normalized), Ok(normalized.clone()));
}

fn header_seeds() -> Vec<Vec<u8>> {
    let headers = |source: &str, destination: &str| {
        let parse = |text: &str| text.parse().expect("an address");
        corten_edge::fuzz::proxy_headers(parse(source), parse(destination)).to_vec()
    };
    let mut seeds = headers("192.0.2.1:1", "192.0.2.2:443");
    seeds.extend(headers("[2001:db8::1]:1", "[2001:db8::2]:443"));
    seeds.extend(texts(&["PROXY UNKNOWN\r\n"]));
    seeds
}

/// The addresses of a header are those of the header that is written from them.
fn proxy_header(input: &[u8]) {
    let Some([source, destination]) = block_on(corten_edge::fuzz::proxy_header(input)) else { return };
    if source.is_ipv4() != destination.is_ipv4() || source.ip().to_canonical() != source.ip() {
        return;
    }
    for header in corten_edge::fuzz::proxy_headers(source, destination) {
        let again = block_on(corten_edge::fuzz::proxy_header(&header)).expect("a header that we wrote is read");
        assert_eq!(again[0].port(), source.port());
        assert_eq!(again[0].ip().to_canonical(), source.ip());
    }
}

/// Keys, and a token or credentials.
fn credential_seeds() -> Vec<Vec<u8>> {
    let keys = r#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"},{"kty":"RSA","n":"AQAB","e":"AQAB"},{"kty":"EC","crv":"P-256","x":"AA","y":"AA"}]}"#;
    vec![joined(&[keys, "eyJhbGciOiJFZERTQSJ9.e30.AAAA"]), joined(&["{}", "dXNlcjpwYXNzd29yZA=="])]
}

fn credentials(input: &[u8]) {
    let [keys, token] = parts::<2>(input);
    assert!(!corten_edge::fuzz::accepts_credentials(token), "the user has no password");
    // A key set that the fuzzer chose may have a key that it knows; only survival counts.
    let _ = corten_edge::fuzz::accepts_token(keys, token);
}

fn response_seeds() -> Vec<Vec<u8>> {
    texts(&[
        "2HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
        "4HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x\r\nab\r\n0\r\nt: v\r\n\r\n",
        "5HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 304 Not Modified\r\nConnection: keep-alive\r\n\r\n",
        "6HTTP/1.1 200 OK\r\n\r\nuntil the end",
    ])
}

/// A response is the same however the network cuts it into pieces.
fn response(input: &[u8]) {
    let Some((first, response)) = input.split_first() else { return };
    let is_head = first % 2 == 1;
    let read = |length: usize| corten_edge::fuzz::read_response(response, is_head, length);
    let whole = read(response.len());
    for length in [1, usize::from(*first)] {
        assert_eq!(read(length), whole, "pieces of {length} bytes");
    }
}
