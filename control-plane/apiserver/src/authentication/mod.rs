//! Who is asking: client certificate, bearer token, in-process identity, then impersonation.
//!
//! A credential that is present and wrong is always 401; it never falls through to anonymous. Without any
//! credential a caller is `system:anonymous`, whose rights are RBAC's to say: by default, health and version.

mod bootstrap_token;
mod certificate;
pub mod front_proxy;
mod impersonation;
pub mod keys;
mod legacy_token;
pub mod oidc;
pub mod token;
pub mod webhook;
pub mod websocket_token;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

pub use certificate::{expiry_of_certificate, user_of_certificate};
use corten_meta::Status;
pub use impersonation::impersonate;
pub use legacy_token::today;

use crate::pipeline::Context;
use crate::server::Server;

/// Every user with a credential is in this group.
pub const AUTHENTICATED: &str = "system:authenticated";

/// An identity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// A user with a name and groups; `system:authenticated` is added.
    pub fn new(name: &str, groups: &[&str]) -> User {
        let groups = groups.iter().map(|g| (*g).to_owned()).collect();
        User { name: name.to_owned(), groups, ..User::default() }.authenticated()
    }

    /// The ServiceAccount `name` of `namespace`.
    pub fn service_account(namespace: &str, name: &str) -> User {
        let user = format!("system:serviceaccount:{namespace}:{name}");
        User::new(&user, &["system:serviceaccounts", &format!("system:serviceaccounts:{namespace}")])
    }

    pub(crate) fn anonymous() -> User {
        User {
            name: "system:anonymous".to_owned(),
            groups: vec!["system:unauthenticated".to_owned()],
            ..User::default()
        }
    }

    pub(crate) fn authenticated(mut self) -> User {
        if !self.is_in(AUTHENTICATED) && self.name != "system:anonymous" {
            self.groups.push(AUTHENTICATED.to_owned());
        }
        self
    }

    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }

    /// The node's name, if this is a kubelet.
    pub fn node_name(&self) -> Option<&str> {
        self.name.strip_prefix("system:node:").filter(|_| self.is_in("system:nodes"))
    }

    /// As reviews show it.
    pub fn to_value(&self) -> corten_meta::Value {
        let mut user = serde_json::json!({ "username": self.name, "groups": self.groups });
        if !self.uid.is_empty() {
            user["uid"] = self.uid.clone().into();
        }
        if !self.extra.is_empty() {
            user["extra"] = serde_json::json!(self.extra);
        }
        user
    }
}

/// How the caller is connected, and what the connection alone says about it.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    pub identity: Identity,
    pub address: Option<SocketAddr>,
    /// Until when the client's certificate holds.
    pub expires: Option<jiff::Timestamp>,
    /// The place of the connection among those of the listener; none for calls within the process.
    pub place: Option<Arc<corten_listen::Place>>,
}

/// The identity that the connection carries.
#[derive(Clone, Debug, Default)]
pub enum Identity {
    #[default]
    None,
    /// From a client certificate that TLS verified.
    Certificate(User),
    /// A front proxy, which says in headers for whom it asks; and who it is itself, if its certificate says that too.
    FrontProxy(Option<User>),
    /// A component of this process.
    InProcess(User),
}

/// Finds out who is asking.
pub async fn authenticate(server: &Server, context: &Context, peer: &Peer) -> Result<User, Status> {
    let headers = &context.headers;
    if let Identity::InProcess(user) = &peer.identity {
        return Ok(user.clone());
    }
    // A token is looked at first, even where it does not matter: the client is told if it is none.
    let given = given_token(context);
    if let Identity::Certificate(user) = &peer.identity {
        return Ok(user.clone());
    }
    if let Identity::FrontProxy(own) = &peer.identity
        && let Some(user) = front_proxy::user_of_headers(headers).or_else(|| own.clone())
    {
        return Ok(user);
    }
    let mut is_refused = false;
    for token in [Ok(given.map(Cow::Borrowed)), websocket_token::named(headers).map(|t| t.map(Cow::Owned))] {
        let authenticated = match token {
            Ok(None) => continue,
            Ok(Some(token)) => server.tokens.authenticate(server, &token, &server.config.audiences).await,
            Err(reason) => Err(reason.to_owned()),
        };
        match authenticated {
            Ok(authenticated) => {
                peer.place.iter().for_each(|place| place.authenticated());
                return Ok(authenticated.user);
            }
            Err(reason) => tracing::debug!(reason, "a bearer token was refused"),
        }
        is_refused = true;
    }
    match !is_refused && server.issuers.load().anonymous.is_allowed(&context.info.path) {
        true => Ok(User::anonymous()),
        false => Err(Status::unauthorized()),
    }
}

/// The token that a request brings. With a blank too many before it there is none, of which the client is warned.
fn given_token(context: &Context) -> Option<&str> {
    let header = context.headers.get(http::header::AUTHORIZATION)?;
    // What is no text is a token that nobody knows.
    let token = bearer_token(std::str::from_utf8(header.as_bytes()).unwrap_or("Bearer ?"))?;
    if token.is_empty() {
        context.warn("the provided Authorization header contains extra space before the bearer token, and is ignored");
        return None;
    }
    Some(token)
}

/// What a header says of who asks. It is never left out because of its letters: who is asked for would be another.
fn text_of(value: &http::HeaderValue) -> String {
    corten_meta::codec::characters(value.as_bytes()).into_owned()
}

/// The token of an Authorization header: the second of its words, also if that is empty.
pub fn bearer_token(header: &str) -> Option<&str> {
    let (scheme, rest) = header.trim().split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| rest.split(' ').next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::bearer_token;

    #[test]
    fn the_second_word_is_the_token() {
        for (header, token) in [
            ("Bearer t", Some("t")),
            (" bEARER t x ", Some("t")),
            ("Bearer  t", Some("")),
            ("Bearer\tt", None),
            ("Bearer ", None),
            ("Basic t", None),
        ] {
            assert_eq!(bearer_token(header), token, "{header:?}");
        }
    }
}
