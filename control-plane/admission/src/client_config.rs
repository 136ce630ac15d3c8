//! The server of a webhook: the `clientConfig` of webhook configurations and CRDs.

use base64::Engine;
use corten_meta::Value;

/// The server of a webhook, its path, and its CA bundle.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClientConfig {
    pub server: Server,
    /// The path with its leading slash; may be empty.
    pub path: String,
    /// PEM; empty for the authorities that this machine trusts.
    pub ca_bundle: String,
}

/// A host or a Service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Server {
    Url { host: String, port: u16 },
    Service { namespace: String, name: String, port: u16 },
}

impl ClientConfig {
    pub fn from_value(config: &Value) -> Result<ClientConfig, String> {
        let string = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
        let ca_bundle = match config["caBundle"].as_str() {
            Some(encoded) => base64::engine::general_purpose::STANDARD
                .decode(encoded)
                .ok()
                .and_then(|pem| String::from_utf8(pem).ok())
                .ok_or("unable to load root certificates: unable to parse bytes as PEM block")?,
            None => String::new(),
        };
        let service = &config["service"];
        if service.is_object() {
            let port = service["port"].as_u64().and_then(|port| u16::try_from(port).ok()).unwrap_or(443);
            let server =
                Server::Service { namespace: string(service, "namespace"), name: string(service, "name"), port };
            let path = string(service, "path");
            let path = if path.is_empty() || path.starts_with('/') { path } else { format!("/{path}") };
            return Ok(ClientConfig { server, path, ca_bundle });
        }
        let url = config["url"].as_str().ok_or("webhook configuration must have either service or URL")?;
        let uri: http::Uri = url.parse().map_err(|e| format!("Unparsable URL: {e}"))?;
        let host = uri.host().ok_or("Unparsable URL: no host")?.to_owned();
        let server = Server::Url { host, port: uri.port_u16().unwrap_or(443) };
        let path = if url.trim_end_matches('/').matches('/').count() < 3 { "" } else { uri.path() };
        Ok(ClientConfig { server, path: path.to_owned(), ca_bundle })
    }

    /// Returns the name that the server's certificate must have.
    pub fn server_name(&self) -> String {
        match &self.server {
            Server::Url { host, .. } => host.trim_start_matches('[').trim_end_matches(']').to_owned(),
            Server::Service { namespace, name, .. } => format!("{name}.{namespace}.svc"),
        }
    }

    /// Returns the `Host` header of requests.
    pub fn authority(&self) -> String {
        match &self.server {
            Server::Url { host, port } if *port == 443 => host.clone(),
            Server::Url { host, port } => format!("{host}:{port}"),
            Server::Service { port, .. } => format!("{}:{port}", self.server_name()),
        }
    }

    /// Returns the URL for error messages.
    pub fn url(&self) -> String {
        let path = if self.path.is_empty() { "/" } else { &self.path };
        format!("https://{}{path}", self.authority())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn client_configs_are_decoded() {
        let url = |config: Value| ClientConfig::from_value(&config).map(|c| (c.url(), c.server_name()));
        for (config, expected, name) in [
            (json!({ "url": "https://hook.example.com" }), "https://hook.example.com/", "hook.example.com"),
            (json!({ "url": "https://h:8443/a/b" }), "https://h:8443/a/b", "h"),
            (json!({ "url": "https://[::1]:9/x" }), "https://[::1]:9/x", "::1"),
            (
                json!({ "service": { "namespace": "n", "name": "s", "path": "/p", "port": 8443 } }),
                "https://s.n.svc:8443/p",
                "s.n.svc",
            ),
            (json!({ "service": { "namespace": "n", "name": "s" } }), "https://s.n.svc:443/", "s.n.svc"),
        ] {
            assert_eq!(url(config), Ok((expected.to_owned(), name.to_owned())));
        }
        assert!(url(json!({})).is_err());
        assert!(url(json!({ "url": "https://h", "caBundle": "%" })).is_err());
    }
}
