//! The peer of a request: how its caller is connected, and the identity that the connection proves.

use std::net::SocketAddr;
use std::sync::Arc;

use corten_access::User;

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
