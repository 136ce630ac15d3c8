//! Group versions that other API servers serve, as discovery and OpenAPI show them.

use std::sync::Arc;

use corten_meta::Value;

/// A group version of another server.
#[derive(Clone)]
pub struct RemoteVersion {
    pub group: String,
    pub version: String,
    pub group_priority: i64,
    pub version_priority: i64,
    pub available: bool,
    /// The documents of the server when it was last available.
    pub documents: Arc<RemoteDocuments>,
}

/// The documents of one group version of another server.
#[derive(Debug, Default, PartialEq)]
pub struct RemoteDocuments {
    /// Its resources, in the form of aggregated discovery.
    pub resources: Vec<Value>,
    /// Its OpenAPI document, version 3.
    pub openapi_v3: Option<Value>,
    /// Its part of the OpenAPI document, version 2: paths and definitions.
    pub openapi_v2: Option<Value>,
}
