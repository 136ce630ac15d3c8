//! Backends of Ingresses: the ports of their Services, and how connections to them are encrypted.

use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use corten_meta::Key;
use corten_routing::{
    Backend, BackendKey, BackendProtocol, BackendRef, BackendTls, ServerCertificate, TrustedCertificates,
};

use super::super::{Resolved, backends, table};
use super::{Context, Ours};
use crate::objects::{IngressBackend, Objects};
use crate::policy_spec::BackendSpec;

impl Context<'_> {
    /// Returns the reference to a backend, and adds the backend.
    pub fn backend(&self, one: &Ours<'_>, backend: &IngressBackend, resolved: &mut Resolved) -> BackendRef {
        let Some(key) = self.backend_key(one, backend) else { return backends::invalid(1) };
        if !resolved.configuration.backends.contains_key(&key) {
            let made = self.made(one, &key, resolved);
            resolved.configuration.backends.insert(key.clone(), Arc::new(made));
        }
        backends::reference(1, Some(key), Vec::new())
    }

    /// Returns the port of the Service that a backend names, by number or by name.
    pub fn backend_key(&self, one: &Ours<'_>, backend: &IngressBackend) -> Option<BackendKey> {
        let reference = backend.service.as_ref()?;
        let namespace = &one.object.metadata.namespace;
        let service = self.objects.services.get(&Key::new(namespace.clone(), reference.name.clone()))?;
        let port = service.spec.ports.iter().find(|port| match (&reference.port.number, &reference.port.name) {
            (Some(number), _) => port.port == *number,
            (None, Some(name)) => port.name == *name,
            (None, None) => false,
        })?;
        let service = reference.name.as_str().into();
        Some(BackendKey { namespace: namespace.as_str().into(), service, port: port.port })
    }

    fn made(&self, one: &Ours<'_>, key: &BackendKey, resolved: &mut Resolved) -> Backend {
        let protocol = one.options.protocol;
        let default = if protocol.is_grpc() { BackendProtocol::Http2 } else { BackendProtocol::Http1 };
        let mut made = table::backend(self.objects, key, default);
        if protocol.is_grpc() {
            made.protocol = BackendProtocol::Http2;
        }
        made.tls = self.policies.tls.tls(self.objects, key);
        if made.tls.is_none() && protocol.is_tls() {
            made.tls = Some(self.annotated_tls(one, key, resolved));
        }
        made
    }

    /// Returns TLS as annotations describe it: without verification unless they ask for it.
    fn annotated_tls(&self, one: &Ours<'_>, key: &BackendKey, resolved: &mut Resolved) -> BackendTls {
        let options = &one.options.backend_tls;
        let secret = options.secret.as_ref().map(|name| {
            let place = Key::new(one.object.metadata.namespace.clone(), name.clone());
            resolved.references.secrets.insert(place.clone());
            self.objects.secrets.get(&place)
        });
        let part = |name: &str| {
            let data = &secret.flatten()?.data;
            BASE64_STANDARD.decode(data.get(name)?).ok().filter(|bytes| !bytes.is_empty())
        };
        let trusted = match (options.verify, part("ca.crt")) {
            (true, Some(pem)) => TrustedCertificates::Pem(pem.into()),
            (true, None) => TrustedCertificates::Invalid,
            (false, _) => TrustedCertificates::Unverified,
        };
        let certificate = part("tls.crt")
            .zip(part("tls.key"))
            .map(|(chain, private)| Arc::new(ServerCertificate { chain_pem: chain.into(), key_pem: private.into() }));
        let own = format!("{}.{}.svc", key.service, key.namespace);
        BackendTls {
            hostname: options.name.clone().unwrap_or(own).into(),
            subject_alt_names: Arc::new([]),
            trusted,
            client_certificate: certificate,
        }
    }
}

/// Returns the first port of a Service.
pub fn first_port(objects: &Objects, namespace: &str, name: &str) -> Option<BackendSpec> {
    let service = objects.services.get(&Key::new(namespace, name))?;
    let port = service.spec.ports.first()?.port;
    Some(BackendSpec { name: name.to_owned(), namespace: None, port })
}
