//! The certificates that Gateways and Ingresses want: one for each Secret that an annotated one refers to.

use std::collections::{BTreeMap, BTreeSet};

use corten_gateway::objects::{GatewaySpec, IngressSpec, ListenerSpec, Resource};
use corten_gateway::resolve::ISSUER_ANNOTATION;
use corten_meta::Key;

/// The most names of a certificate; authorities refuse more.
const MAX_NAMES: usize = 100;

/// A certificate that should be in a Secret.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The name of the AcmeIssuer.
    pub issuer: String,
    /// The DNS names, in lower case.
    pub names: BTreeSet<String>,
    /// The Gateway or Ingress that wants it: its failures are reported there.
    pub owner: Owner,
}

/// An object that wants a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    pub api_version: &'static str,
    pub kind: &'static str,
    pub key: Key,
    pub uid: String,
}

/// Certificates by the Secret that they go into.
pub type Certificates = BTreeMap<Key, Wanted>;

/// Adds the certificates of a Gateway: those of listeners with a host name, in Secrets of its own namespace.
pub fn add_gateway(gateway: &Resource<GatewaySpec>, wanted: &mut Certificates) {
    let metadata = &gateway.metadata;
    let Some(issuer) = metadata.annotations.get(ISSUER_ANNOTATION) else { return };
    let owner = Owner {
        api_version: "gateway.networking.k8s.io/v1",
        kind: "Gateway",
        key: metadata.key(),
        uid: metadata.uid.clone(),
    };
    for listener in &gateway.spec.listeners {
        let Some(secret) = secret_of(listener, &metadata.namespace) else { continue };
        add(wanted, secret, issuer, &owner, listener.hostname.as_slice());
    }
}

/// Returns the Secret of a listener that ends TLS.
fn secret_of(listener: &ListenerSpec, namespace: &str) -> Option<Key> {
    let tls = listener.tls.as_ref().filter(|tls| tls.mode != "Passthrough")?;
    let reference = tls.certificate_refs.first()?;
    let is_secret = reference.group.is_empty() && (reference.kind.is_empty() || reference.kind == "Secret");
    let is_here = reference.namespace.as_deref().is_none_or(|other| other == namespace);
    (is_secret && is_here).then(|| Key::new(namespace, reference.name.clone()))
}

/// Adds the certificates of an Ingress: one for each entry of its `tls`.
pub fn add_ingress(ingress: &Resource<IngressSpec>, wanted: &mut Certificates) {
    let metadata = &ingress.metadata;
    let Some(issuer) = metadata.annotations.get(ISSUER_ANNOTATION) else { return };
    let owner =
        Owner { api_version: "networking.k8s.io/v1", kind: "Ingress", key: metadata.key(), uid: metadata.uid.clone() };
    for tls in &ingress.spec.tls {
        let Some(secret) = &tls.secret_name else { continue };
        add(wanted, Key::new(metadata.namespace.clone(), secret.clone()), issuer, &owner, &tls.hosts);
    }
}

/// Adds names to the certificate of a Secret. The first issuer of a Secret stays. Wildcards are left out: they can be
/// validated by DNS alone.
fn add(wanted: &mut Certificates, secret: Key, issuer: &str, owner: &Owner, names: &[String]) {
    let usable = |name: &&String| !name.is_empty() && !name.contains('*') && name.contains('.');
    let names: Vec<String> = names.iter().filter(usable).map(|name| name.to_ascii_lowercase()).collect();
    if names.is_empty() {
        return;
    }
    let first = || Wanted { issuer: issuer.to_owned(), owner: owner.clone(), names: BTreeSet::new() };
    let one = wanted.entry(secret).or_insert_with(first);
    let room = MAX_NAMES.saturating_sub(one.names.len());
    one.names.extend(names.into_iter().take(room));
}

#[cfg(test)]
mod tests {
    use corten_meta::Value;
    use serde_json::json;

    use super::*;

    fn metadata() -> Value {
        json!({"name": "web", "namespace": "shop", "annotations": {ISSUER_ANNOTATION: "public"}})
    }

    fn names(wanted: &Certificates, secret: &str) -> Vec<String> {
        let one = wanted.get(&Key::new("shop", secret));
        one.map(|one| one.names.iter().cloned().collect()).unwrap_or_default()
    }

    #[test]
    fn a_gateway_wants_a_certificate_for_each_secret_of_its_listeners() {
        let listener = |host: Value, secret: &str, mode: &str| {
            json!({"name": "a", "port": 443, "protocol": "HTTPS", "hostname": host,
                "tls": {"mode": mode, "certificateRefs": [{"name": secret}]}})
        };
        let listeners = [
            listener(json!("B.test"), "one", "Terminate"),
            listener(json!("a.test"), "one", "Terminate"),
            listener(json!("*.wild.test"), "wild", "Terminate"),
            listener(json!("c.test"), "passed", "Passthrough"),
            listener(Value::Null, "any", "Terminate"),
        ];
        let gateway = json!({"metadata": metadata(), "spec": {"listeners": listeners}});
        let mut wanted = Certificates::new();
        add_gateway(&serde_json::from_value(gateway).expect("a Gateway"), &mut wanted);
        assert_eq!(wanted.len(), 1, "{wanted:?}");
        assert_eq!(names(&wanted, "one"), ["a.test", "b.test"]);
    }

    #[test]
    fn an_ingress_wants_a_certificate_for_each_of_its_entries() {
        let tls = json!([{"hosts": ["a.test", "*.a.test"], "secretName": "one"}, {"hosts": ["b.test"]}]);
        let ingress = json!({"metadata": metadata(), "spec": {"tls": tls}});
        let mut wanted = Certificates::new();
        add_ingress(&serde_json::from_value(ingress).expect("an Ingress"), &mut wanted);
        assert_eq!(wanted.len(), 1, "{wanted:?}");
        assert_eq!(names(&wanted, "one"), ["a.test"]);
        let other = json!({"metadata": {"name": "x", "namespace": "shop"}, "spec": {"tls": [{"hosts": ["c.test"], "secretName": "two"}]}});
        add_ingress(&serde_json::from_value(other).expect("an Ingress"), &mut wanted);
        assert_eq!(wanted.len(), 1, "an Ingress without the annotation wants none: {wanted:?}");
    }
}
