//! RoutePolicies: which targets they have, which of several wins, and their statuses.
//!
//! Of two policies of one target the older has it; the other is Conflicted. A policy of a Gateway concerns all routes of
//! the Gateway, one of a listener those of the listener, one of a route its rules.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use corten_meta::{Key, Value};
use corten_routing::{BackendKey, BackendRef, Filter, HttpRule, ObjectName};
use serde_json::json;

use super::certificates::Problem;
use super::gateways::Gateway;
use super::listeners::Listener;
use super::policy::{self, Read, Source};
use super::references::From;
use super::routes::{Attached, parent_reference};
use super::settings::Settings;
use super::{CONTROLLER, References, WantedStatus, policies};
use crate::crds::{GROUP, POLICY_GROUP};
use crate::objects::{Objects, Reference, Resource, RoutePolicySpec};
use crate::status::{self, Condition, conditions};

/// The kinds of objects that a policy may have as its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Gateway,
    ListenerSet,
    HttpRoute,
    GrpcRoute,
    Ingress,
    Service,
}

impl Kind {
    fn of(reference: &Reference) -> Option<Kind> {
        match (reference.group.as_str(), reference.kind.as_str()) {
            (GROUP, "Gateway") => Some(Kind::Gateway),
            (GROUP, "ListenerSet") => Some(Kind::ListenerSet),
            (GROUP, "HTTPRoute") => Some(Kind::HttpRoute),
            (GROUP, "GRPCRoute") => Some(Kind::GrpcRoute),
            ("networking.k8s.io", "Ingress") => Some(Kind::Ingress),
            ("", "Service") => Some(Kind::Service),
            _ => None,
        }
    }

    fn of_route(kind: &str) -> Option<Kind> {
        match kind {
            "HTTPRoute" => Some(Kind::HttpRoute),
            "GRPCRoute" => Some(Kind::GrpcRoute),
            _ => None,
        }
    }
}

/// An object, or a part of it by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Target {
    kind: Kind,
    key: Key,
    section: Option<String>,
}

/// The policies of the cluster.
#[derive(Default)]
pub struct RoutePolicies<'a> {
    policies: Vec<Policy<'a>>,
    by_target: BTreeMap<Target, usize>,
}

struct Policy<'a> {
    object: &'a Resource<RoutePolicySpec>,
    read: Read,
    /// The objects that the policy has a condition for, with the reason why it does not hold there.
    ancestors: Vec<Ancestor>,
}

/// An object that a policy has conditions for.
struct Ancestor {
    reference: Value,
    refused: Option<Problem>,
}

/// Reads all policies, and finds their targets.
pub fn collect<'a>(
    objects: &'a Objects,
    gateways: &[Gateway<'_>],
    attached: &[Attached<'_>],
    references: &mut References,
) -> RoutePolicies<'a> {
    let mut all: Vec<&Resource<RoutePolicySpec>> = objects.route_policies.values().map(|one| &**one).collect();
    all.sort_by_cached_key(|policy| policy.metadata.age());
    let mut policies = RoutePolicies::default();
    for object in all {
        let metadata = &object.metadata;
        let from = From { group: POLICY_GROUP, kind: "RoutePolicy", namespace: &metadata.namespace };
        let name = format!("policy/{}/{}", metadata.namespace, metadata.name);
        let mut read = policy::read(Source { objects, from, name: &name }, &object.spec, references);
        let has_service = object.spec.target_refs.iter().any(|target| Kind::of(target) == Some(Kind::Service));
        if has_service && let Some(field) = beyond_services(&object.spec) {
            let message = format!("{field} cannot be set for a Service");
            read.invalid.get_or_insert(Problem::new("Invalid", message));
        }
        let mut policy = Policy { object, read, ancestors: Vec::new() };
        for reference in &object.spec.target_refs {
            let refused = policies.take_target(objects, gateways, object, reference);
            let refused = refused.err().or_else(|| policy.read.invalid.clone());
            for reference in ancestors(gateways, attached, object, reference) {
                policy.add_ancestor(reference, refused.clone());
            }
        }
        policies.policies.push(policy);
    }
    policies
}

