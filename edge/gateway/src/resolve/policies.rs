//! BackendTLSPolicies: how connections to backends are encrypted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use corten_meta::{Key, Value};
use corten_routing::{BackendKey, BackendTls, Filter, HttpRule, TrustedCertificates};
use serde_json::json;

use super::certificates::{self, AuthorityReasons, Problem};
use super::gateways::Gateway;
use super::references::From;
use super::routes::{Attached, Route, parent_reference};
use super::{CONTROLLER, References, WantedStatus};
use crate::objects::{BackendTlsPolicySpec, Objects, Reference, Resource};
use crate::status::{self, Condition, conditions};

/// The policies of the cluster.
#[derive(Default)]
pub struct Policies<'a> {
    policies: Vec<Policy<'a>>,
    /// The policy of a Service, or of one of its ports by name.
    by_target: BTreeMap<Target, usize>,
}

/// A Service, or one of its ports.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Target {
    service: Key,
    port: Option<String>,
}

struct Policy<'a> {
    object: &'a Resource<BackendTlsPolicySpec>,
    tls: BackendTls,
    unaccepted: Option<Problem>,
    unresolved: Option<Problem>,
    /// The Gateways whose routes lead to a target.
    ancestors: BTreeSet<Key>,
}

/// Reads all policies, and finds the Gateways that they matter to.
pub fn apply<'a>(
    objects: &'a Objects,
    gateways: &[Gateway<'_>],
    attached: &[Attached<'_>],
    read: &mut References,
) -> Policies<'a> {
    let mut policies = Policies::default();
    let mut all: Vec<&Resource<BackendTlsPolicySpec>> = objects.policies.values().map(|one| &**one).collect();
    all.sort_by_cached_key(|policy| policy.metadata.age());
    let used = services(gateways, attached);
    for object in all {
        let mut policy = read_policy(objects, object, read);
        let mut targets = 0;
        for reference in object.spec.target_refs.iter().filter(|one| one.group.is_empty() && one.kind == "Service") {
            let service = Key::new(object.metadata.namespace.clone(), reference.name.clone());
            policy.ancestors.extend(used.get(&service).into_iter().flatten().cloned());
            let target = Target { service, port: reference.section_name.clone() };
            if let std::collections::btree_map::Entry::Vacant(place) = policies.by_target.entry(target) {
                place.insert(policies.policies.len());
                targets += 1;
            }
        }
        if targets == 0 {
            let message = "an older policy has the same target";
            policy.unaccepted = Some(Problem::new("Conflicted", message));
        }
        policies.policies.push(policy);
    }
    policies
}

/// Returns the Gateways that lead to each Service.
fn services(gateways: &[Gateway<'_>], attached: &[Attached<'_>]) -> BTreeMap<Key, BTreeSet<Key>> {
    let mut used: BTreeMap<Key, BTreeSet<Key>> = BTreeMap::new();
    for one in attached {
        let parents: BTreeSet<Key> =
            one.listeners.iter().filter_map(|place| gateways.get(place.gateway)).map(Gateway::key).collect();
        for backend in backends(one.route) {
            let service = Key::new(backend.namespace.to_string(), backend.service.to_string());
            used.entry(service).or_default().extend(parents.iter().cloned());
        }
    }
    used
}

/// Returns all backends that a route names.
pub fn backends<'a>(route: &'a Route<'_>) -> impl Iterator<Item = &'a BackendKey> {
    rule_backends(&route.rules.rules).chain(route.stream.iter().filter_map(|backend| backend.key.as_ref()))
}

/// Returns all backends that rules name.
pub fn rule_backends<'a>(rules: &'a [Arc<HttpRule>]) -> impl Iterator<Item = &'a BackendKey> {
    let mirrored = |filters: &'a [Filter]| {
        filters.iter().filter_map(|filter| match filter {
            Filter::Mirror(mirror) => Some(&mirror.backend),
            _ => None,
        })
    };
    rules.iter().flat_map(move |rule| {
        let own = rule.backends.iter().filter_map(|backend| backend.key.as_ref());
        let of_backends = rule.backends.iter().flat_map(move |backend| mirrored(&backend.filters));
        own.chain(mirrored(&rule.filters)).chain(of_backends)
    })
}

