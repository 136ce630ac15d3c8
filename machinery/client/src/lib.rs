//! The client of the API: read, write, list and watch, over HTTPS or in process; and the parts that every component
//! builds on it: shared caches, work queues, events, leader election, kubeconfig files.
//!
//! A component does not know its transport. In process the same requests go through the same pipeline of the API
//! server, and watch events share the server's bytes. Nothing here reads flags, environment or default paths.

pub mod cache;
pub mod client;
pub mod dynamic;
pub mod error;
pub mod events;
pub mod https;
pub mod kubeconfig;
pub mod leader;
pub mod metrics;
pub mod options;
pub mod queue;
pub mod resource;
pub mod transport;
pub mod watch;

mod any_server;
mod backoff;
mod retry;

pub use any_server::AnyServer;
pub use backoff::replay;
pub use cache::{Cache, Caches, Change, Fed, Feed, Part, Subscription};
pub use client::{Client, List};
pub use dynamic::Dynamic;
pub use error::Error;
pub use events::series::{Occurrence, SeriesRecorder};
pub use events::{EventRecorder, EventType, ObjectRef};
pub use https::{HttpsConfig, Pem};
pub use kubeconfig::Kubeconfig;
pub use leader::{LeaderConfig, LeaderElector, Outcome};
pub use metrics::{InformerSeries, Metrics};
pub use options::{DeleteOptions, ListOptions, Patch, Propagation};
pub use queue::WorkQueue;
pub use resource::Resource;
pub use transport::{Body, Transport, WatchEvent};

#[cfg(test)]
mod fake;
