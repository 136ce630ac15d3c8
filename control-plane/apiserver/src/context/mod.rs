//! One request as it passes through the server: its parts, and everything that was found out about it.

mod audit_record;

use std::sync::{Arc, Mutex};
use std::time::Instant;

use corten_meta::Status;
use http::{HeaderMap, HeaderValue};

pub use audit_record::{AuditRecord, Level};

use crate::negotiation::Accept;
use crate::registry::Resource;
use crate::registry::conversion_memo::ConversionMemo;
use crate::request::RequestInfo;
use crate::response::IncludeObject;
use crate::user::User;
use crate::warnings::Warnings;

/// A request after it was let in: who, what, and in which form to answer.
pub struct Context {
    pub info: RequestInfo,
    /// The resource that is asked for, if there is such a one.
    pub resource: Option<Arc<Resource>>,
    pub user: User,
    pub headers: HeaderMap,
    pub method: http::Method,
    /// Path and query as they were sent, for requests that are passed on.
    pub raw_path: String,
    pub raw_query: String,
    pub accept: Accept,
    /// Why nothing that the client would take is spoken here.
    pub not_acceptable: Option<Status>,
    pub now: jiff::Timestamp,
    /// When the answer is due.
    pub deadline: Instant,
    pub warnings: Mutex<Warnings>,
    /// What the audit log is to know of this request.
    pub audit: AuditRecord,
    /// What admission wants to be written into the audit log.
    pub annotations: Mutex<std::collections::BTreeMap<String, String>>,
    /// How priority and fairness see the request.
    pub classified: Option<Classified>,
    /// The HTTP upgrade of the connection, if it may be upgraded.
    pub upgrade: Mutex<Option<hyper::upgrade::OnUpgrade>>,
    /// What webhooks converted for it.
    pub conversions: ConversionMemo,
}

impl Context {
    /// Adds a warning for the client.
    pub fn warn(&self, warning: impl Into<String>) {
        self.warnings.lock().unwrap_or_else(std::sync::PoisonError::into_inner).add(warning.into());
    }

    /// Leaves a note for the audit log; the first note of a key stays.
    pub fn annotate(&self, key: &str, value: &str) {
        let mut annotations = self.annotations.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        annotations.entry(key.to_owned()).or_insert_with(|| value.to_owned());
    }

    pub fn include_object(&self) -> IncludeObject {
        IncludeObject::parse(self.info.query.get("includeObject"))
    }

    /// Whether `dryRun=All` is asked for.
    pub fn dry_run(&self) -> bool {
        self.info.query.all("dryRun").any(|word| word == "All")
    }
}

/// The FlowSchema and the priority level that a request was put under, as its answer says.
#[derive(Clone)]
pub struct Classified {
    pub flow_schema: HeaderValue,
    pub priority_level: HeaderValue,
}
