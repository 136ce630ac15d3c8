//! Helpers that several controllers share: pod states, conditions, owner references, templates and claims.
//!
//! Everything here is pure. Nothing here knows a controller.

pub mod condition;
pub mod history;
pub mod int_or_percent;
pub mod namespaces;
pub mod owner;
pub mod pods;
pub mod resource_claims;
pub mod template;
