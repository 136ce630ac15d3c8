//! The API server: HTTP → authenticate → authorize → decode → admit → validate → store → encode.
//!
//! One pipeline (`pipeline.rs`) serves every kind of the table in `corten-api`, over TLS and in process alike.
//! It is the only component that touches the store.
//!
//! Invariant: no handler names a kind, and none can be reached around the pipeline. The special behaviour of a few
//! kinds is an admission plugin, a subresource role or a virtual resource, each in its own file.

mod admission;
mod aggregation;
mod audit;
mod authentication;
mod authorization;
mod body;
mod bootstrap;
mod cache;
mod compression;
mod config;
mod content;
mod context;
mod core;
mod custom_resources;
mod deadline;
mod decode;
mod discovery;
mod dispatch;
mod drain;
mod encryption;
mod error;
mod flow_control;
mod follow;
#[doc(hidden)]
pub mod fuzz;
mod health;
mod in_process;
mod limits;
mod metrics;
mod negotiation;
mod outbound;
mod paths;
mod peer;
mod pipeline;
mod proxy;
mod registry;
mod repair;
mod request;
mod request_line;
mod resource_metrics;
mod response;
mod scheme;
mod serve;
mod server;
mod site;
mod storage_format;
mod stored_reader;
mod subresources;
mod target;
mod tasks;
mod upstream_order;
mod verbs;
mod version_priority;
mod virtual_resources;
mod warnings;
mod websocket;
mod write;
mod write_timeout;

pub use authentication::REVOKED_NODES;
pub use body::{Body, HttpBody, Reply, RequestBody, Watch};
pub use cache::event::WatchEvent;
pub use config::{
    Audit, AuditLog, AuditWebhook, Authorization, Config, EncryptionKey, KubeconfigReader, KubeletClient, ProxyClient,
    RemoteServer, RetiredAuthority, StorageMediaType, Trust,
};
pub use corten_access::User;
pub use corten_admission::{Adviser, METRICS as ADMISSION_METRICS};
pub use corten_cel::durations::FAMILIES as CEL_METRICS;
pub use error::Error;
pub use in_process::InProcess;
pub use metrics::process::FAMILIES as PROCESS_METRICS;
pub use metrics::{FAMILIES as METRICS, process_metrics, process_started};
pub use peer::{Identity, Peer};
pub use registry::{StoreOverride, Stores};
pub use serve::{Certificates, tls_config};
pub use server::Server;
pub use site::{ListObjects, ObjectMetrics, PageRequest, Site};
pub use stored_reader::StoredReader;

/// Compares secrets in a time that does not depend on where they differ.
fn constant_time_eq(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |difference, (x, y)| difference | (x ^ y)) == 0
}
