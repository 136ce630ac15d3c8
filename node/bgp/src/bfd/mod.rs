//! Bidirectional Forwarding Detection (RFC 5880, 5881): notices within a second that a router, or the way to it, is gone,
//! and lets the router notice the same of this node.
//!
//! Asynchronous mode over one hop, without echo and without authentication: packets must come from the peer's address with
//! a TTL of 255, which no router has forwarded.

mod listener;
mod machine;
mod packet;
mod session;

pub use listener::Listener;
pub use session::{Change, Session};

use std::time::Duration;

/// The settings of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The least interval between two packets of this node while the session is up.
    pub transmit_interval: Duration,
    /// The least interval between two packets of the peer that this node accepts.
    pub receive_interval: Duration,
    /// The number of packets that may be lost before the other side calls the session down.
    pub multiplier: u8,
}

/// Returns a random number. The standard library's hashers have random keys.
fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(())
}
