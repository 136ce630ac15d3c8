//! Requests by verb, resource and code, with their durations and response sizes.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use corten_access::Verb;
use corten_api::Kind;
use http::{HeaderMap, Method};

use super::families::*;
use super::{Exposition, Histogram};
use crate::negotiation::media_type;
use crate::request::RequestInfo;

/// Subresources that connect the client with another server.
const CONNECTS: &[&str] = &["log", "exec", "portforward", "attach", "proxy"];

/// All series of requests, by their labels.
#[derive(Default)]
pub struct Requests(RwLock<HashMap<String, Arc<Series>>>);

/// The metrics of requests with the same labels.
pub struct Series {
    labels: Labels,
    codes: Mutex<BTreeMap<u16, u64>>,
    durations: Histogram<{ SECONDS.len() }>,
    sli: Histogram<{ SLI_SECONDS.len() }>,
    sizes: Histogram<{ RESPONSE_BYTES.len() }>,
    long_running: AtomicI64,
}

/// The labels of requests, as upstream has them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Labels {
    verb: &'static str,
    dry_run: &'static str,
    group: String,
    version: String,
    resource: String,
    subresource: String,
    scope: &'static str,
}

/// The parts of a request that its labels come from.
pub struct Request<'a> {
    pub info: &'a RequestInfo,
    /// The kind of the path, if the server has it.
    pub kind: Option<&'a Kind>,
    pub method: &'a Method,
    pub headers: &'a HeaderMap,
}

impl Requests {
    pub fn series(&self, request: &Request<'_>) -> Arc<Series> {
        let labels = Borrowed::of(request);
        let mut key = String::with_capacity(96);
        for part in [labels.verb, labels.dry_run, labels.scope, labels.group, labels.version, labels.resource] {
            key.push_str(part);
            key.push('\n');
        }
        key.push_str(labels.subresource);
        let known = self.0.read().unwrap_or_else(std::sync::PoisonError::into_inner).get(&key).cloned();
        known.unwrap_or_else(|| {
            let mut all = self.0.write().unwrap_or_else(std::sync::PoisonError::into_inner);
            Arc::clone(all.entry(key).or_insert_with(|| Arc::new(Series::new(labels.to_owned()))))
        })
    }

    pub fn render(&self, out: &mut Exposition) {
        let all = self.0.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut series: Vec<(&String, &Arc<Series>)> = all.iter().collect();
        series.sort_unstable_by_key(|(key, _)| *key);
        let series: Vec<&Series> = series.into_iter().map(|(_, series)| series.as_ref()).collect();
        out.family(&REQUESTS);
        for one in &series {
            for (code, count) in one.codes.lock().unwrap_or_else(std::sync::PoisonError::into_inner).iter() {
                let code = code.to_string();
                let mut labels = vec![code.as_str()];
                labels.extend(one.labels.with_dry_run());
                out.sample(&REQUESTS, &labels, *count as f64);
            }
        }
        out.family(&REQUEST_SECONDS);
        for one in series.iter().filter(|one| one.durations.count() > 0) {
            one.durations.render(out, &REQUEST_SECONDS, &one.labels.with_dry_run());
        }
        out.family(&REQUEST_SLI_SECONDS);
        for one in series.iter().filter(|one| one.sli.count() > 0) {
            one.sli.render(out, &REQUEST_SLI_SECONDS, &one.labels.plain());
        }
        out.family(&RESPONSE_SIZES);
        for one in series.iter().filter(|one| one.sizes.count() > 0) {
            one.sizes.render(out, &RESPONSE_SIZES, &one.labels.plain());
        }
        out.family(&LONG_RUNNING);
        for one in &series {
            let count = one.long_running.load(Ordering::Relaxed);
            if count > 0 || one.labels.is_long_running() {
                out.sample(&LONG_RUNNING, &one.labels.plain(), count as f64);
            }
        }
    }
}

impl Series {
    fn new(labels: Labels) -> Series {
        Series {
            labels,
            codes: Mutex::default(),
            durations: Histogram::default(),
            sli: Histogram::default(),
            sizes: Histogram::default(),
            long_running: AtomicI64::new(0),
        }
    }

