//! A remote API server: its address, its trust and this server's identity towards it.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use bytes::Bytes;
use corten_access::User;
use corten_meta::quote::quote;
use corten_meta::{Status, Value};
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;

use crate::config::ProxyClient;
use crate::outbound::{self, Identity, Outbound};

/// The timeout of a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The timeout of a document.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum size of a document.
const MAX_DOCUMENT: usize = 32 * 1024 * 1024;

pub type OutBody = UnsyncBoxBody<Bytes, hyper::Error>;

/// A remote API server, as its APIService describes it.
pub struct Remote {
    pub group: String,
    pub version: String,
    pub group_priority: i64,
    pub version_priority: i64,
    pub namespace: String,
    pub service: String,
    pub port: u16,
    spec: Value,
    /// The identity of this server when `tls` was made.
    identity: Option<Arc<ProxyClient>>,
    tls: Result<Arc<rustls::ClientConfig>, String>,
}

impl Remote {
    pub fn new(identity: Option<Arc<ProxyClient>>, trusted_roots: &str, api_service: &Value) -> Remote {
        let spec = &api_service["spec"];
        let string = |pointer: &str| spec.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let number = |pointer: &str| spec.pointer(pointer).and_then(Value::as_i64).unwrap_or(0);
        Remote {
            group: string("/group"),
            version: string("/version"),
            group_priority: number("/groupPriorityMinimum"),
            version_priority: number("/versionPriority"),
            namespace: string("/service/namespace"),
            service: string("/service/name"),
            port: u16::try_from(number("/service/port")).ok().filter(|port| *port != 0).unwrap_or(443),
            spec: spec.clone(),
            tls: tls(trusted_roots, spec, identity.as_deref()).map(Arc::new),
            identity,
        }
    }

    pub fn group_version_of(api_service: &Value) -> (String, String) {
        let string =
            |pointer: &str| api_service.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        (string("/spec/group"), string("/spec/version"))
    }

    pub fn group_version(&self) -> (String, String) {
        (self.group.clone(), self.version.clone())
    }

    /// Reports whether the APIService and this server's identity are unchanged.
    pub fn is_of(&self, identity: Option<&Arc<ProxyClient>>, api_service: &Value) -> bool {
        let same = match (&self.identity, identity) {
            (Some(own), Some(current)) => Arc::ptr_eq(own, current),
            (own, current) => own.is_none() && current.is_none(),
        };
        same && self.spec == api_service["spec"]
    }

    /// Returns `/apis/group/version`.
    pub fn path(&self) -> String {
        format!("/apis/{}/{}", self.group, self.version)
    }

    /// Connects to an endpoint of the Service; returns also its host and port.
    pub async fn connect(&self, outbound: &Outbound) -> Result<(SendRequest<OutBody>, String), Status> {
        let (host, port) = outbound.resolve(&self.namespace, &self.service, self.port)?;
        let unreachable = |e: String| Status::service_unavailable(format!("error trying to reach service: {e}"));
        let tls = self.tls.as_ref().map_err(Status::internal)?;
        let connecting = async {
            let stream = outbound::dial(&host, port).await?;
            let name = format!("{}.{}.svc", self.service, self.namespace);
            let name = ServerName::try_from(name).map_err(|e| e.to_string())?;
            let connector = tokio_rustls::TlsConnector::from(Arc::clone(tls));
            let stream = connector.connect(name, stream).await.map_err(|e| outbound::go_message(&e))?;
            handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())
        };
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, connecting).await;
        let connected = connected.unwrap_or_else(|_| Err(format!("dial tcp {host}:{port}: i/o timeout")));
        let (sender, connection) = connected.map_err(unreachable)?;
        // The task runs until both sides close the connection, or the server ends.
        outbound.tasks.spawn_until_drained(async move {
            if let Err(e) = connection.with_upgrades().await {
                tracing::debug!(error = %e, "a connection to an aggregated API server ended");
            }
        });
        Ok((sender, format!("{host}:{port}")))
    }

    /// Fetches a document of the server, as the aggregator itself. Errors have upstream's words.
    pub async fn fetch(&self, outbound: &Outbound, path: &str) -> Result<(StatusCode, Bytes), String> {
        let fetching = async {
            let (mut sender, host) = self.connect(outbound).await.map_err(|status| status.message)?;
            let url = format!("https://{host}{path}");
            let failing =
                |e: &dyn std::fmt::Display| format!("failing or missing response from {url}: Get {}: {e}", quote(&url));
            let nothing = Full::new(Bytes::new()).map_err(|never| match never {}).boxed_unsync();
            let mut request = Request::get(path).header(header::HOST, &host).header(header::ACCEPT, "application/json");
            if let Some(headers) = request.headers_mut() {
                let aggregator = User {
                    name: "system:kube-aggregator".to_owned(),
                    groups: vec!["system:masters".to_owned()],
                    ..User::default()
                };
                set_user(headers, &aggregator);
            }
            let request = request.body(nothing).map_err(|e| e.to_string())?;
            let response = sender.send_request(request).await.map_err(|e| failing(&e))?;
            let code = response.status();
            let body = Limited::new(response.into_body(), MAX_DOCUMENT).collect().await.map_err(|e| failing(&e))?;
            if !code.is_success() {
                return Err(format!(
                    "failing or missing response from {url}: bad status from {url}: {}",
                    code.as_u16()
                ));
            }
            Ok((code, body.to_bytes()))
        };
        match tokio::time::timeout(FETCH_TIMEOUT, fetching).await {
            Ok(fetched) => fetched,
            Err(_) => Err(format!("timed out waiting for https://{}.{}.svc{path}", self.service, self.namespace)),
        }
    }
}

