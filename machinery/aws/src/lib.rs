//! AWS for the components that use it: signed calls of its Query APIs ([`call`]), the credentials of this process and
//! the metadata service of its instance ([`credentials`]), and the region and endpoints that it uses ([`account`]).
//!
//! Requests are written by hand over [`corten_outbound`]: a call is an action with parameters, an answer a small tree of
//! XML. Must never: read the environment by itself; the binary hands it in.

pub mod account;
pub mod call;
pub mod credentials;
mod error;
mod form;

pub use account::{Account, Environment, Preferences};
pub use call::{Api, Call, Refusal};
pub use error::Error;
