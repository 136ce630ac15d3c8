//! The metrics of a component's clients, queues and elections, under upstream's names: `workqueue_*`, `rest_client_*`,
//! `leader_election_*`, `running_managed_controllers`.
//!
//! Counting is a few atomic additions. Gauges are read when the page is rendered, so an idle queue costs nothing. Label
//! values never come from objects or users: their number is bounded by the code.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use corten_meta::metrics::{Family, Registry, Series, exponential, families};
use futures::FutureExt;
use futures::future::BoxFuture;

use crate::retry::Again;
use crate::{Body, Error, Resource, Transport};

/// The bounds from ten nanoseconds to ten seconds, a decade each.
static WORK_SECONDS: [f64; 10] = exponential(1e-8, 10.0);
static REQUEST_SECONDS: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];

static PASS_SECONDS: [f64; 12] = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
static BYTES: [f64; 11] =
    [64.0, 256.0, 512.0, 1024.0, 4096.0, 16384.0, 65536.0, 262_144.0, 1_048_576.0, 4_194_304.0, 16_777_216.0];

families! {
    ADDS = Counter "workqueue_adds_total" ["name"], "[BETA] Total number of adds handled by workqueue";
    DEPTH = Gauge "workqueue_depth" ["name"], "[BETA] Current depth of workqueue";
    WAITED = Histogram(&WORK_SECONDS) "workqueue_queue_duration_seconds" ["name"],
        "[BETA] How long in seconds an item stays in workqueue before being requested.";
    WORKED = Histogram(&WORK_SECONDS) "workqueue_work_duration_seconds" ["name"],
        "[BETA] How long in seconds processing an item from workqueue takes.";
    UNFINISHED = Gauge "workqueue_unfinished_work_seconds" ["name"],
        "[BETA] How many seconds of work has done that is in progress and hasn't been observed by work_duration. Large \
         values indicate stuck threads. One can deduce the number of stuck threads by observing the rate at which this \
         increases.";
    LONGEST = Gauge "workqueue_longest_running_processor_seconds" ["name"],
        "[BETA] How many seconds has the longest running processor for workqueue been running.";
    RETRIES = Counter "workqueue_retries_total" ["name"], "[BETA] Total number of retries handled by workqueue";
    REQUESTS = Counter "rest_client_requests_total" ["code", "host", "method"],
        "[ALPHA] HTTP requests, by code, method and host.";
    REQUEST_DURATION = Histogram(&REQUEST_SECONDS) "rest_client_request_duration_seconds" ["host", "verb"],
        "[ALPHA] Duration of requests until the start of the response, by verb and host.";
    REQUEST_RETRIES = Counter "rest_client_request_retries_total" ["code", "host", "verb"],
        "[ALPHA] Requests that were sent again, by code, verb and host.";
    REQUEST_BYTES = Histogram(&BYTES) "rest_client_request_size_bytes" ["host", "verb"],
        "[ALPHA] How large the bodies of requests were, by verb and host.";
    ANSWER_BYTES = Histogram(&BYTES) "rest_client_response_size_bytes" ["host", "verb"],
        "[ALPHA] How large the bodies of answers were that came as a whole, by verb and host.";
    QUEUED = Gauge "informer_queued_items" ["name", "group", "version", "resource"],
        "Number of cache changes that wait for their delivery.";
    PASSED_ON = Histogram(&PASS_SECONDS) "informer_processing_latency_seconds" ["name", "group", "version", "resource"],
        "Duration of the delivery of cache changes.";
    LEADER = Gauge "leader_election_master_status" ["name"],
        "Whether this process holds the lease of that name: 1 if it does.";
    RUNNING = Gauge "running_managed_controllers" ["manager", "name"],
        "[BETA] Indicates where instances of a controller are currently running";
}

/// The metrics of one component. Cloning shares them.
#[derive(Clone, Default)]
pub struct Metrics(Arc<Counted>);

#[derive(Default)]
struct Counted {
    registry: Registry,
    /// The gauges of the queues of each name.
    queues: Mutex<BTreeMap<&'static str, Vec<Weak<dyn Gauges>>>>,
}

/// The metrics of the work queues of one name.
pub(crate) struct QueueSeries {
    pub(crate) adds: Arc<Series>,
    pub(crate) retries: Arc<Series>,
    waited: Arc<Series>,
    worked: Arc<Series>,
}