fn tls(trusted_roots: &str, spec: &Value, identity: Option<&ProxyClient>) -> Result<rustls::ClientConfig, String> {
    let identity = identity.map(|c| Identity { certificate: &c.certificate, key: &c.key });
    if spec["insecureSkipTLSVerify"] == true {
        return outbound::unverified_config(identity.as_ref()).map_err(|e| e.to_string());
    }
    let bundle = spec["caBundle"].as_str().and_then(|b| base64::engine::general_purpose::STANDARD.decode(b).ok());
    let bundle = bundle.and_then(|pem| String::from_utf8(pem).ok()).filter(|pem| !pem.is_empty());
    let bundle = bundle.unwrap_or_else(|| trusted_roots.to_owned());
    outbound::client_config(&bundle, identity.as_ref()).map_err(|e| e.to_string())
}

const USER: HeaderName = HeaderName::from_static("x-remote-user");
const UID: HeaderName = HeaderName::from_static("x-remote-uid");
const GROUPS: HeaderName = HeaderName::from_static("x-remote-group");
const EXTRA: &str = "x-remote-extra-";

/// Reports whether a header identifies the user. Only this server writes such headers.
pub fn is_user_header(name: &HeaderName) -> bool {
    [USER, UID, GROUPS].contains(name) || name.as_str().starts_with(EXTRA)
}

/// Writes the user into the headers that a remote server trusts.
pub fn set_user(headers: &mut HeaderMap, user: &User) {
    let stale: Vec<HeaderName> = headers.keys().filter(|name| is_user_header(name)).cloned().collect();
    for name in stale {
        headers.remove(name);
    }
    let mut put = |name: HeaderName, value: &str| {
        if let Ok(value) = HeaderValue::from_bytes(value.as_bytes()) {
            headers.append(name, value);
        }
    };
    put(USER, &user.name);
    if !user.uid.is_empty() {
        put(UID, &user.uid);
    }
    user.groups.iter().for_each(|group| put(GROUPS, group));
    for (key, values) in &user.extra {
        let Ok(name) = HeaderName::try_from(format!("{EXTRA}{}", escaped(key))) else { continue };
        values.iter().for_each(|value| put(name.clone(), value));
    }
}

/// Escapes a key of extra information for a header's name: lower case, other characters percent-encoded.
fn escaped(key: &str) -> String {
    let mut out = String::with_capacity(key.len());
    for byte in key.to_ascii_lowercase().bytes() {
        let legal = byte.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&byte);
        if legal {
            out.push(byte as char);
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_headers_of_the_client_are_replaced() {
        let mut headers = HeaderMap::new();
        headers.insert("x-remote-user", HeaderValue::from_static("root"));
        headers.insert("x-remote-group", HeaderValue::from_static("system:masters"));
        headers.insert("x-remote-extra-scopes", HeaderValue::from_static("all"));
        headers.insert("accept", HeaderValue::from_static("*/*"));
        let mut user = User::new("jane", &["dev"]);
        user.extra.insert("example.org/Key".to_owned(), vec!["v".to_owned()]);
        set_user(&mut headers, &user);
        let all = |name: &str| headers.get_all(name).iter().map(|v| v.to_str().unwrap()).collect::<Vec<_>>();
        assert_eq!(all("x-remote-user"), ["jane"]);
        assert_eq!(all("x-remote-group"), ["dev", "system:authenticated"]);
        assert_eq!(all("x-remote-extra-scopes"), Vec::<&str>::new());
        assert_eq!(all("x-remote-extra-example.org%2fkey"), ["v"]);
        assert_eq!(all("accept"), ["*/*"]);
    }
}