fn read_policy<'a>(objects: &Objects, object: &'a Resource<BackendTlsPolicySpec>, read: &mut References) -> Policy<'a> {
    let validation = &object.spec.validation;
    let from = From::gateway_api("BackendTLSPolicy", &object.metadata.namespace);
    let reasons = AuthorityReasons { kind: "InvalidKind", invalid: "InvalidCACertificateRef" };
    let mut unresolved = None;
    let mut unaccepted = None;
    let mut pem = Vec::new();
    for reference in &validation.ca_certificate_refs {
        match certificates::authorities(objects, from, reference, &reasons, read) {
            Ok(bytes) => {
                pem.extend(bytes);
                pem.push(b'\n');
            }
            Err(problem) => unresolved = Some(problem),
        }
    }
    let trusted = match validation.well_known_ca_certificates.as_deref() {
        Some("System") => TrustedCertificates::System,
        Some(name) => {
            let message = format!("there are no well-known certificates {name}");
            unaccepted = Some(Problem::new("Invalid", message));
            TrustedCertificates::Invalid
        }
        None if pem.is_empty() => {
            let message = "no certificate of an authority can be used";
            unaccepted = Some(Problem::new("NoValidCACertificate", message));
            TrustedCertificates::Invalid
        }
        None => TrustedCertificates::Pem(pem.into()),
    };
    let names = validation.subject_alt_names.iter();
    let names =
        names.map(|name| Arc::from(if name.type_ == "URI" { name.uri.as_str() } else { name.hostname.as_str() }));
    let tls = BackendTls {
        hostname: validation.hostname.as_str().into(),
        subject_alt_names: names.collect(),
        trusted,
        client_certificate: None,
    };
    Policy { object, tls, unaccepted, unresolved, ancestors: BTreeSet::new() }
}

impl Policies<'_> {
    /// Returns how connections to a Service's port are encrypted: the policy of the port, else that of the Service.
    pub fn tls(&self, objects: &Objects, backend: &BackendKey) -> Option<BackendTls> {
        let service = Key::new(backend.namespace.to_string(), backend.service.to_string());
        let ports = objects.services.get(&service).map(|service| service.spec.ports.as_slice()).unwrap_or_default();
        let port = ports.iter().find(|port| port.port == backend.port).map(|port| port.name.clone());
        let own = Target { service: service.clone(), port: port.or(Some(String::new())) };
        let number = self.by_target.get(&own).or_else(|| self.by_target.get(&Target { service, port: None }))?;
        self.policies.get(*number).map(|policy| policy.tls.clone())
    }
}

/// Adds the statuses of policies. Ancestors of other controllers keep theirs.
pub fn statuses(policies: &Policies<'_>, now: &str, statuses: &mut Vec<WantedStatus>) {
    for policy in &policies.policies {
        let object = policy.object;
        let current = &object.status["ancestors"];
        let entries = current.as_array().into_iter().flatten();
        let is_ours = |entry: &&Value| entry["controllerName"] == CONTROLLER;
        if policy.ancestors.is_empty() && !entries.clone().any(|entry| is_ours(&entry)) {
            continue;
        }
        let mut ancestors: Vec<Value> = entries.filter(|entry| !is_ours(entry)).cloned().collect();
        ancestors.extend(policy.ancestors.iter().map(|key| ancestor_status(policy, key, current, now)));
        // The API has room for sixteen.
        ancestors.truncate(16);
        let status = json!({"ancestors": ancestors});
        statuses.push(WantedStatus { plural: "backendtlspolicies", key: object.metadata.key(), status });
    }
}

fn ancestor_status(policy: &Policy<'_>, gateway: &Key, current: &Value, now: &str) -> Value {
    let namespace = Some(gateway.namespace.clone());
    let reference = parent_reference(&Reference { name: gateway.name.clone(), namespace, ..Reference::default() });
    let current = status::find(current, &[("ancestorRef", &reference), ("controllerName", &json!(CONTROLLER))]);
    let accepted = match &policy.unaccepted {
        None => Condition::is_true("Accepted", "Accepted", "the policy is accepted"),
        Some(problem) => Condition::is_false("Accepted", problem.reason, problem.message.clone()),
    };
    let resolved = match &policy.unresolved {
        None => Condition::is_true("ResolvedRefs", "ResolvedRefs", "all references are resolved"),
        Some(problem) => Condition::is_false("ResolvedRefs", problem.reason, problem.message.clone()),
    };
    json!({
        "ancestorRef": reference,
        "controllerName": CONTROLLER,
        "conditions":
            conditions(&[accepted, resolved], policy.object.metadata.generation, &current["conditions"], now),
    })
}
