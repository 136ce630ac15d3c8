//! The words of access to the API: users, verbs, the attributes of a request that authorizers decide on, and the rules
//! of roles.
//!
//! The API server and admission share them. Everything here is pure: no store, no clock, no request.

mod attributes;
mod references;
mod rule;
mod user;
mod verb;

pub use attributes::{Attributes, forbidden};
pub use references::{refers_to, refers_to_any};
pub use rule::Rule;
pub use user::User;
pub use verb::Verb;