impl QueueSeries {
    pub(crate) fn waited(&self, time: Duration) {
        self.waited.observe(time.as_secs_f64());
    }

    pub(crate) fn worked(&self, time: Duration) {
        self.worked.observe(time.as_secs_f64());
    }
}

/// The metrics of an informer of one resource.
pub struct InformerSeries {
    queued: Arc<Series>,
    passed_on: Arc<Series>,
}

impl InformerSeries {
    /// Records a delivered change and the number of pending ones.
    pub fn passed_on(&self, took: Duration, waiting: usize) {
        self.passed_on.observe(took.as_secs_f64());
        self.queued.set(waiting as f64);
    }
}

/// The current state of a queue: the number of waiting keys, and the duration of each key in processing.
pub(crate) trait Gauges: Send + Sync {
    fn depth(&self) -> usize;
    fn in_work(&self) -> Vec<Duration>;
}

impl Metrics {
    /// Returns the registry, in which a component declares its own families.
    pub fn registry(&self) -> &Registry {
        &self.0.registry
    }

    /// Returns the series of queues of this name.
    pub(crate) fn queue(&self, name: &'static str) -> QueueSeries {
        let series = |family: &'static Family| self.0.registry.series(family, &[name]);
        QueueSeries { adds: series(&ADDS), retries: series(&RETRIES), waited: series(&WAITED), worked: series(&WORKED) }
    }

    /// Reads these gauges for as long as the queue lives.
    pub(crate) fn ask(&self, name: &'static str, gauges: Weak<dyn Gauges>) {
        let mut queues = self.0.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let all = queues.entry(name).or_default();
        all.retain(|gauges| gauges.strong_count() > 0);
        all.push(gauges);
    }

    /// Returns the series of a component's informer of one resource.
    pub fn informer(&self, component: &str, resource: &Resource) -> InformerSeries {
        let labels = [component, &resource.group, &resource.version, &resource.plural];
        let series = |family: &'static Family| self.0.registry.series(family, &labels);
        InformerSeries { queued: series(&QUEUED), passed_on: series(&PASSED_ON) }
    }

    /// Records whether the lease of this name is held.
    pub(crate) fn leads(&self, name: &str, held: bool) {
        self.0.registry.series(&LEADER, &[name]).set(f64::from(u8::from(held)));
    }

    /// Records that a controller runs, until the result is dropped.
    pub fn running(&self, manager: &str, controller: &str) -> Running {
        let series = self.0.registry.series(&RUNNING, &[manager, controller]);
        series.set(1.0);
        Running(series)
    }

    /// Wraps a transport to count its requests as those to `host`.
    pub(crate) fn counting(&self, host: &str, transport: Arc<dyn Transport>) -> Arc<dyn Transport> {
        Arc::new(CountingTransport { metrics: self.clone(), host: host.into(), transport })
    }

    fn answered(&self, host: &str, method: &http::Method, code: &str, time: Duration) {
        self.0.registry.series(&REQUESTS, &[code, host, method.as_str()]).add(1.0);
        self.0.registry.series(&REQUEST_DURATION, &[host, method.as_str()]).observe(time.as_secs_f64());
    }

    /// Renders all families in the text format.
    pub fn render(&self) -> String {
        for (name, gauges) in self.0.queues.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let alive: Vec<Arc<dyn Gauges>> = gauges.iter().filter_map(Weak::upgrade).collect();
            let in_work: Vec<Duration> = alive.iter().flat_map(|gauges| gauges.in_work()).collect();
            let set = |family: &'static Family, value: f64| self.0.registry.series(family, &[name]).set(value);
            set(&DEPTH, alive.iter().map(|gauges| gauges.depth()).sum::<usize>() as f64);
            set(&UNFINISHED, in_work.iter().sum::<Duration>().as_secs_f64());
            set(&LONGEST, in_work.iter().max().map_or(0.0, Duration::as_secs_f64));
        }
        self.0.registry.render()
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Metrics")
    }
}

/// A running controller.
pub struct Running(Arc<Series>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.set(0.0);
    }
}

/// A transport whose requests are counted.
struct CountingTransport {
    metrics: Metrics,
    host: Arc<str>,
    transport: Arc<dyn Transport>,
}

