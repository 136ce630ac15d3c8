//! Listeners of Gateways and ListenerSets: their kinds of routes, certificates and conflicts.

use std::collections::BTreeMap;
use std::sync::Arc;

use corten_routing::{ClientValidation, ServerCertificate, Transport};

use super::References;
use super::certificates::{self, AuthorityReasons, Problem};
use super::hosts;
use super::references::From;
use crate::crds::GROUP;
use crate::objects::{ClientCertificates, GatewaySpec, ListenerSpec, Objects, Resource};

/// A listener, with everything that is known of it before routes.
#[derive(Debug)]
pub struct Listener<'a> {
    pub spec: &'a ListenerSpec,
    /// The number of the ListenerSet among those of the Gateway; None for the Gateway's own listeners.
    pub set: Option<usize>,
    /// The namespace of the Gateway or ListenerSet.
    pub namespace: &'a str,
    pub kinds: Vec<&'static str>,
    /// An invalid configuration of the listener itself, for the condition Accepted.
    pub unacceptable: Option<Problem>,
    /// The reason of a conflict with a listener of higher precedence.
    pub conflict: Option<&'static str>,
    /// A reference that cannot be used, for the condition ResolvedRefs.
    pub unresolved: Option<Problem>,
    pub certificates: Vec<Arc<ServerCertificate>>,
    pub client_validation: Option<Arc<ClientValidation>>,
    pub attached: u32,
}

impl Listener<'_> {
    pub fn transport(&self) -> Transport {
        if self.spec.protocol == "UDP" { Transport::Udp } else { Transport::Tcp }
    }

    /// Reports whether the listener has a socket.
    pub fn is_bound(&self) -> bool {
        self.unacceptable.is_none() && self.conflict.is_none()
    }

    /// Reports whether the listener serves requests. One that may terminate TLS with none of its certificates does not.
    pub fn is_valid(&self) -> bool {
        let has_certificates = !self.terminates() || !self.certificates.is_empty();
        self.is_bound() && has_certificates
    }

    pub fn terminates(&self) -> bool {
        match self.spec.protocol.as_str() {
            "HTTPS" => true,
            "TLS" => !self.is_passthrough(),
            _ => false,
        }
    }

    pub fn is_passthrough(&self) -> bool {
        self.spec.tls.as_ref().is_some_and(|tls| tls.mode == "Passthrough")
    }
}

/// Returns the kinds of routes that listeners of a protocol take.
fn kinds_of(protocol: &str) -> &'static [&'static str] {
    match protocol {
        "HTTP" | "HTTPS" => &["HTTPRoute", "GRPCRoute"],
        "TLS" => &["TLSRoute"],
        "TCP" => &["TCPRoute"],
        "UDP" => &["UDPRoute"],
        _ => &[],
    }
}

/// The Gateway that a listener belongs to, and the object that declares it.
pub struct Context<'a> {
    pub objects: &'a Objects,
    pub gateway: &'a Resource<GatewaySpec>,
    pub set: Option<usize>,
    /// The kind and namespace that references come from.
    pub from: From<'a>,
}

/// Reads a listener.
pub fn read<'a>(context: &Context<'a>, spec: &'a ListenerSpec, read: &mut References) -> Listener<'a> {
    let supported = kinds_of(&spec.protocol);
    let mut listener = Listener {
        spec,
        set: context.set,
        namespace: context.from.namespace,
        kinds: supported.to_vec(),
        unacceptable: None,
        conflict: None,
        unresolved: None,
        certificates: Vec::new(),
        client_validation: None,
        attached: 0,
    };
    if supported.is_empty() {
        let message = format!("protocol {} is not supported", spec.protocol);
        listener.unacceptable = Some(Problem::new("UnsupportedProtocol", message));
    }
    read_kinds(&mut listener, supported);
    if listener.terminates() {
        read_certificates(context, &mut listener, read);
        read_validation(context, &mut listener, read);
    }
    listener
}

