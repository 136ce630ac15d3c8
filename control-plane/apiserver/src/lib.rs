//! The API server: HTTP → authenticate → authorize → decode → admit → validate → store → encode.
//!
//! One pipeline (`pipeline.rs`) serves every kind of the table in `corten-api`, over TLS and in process alike.
//! It is the only component that touches the store.
//!
//! Invariant: no handler names a kind, and none can be reached around the pipeline. What only some kinds need
//! is an admission plugin, a subresource role or a virtual resource, each in its own file.

mod admission;
mod aggregation;
mod allocation;
mod audit;
mod authentication;
mod authorization;
mod body;
mod bootstrap;
mod cache;
mod compression;
mod conditions;
mod config;
mod content;
mod conversion;
mod converted;
mod custom_resources;
mod deadline;
mod decode;
mod discovery;
mod encryption;
mod error;
mod fields;
mod flow_control;
mod follow;
#[doc(hidden)]
pub mod fuzz;
mod handlers;
mod health;
mod metrics;
mod negotiation;
mod openapi;
mod ordered;
mod outbound;
mod pipeline;
mod protobuf;
mod proxy;
mod registry;
mod request;
mod request_line;
mod resource_metrics;
mod response;
mod scheme;
mod serve;
mod server;
mod stall;
mod subresources;
mod table;
mod verb;
mod virtual_resources;
mod warnings;
mod websocket;

pub use authentication::{Identity, Peer, User};
pub use body::{Body, HttpBody, Reply, RequestBody, Watch, WatchEvent};
pub use config::{
    Audit, AuditLog, AuditWebhook, Authorization, Config, KubeconfigReader, KubeletClient, ProxyClient, RemoteServer,
    RetiredAuthority,
};
pub use error::Error;
pub use metrics::{process_metrics, process_started};
pub use serve::{Certificates, tls_config};
pub use server::{InProcess, Server};

/// Compares secrets without telling by its duration where they differ.
fn constant_time_eq(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |difference, (x, y)| difference | (x ^ y)) == 0
}
