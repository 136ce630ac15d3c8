//! The spec of a RoutePolicy. Annotations of Ingresses are read into the same structs, so that both ways to set something
//! end at one code, and an Ingress can be written down as a route with a policy.

use serde::{Deserialize, Serialize};

use crate::reference::Reference;

/// The settings of a policy. A field that is absent says nothing: a policy of a wider target may set it.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(default, rename_all = "camelCase")]
pub struct RoutePolicySpec {
    pub target_refs: Vec<Reference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_log: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub addresses: Option<AddressesSpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub basic_auth: Option<BasicAuthSpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub canary: Option<CanarySpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compression: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<ConcurrencySpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_pages: Option<ErrorPagesSpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forward_auth: Option<ForwardAuthSpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash_by: Option<HashBySpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jwt: Option<JwtSpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maintenance: Option<MaintenanceSpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_body_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rate_limits: Vec<RateLimitSpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetrySpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rewrite: Option<RewriteSpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionSpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<TimeoutsSpec>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(default)]
pub struct AddressesSpec {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(default, rename_all = "camelCase")]
pub struct BasicAuthSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub realm: Option<String>,
    pub secret_ref: SecretSpec,
}

/// A Secret of the policy's namespace, and one of its keys.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(default)]
pub struct SecretSpec {
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// A port of a Service.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(default)]
pub struct BackendSpec {
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    pub port: u16,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(default, rename_all = "camelCase")]
pub struct CanarySpec {
    pub backend_ref: BackendSpec,
    /// The cookie whose values `always` and `never` decide.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cookie: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<CanaryHeader>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_total: Option<u32>,
}

/// The header that decides: by a value, by a pattern, or by `always` and `never`.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(default)]
pub struct CanaryHeader {
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(default)]
pub struct ConcurrencySpec {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exempt: Vec<String>,
    pub requests: u32,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(default, rename_all = "camelCase")]
pub struct ErrorPagesSpec {
    pub backend_ref: BackendSpec,
    pub statuses: Vec<u16>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(default, rename_all = "camelCase")]
pub struct ForwardAuthSpec {
    pub backend_ref: BackendSpec,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    pub path: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub request_headers: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub response_headers: Vec<String>,
    #[serde(rename = "signInURL", skip_serializing_if = "Option::is_none")]
    pub sign_in_url: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(default)]
pub struct HashBySpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(rename = "type")]
    pub type_: String,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(default, rename_all = "camelCase")]
pub struct JwtSpec {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub audiences: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub claim_headers: Vec<ClaimHeaderSpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub issuer: Option<String>,
    pub jwks: JwksSpec,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(default)]
pub struct ClaimHeaderSpec {
    pub claim: String,
    pub header: String,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(default, rename_all = "camelCase")]
pub struct JwksSpec {
    /// The ConfigMap with the authorities that the server of `uri` is verified by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_certificate_ref: Option<ConfigMapSpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inline: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretSpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
}

/// A ConfigMap of the policy's namespace.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(default)]
pub struct ConfigMapSpec {
    pub name: String,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(default, rename_all = "camelCase")]
pub struct MaintenanceSpec {
    /// Clients that are served nevertheless.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(default)]
pub struct RateLimitSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exempt: Vec<String>,
    /// Client or Node; empty means Client.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub per: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<String>,
    pub requests: u32,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(default, rename_all = "camelCase")]
pub struct RetrySpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub codes: Vec<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotent_only: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(default)]
pub struct RewriteSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// The whole new path; `$1` is the first group of the rule's regular expression.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(default, rename_all = "camelCase")]
pub struct SessionSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub absolute_timeout: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cookie: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_timeout: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub same_site: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secure: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(default, rename_all = "camelCase")]
pub struct TimeoutsSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend_request: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
}