/// Returns a field that has no meaning for one of several backends of a rule.
fn beyond_services(spec: &RoutePolicySpec) -> Option<&'static str> {
    let fields = [
        ("canary", spec.canary.is_some()),
        ("compression", spec.compression.is_some()),
        ("accessLog", spec.access_log.is_some()),
        ("errorPages", spec.error_pages.is_some()),
        ("hashBy", spec.hash_by.is_some()),
        ("maintenance", spec.maintenance.is_some()),
        ("retry", spec.retry.is_some()),
        ("rewrite", spec.rewrite.is_some()),
        ("session", spec.session.is_some()),
        ("timeouts", spec.timeouts.is_some()),
    ];
    fields.iter().find(|(_, is_set)| *is_set).map(|(name, _)| *name)
}

impl Policy<'_> {
    fn add_ancestor(&mut self, reference: Value, refused: Option<Problem>) {
        match self.ancestors.iter_mut().find(|ancestor| ancestor.reference == reference) {
            Some(known) => known.refused = known.refused.take().or(refused),
            None => self.ancestors.push(Ancestor { reference, refused }),
        }
    }
}

impl RoutePolicies<'_> {
    /// Gives a target to the next policy, unless an older one has it or it does not exist.
    fn take_target(
        &mut self,
        objects: &Objects,
        gateways: &[Gateway<'_>],
        object: &Resource<RoutePolicySpec>,
        reference: &Reference,
    ) -> Result<(), Problem> {
        let missing = || {
            let section = reference.section_name.as_deref().map(|name| format!(" {name} of")).unwrap_or_default();
            let message = format!("there is no{section} {} {}", reference.kind, reference.name);
            Problem::new("TargetNotFound", message)
        };
        let kind = Kind::of(reference).ok_or_else(missing)?;
        let key = Key::new(object.metadata.namespace.clone(), reference.name.clone());
        let target = Target { kind, key, section: reference.section_name.clone() };
        if !exists(objects, gateways, &target) {
            return Err(missing());
        }
        let next = self.policies.len();
        if let Some(older) = self.by_target.get(&target).filter(|number| **number != next) {
            let older = self.policies.get(*older).map(|policy| policy.object.metadata.name.as_str());
            let message = format!("the older RoutePolicy {} has the same target", older.unwrap_or_default());
            return Err(Problem::new("Conflicted", message));
        }
        self.by_target.insert(target, next);
        Ok(())
    }

    /// Reports whether no policy has a target.
    pub fn is_empty(&self) -> bool {
        self.by_target.is_empty()
    }

    fn settings(&self, kind: Kind, key: &Key, section: Option<&str>) -> Option<&Settings> {
        let target = Target { kind, key: key.clone(), section: section.map(str::to_owned) };
        let number = self.by_target.get(&target)?;
        self.policies.get(*number).map(|policy| &policy.read.settings)
    }

    /// Returns the rules of a route at a listener, with all policies that concern them.
    pub fn rules(
        &self,
        gateway: &Gateway<'_>,
        listener: &Listener<'_>,
        route: &ObjectName,
        rules: &[Arc<HttpRule>],
    ) -> Vec<Arc<HttpRule>> {
        if self.by_target.is_empty() {
            return rules.to_vec();
        }
        let Some(kind) = Kind::of_route(route.kind) else { return rules.to_vec() };
        let key = Key::new(route.namespace.to_string(), route.name.to_string());
        let name = Some(listener.spec.name.as_str());
        let set = listener.set.and_then(|number| gateway.sets.get(number)).map(|set| set.object.metadata.key());
        let at_listener = match &set {
            Some(set) => [self.settings(Kind::ListenerSet, set, None), self.settings(Kind::ListenerSet, set, name)],
            None => [self.settings(Kind::Gateway, &gateway.key(), name), None],
        };
        let wide = [self.settings(Kind::Gateway, &gateway.key(), None)].into_iter().chain(at_listener);
        let wide: Vec<&Settings> = wide.chain([self.settings(kind, &key, None)]).flatten().collect();
        let mut applied = Vec::with_capacity(rules.len());
        let rules: Vec<HttpRule> = rules.iter().map(|rule| HttpRule::clone(rule)).collect();
        for chunk in rules.chunk_by(|one, other| one.rule_name == other.rule_name) {
            let named = chunk.first().and_then(|rule| rule.rule_name.as_deref());
            let own = named.and_then(|name| self.settings(kind, &key, Some(name)));
            let all: Vec<&Settings> = wide.iter().copied().chain(own).collect();
            match joined(&all) {
                None => applied.extend(chunk.iter().cloned()),
                Some(settings) => applied.extend(settings.apply(chunk)),
            }
        }
        self.protect_services(&mut applied);
        applied.into_iter().map(Arc::new).collect()
    }

    /// Returns the rules of an Ingress with its policy, and with those of its Services.
    pub fn ingress_rules(&self, ingress: &Key, rules: Vec<HttpRule>) -> Vec<HttpRule> {
        let mut rules = match self.settings(Kind::Ingress, ingress, None) {
            Some(settings) => settings.apply(&rules),
            None => rules,
        };
        self.protect_services(&mut rules);
        rules
    }

    /// Adds the filters of Services' policies to the references of rules.
    fn protect_services(&self, rules: &mut [HttpRule]) {
        if !self.by_target.keys().any(|target| target.kind == Kind::Service) {
            return;
        }
        let mut last: Option<Protected> = None;
        for rule in rules {
            let after = match &last {
                Some(last) if Arc::ptr_eq(&last.before, &rule.backends) => last.after.clone(),
                _ => rule.backends.iter().map(|backend| self.protected(backend)).collect(),
            };
            last = Some(Protected { before: rule.backends.clone(), after: after.clone() });
            rule.backends = after;
        }
    }

    fn protected(&self, backend: &BackendRef) -> BackendRef {
        let service = |key: &BackendKey| Key::new(key.namespace.to_string(), key.service.to_string());
        let settings = backend.key.as_ref().and_then(|key| self.settings(Kind::Service, &service(key), None));
        let Some(settings) = settings else { return backend.clone() };
        let filters: Vec<Filter> =
            settings.backend_filters().into_iter().chain(backend.filters.iter().cloned()).collect();
        BackendRef { filters: filters.into(), ..backend.clone() }
    }

    /// Returns the Services that policies send requests to.
    pub fn backends(&self) -> BTreeSet<&BackendKey> {
        self.policies.iter().flat_map(|policy| &policy.read.backends).collect()
    }
}

