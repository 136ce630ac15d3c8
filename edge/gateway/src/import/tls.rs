//! Listeners of the Gateway: HTTP for all hosts, and one of TLS for each host with a certificate.

use corten_meta::Key;
use serde_json::{Value, json};

use super::{Grant, Importer, Source};
use crate::annotations::Https;
use crate::crds::GROUP;
use crate::objects::IngressRule;

/// A listener of the Gateway.
#[derive(Clone, Debug)]
pub(super) struct Section {
    gateway: Key,
    name: String,
}

/// The listeners of one host.
pub(super) struct Sections {
    pub(super) serving: Vec<Section>,
    /// The listener whose requests are redirected to HTTPS.
    pub(super) redirecting: Option<Section>,
}

impl Section {
    pub(super) fn reference(&self) -> Value {
        json!({"name": self.gateway.name, "namespace": self.gateway.namespace, "sectionName": self.name})
    }
}

impl Importer {
    /// Returns the listener of HTTP.
    pub(super) fn http_section(&mut self) -> Section {
        self.section("http", || json!({"port": 80, "protocol": "HTTP"}))
    }

    fn section(&mut self, name: &str, listener: impl FnOnce() -> Value) -> Section {
        let entry = self.listeners.entry(name.to_owned()).or_insert_with(|| {
            let mut listener = listener();
            listener["name"] = json!(name);
            listener["allowedRoutes"] = json!({"namespaces": {"from": "All"}});
            listener
        });
        let name = entry["name"].as_str().unwrap_or_default().to_owned();
        Section { gateway: self.config.gateway.clone(), name }
    }

    /// Returns the listeners of a host of an Ingress.
    pub(super) fn sections(&mut self, source: &Source, host: Option<&str>) -> Sections {
        let spec = &source.object.spec;
        let is_meant =
            |hosts: &[String]| hosts.is_empty() || host.is_some_and(|host| hosts.iter().any(|other| other == host));
        let tls = spec.tls.iter().find(|tls| is_meant(&tls.hosts)).and_then(|tls| tls.secret_name.clone());
        let https = tls.map(|secret| self.https_section(source, host, &secret));
        let is_redirected = match source.options.https {
            Https::None => false,
            Https::IfTls => https.is_some(),
            Https::All => true,
        };
        let http = self.http_section();
        let serving = match is_redirected {
            true => https.into_iter().collect(),
            false => [http.clone()].into_iter().chain(https).collect(),
        };
        Sections { serving, redirecting: is_redirected.then_some(http) }
    }

    fn https_section(&mut self, source: &Source, host: Option<&str>, secret: &str) -> Section {
        let namespace = &source.object.metadata.namespace;
        let own = self.config.gateway.namespace.clone();
        let to_secret = Grant { group: GROUP, kind: "Gateway", namespace: own, to: "Secret", name: secret.to_owned() };
        self.grant(namespace, to_secret);
        self.section(&format!("https-{}", label(host)), || {
            let certificate = json!({"name": secret, "namespace": namespace});
            let tls = json!({"mode": "Terminate", "certificateRefs": [certificate]});
            let mut listener = json!({"port": 443, "protocol": "HTTPS", "tls": tls});
            if let Some(host) = host {
                listener["hostname"] = json!(host);
            }
            listener
        })
    }

    /// Adds a TLSRoute for a host whose TLS goes on to the backend.
    pub(super) fn add_passthrough(&mut self, source: &Source, rule: &IngressRule, name: &str) {
        let Some(path) = rule.http.paths.first().filter(|_| rule.host.is_some()) else {
            return self.note(source, "ssl-passthrough: a rule has no host or no path");
        };
        let Some(backend) = self.backend(source, &path.backend) else { return };
        let host = rule.host.as_deref();
        let section = self.section(
            &format!("tls-{}", label(host)),
            || json!({"port": 443, "protocol": "TLS", "hostname": host, "tls": {"mode": "Passthrough"}}),
        );
        self.push(json!({
            "apiVersion": format!("{GROUP}/v1"),
            "kind": "TLSRoute",
            "metadata": {"name": name, "namespace": source.object.metadata.namespace},
            "spec": {
                "parentRefs": [section.reference()],
                "hostnames": [host],
                "rules": [{"backendRefs": [backend]}],
            },
        }));
    }
}

/// Returns the part of a listener's name that stands for a host.
fn label(host: Option<&str>) -> String {
    match host {
        None => "any".to_owned(),
        Some(host) => host.replace("*.", "any.").chars().take(200).collect(),
    }
}
