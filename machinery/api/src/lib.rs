//! The API as data: every built-in kind, one file each, one folder per group.
//!
//! A kind is declared once here (names, scope, subresources, schema, defaulting, validation, columns, selectable
//! fields); routes, discovery, OpenAPI, tables and storage keys derive from it elsewhere. This package does no I/O and
//! has no store, no network and no clock: time comes in as an argument. It is also the only package that instantiates
//! serde code for the typed API (see [`typed`]).

pub mod kind;
pub mod openapi;
pub mod placement;
pub mod quota;
pub mod schema;
pub mod typed;

mod address_warnings;
mod cells;
mod check;
mod defaulting;
mod emulation;
mod error;
mod json_path;
mod ratchet;
mod registry;
mod rule_code;
mod rules;
mod strategic;
mod validation;

mod admissionregistration;
mod apiextensions;
mod apiregistration;
mod apps;
mod authentication;
mod authorization;
mod autoscaling;
mod batch;
mod certificates;
mod coordination;
mod core;
mod discovery;
mod events;
mod flowcontrol;
mod metrics;
mod network;
mod networking;
mod node;
mod policy;
mod rbac;
mod resource;
mod scheduling;
mod storage;

pub use apiextensions::{Approval, CUSTOM_RESOURCE_CLEANUP};
pub use autoscaling::scale_kind;
pub use certificates::{AlternativeName, CertificateRequest, RequestError};
pub use core::service::keep_service_allocations;
pub use core::service_validation::validate_service_addresses;
pub use emulation::MinorVersion;
pub use error::Error;
pub use json_path::JsonPath;
pub use k8s_openapi;
pub use kind::objectmeta;
pub use kind::{
    Behaviour, Column, Kind, NameRule, Projection, Role, Rules, ScalePaths, ScaleServing, Serving, Storage, Subresource,
};
pub use metrics::metrics_kinds;
pub use network::podaddress::PLURAL as POD_ADDRESSES;
pub use network::{
    ADDRESS_POOLS, AddressPool, AddressRange, Advertisement, BGP_NAMESPACE, BGP_PEERS, BgpPeer, LOAD_BALANCER_CLASS,
    NETWORK_GROUP, NETWORK_VERSION, network_crds, network_kinds,
};
pub use registry::{by_gvk, kinds, kinds_at, lookup};
pub(crate) use rule_code::rule_in_code;
pub use schema::{FieldReport, Schema, check_fields, check_spelled_fields, prune, schema};
pub use strategic::{strategic_merge, strategically_merged};
pub use typed::{Typed, decode_object};
