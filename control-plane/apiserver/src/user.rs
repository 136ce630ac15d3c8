//! Users: the identity of a caller, and how it is connected.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

/// The group of every user with a credential.
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
    /// Returns a user with a name and groups, and with `system:authenticated`.
    pub fn new(name: &str, groups: &[&str]) -> User {
        let groups = groups.iter().map(|g| (*g).to_owned()).collect();
        User { name: name.to_owned(), groups, ..User::default() }.authenticated()
    }

    /// Returns the user of the ServiceAccount `name` of `namespace`.
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

    /// Returns the node's name, if this is a kubelet.
    pub fn node_name(&self) -> Option<&str> {
        self.name.strip_prefix("system:node:").filter(|_| self.is_in("system:nodes"))
    }

    /// Returns the user as reviews show it.
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

/// The connection of the caller, and the identity that it proves.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    pub identity: Identity,
    pub address: Option<SocketAddr>,
    /// The expiry of the client's certificate.
    pub expires: Option<jiff::Timestamp>,
    /// The connection's slot of the listener; none for calls within the process.
    pub slot: Option<Arc<corten_listen::Slot>>,
}

/// The identity that the connection carries.
#[derive(Clone, Debug, Default)]
pub enum Identity {
    #[default]
    None,
    /// The user of a client certificate that TLS verified.
    Certificate(User),
    /// A client certificate that was valid and is revoked.
    Revoked,
    /// A front proxy, whose headers name the user; and its own user, if its certificate is a client certificate too.
    FrontProxy(Option<User>),
    /// A component of this process.
    InProcess(User),
}

impl Identity {
    /// Reports whether the connection proves an identity.
    pub fn is_proven(&self) -> bool {
        !matches!(self, Identity::None | Identity::Revoked)
    }
}
