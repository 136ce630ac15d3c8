//! The console as the API server shows it.

use std::path::Path;

use bytes::Bytes;
use corten_apiserver::Site;
use corten_console::{OpenId, PREFIX, Pages};
use corten_meta::Value;
use http::{HeaderMap, Method, Response};

use crate::access_options::AccessOptions;

/// The pages of the console below the API server's address.
#[derive(Debug)]
pub struct Console(Pages);

impl Console {
    pub fn new(options: &AccessOptions) -> Console {
        let issuer = options.console_oidc_issuer_url.clone();
        let client_id = options.console_oidc_client_id.clone();
        let named = issuer.zip(client_id).map(|(issuer, client_id)| OpenId { issuer, client_id });
        let open_id = named.or_else(|| trusted_issuer(options.authentication_config.as_deref()?));
        Console(Pages { open_id })
    }
}

/// Returns the first issuer that the API server trusts itself; its first audience is the client id. A file that cannot be
/// read is reported by the authenticator.
fn trusted_issuer(configuration: &Path) -> Option<OpenId> {
    let text = std::fs::read_to_string(configuration).ok()?;
    issuer_of(&corten_meta::decode_yaml(text.as_bytes()).ok()?)
}

fn issuer_of(configuration: &Value) -> Option<OpenId> {
    let issuers = configuration.get("jwt")?.as_array()?.iter().map(|one| &one["issuer"]);
    let mut usable = issuers.filter_map(|issuer| {
        let url = issuer["url"].as_str().filter(|url| url.starts_with("https://"))?;
        let client_id = issuer.pointer("/audiences/0")?.as_str()?;
        Some(OpenId { issuer: url.to_owned(), client_id: client_id.to_owned() })
    });
    usable.next()
}

impl Site for Console {
    fn prefix(&self) -> &'static str {
        PREFIX
    }

    fn answer(&self, method: &Method, path: &str, headers: &HeaderMap) -> Response<Bytes> {
        self.0.answer(method, path, headers)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_first_usable_issuer_of_the_server_is_that_of_the_console() {
        let issuer = |url: &str, audiences: Value| json!({"issuer": {"url": url, "audiences": audiences}});
        let configuration = json!({"jwt": [
            issuer("http://plain.example.com", json!(["a"])),
            issuer("https://none.example.com", json!([])),
            issuer("https://login.example.com", json!(["console", "other"])),
        ]});
        let found = issuer_of(&configuration).unwrap();
        assert_eq!((found.issuer.as_str(), found.client_id.as_str()), ("https://login.example.com", "console"));
        assert!(issuer_of(&json!({"jwt": []})).is_none());
        assert!(issuer_of(&json!({})).is_none());
    }
}
