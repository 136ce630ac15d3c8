//! The hash of a request, by which all nodes choose the same endpoint for requests with the same value.

use std::net::IpAddr;

use corten_routing::HashKey;
use http::header::COOKIE;
use http::request::Parts;

use crate::random;

/// Returns the hash of a request; None if the request has no such value, and so goes to any endpoint.
pub(crate) fn of(key: &HashKey, client: IpAddr, host: &str, parts: &Parts) -> Option<u64> {
    match key {
        HashKey::ClientAddress => Some(digest(client.to_canonical().to_string().as_bytes())),
        HashKey::Host => Some(digest(host.as_bytes())),
        HashKey::Target => Some(digest(parts.uri.path_and_query()?.as_str().as_bytes())),
        HashKey::Header(name) => Some(digest(parts.headers.get(&**name)?.as_bytes())),
        HashKey::Cookie(name) => parts.headers.get_all(COOKIE).iter().find_map(|cookies| {
            let mut pairs = cookies.to_str().ok()?.split(';').filter_map(|pair| pair.trim().split_once('='));
            pairs.find(|(known, _)| *known == &**name).map(|(_, value)| digest(value.as_bytes()))
        }),
    }
}

/// Returns the FNV-1a hash of bytes, mixed. It needs no secret: it only spreads requests.
fn digest(bytes: &[u8]) -> u64 {
    let hash = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    random::mix(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_with_the_same_value_have_the_same_hash() {
        let parts = |path: &str, cookie: &str| {
            let request = http::Request::builder().uri(path).header("cookie", cookie).header("x-user", cookie);
            request.body(()).unwrap().into_parts().0
        };
        let client: IpAddr = "192.0.2.1".parse().unwrap();
        let of = |key: HashKey, path: &str, cookie: &str| of(&key, client, "a.test", &parts(path, cookie));
        let cookie = || HashKey::Cookie("user".into());
        assert_eq!(of(cookie(), "/a", "a=b; user=1"), of(cookie(), "/b", "user=1; c=d"));
        assert_ne!(of(cookie(), "/a", "user=1"), of(cookie(), "/a", "user=2"));
        assert_eq!(of(cookie(), "/a", "other=1"), None);
        assert_ne!(of(HashKey::Target, "/a?b", ""), of(HashKey::Target, "/a?c", ""));
        assert_eq!(of(HashKey::ClientAddress, "/a", ""), of(HashKey::ClientAddress, "/b", ""));
        assert_eq!(of(HashKey::Host, "/a", ""), of(HashKey::Host, "/b", "x"));
        assert_ne!(of(HashKey::Header("x-user".into()), "/", "1"), of(HashKey::Header("x-user".into()), "/", "2"));
    }
}