    /// Counts one response; for read requests also its size, if that is known.
    pub fn observe(&self, code: u16, took: Duration, size: Option<usize>) {
        *self.codes.lock().unwrap_or_else(std::sync::PoisonError::into_inner).entry(code).or_default() += 1;
        if self.labels.is_long_running() {
            return;
        }
        self.durations.observe(took.as_secs_f64(), SECONDS);
        if self.labels.dry_run.is_empty() {
            self.sli.observe(took.as_secs_f64(), SLI_SECONDS);
        }
        if let Some(size) = size.filter(|_| matches!(self.labels.verb, "GET" | "LIST")) {
            self.sizes.observe(size as f64, RESPONSE_BYTES);
        }
    }

    /// Returns the values of the labels, in the order of their names.
    pub fn values(&self) -> Vec<&str> {
        self.labels.plain()
    }

    /// Counts a long-running request as open until the guard is dropped.
    pub fn begin(self: &Arc<Self>) -> LongRunning {
        self.long_running.fetch_add(1, Ordering::Relaxed);
        LongRunning(Arc::clone(self))
    }
}

/// An open long-running request.
pub struct LongRunning(Arc<Series>);

impl Drop for LongRunning {
    fn drop(&mut self) {
        self.0.long_running.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Labels {
    fn is_long_running(&self) -> bool {
        matches!(self.verb, "WATCH" | "CONNECT")
    }

    /// Returns the values of the labels, in the order of the labels' names: component, group, resource, scope,
    /// subresource, verb, version.
    fn plain(&self) -> Vec<&str> {
        vec!["apiserver", &self.group, &self.resource, self.scope, &self.subresource, self.verb, &self.version]
    }

    fn with_dry_run(&self) -> Vec<&str> {
        let mut labels = self.plain();
        labels.insert(1, self.dry_run);
        labels
    }
}

/// The labels of one request, borrowed until its series is known to be new.
struct Borrowed<'a> {
    verb: &'static str,
    dry_run: &'static str,
    group: &'a str,
    version: &'a str,
    resource: &'a str,
    subresource: &'a str,
    scope: &'static str,
}

impl<'a> Borrowed<'a> {
    fn of(request: &Request<'a>) -> Borrowed<'a> {
        let info = request.info;
        let scope = match info {
            _ if !info.is_resource => "",
            _ if !info.name.is_empty() || info.verb == Verb::Create => "resource",
            _ if !info.namespace.is_empty() => "namespace",
            _ => "cluster",
        };
        // The group, version and resource of a request are labels only if the server has that resource.
        let known = request.kind;
        let subresource = known.and_then(|kind| kind.subresource(&info.subresource)).map_or("", |_| &info.subresource);
        let (group, version, resource) = match known {
            Some(_) => (info.group.as_str(), info.version.as_str(), info.resource.as_str()),
            None => ("", "", ""),
        };
        let verb = verb(request, scope);
        let dry_run = dry_run(info);
        Borrowed { verb, dry_run, group, version, resource, subresource, scope }
    }

    fn to_owned(&self) -> Labels {
        Labels {
            verb: self.verb,
            dry_run: self.dry_run,
            group: self.group.to_owned(),
            version: self.version.to_owned(),
            resource: self.resource.to_owned(),
            subresource: self.subresource.to_owned(),
            scope: self.scope,
        }
    }
}

fn verb(request: &Request<'_>, scope: &str) -> &'static str {
    let info = request.info;
    if info.is_resource && CONNECTS.contains(&info.subresource.as_str()) {
        return "CONNECT";
    }
    match *request.method {
        _ if info.verb == Verb::Watch => "WATCH",
        Method::GET | Method::HEAD if matches!(scope, "namespace" | "cluster") => "LIST",
        Method::GET | Method::HEAD => "GET",
        Method::PATCH if media_type(request.headers) == "application/apply-patch+yaml" => "APPLY",
        Method::PATCH => "PATCH",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        _ => "other",
    }
}

fn dry_run(info: &RequestInfo) -> &'static str {
    let mut values = info.query.all("dryRun");
    match values.next() {
        None => "",
        Some("All") if values.all(|value| value == "All") => "All",
        Some(_) => "invalid",
    }
}
