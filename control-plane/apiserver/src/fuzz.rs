//! Entry points for the fuzz targets: decoders that are private to the API server. Nothing else may use them.
//!
//! Code that a client can reach by a request is fuzzed through [`crate::Server::handle`] instead.

use std::sync::Arc;

use bytes::Bytes;
use corten_managed_fields::{Managers, Set};
use corten_meta::Value;
use corten_protobuf as protobuf;
use http::{HeaderMap, HeaderValue, Method};
use tokio::sync::watch;

use crate::audit::policy::Policy;
use crate::authentication::{expiry_of_certificate, keys, oidc, user_of_certificate};
use crate::config::{Authorization, KubeconfigReader};
use crate::encryption::envelope::EncryptedObject;
use crate::negotiation::{Accept, Offer};
use crate::proxy::{backend, links};
use crate::registry::conversion_webhook;
use crate::request::RequestInfo;
use crate::stored_reader::StoredReader;
use crate::{aggregation, authentication, authorization, encryption, resource_metrics};

/// Decodes a protobuf body of a type.
pub fn protobuf(bytes: &[u8], schema: &str) -> Option<Value> {
    protobuf::object(bytes, schema).ok()
}

/// Encodes an object of a type as a protobuf body.
pub fn to_protobuf(value: &Value, schema: &str) -> Vec<u8> {
    protobuf::encode(value, schema)
}

/// Reads fieldsV1, and writes it again.
pub fn fields(value: &Value) -> Option<Value> {
    Some(Set::decode(value).ok()?.encode())
}

/// Reads managedFields, and writes it again.
pub fn managed_fields(value: &Value) -> Option<Value> {
    Managers::decode(Some(value)).ok()?.encode()
}

/// Reads a stored value of the built-in kind with this number, writes it and reads it again. Returns both readings.
pub fn stored(bytes: &[u8], kind: usize) -> Option<(Value, Value)> {
    let kinds = corten_api::kinds();
    let kind = &kinds[kind % kinds.len()];
    let reader = StoredReader::new(None).ok()?;
    let first = reader.decode(kind, Bytes::copy_from_slice(bytes)).ok()?.value();
    // The first reading may have fields that the schema does not.
    let second = reader.decode(kind, reader.encode(kind, &first)).ok()?.value();
    let third = reader.decode(kind, reader.encode(kind, &second)).ok()?.value();
    Some((second, third))
}

pub fn encryption_configuration(text: &str) -> Result<usize, String> {
    encryption::configuration::parse(text).map(|rules| rules.len())
}

/// Reads an AuthorizationConfiguration that may name no files.
pub fn authorization_configuration(text: &str) -> Result<usize, String> {
    let kubeconfig = KubeconfigReader(Arc::new(|_| Err("there are no files".to_owned())));
    let settings = Authorization { configuration: watch::channel(String::new()).1, kubeconfig };
    authorization::configuration::parse(text, &settings).map(|authorizers| authorizers.len())
}

pub fn authentication_configuration(text: &str) -> Result<(), String> {
    oidc::configuration::parse(text, "https://kubernetes.default.svc").map(drop)
}

/// Reads a Policy of audit.k8s.io.
pub fn audit_policy(text: &str) -> Result<(), String> {
    Policy::parse(text).map(drop)
}

/// Reads an object that a KMS plugin's key has encrypted.
pub fn encrypted_object(bytes: &[u8]) -> Result<(), String> {
    EncryptedObject::read(bytes).map(drop)
}

/// Reads the keys of an issuer and verifies a signature with them.
pub fn json_web_keys(document: &Value, algorithm: &str, signed: &[u8]) -> bool {
    oidc::keys::Keys::from_jwks(document).verify(algorithm, "", b"message", signed)
}

/// Reads a key of ServiceAccount tokens.
pub fn service_account_key(pem: &str) -> bool {
    keys::Key::from_pem(pem).is_ok()
}

/// Reads a client certificate; returns the name of its user.
pub fn certificate(der: &[u8]) -> Option<String> {
    let _ = expiry_of_certificate(der);
    Some(user_of_certificate(der)?.name)
}

/// Rewrites the links of a page behind the proxy.
pub fn page(bytes: &[u8]) -> Vec<u8> {
    let rewriter = links::LinkRewriter { prefix: "/api/v1/proxy", backend: "10.0.0.1:80", server: "10.96.0.1" };
    rewriter.page(bytes)
}

/// Unpacks a page behind the proxy.
pub fn packed_page(bytes: &[u8]) -> usize {
    backend::unpacked(bytes).map_or(0, |page| page.len())
}

/// Reads a request line; returns the path as it was read.
pub fn request(method: &Method, path: &str, query: &str) -> String {
    let info = RequestInfo::parse(method, path, query);
    let _ = (info.is_mutating(), info.is_long_running());
    info.path
}

/// Negotiates the media type of an Accept header.
pub fn accept(header: &[u8]) -> Option<&'static str> {
    let mut headers = HeaderMap::new();
    headers.insert(http::header::ACCEPT, HeaderValue::from_bytes(header).ok()?);
    let (accept, _) = Accept::negotiate(&headers, None, Offer::Collection, true);
    Some(accept.content_type())
}

/// Reads the response of a conversion webhook for one object; returns the object as it will be used.
pub fn converted(bytes: &[u8], original: &Value, wanted: &str) -> Result<Vec<Value>, String> {
    let objects = conversion_webhook::response(bytes, "v1", "u")?;
    objects.into_iter().map(|object| conversion_webhook::checked(original, object, wanted)).collect()
}

/// Reads the status of a response of authorization and authentication webhooks.
pub fn review_status(status: &Value) -> bool {
    let _ = authorization::webhook::verdict(status);
    authentication::webhook::verdict(status, &["a".to_owned()]).is_ok()
}

/// Reads the discovery document of an aggregated API server; returns how many resources it has.
pub fn aggregated(document: &Value) -> usize {
    let _ = aggregation::documents::part_of(document, "/apis/g/v1");
    aggregation::documents::resources(document, "g", "v1").len()
}

/// Reads a kubelet's stats of a pod.
pub fn pod_usage(stats: &Value) -> Option<Value> {
    resource_metrics::containers(stats)
}
