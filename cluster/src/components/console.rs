//! The console as the API server shows it.

use bytes::Bytes;
use corten_apiserver::Site;
use corten_console::{OpenId, PREFIX, Pages};
use http::{HeaderMap, Method, Response};

use crate::access_options::AccessOptions;

/// The pages of the console below the API server's address.
#[derive(Debug)]
pub struct Console(Pages);

impl Console {
    pub fn new(options: &AccessOptions) -> Console {
        let issuer = options.console_oidc_issuer_url.clone();
        let client_id = options.console_oidc_client_id.clone();
        let open_id = issuer.zip(client_id).map(|(issuer, client_id)| OpenId { issuer, client_id });
        Console(Pages { open_id })
    }
}

impl Site for Console {
    fn prefix(&self) -> &'static str {
        PREFIX
    }

    fn answer(&self, method: &Method, path: &str, headers: &HeaderMap) -> Response<Bytes> {
        self.0.answer(method, path, headers)
    }
}
