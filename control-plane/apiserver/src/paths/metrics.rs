//! `/metrics`: the metrics of the server, in the Prometheus text format.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::build_metrics;
use crate::flow_control;
use crate::metrics::{CERTIFICATE_SECONDS, EVENT_SIZES, Exposition, Histogram, OPERATIONS, SECONDS, process};
use crate::registry::{Registry, Resource, Resources, Stored};
use crate::server::Server;

/// Renders all metrics.
pub fn render(server: &Server) -> String {
    let metrics = &server.core.metrics;
    let registry = &server.core.registry;
    let mut out = Exposition::default();
    metrics.requests.render(&mut out);
    let (reading, writing) = server.limits.current();
    let name = "apiserver_current_inflight_requests";
    out.family(name, "gauge", "The number of requests in flight, by kind.");
    out.sample(name, &[("request_kind", "mutating")], writing as f64);
    out.sample(name, &[("request_kind", "readOnly")], reading as f64);
    flow_control::render_metrics(&mut out, &server.flow_control);
    let name = "apiserver_tls_handshake_errors_total";
    out.family(name, "counter", "The number of failed TLS handshakes.");
    out.sample(name, &[], metrics.tls_handshake_errors.load(Ordering::Relaxed) as f64);
    let names = ["authentication_attempts", "authentication_duration_seconds"];
    let help = "The number of authentications, by result.";
    metrics.authenticated.render(&mut out, names, help, &["success", "failure"]);
    let names = ["authorization_attempts_total", "authorization_duration_seconds"];
    let help = "The number of authorizations, by result.";
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
    out.family(name, "gauge", "The size of the store on disk, in bytes.");
    out.sample(name, &[("storage_cluster_id", "etcd-0")], registry.store.size() as f64);
    store_health(&mut out, registry);
    let name = "apiserver_client_certificate_expiration_seconds";
    out.family(name, "histogram", "The remaining lifetime of the client certificates of requests.");
    metrics.certificates.render(&mut out, name, &[], CERTIFICATE_SECONDS);
    let name = "apiserver_audit_event_total";
    out.family(name, "counter", "The number of audit events.");
    out.sample(name, &[], server.audit.events() as f64);
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
    let name = "corten_store_health";
    out.family(name, "gauge", "The state of the store after the last write: 1 for writable, failing or broken.");
    for known in ["writable", "failing", "broken"] {
        out.sample(name, &[("state", known)], f64::from(u8::from(state == known)));
    }
    if let Some(free) = store.free() {
        let name = "corten_store_disk_free_bytes";
        out.family(name, "gauge", "The free space of the store's disk, in bytes.");
        out.sample(name, &[], free as f64);
    }
}

fn storage(out: &mut Exposition, resources: &Resources) {
    gauge(out, resources, "apiserver_resource_objects", "The number of stored objects, by resource.", |s| {
        s.cache.count() as f64
    });
    let name = "apiserver_storage_objects";
    out.family(name, "gauge", "The number of stored objects, by resource and group in one name.");
    for (resource, stored) in stored(resources) {
        let kind = &resource.kind;
        let full = if kind.group.is_empty() { kind.plural.clone() } else { format!("{}.{}", kind.plural, kind.group) };
        out.sample(name, &[("resource", &full)], stored.cache.count() as f64);
    }
    let help = "The bytes of stored objects, by resource.";
    gauge(out, resources, "apiserver_resource_size_estimate_bytes", help, |s| s.cache.bytes() as f64);
    let help = "The resourceVersion that the watch cache has reached, by resource.";
    gauge(out, resources, "apiserver_watch_cache_resource_version", help, |s| s.cache.revision() as f64);
    let help = "The number of changes received from the store, by resource.";
    counter(out, resources, "apiserver_storage_events_received_total", help, |s| &s.cache.storage.events_received);
    let help = "The number of changes that the watch cache received, by resource.";
    counter(out, resources, "apiserver_watch_cache_events_received_total", help, |s| &s.cache.storage.events_received);
    let help = "The number of changes that the watch cache dispatched to its watchers, by resource.";
    let name = "apiserver_watch_cache_events_dispatched_total";
    counter(out, resources, name, help, |s| &s.cache.storage.events_received);
    let help = "The number of watches that were terminated because they were too slow, by resource.";
    counter(out, resources, "apiserver_terminated_watchers_total", help, |s| &s.cache.storage.terminated_watchers);
    let name = "etcd_request_duration_seconds";
    out.family(name, "histogram", "The duration of requests to the store, by operation and resource.");
    each_operation(resources, |labels, histogram| histogram.render(out, name, labels, SECONDS));
    let name = "etcd_requests_total";
    out.family(name, "counter", "The number of requests to the store, by operation and resource.");
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

/// Renders a counter of each resource; zeros are left out.
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

/// Renders the number and the sizes of watch events.
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
    out.family(name, "counter", "The number of events sent to watches, by resource.");
    for (labels, series) in all() {
        out.sample(name, &labels, series.events.load(Ordering::Relaxed) as f64);
    }
    let name = "apiserver_watch_events_sizes";
    out.family(name, "histogram", "The sizes of watch events in bytes, by resource.");
    for (labels, series) in all() {
        series.sizes.render(out, name, &labels, EVENT_SIZES);
    }
}
