//! Answers to the challenges of ACME: the process that orders certificates writes them into one Secret, and every node
//! serves them, so it does not matter which node the authority's request comes to.
//!
//! Invariant: an answer is an exact path of its host on port 80, and so wins over redirects and all other rules; the
//! certificates of TLS-ALPN-01 are shown to clients that speak `acme-tls/1` alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use corten_meta::Key;
use corten_routing::{
    Filter, FixedResponse, HostPattern, Hosts, HttpHost, HttpRule, ListenerProtocol, ObjectName, PathMatch,
    ServerCertificate, Timeouts,
};
use serde::{Deserialize, Serialize};

use super::{NAMESPACE, Resolved};
use crate::objects::Objects;

/// The annotation of Gateways and Ingresses with the name of the AcmeIssuer that their certificates come from.
pub const ISSUER_ANNOTATION: &str = "edge.corten.dev/acme-issuer";
/// The name of the Secret with the answers.
const SECRET: &str = "acme-challenges";
/// The entry of the Secret's data with the answers as JSON.
pub const ENTRY: &str = "challenges";
/// The path of HTTP-01, which ends with the token.
const PATH: &str = "/.well-known/acme-challenge/";
const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;

/// All answers that nodes serve.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Challenges {
    /// Grows with every change; nodes report the one that they serve.
    pub version: i64,
    pub http: Vec<HttpChallenge>,
    pub tls: Vec<TlsChallenge>,
}

/// An answer of HTTP-01.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpChallenge {
    pub host: String,
    pub token: String,
    pub answer: String,
}

/// A certificate of TLS-ALPN-01, in PEM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsChallenge {
    pub host: String,
    pub certificate: String,
    pub key: String,
}

impl Challenges {
    /// Returns the key of the Secret.
    pub fn secret() -> Key {
        Key::new(NAMESPACE, SECRET)
    }

    /// Returns the key by which nodes report the version that they serve. No Gateway can have this name.
    pub fn reported() -> Key {
        Key::new(NAMESPACE, "acme:challenges")
    }

    /// Reads the answers of a Secret's data.
    pub fn read(data: &BTreeMap<String, String>) -> Option<Challenges> {
        let bytes = BASE64_STANDARD.decode(data.get(ENTRY)?).ok()?;
        serde_json::from_slice(&bytes).ok()
    }
}

/// Reports whether a Gateway or Ingress has certificates of an AcmeIssuer.
fn is_used(objects: &Objects) -> bool {
    let has = |annotations: &BTreeMap<String, String>| annotations.contains_key(ISSUER_ANNOTATION);
    objects.gateways.values().any(|gateway| has(&gateway.metadata.annotations))
        || objects.ingresses.values().any(|ingress| has(&ingress.metadata.annotations))
}

/// Adds the answers to the sockets of ports 80 and 443.
pub fn add(objects: &Objects, resolved: &mut Resolved) {
    if !is_used(objects) {
        return;
    }
    let key = Challenges::secret();
    resolved.references.secrets.insert(key.clone());
    let secret = objects.secrets.get(&key);
    let Some(challenges) = secret.and_then(|secret| Challenges::read(&secret.data)) else { return };
    let mut has_http = challenges.http.is_empty();
    let mut has_tls = challenges.tls.is_empty();
    for (place, listener) in &mut resolved.configuration.listeners {
        match (place.port, &listener.protocol) {
            (HTTP_PORT, ListenerProtocol::Http(hosts)) if !challenges.http.is_empty() => {
                let hosts = with_answers(hosts, &challenges.http);
                Arc::make_mut(listener).protocol = ListenerProtocol::Http(hosts);
                has_http = true;
            }
            (HTTPS_PORT, ListenerProtocol::Tls(_)) if !challenges.tls.is_empty() => {
                let certificates = challenges.tls.iter().map(|one| (one.host.clone(), certificate(one))).collect();
                Arc::make_mut(listener).options.challenges = Arc::new(certificates);
                has_tls = true;
            }
            _ => {}
        }
    }
    // A socket that has no port of the node yet comes with a later change.
    if has_http && has_tls {
        resolved.complete.insert(Challenges::reported(), challenges.version);
    }
}

fn certificate(challenge: &TlsChallenge) -> Arc<ServerCertificate> {
    let certificate = ServerCertificate {
        chain_pem: challenge.certificate.as_bytes().into(),
        key_pem: challenge.key.as_bytes().into(),
    };
    Arc::new(certificate)
}

/// Returns hosts with the answers before their own rules.
fn with_answers(hosts: &Hosts<Arc<HttpHost>>, challenges: &[HttpChallenge]) -> Hosts<Arc<HttpHost>> {
    let mut by_host: BTreeMap<&str, Vec<HttpRule>> = BTreeMap::new();
    for challenge in challenges {
        by_host.entry(&challenge.host).or_default().push(rule(challenge));
    }
    let mut answered = hosts.clone();
    for (name, rules) in by_host {
        let own = HttpHost::build(rules);
        let host = match hosts.find(name) {
            Some(other) => own.with_fallback(other.clone()),
            None => own,
        };
        answered.insert(HostPattern::Exact(name.to_owned()), Arc::new(host));
    }
    answered
}

fn rule(challenge: &HttpChallenge) -> HttpRule {
    let response = FixedResponse {
        status: 200,
        content_type: "application/octet-stream".into(),
        body: challenge.answer.as_bytes().into(),
        exempt: Vec::new(),
    };
    HttpRule {
        route: ObjectName { kind: "Secret", namespace: NAMESPACE.into(), name: SECRET.into() },
        rule_name: None,
        path: PathMatch::Exact(format!("{PATH}{}", challenge.token)),
        grpc_method: None,
        method: None,
        headers: Vec::new(),
        query: Vec::new(),
        filters: Arc::new([Filter::Respond(Arc::new(response))]),
        backends: Arc::new([]),
        timeouts: Timeouts::default(),
        retry: None,
        session: None,
        grpc: false,
    }
}
