//! `/metrics`: the metrics of the server, in the Prometheus text format.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use corten_meta::metrics::Family;

use super::build_metrics;
use crate::flow_control;
use crate::metrics::families::*;
use crate::metrics::{Exposition, Histogram, OPERATIONS, process};
use crate::registry::{Registry, Resource, Resources, Stored};
use crate::server::Server;

pub fn render(server: &Server) -> String {
    let metrics = &server.core.metrics;
    let registry = &server.core.registry;
    let mut out = Exposition::default();
    metrics.requests.render(&mut out);
    let (reading, writing) = server.limits.current();
    out.family(&IN_FLIGHT);
    out.sample(&IN_FLIGHT, &["mutating"], writing as f64);
    out.sample(&IN_FLIGHT, &["readOnly"], reading as f64);
    flow_control::render_metrics(&mut out, &server.flow_control);
    out.single(&TLS_HANDSHAKE_ERRORS, metrics.tls_handshake_errors.load(Ordering::Relaxed) as f64);
    let results = ["success", "failure"];
    metrics.authenticated.render(&mut out, &AUTHENTICATION_ATTEMPTS, &AUTHENTICATION_SECONDS, &results);
    let results = ["allowed", "denied", "no-opinion"];
    metrics.authorized.render(&mut out, &AUTHORIZATION_ATTEMPTS, &AUTHORIZATION_SECONDS, &results);
    server.admission.render_metrics(&mut out);
    server.aggregation.render_metrics(&mut out);
    let resources = registry.resources();
    storage(&mut out, &resources);
    watches(&mut out, &resources);
    out.single(&STORE_REVISION, registry.store.revision() as f64);
    out.family(&STORE_SIZE);
    out.sample(&STORE_SIZE, &["etcd-0"], registry.store.size() as f64);
    store_health(&mut out, registry);
    out.family(&CERTIFICATE_EXPIRATION);
    metrics.certificates.render(&mut out, &CERTIFICATE_EXPIRATION, &[]);
    out.single(&AUDIT_EVENTS, server.audit.events() as f64);
    build_metrics::render(&mut out, &server.core.config);
    process::render(&mut out);
    let all = out.finish() + &metrics.render_rare() + &corten_cel::durations::render();
    let registered = build_metrics::registered(&all);
    all + &registered
}

/// Returns the resources whose version is the stored one.
fn stored(resources: &Resources) -> impl Iterator<Item = (&Resource, &Stored)> {
    let all = resources.ordered.iter().filter_map(|resource| Some((resource.as_ref(), resource.stored.as_ref()?)));
    all.filter(|(resource, stored)| Arc::ptr_eq(&stored.hub, &resource.kind))
}

/// Renders the health of the store, and the free space of its disk.
fn store_health(out: &mut Exposition, registry: &Registry) {
    let store = &registry.store;
    let state = store.health().name();
    out.family(&STORE_HEALTH);
    for known in ["writable", "failing", "broken"] {
        out.sample(&STORE_HEALTH, &[known], f64::from(u8::from(state == known)));
    }
    if let Some(free) = store.free() {
        out.single(&STORE_DISK_FREE, free as f64);
    }
}

fn storage(out: &mut Exposition, resources: &Resources) {
    gauge(out, resources, &RESOURCE_OBJECTS, |s| s.cache.count() as f64);
    out.family(&STORAGE_OBJECTS);
    for (resource, stored) in stored(resources) {
        let kind = &resource.kind;
        let full = if kind.group.is_empty() { kind.plural.clone() } else { format!("{}.{}", kind.plural, kind.group) };
        out.sample(&STORAGE_OBJECTS, &[&full], stored.cache.count() as f64);
    }
    gauge(out, resources, &RESOURCE_SIZE, |s| s.cache.bytes() as f64);
    gauge(out, resources, &WATCH_CACHE_VERSION, |s| s.cache.revision() as f64);
    for family in [&STORAGE_EVENTS_RECEIVED, &WATCH_CACHE_RECEIVED, &WATCH_CACHE_DISPATCHED] {
        counter(out, resources, family, |s| &s.cache.storage.events_received);
    }
    counter(out, resources, &TERMINATED_WATCHERS, |s| &s.cache.storage.terminated_watchers);
    out.family(&STORE_REQUEST_SECONDS);
    each_operation(resources, |labels, histogram| histogram.render(out, &STORE_REQUEST_SECONDS, labels));
    out.family(&STORE_REQUESTS);
    each_operation(resources, |labels, histogram| out.sample(&STORE_REQUESTS, labels, histogram.count() as f64));
}

fn each_operation(resources: &Resources, mut each: impl FnMut(&[&str], &Histogram<{ SECONDS.len() }>)) {
    for (resource, stored) in stored(resources) {
        for (operation, word) in OPERATIONS {
            let histogram = &stored.cache.storage.operations[operation as usize];
            if histogram.count() > 0 {
                let group = &resource.kind.group;
                let plural = &resource.kind.plural;
                each(&[group, word, plural], histogram);
            }
        }
    }
}

fn gauge(out: &mut Exposition, resources: &Resources, family: &Family, value: impl Fn(&Stored) -> f64) {
    out.family(family);
    for (resource, stored) in stored(resources) {
        out.sample(family, &[&resource.kind.group, &resource.kind.plural], value(stored));
    }
}

/// Renders a counter of each resource; zeros are left out.
fn counter(out: &mut Exposition, resources: &Resources, family: &Family, value: impl Fn(&Stored) -> &AtomicU64) {
    out.family(family);
    for (resource, stored) in stored(resources) {
        let count = value(stored).load(Ordering::Relaxed);
        if count > 0 {
            out.sample(family, &[&resource.kind.group, &resource.kind.plural], count as f64);
        }
    }
}

/// Renders the number and the sizes of watch events.
fn watches(out: &mut Exposition, resources: &Resources) {
    let all = || {
        stored(resources).filter(|(_, stored)| stored.cache.storage.watches.events.load(Ordering::Relaxed) > 0).map(
            |(resource, stored)| {
                let kind = &resource.kind;
                let labels = [kind.group.as_str(), kind.plural.as_str(), kind.version.as_str()];
                (labels, &stored.cache.storage.watches)
            },
        )
    };
    out.family(&WATCH_EVENTS);
    for (labels, series) in all() {
        out.sample(&WATCH_EVENTS, &labels, series.events.load(Ordering::Relaxed) as f64);
    }
    out.family(&WATCH_EVENT_SIZES);
    for (labels, series) in all() {
        series.sizes.render(out, &WATCH_EVENT_SIZES, &labels);
    }
}
