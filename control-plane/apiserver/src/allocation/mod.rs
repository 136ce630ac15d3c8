//! Choosing Service addresses and node ports. Pure: what is taken, and randomness, come in as arguments.
//!
//! The choice is only a proposal. What makes it exclusive is the store: each address is an IPAddress object,
//! each port a key, written together with its Service and only if absent.

mod addresses;
mod ports;

pub use addresses::AddressRange;
pub use ports::choose_port;

/// Random numbers for the choices below.
pub fn random() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().1
}
