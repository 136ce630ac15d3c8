//! What the workload controllers share: what a pod's state means, who owns it, and how a template becomes a pod.
//!
//! Everything here is pure. Nothing here knows a particular workload kind.

pub mod condition;
pub mod history;
pub mod int_or_percent;
pub mod namespaces;
pub mod owner;
pub mod pods;
pub mod resource_claims;
pub mod template;
