//! One request as it passes through the server: its parts, and the results of the steps so far.

mod audit_record;

use std::sync::{Arc, Mutex};
use std::time::Instant;

use corten_access::User;
use corten_meta::Status;
use http::{HeaderMap, HeaderValue};

pub use audit_record::{AuditRecord, Level};

use crate::negotiation::Accept;
use crate::registry::Resource;
use crate::registry::request_conversions::RequestConversions;
use crate::request::RequestInfo;
use crate::response::IncludeObject;
use crate::warnings::Warnings;

/// A request after authentication: its user, its target, and the form of its response.
pub struct Context {
    pub info: RequestInfo,
    /// The resource of the path, if the server has it.
    pub resource: Option<Arc<Resource>>,
    pub user: User,
    pub headers: HeaderMap,
    pub method: http::Method,
    /// Path and query as they were sent, for requests that are passed on.
    pub raw_path: String,
    pub raw_query: String,
    pub accept: Accept,
    /// The error if the client accepts no form of the response.
    pub not_acceptable: Option<Status>,
    pub now: jiff::Timestamp,
    /// The deadline of the response.
    pub deadline: Instant,
    pub warnings: Mutex<Warnings>,
    /// The audit data of this request.
    pub audit: AuditRecord,
    /// The audit annotations of admission.
    pub annotations: Mutex<std::collections::BTreeMap<String, String>>,
    /// The classification by priority and fairness.
    pub classified: Option<Classified>,
    /// The HTTP upgrade of the connection, if it may be upgraded.
    pub upgrade: Mutex<Option<hyper::upgrade::OnUpgrade>>,
    /// The objects that webhooks converted for this request.
    pub conversions: RequestConversions,
}

impl Context {
    /// Adds a warning for the client.
    pub fn warn(&self, warning: impl Into<String>) {
        self.warnings.lock().unwrap_or_else(std::sync::PoisonError::into_inner).add(warning.into());
    }

    /// Adds an audit annotation; the first value of a key stays.
    pub fn annotate(&self, key: &str, value: &str) {
        let mut annotations = self.annotations.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        annotations.entry(key.to_owned()).or_insert_with(|| value.to_owned());
    }

    pub fn include_object(&self) -> IncludeObject {
        IncludeObject::parse(self.info.query.get("includeObject"))
    }

    /// Returns whether `dryRun=All` is set.
    pub fn dry_run(&self) -> bool {
        self.info.query.all("dryRun").any(|word| word == "All")
    }
}

/// The FlowSchema and the priority level of a request, as headers of its response.
#[derive(Clone)]
pub struct Classified {
    pub flow_schema: HeaderValue,
    pub priority_level: HeaderValue,
}
