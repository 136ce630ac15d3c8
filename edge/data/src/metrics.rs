//! Metrics of the edge. Labels come from the configuration alone, and the number of routes is bounded.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use corten_meta::metrics::{Family, Kind, Registry, Series};
use corten_routing::ObjectName;

/// The most routes with series of their own; the others share one.
const MAX_ROUTES: usize = 2000;
/// The upper bounds of the buckets of durations, in seconds.
const BOUNDS: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// The label of requests without a response of a known class.
const CLASSES: [&str; 6] = ["other", "1xx", "2xx", "3xx", "4xx", "5xx"];

static REQUESTS: Family = Family {
    name: "corten_edge_requests_total",
    kind: Kind::Counter,
    labels: &["kind", "namespace", "route", "code"],
    help: "Requests by route and class of the status code.",
};
static DURATION: Family = Family {
    name: "corten_edge_request_duration_seconds",
    kind: Kind::Histogram(BOUNDS),
    labels: &["kind", "namespace", "route"],
    help: "Time from the head of a request to the head of its response in seconds.",
};
static CONNECTIONS: Family = Family {
    name: "corten_edge_connections_total",
    kind: Kind::Counter,
    labels: &["transport"],
    help: "Accepted connections, and sessions of UDP, by transport.",
};
static REFUSED: Family = Family {
    name: "corten_edge_refused_connections_total",
    kind: Kind::Counter,
    labels: &["reason"],
    help: "Connections that were closed before their first request, by reason.",
};
static RETRIES: Family = Family {
    name: "corten_edge_retries_total",
    kind: Kind::Counter,
    labels: &[],
    help: "Requests that were sent to an endpoint once more.",
};
static LISTENERS: Family = Family {
    name: "corten_edge_listeners",
    kind: Kind::Gauge,
    labels: &[],
    help: "Sockets that accept connections or datagrams.",
};

/// The metrics of one edge.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Arc<Registry>,
    routes: Mutex<HashMap<ObjectName, RouteMetrics>>,
    unmatched: RouteMetrics,
    overflow: RouteMetrics,
    pub(crate) retries: Arc<Series>,
    pub(crate) listeners: Arc<Series>,
}

/// The series of one route. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct RouteMetrics(Arc<RouteSeries>);

/// Series that are made when they are first counted: most routes of a large cluster rest on most nodes.
#[derive(Debug)]
struct RouteSeries {
    registry: Arc<Registry>,
    route: ObjectName,
    requests: [OnceLock<Arc<Series>>; CLASSES.len()],
    duration: OnceLock<Arc<Series>>,
}

impl RouteMetrics {
    fn new(registry: &Arc<Registry>, route: ObjectName) -> RouteMetrics {
        let registry = Arc::clone(registry);
        let requests = std::array::from_fn(|_| OnceLock::new());
        RouteMetrics(Arc::new(RouteSeries { registry, route, requests, duration: OnceLock::new() }))
    }

    /// Counts a response.
    pub(crate) fn observe(&self, status: http::StatusCode, seconds: f64) {
        let RouteSeries { registry, route, requests, duration } = &*self.0;
        let ObjectName { kind, namespace, name } = route;
        let number = usize::from(status.as_u16() / 100);
        let number = if number < CLASSES.len() { number } else { 0 };
        if let (Some(series), Some(class)) = (requests.get(number), CLASSES.get(number)) {
            series.get_or_init(|| registry.series(&REQUESTS, &[kind, namespace, name, class])).add(1.0);
        }
        duration.get_or_init(|| registry.series(&DURATION, &[kind, namespace, name])).observe(seconds);
    }
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        let registry = Arc::new(Registry::default());
        let of = |name: &str| ObjectName { kind: "", namespace: "".into(), name: name.into() };
        Metrics {
            unmatched: RouteMetrics::new(&registry, of("")),
            overflow: RouteMetrics::new(&registry, of("(others)")),
            retries: registry.series(&RETRIES, &[]),
            listeners: registry.series(&LISTENERS, &[]),
            routes: Mutex::default(),
            registry,
        }
    }

    /// Returns the series of a route.
    pub(crate) fn route(&self, route: &ObjectName) -> RouteMetrics {
        let mut routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = routes.get(route) {
            return known.clone();
        }
        if routes.len() >= MAX_ROUTES {
            return self.overflow.clone();
        }
        let made = RouteMetrics::new(&self.registry, route.clone());
        routes.insert(route.clone(), made.clone());
        made
    }

    /// Returns the series of requests that no rule took.
    pub(crate) fn unmatched(&self) -> &RouteMetrics {
        &self.unmatched
    }

    pub(crate) fn connected(&self, transport: &str) {
        self.registry.series(&CONNECTIONS, &[transport]).add(1.0);
    }

    pub(crate) fn refused(&self, reason: &str) {
        self.registry.series(&REFUSED, &[reason]).add(1.0);
    }

    pub(crate) fn render(&self) -> String {
        self.registry.render()
    }
}