/// Joins settings, the widest first; None if there are none.
fn joined(all: &[&Settings]) -> Option<Settings> {
    let (first, rest) = all.split_first()?;
    Some(rest.iter().fold((*first).clone(), |wider, narrower| wider.narrowed(narrower)))
}

fn exists(objects: &Objects, gateways: &[Gateway<'_>], target: &Target) -> bool {
    let key = &target.key;
    let section = target.section.as_deref();
    let gateway = |wanted: &dyn Fn(&Gateway<'_>, &Listener<'_>) -> bool| {
        let is_named = |listener: &Listener<'_>| section.is_none_or(|name| name == listener.spec.name);
        let mut listeners = gateways.iter().flat_map(|one| one.listeners.iter().map(move |listener| (one, listener)));
        listeners.any(|(gateway, listener)| wanted(gateway, listener) && is_named(listener))
    };
    match target.kind {
        Kind::Gateway => gateway(&|gateway, listener| gateway.key() == *key && listener.set.is_none()),
        Kind::ListenerSet => gateway(&|gateway, listener| {
            let set = listener.set.and_then(|number| gateway.sets.get(number));
            set.is_some_and(|set| set.object.metadata.key() == *key)
        }),
        Kind::HttpRoute => objects.http_routes.get(key).is_some_and(|route| {
            section.is_none_or(|name| route.spec.rules.iter().any(|rule| rule.name.as_deref() == Some(name)))
        }),
        Kind::GrpcRoute => objects.grpc_routes.get(key).is_some_and(|route| {
            section.is_none_or(|name| route.spec.rules.iter().any(|rule| rule.name.as_deref() == Some(name)))
        }),
        Kind::Ingress => section.is_none() && objects.ingresses.contains_key(key),
        Kind::Service => section.is_none() && objects.services.contains_key(key),
    }
}

/// Returns references to the objects that a target belongs to: the Gateways, or the target itself where there are none.
fn ancestors(
    gateways: &[Gateway<'_>],
    attached: &[Attached<'_>],
    object: &Resource<RoutePolicySpec>,
    reference: &Reference,
) -> Vec<Value> {
    let key = Key::new(object.metadata.namespace.clone(), reference.name.clone());
    let of_routes = |is_meant: &dyn Fn(&Attached<'_>) -> bool| -> BTreeSet<Key> {
        let meant = attached.iter().filter(|one| is_meant(one));
        let places = meant.flat_map(|one| &one.listeners);
        places.filter_map(|place| gateways.get(place.gateway)).map(Gateway::key).collect()
    };
    let keys: BTreeSet<Key> = match Kind::of(reference) {
        Some(Kind::HttpRoute | Kind::GrpcRoute) => {
            of_routes(&|one| one.route.kind == reference.kind && one.route.metadata.key() == key)
        }
        Some(Kind::Service) => of_routes(&|one| {
            policies::backends(one.route)
                .any(|backend| *backend.namespace == *key.namespace && *backend.service == *key.name)
        }),
        Some(Kind::ListenerSet) => {
            let has_set =
                |gateway: &&Gateway<'_>| gateway.sets.iter().any(|set| set.object.metadata.key() == key && set.allowed);
            gateways.iter().filter(has_set).map(Gateway::key).collect()
        }
        _ => BTreeSet::new(),
    };
    if keys.is_empty() {
        let mut own = json!({"group": reference.group, "kind": reference.kind, "name": reference.name});
        own["namespace"] = json!(object.metadata.namespace);
        if let Some(section) = &reference.section_name {
            own["sectionName"] = json!(section);
        }
        return vec![own];
    }
    let gateway = |key: &Key| {
        let namespace = Some(key.namespace.clone());
        parent_reference(&Reference { name: key.name.clone(), namespace, ..Reference::default() })
    };
    keys.iter().map(gateway).collect()
}

/// Adds the statuses of policies. Ancestors of other controllers keep theirs.
pub fn statuses(policies: &RoutePolicies<'_>, now: &str, statuses: &mut Vec<WantedStatus>) {
    for policy in &policies.policies {
        let object = policy.object;
        let current = &object.status["ancestors"];
        let entries = current.as_array().into_iter().flatten();
        let mut ancestors: Vec<Value> =
            entries.filter(|entry| entry["controllerName"] != CONTROLLER).cloned().collect();
        ancestors.extend(policy.ancestors.iter().map(|ancestor| ancestor_status(policy, ancestor, current, now)));
        // The API has room for sixteen.
        ancestors.truncate(16);
        let status = json!({"ancestors": ancestors});
        statuses.push(WantedStatus { plural: "routepolicies", key: object.metadata.key(), status });
    }
}

fn ancestor_status(policy: &Policy<'_>, ancestor: &Ancestor, current: &Value, now: &str) -> Value {
    let reference = &ancestor.reference;
    let current = status::find(current, &[("ancestorRef", reference), ("controllerName", &json!(CONTROLLER))]);
    let accepted = match &ancestor.refused {
        None => Condition::is_true("Accepted", "Accepted", "the policy is accepted"),
        Some(problem) => Condition::is_false("Accepted", problem.reason, problem.message.clone()),
    };
    let resolved = match &policy.read.unresolved {
        None => Condition::is_true("ResolvedRefs", "ResolvedRefs", "all references are resolved"),
        Some(problem) => Condition::is_false("ResolvedRefs", problem.reason, problem.message.clone()),
    };
    let wanted: Vec<Condition> = [accepted, resolved].into_iter().chain(policy.read.keys.clone()).collect();
    json!({
        "ancestorRef": reference,
        "controllerName": CONTROLLER,
        "conditions":
            conditions(&wanted, policy.object.metadata.generation, &current["conditions"], now),
    })
}

/// The references of a rule, before and after the filters of Services' policies were added. Rules share them.
struct Protected {
    before: Arc<[BackendRef]>,
    after: Arc<[BackendRef]>,
}
