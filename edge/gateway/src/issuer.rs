//! AcmeIssuers: the authorities that certificates of Gateways and Ingresses are ordered from.

use corten_client::Resource as Kind;
use corten_meta::Value;
use serde::Deserialize;
use serde_json::json;

/// The API group of AcmeIssuers.
pub const GROUP: &str = "edge.corten.dev";
pub const VERSION: &str = "v1alpha1";
pub const PLURAL: &str = "acmeissuers";

/// The authority of an AcmeIssuer, and the account there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct IssuerSpec {
    /// The URL of the authority's directory.
    pub directory: String,
    pub email: Option<String>,
    pub challenge: ChallengeType,
    /// Certificates in PEM that are trusted beside the system's.
    pub ca_bundle: Option<String>,
    pub external_account_binding: Option<BindingSpec>,
}

/// The way in which the authority validates a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum ChallengeType {
    #[default]
    #[serde(rename = "HTTP-01")]
    Http,
    #[serde(rename = "TLS-ALPN-01")]
    TlsAlpn,
}

/// The credentials of a customer of the authority.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BindingSpec {
    #[serde(rename = "keyID")]
    pub key_id: String,
    /// The name of a Secret in the namespace corten-edge; its entry `hmac` is the key as the authority printed it.
    pub secret_name: String,
}

/// Returns the resource of AcmeIssuers.
pub fn acme_issuers() -> Kind {
    Kind::new(GROUP, VERSION, PLURAL, false)
}

/// Returns the CustomResourceDefinition of AcmeIssuers.
pub fn definition() -> Value {
    let string = |pattern: &str, most: u32| json!({"type": "string", "pattern": pattern, "maxLength": most});
    let name = json!({"type": "string", "minLength": 1, "maxLength": 253});
    let spec = json!({
        "type": "object",
        "required": ["directory"],
        "properties": {
            "directory": string("^https?://.+", 2048),
            "email": string("^[^@ ]+@[^@ ]+$", 320),
            "challenge": {"type": "string", "enum": ["HTTP-01", "TLS-ALPN-01"], "default": "HTTP-01"},
            "caBundle": {"type": "string", "maxLength": 65536},
            "externalAccountBinding": {
                "type": "object",
                "required": ["keyID", "secretName"],
                "properties": {"keyID": name, "secretName": name},
            },
        },
    });
    let schema = json!({
        "type": "object",
        "required": ["spec"],
        "properties": {
            "spec": spec,
            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        },
    });
    let column = |name: &str, path: &str| json!({"name": name, "type": "string", "jsonPath": path});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{PLURAL}.{GROUP}")},
        "spec": {
            "group": GROUP,
            "scope": "Cluster",
            "names": {"kind": "AcmeIssuer", "listKind": "AcmeIssuerList", "plural": PLURAL, "singular": "acmeissuer"},
            "versions": [{
                "name": VERSION,
                "served": true,
                "storage": true,
                "schema": {"openAPIV3Schema": schema},
                "subresources": {"status": {}},
                "additionalPrinterColumns": [
                    column("Directory", ".spec.directory"),
                    column("Ready", ".status.conditions[?(@.type=='Ready')].status"),
                ],
            }],
        },
    })
}
