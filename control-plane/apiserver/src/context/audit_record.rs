//! The part of a request that the audit log shows.

use std::net::SocketAddr;
use std::sync::Mutex;

use bytes::Bytes;
use corten_access::User;
use corten_meta::quote::quote;

use crate::peer::Peer;

/// The level of an audit rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    #[default]
    None,
    Metadata,
    Request,
    RequestResponse,
}

impl Level {
    /// Reads a level of the policy.
    pub fn parse(text: &str) -> Result<Level, String> {
        match text {
            "None" => Ok(Level::None),
            "Metadata" => Ok(Level::Metadata),
            "Request" => Ok(Level::Request),
            "RequestResponse" => Ok(Level::RequestResponse),
            other => Err(format!("{} is no level (None, Metadata, Request, RequestResponse)", quote(other))),
        }
    }

    pub fn word(self) -> &'static str {
        match self {
            Level::None => "None",
            Level::Metadata => "Metadata",
            Level::Request => "Request",
            Level::RequestResponse => "RequestResponse",
        }
    }
}

/// The audit data of one request.
#[derive(Default)]
pub struct AuditRecord {
    pub id: String,
    pub level: Level,
    pub omit_stages: Vec<String>,
    pub omit_managed_fields: bool,
    /// The address of the client.
    pub address: Option<SocketAddr>,
    /// The body of the request, if the policy wants it.
    pub request: Mutex<Option<Bytes>>,
    /// The user before impersonation, if the request impersonates another.
    pub impersonator: Option<User>,
    pub decision: Option<(&'static str, String)>,
}

impl AuditRecord {
    pub fn new(headers: &http::HeaderMap, peer: &Peer) -> AuditRecord {
        let given = headers.get("audit-id").and_then(|v| v.to_str().ok()).filter(|id| !id.is_empty() && id.len() <= 64);
        let id = given.map_or_else(|| uuid::Uuid::new_v4().to_string(), str::to_owned);
        AuditRecord { id, address: peer.address, ..AuditRecord::default() }
    }

    /// Keeps the body, if the audit event has it.
    pub fn keep_request(&self, body: &Bytes) {
        if self.level >= Level::Request {
            *self.request.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(body.clone());
        }
    }
}
