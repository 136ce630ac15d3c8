//! `/metrics`: everything that the server counts, in the Prometheus text format.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::facts;
use crate::flow_control;
use crate::metrics::{
    CERTIFICATE_SECONDS, EVENT_SIZES, Exposition, Histogram, OPERATIONS, SECONDS, expressions, process,
};
use crate::registry::{Registry, Resource, Resources, Stored};
use crate::server::Server;

/// The whole exposition.
pub fn render(server: &Server) -> String {
    let metrics = &server.core.metrics;
    let registry = &server.core.registry;
    let mut out = Exposition::default();
    metrics.requests.render(&mut out);
    let (reading, writing) = server.limits.current();
    let name = "apiserver_current_inflight_requests";
    out.family(name, "gauge", "Requests that are being served, by kind.");
    out.sample(name, &[("request_kind", "mutating")], writing as f64);
    out.sample(name, &[("request_kind", "readOnly")], reading as f64);
    flow_control::render_metrics(&mut out, &server.flow_control);
    let name = "apiserver_tls_handshake_errors_total";
    out.family(name, "counter", "TLS handshakes that failed.");
    out.sample(name, &[], metrics.tls_handshake_errors.load(Ordering::Relaxed) as f64);
    let names = ["authentication_attempts", "authentication_duration_seconds"];
    let help = "Authentications, by how they ended.";
    metrics.authenticated.render(&mut out, names, help, &["success", "failure"]);
    let names = ["authorization_attempts_total", "authorization_duration_seconds"];
    let help = "Authorizations, by how they ended.";
    metrics.authorized.render(&mut out, names, help, &["allowed", "denied", "no-opinion"]);
    server.admission.render_metrics(&mut out);
    server.aggregation.render_metrics(&mut out);
    let resources = registry.resources();
    storage(&mut out, &resources);
    watches(&mut out, &resources);
    let name = "apiserver_storage_revision";
    out.family(name, "gauge", "The store's revision.");
    out.sample(name, &[], registry.store.revision() as f64);
    let name = "apiserver_storage_size_bytes";
    out.family(name, "gauge", "The bytes that the store takes on disk.");
    out.sample(name, &[("storage_cluster_id", "etcd-0")], registry.store.size() as f64);
    store_health(&mut out, registry);
    let name = "apiserver_client_certificate_expiration_seconds";
    out.family(name, "histogram", "How long the certificates still hold that requests were authenticated by.");
    metrics.certificates.render(&mut out, name, &[], CERTIFICATE_SECONDS);
    let name = "apiserver_audit_event_total";
    out.family(name, "counter", "Audit events that were made.");
    out.sample(name, &[], server.audit.events() as f64);
    facts::render(&mut out, &server.core.config);
    process::render(&mut out);
    let all = out.finish() + &metrics.render_rare() + &expressions::render();
    let registered = facts::registered(&all);
    all + &registered
}

/// The resources that are stored as themselves.
fn stored(resources: &Resources) -> impl Iterator<Item = (&Resource, &Stored)> {
    let all = resources.ordered.iter().filter_map(|resource| Some((resource.as_ref(), resource.stored.as_ref()?)));
    all.filter(|(resource, stored)| Arc::ptr_eq(&stored.hub, &resource.kind))
}

/// Whether the store takes writes, and the space that its disk has left.
fn store_health(out: &mut Exposition, registry: &Registry) {
    let store = &registry.store;
    let state = store.health().name();
    let name = "corten_store_health";
    out.family(name, "gauge", "1 for the state that the last write found the store in: writable, failing or broken.");
    for known in ["writable", "failing", "broken"] {
        out.sample(name, &[("state", known)], f64::from(u8::from(state == known)));
    }
    if let Some(free) = store.free() {
        let name = "corten_store_disk_free_bytes";
        out.family(name, "gauge", "The bytes that are free on the store's disk.");
        out.sample(name, &[], free as f64);
    }
}