/// Keeps the kinds that the listener allows. Those of other protocols make it unresolved.
fn read_kinds(listener: &mut Listener<'_>, supported: &'static [&'static str]) {
    let allowed = &listener.spec.allowed_routes.kinds;
    if allowed.is_empty() || supported.is_empty() {
        return;
    }
    let is_allowed =
        |kind: &str| allowed.iter().any(|one| one.kind == kind && one.group.as_deref().unwrap_or(GROUP) == GROUP);
    listener.kinds = supported.iter().copied().filter(|kind| is_allowed(kind)).collect();
    let is_known = |one: &&crate::objects::RouteKind| {
        one.group.as_deref().unwrap_or(GROUP) == GROUP && supported.contains(&one.kind.as_str())
    };
    if let Some(unknown) = allowed.iter().find(|one| !is_known(one)) {
        let message = format!("kind {} cannot be attached to a listener of {}", unknown.kind, listener.spec.protocol);
        listener.unresolved = Some(Problem::new("InvalidRouteKinds", message));
    }
}

fn read_certificates(context: &Context<'_>, listener: &mut Listener<'_>, read: &mut References) {
    let references = listener.spec.tls.iter().flat_map(|tls| &tls.certificate_refs);
    for reference in references {
        let invalid = "InvalidCertificateRef";
        match certificates::server_certificate(context.objects, context.from, reference, invalid, read) {
            Ok(certificate) => listener.certificates.push(certificate),
            Err(problem) => listener.unresolved = Some(problem),
        }
    }
    if listener.certificates.is_empty() && listener.unresolved.is_none() {
        let message = "the listener names no certificate";
        listener.unresolved = Some(Problem::new("InvalidCertificateRef", message));
    }
}

/// Reads how client certificates are verified at the listener's port.
fn read_validation(context: &Context<'_>, listener: &mut Listener<'_>, read: &mut References) {
    let Some(validation) = validation_of(&context.gateway.spec, listener.spec.port) else { return };
    let from = From::gateway_api("Gateway", &context.gateway.metadata.namespace);
    let reasons = AuthorityReasons { kind: "InvalidCACertificateKind", invalid: "InvalidCACertificateRef" };
    let mut trusted = Vec::new();
    for reference in &validation.ca_certificate_refs {
        match certificates::authorities(context.objects, from, reference, &reasons, read) {
            Ok(pem) => {
                trusted.extend(pem);
                trusted.push(b'\n');
            }
            Err(problem) => listener.unresolved = Some(problem),
        }
    }
    if trusted.is_empty() {
        let message = "no authority of client certificates can be used";
        listener.unacceptable = Some(Problem::new("NoValidCACertificate", message));
        return;
    }
    let optional = validation.mode == "AllowInsecureFallback";
    listener.client_validation = Some(Arc::new(ClientValidation { trusted_pem: trusted.into(), optional }));
}

/// Returns the validation of client certificates at a port: its own, else the default.
pub fn validation_of(gateway: &GatewaySpec, port: u16) -> Option<&ClientCertificates> {
    let frontend = &gateway.tls.frontend;
    match frontend.per_port.iter().find(|one| one.port == port) {
        Some(own) => own.tls.validation.as_ref(),
        None => frontend.default.validation.as_ref(),
    }
}

/// A family of protocols that can share a port.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    Http,
    Tls,
    Tcp,
    Udp,
}

fn family(protocol: &str) -> Option<Family> {
    match protocol {
        "HTTP" => Some(Family::Http),
        "HTTPS" | "TLS" => Some(Family::Tls),
        "TCP" => Some(Family::Tcp),
        "UDP" => Some(Family::Udp),
        _ => None,
    }
}

/// Finds conflicts. Listeners are in the order of precedence: the first of those that cannot share a port keeps it.
pub fn find_conflicts(listeners: &mut [Listener<'_>]) {
    let mut families: BTreeMap<(u16, Transport), Family> = BTreeMap::new();
    let mut names = std::collections::BTreeSet::new();
    for listener in listeners.iter_mut() {
        let Some(family) = family(&listener.spec.protocol) else { continue };
        let port = listener.spec.port;
        if *families.entry((port, listener.transport())).or_insert(family) != family {
            listener.conflict = Some("ProtocolConflict");
            continue;
        }
        let host = hosts::pattern(listener.spec.hostname.as_deref());
        if !names.insert((port, listener.transport(), host)) {
            listener.conflict = Some("HostnameConflict");
        }
    }
}
