//! Server names of Ingresses: certificates, client certificates, and TLS that goes on to backends.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use corten_meta::Key;
use corten_routing::{BackendRef, ClientValidation, HostPattern, Hosts, HttpHost, ServerCertificate, TlsHost, TlsUse};

use super::super::{Resolved, certificates, hosts};
use super::{Context, Ours, hosts_of, rules};
use crate::annotations::Https;
use crate::objects::{IngressTls, Reference};

/// The server names of all Ingresses.
#[derive(Default)]
pub struct ServerNames(BTreeMap<HostPattern, ServerName>);

#[derive(Default)]
struct ServerName {
    certificates: Vec<Arc<ServerCertificate>>,
    client_validation: Option<Arc<ClientValidation>>,
    /// The backends that get the bytes as they are.
    passthrough: Option<Arc<[BackendRef]>>,
}

impl ServerNames {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the entries of a TLS socket, whose plain bytes are requests for hosts.
    pub fn table(&self, hosts: &Hosts<Arc<HttpHost>>) -> Hosts<Arc<TlsHost>> {
        let mut names = Hosts::default();
        for (pattern, name) in &self.0 {
            let entry = match &name.passthrough {
                Some(backends) => TlsHost::Passthrough(backends.clone()),
                None => TlsHost::Terminate {
                    certificates: name.certificates.clone().into(),
                    client_validation: name.client_validation.clone(),
                    then: TlsUse::Http(hosts.clone()),
                },
            };
            names.insert(pattern.clone(), Arc::new(entry));
        }
        names
    }
}

/// Reports whether requests for a host are redirected to HTTPS.
pub fn is_https_only(one: &Ours<'_>, host: &HostPattern) -> bool {
    match one.options.https {
        Https::None => false,
        Https::All => true,
        Https::IfTls => one.object.spec.tls.iter().any(|tls| {
            tls.hosts.is_empty()
                || tls.hosts.iter().any(|name| hosts::covers(&hosts::ingress_pattern(Some(name)), host))
        }),
    }
}

impl Context<'_> {
    /// Adds the server names of an Ingress.
    pub fn add_names(&self, one: &Ours<'_>, names: &mut ServerNames, resolved: &mut Resolved) {
        if one.options.passthrough {
            self.add_passthrough(one, names, resolved);
            return;
        }
        let validation = self.client_validation(one, resolved);
        for tls in &one.object.spec.tls {
            let Some(name) = &tls.secret_name else { continue };
            let to = Reference { kind: "Secret".to_owned(), name: name.clone(), ..Reference::default() };
            let read = &mut resolved.references;
            let certificate =
                certificates::server_certificate(self.objects, one.from(), &to, "InvalidCertificate", read);
            let Ok(certificate) = certificate else { continue };
            for pattern in patterns(one, tls) {
                let entry = names.0.entry(pattern).or_default();
                entry.certificates.push(certificate.clone());
                entry.client_validation = entry.client_validation.take().or_else(|| validation.clone());
            }
        }
    }

    fn add_passthrough(&self, one: &Ours<'_>, names: &mut ServerNames, resolved: &mut Resolved) {
        for rule in &one.object.spec.rules {
            let Some(path) = rule.http.paths.first().filter(|_| rule.host.is_some()) else { continue };
            let backend = self.backend(one, &path.backend, resolved);
            let entry = names.0.entry(hosts::ingress_pattern(rule.host.as_deref())).or_default();
            entry.passthrough.get_or_insert_with(|| Arc::new([backend]));
        }
    }

    /// Returns the verification of client certificates. Without its Secret no certificate is valid.
    fn client_validation(&self, one: &Ours<'_>, resolved: &mut Resolved) -> Option<Arc<ClientValidation>> {
        let options = one.options.client_certificates.as_ref()?;
        let key = Key::new(one.object.metadata.namespace.clone(), options.secret.clone());
        resolved.references.secrets.insert(key.clone());
        let data = self.objects.secrets.get(&key).and_then(|secret| secret.data.get("ca.crt"));
        let trusted = data.and_then(|text| BASE64_STANDARD.decode(text).ok()).unwrap_or_default();
        let optional = options.optional && !trusted.is_empty();
        Some(Arc::new(ClientValidation { trusted_pem: trusted.into(), optional }))
    }
}

/// Returns the hosts of a certificate, with those that follow from annotations.
fn patterns(one: &Ours<'_>, tls: &IngressTls) -> Vec<HostPattern> {
    let mut patterns: Vec<HostPattern> = match tls.hosts.is_empty() {
        true => hosts_of(one.object).chain(one.object.spec.rules.is_empty().then_some(HostPattern::Any)).collect(),
        false => tls.hosts.iter().map(|host| hosts::ingress_pattern(Some(host))).collect(),
    };
    patterns.extend(one.options.aliases.iter().map(|alias| hosts::ingress_pattern(Some(alias))));
    if one.options.www_redirect {
        let twins = patterns.iter().filter_map(|pattern| match pattern {
            HostPattern::Exact(name) => Some(HostPattern::Exact(rules::www_twin(name))),
            _ => None,
        });
        let twins: Vec<HostPattern> = twins.filter(|twin| !patterns.contains(twin)).collect();
        patterns.extend(twins);
    }
    patterns
}