impl Transport for CountingTransport {
    fn send(&self, request: http::Request<Bytes>) -> BoxFuture<'static, Result<http::Response<Body>, Error>> {
        let metrics = self.metrics.clone();
        let host = self.host.clone();
        let method = request.method().clone();
        let again = request.extensions().get::<Again>().is_some();
        let size = request.body().len();
        let began = tokio::time::Instant::now();
        let sent = self.transport.send(request);
        async move {
            let answer = sent.await;
            // Without an answer there is no code; client-go uses this word.
            let code = answer.as_ref().map_or("<error>".to_owned(), |answer| answer.status().as_u16().to_string());
            metrics.answered(&host, &method, &code, began.elapsed());
            let sized = |family: &'static Family, size: usize| {
                metrics.0.registry.series(family, &[&host, method.as_str()]).observe(size as f64);
            };
            sized(&REQUEST_BYTES, size);
            if let Some(Body::Full(bytes)) = answer.as_ref().ok().map(http::Response::body) {
                sized(&ANSWER_BYTES, bytes.len());
            }
            if again {
                metrics.0.registry.series(&REQUEST_RETRIES, &[&code, &host, method.as_str()]).add(1.0);
            }
            answer
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WorkQueue;
    use crate::fake::FakeServer;
    use corten_api::k8s_openapi::api::core::v1::ConfigMap;

    #[tokio::test(start_paused = true)]
    async fn a_queue_reports_waiting_and_processed_keys() {
        let metrics = Metrics::default();
        let queue = WorkQueue::named(&metrics, "deployment");
        queue.add("a");
        queue.add("a");
        queue.add("b");
        tokio::time::advance(Duration::from_millis(50)).await;
        assert_eq!(queue.get().await, Some("a"));
        tokio::time::advance(Duration::from_secs(3)).await;
        queue.add_rate_limited("c");
        let text = metrics.render();
        for line in [
            "workqueue_adds_total{name=\"deployment\"} 2",
            "workqueue_depth{name=\"deployment\"} 1",
            "workqueue_retries_total{name=\"deployment\"} 1",
            "workqueue_longest_running_processor_seconds{name=\"deployment\"} 3",
            "workqueue_unfinished_work_seconds{name=\"deployment\"} 3",
            "workqueue_queue_duration_seconds_bucket{name=\"deployment\",le=\"0.01\"} 0",
            "workqueue_queue_duration_seconds_bucket{name=\"deployment\",le=\"0.1\"} 1",
            "workqueue_work_duration_seconds_count{name=\"deployment\"} 0",
        ] {
            assert!(text.lines().any(|one| one == line), "{line} is not in:\n{text}");
        }
        queue.done(&"a");
        drop(queue);
        let text = metrics.render();
        assert!(text.contains("workqueue_work_duration_seconds_count{name=\"deployment\"} 1"), "{text}");
        assert!(text.contains("workqueue_depth{name=\"deployment\"} 0"), "a queue that is gone holds nothing: {text}");
    }

    #[tokio::test(start_paused = true)]
    async fn requests_are_counted_by_code() {
        let metrics = Metrics::default();
        let server = FakeServer::default();
        let client = server.client().with_metrics(&metrics, "here:6443");
        client.get::<ConfigMap>("a", "missing").await.unwrap_err();
        server.put_config_map("a", "one", serde_json::json!({}), "1");
        client.get::<ConfigMap>("a", "one").await.unwrap();
        let text = metrics.render();
        for code in ["200", "404"] {
            let line = format!("rest_client_requests_total{{code=\"{code}\",host=\"here:6443\",method=\"GET\"}} 1");
            assert!(text.contains(&line), "{text}");
        }
        assert!(text.contains("rest_client_request_duration_seconds_count{host=\"here:6443\",verb=\"GET\"} 2"));
    }

    #[test]
    fn held_leases_and_running_controllers_are_reported() {
        let metrics = Metrics::default();
        metrics.leads("kube-scheduler", true);
        metrics.leads("other", false);
        let running = metrics.running("kube-controller-manager", "job-controller");
        let text = metrics.render();
        assert!(text.contains("leader_election_master_status{name=\"kube-scheduler\"} 1"));
        assert!(text.contains("leader_election_master_status{name=\"other\"} 0"));
        let line = "running_managed_controllers{manager=\"kube-controller-manager\",name=\"job-controller\"}";
        assert!(text.contains(&format!("{line} 1")));
        drop(running);
        assert!(metrics.render().contains(&format!("{line} 0")));
    }
}