fn storage(out: &mut Exposition, resources: &Resources) {
    gauge(out, resources, "apiserver_resource_objects", "Stored objects, by resource.", |s| s.cache.count() as f64);
    let name = "apiserver_storage_objects";
    out.family(name, "gauge", "Stored objects, by resource and group in one name.");
    for (resource, stored) in stored(resources) {
        let kind = &resource.kind;
        let full = if kind.group.is_empty() { kind.plural.clone() } else { format!("{}.{}", kind.plural, kind.group) };
        out.sample(name, &[("resource", &full)], stored.cache.count() as f64);
    }
    let help = "The bytes that stored objects take, by resource.";
    gauge(out, resources, "apiserver_resource_size_estimate_bytes", help, |s| s.cache.bytes() as f64);
    let help = "The revision that the cache of a resource has reached.";
    gauge(out, resources, "apiserver_watch_cache_resource_version", help, |s| s.cache.revision() as f64);
    let help = "Changes that came from the store, by resource.";
    counter(out, resources, "apiserver_storage_events_received_total", help, |s| &s.cache.storage.events_received);
    let help = "Changes that a cache was told of, by resource.";
    counter(out, resources, "apiserver_watch_cache_events_received_total", help, |s| &s.cache.storage.events_received);
    let help = "Changes that a cache told its watchers of, by resource.";
    let name = "apiserver_watch_cache_events_dispatched_total";
    counter(out, resources, name, help, |s| &s.cache.storage.events_received);
    let help = "Watches that were ended because they were too slow, by resource.";
    counter(out, resources, "apiserver_terminated_watchers_total", help, |s| &s.cache.storage.terminated_watchers);
    let name = "etcd_request_duration_seconds";
    out.family(name, "histogram", "How long the store took, by operation and resource.");
    each_operation(resources, |labels, histogram| histogram.render(out, name, labels, SECONDS));
    let name = "etcd_requests_total";
    out.family(name, "counter", "Requests to the store, by operation and resource.");
    each_operation(resources, |labels, histogram| out.sample(name, labels, histogram.count() as f64));
}

fn each_operation(resources: &Resources, mut each: impl FnMut(&[(&str, &str)], &Histogram<{ SECONDS.len() }>)) {
    for (resource, stored) in stored(resources) {
        for (operation, word) in OPERATIONS {
            let histogram = &stored.cache.storage.operations[operation as usize];
            if histogram.count() > 0 {
                let group = &resource.kind.group;
                let plural = &resource.kind.plural;
                each(&[("group", group), ("operation", word), ("resource", plural)], histogram);
            }
        }
    }
}

fn gauge(out: &mut Exposition, resources: &Resources, name: &str, help: &str, value: impl Fn(&Stored) -> f64) {
    out.family(name, "gauge", help);
    for (resource, stored) in stored(resources) {
        let labels = [("group", resource.kind.group.as_str()), ("resource", resource.kind.plural.as_str())];
        out.sample(name, &labels, value(stored));
    }
}

/// A counter of each resource; those that never counted are left out.
fn counter(out: &mut Exposition, resources: &Resources, name: &str, help: &str, value: impl Fn(&Stored) -> &AtomicU64) {
    out.family(name, "counter", help);
    for (resource, stored) in stored(resources) {
        let count = value(stored).load(Ordering::Relaxed);
        if count > 0 {
            let labels = [("group", resource.kind.group.as_str()), ("resource", resource.kind.plural.as_str())];
            out.sample(name, &labels, count as f64);
        }
    }
}

/// Events that watches were sent: their number and their sizes.
fn watches(out: &mut Exposition, resources: &Resources) {
    let all = || {
        stored(resources).filter(|(_, stored)| stored.cache.storage.watches.events.load(Ordering::Relaxed) > 0).map(
            |(resource, stored)| {
                let kind = &resource.kind;
                let labels = [
                    ("group", kind.group.as_str()),
                    ("resource", kind.plural.as_str()),
                    ("version", kind.version.as_str()),
                ];
                (labels, &stored.cache.storage.watches)
            },
        )
    };
    let name = "apiserver_watch_events_total";
    out.family(name, "counter", "Events that watches were sent, by resource.");
    for (labels, series) in all() {
        out.sample(name, &labels, series.events.load(Ordering::Relaxed) as f64);
    }
    let name = "apiserver_watch_events_sizes";
    out.family(name, "histogram", "How big the events of watches were in bytes, by resource.");
    for (labels, series) in all() {
        series.sizes.render(out, name, &labels, EVENT_SIZES);
    }
}
