//! Admission: the plugins that may change or refuse a write after it was authorized and decoded.
//!
//! Each plugin is one file and one entry of the chain, in upstream's order. `admit` may change the object, `validate`
//! only refuses. A plugin never writes to the store itself: it returns the operations that must be stored together with
//! the object as companions of the write. `door.rs` has the parts of the server that plugins use, as traits; nothing
//! here knows the server.

mod admin_access;
mod advice;
pub mod allocation;
mod attributes;
mod certificate_subject_restriction;
mod chain;
mod claim_status;
mod client_config;
mod default_ingress_class;
mod default_storage_class;
mod default_toleration_seconds;
mod device_selectors;
mod door;
mod durations;
mod expressions;
#[doc(hidden)]
pub mod fuzz;
mod limit_ranger;
pub mod metrics;
mod mountable_secrets;
mod namespace_lifecycle;
mod node_checks;
mod node_declared_features;
mod node_object;
mod node_restriction;
mod operation;
mod persistent_volume_claim_resize;
mod plugin;
mod pod_resize;
mod pod_security;
mod pod_topology_labels;
mod policy;
mod priority;
mod rbac_escalation;
mod reinvocation;
mod resource_quota;
mod rules;
mod runtime_class;
mod service_account;
mod service_allocation;
mod service_families;
mod signing_request;
mod storage_object_in_use_protection;
mod taint_nodes_by_condition;
mod touched;
mod webhook;

pub use advice::Adviser;
pub use attributes::Attributes;
pub use chain::{Chain, has_webhooks_or_policies};
pub use client_config::{ClientConfig, Server};
pub use door::{Authorizer, Config, Context, Core, Objects, Outbound, Resource, Snapshot, Target};
pub use metrics::FAMILIES as METRICS;
pub use operation::Operation;
pub use plugin::Plugin;
pub use policy::type_warnings;
pub use signing_request::check_signer;
pub use touched::Touched;
