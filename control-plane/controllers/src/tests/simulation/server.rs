//! The API in memory behind a faulty network: requests that are delayed, rejected, or applied without a response;
//! watches that are delayed, break, or have to list again. The client may be gone when the response arrives.
//!
//! Time is tokio's, paused: nothing here waits in real time. All randomness comes from one seed, so that a run can be
//! replayed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use corten_client::{Body, Client, Error, Transport, WatchEvent};
use corten_meta::{GroupResource, Object, Status, Value};
use futures::StreamExt;
use futures::future::BoxFuture;
use http::{Method, Request, Response};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

use super::Random;
use super::api::{Api, Place};
use crate::runtime::now;
use crate::tests::model::Model;

/// The rates of faults, in thousandths, and their durations.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// A request is rejected: by a server error, by rate limiting, or as a conflict.
    pub refused: usize,
    /// A write is applied and its response lost.
    pub lost: usize,
    /// A request takes seconds.
    pub slow: usize,
    /// A watch event is delayed, up to this long.
    pub late: usize,
    pub most_late: Duration,
    /// A watch breaks, or its resourceVersion has expired.
    pub broken: usize,
}

impl Faults {
    pub const NONE: Faults =
        Faults { refused: 0, lost: 0, slow: 0, late: 0, most_late: Duration::from_millis(1), broken: 0 };
    pub const MANY: Faults =
        Faults { refused: 60, lost: 40, slow: 10, late: 100, most_late: Duration::from_secs(4), broken: 10 };
}

/// One accepted write, as it is checked.
pub struct Write<'a> {
    /// The account of the writer, or the part of the world.
    pub who: &'a str,
    pub kind: &'a str,
    pub old: Option<Value>,
    pub new: Option<Value>,
    /// The state after the write.
    pub after: &'a Model,
    /// The number of creations that arrived from crashed managers: no cache could show them.
    pub late: usize,
    /// Whether the write arrived from a crashed manager.
    pub is_late: bool,
}

/// Checks every write; returns an error if it violates an invariant.
pub type Invariant = Box<dyn FnMut(&Write<'_>) -> Result<(), String> + Send>;

struct Logged {
    revision: u64,
    at: Instant,
    namespace: String,
    event: WatchEvent,
}

#[derive(Default)]
struct History {
    events: Vec<Logged>,
    changed: Arc<Notify>,
    /// The oldest revision that watches can start from.
    begins: u64,
}

pub struct State {
    pub api: Api,
    pub faults: Faults,
    pub random: Random,
    /// The violated invariants.
    pub broken: Vec<String>,
    /// The log of writes, to understand a failure. Two runs of one seed have the same.
    pub trace: Vec<String>,
    /// Creations from managers that have crashed.
    pub late_creations: usize,
    /// Whether the client of the current request has crashed.
    is_late: bool,
    /// The recorded events: the reason, and the uid of the object.
    pub events: BTreeSet<(String, String)>,
    /// The number of lease writes: a leader renews all the time.
    pub leases: u64,
    invariant: Option<Invariant>,
    histories: BTreeMap<String, History>,
    watches: u64,
}

#[derive(Clone)]
pub struct Server(Arc<Mutex<State>>);

impl Server {
    pub fn new(seed: u64, faults: Faults, invariant: Invariant) -> Server {
        let state = State {
            api: Api::new(now()),
            faults,
            random: Random::new(seed),
            broken: Vec::new(),
            trace: Vec::new(),
            late_creations: 0,
            is_late: false,
            events: BTreeSet::new(),
            leases: 0,
            invariant: Some(invariant),
            histories: BTreeMap::new(),
            watches: 0,
        };
        Server(Arc::new(Mutex::new(state)))
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a client of an account, until its connection is cut.
    pub fn client(&self, who: &str, cut: &Arc<AtomicBool>) -> Client {
        Client::new(Arc::new(Line { server: self.clone(), who: who.to_owned(), cut: cut.clone() }))
    }

    /// Sends one request without faults, as a part of the world.
    pub fn ask(&self, who: &str, method: Method, path: &str, body: &Value) -> Result<Value, Status> {
        self.state().answer(who, &method, path, "", body)
    }
}

impl State {
    fn answer(&mut self, who: &str, method: &Method, path: &str, query: &str, body: &Value) -> Result<Value, Status> {
        self.api.now = now();
        let before = self.api.invalid.len();
        let answer = self.api.answer(method, path, query, body);
        if let Some(invalid) = self.api.invalid.get(before).filter(|_| !["user", "kubelet"].contains(&who)) {
            self.broken.push(format!("{who} wrote what is not valid: {invalid}"));
        }
        if method != Method::GET && !path.contains("/leases") {
            let outcome = answer.as_ref().map_or_else(|refused| refused.reason.clone(), |_| "done".to_owned());
            self.trace.push(format!("{who}: {method} {path}: {outcome}"));
        }
        self.publish(who);
        answer
    }

    /// Checks the writes and notifies the watches.
    pub fn publish(&mut self, who: &str) {
        let changes = self.api.model.log.as_mut().map(std::mem::take).unwrap_or_default();
        for logged in changes {
            self.leases += u64::from(logged.kind == "Lease");
            let value = |object: &Option<Arc<Object>>| object.as_ref().map(|object| object.value());
            let (old, new) = (value(&logged.change.old), value(&logged.change.new));
            if let Some(mut invariant) = self.invariant.take() {
                let write = Write {
                    who,
                    kind: &logged.kind,
                    old,
                    new,
                    after: &self.api.model,
                    late: self.late_creations,
                    is_late: self.is_late,
                };
                if let Err(wrong) = invariant(&write) {
                    self.broken.push(format!("{who}: {} {}: {wrong}", logged.kind, logged.change.key));
                }
                self.invariant = Some(invariant);
            }
            let (event, revision) = match (&logged.change.old, &logged.change.new) {
                (None, Some(new)) => (WatchEvent::Added(new.clone()), new.revision),
                (_, Some(new)) => (WatchEvent::Modified(new.clone()), new.revision),
                (Some(old), None) => {
                    let revision = self.api.model.revision;
                    (WatchEvent::Deleted(Arc::new(Object { revision, ..(**old).clone() })), revision)
                }
                (None, None) => continue,
            };
            if logged.kind == "CustomResourceDefinition" {
                // The custom resource may be gone, and its watches with it.
                self.histories.values().for_each(|history| history.changed.notify_waiters());
            }
            let history = self.histories.entry(logged.kind).or_default();
            let namespace = logged.change.key.namespace;
            history.events.push(Logged { revision, at: Instant::now(), namespace, event });
            history.changed.notify_waiters();
        }
    }

    /// Returns the fault that a request meets, if any.
    fn refusal(&mut self, method: &Method, place: &Place) -> Option<Status> {
        if !self.random.per_mille(self.faults.refused) {
            return None;
        }
        let resource = GroupResource::new(&place.group, &place.plural);
        let which = self.random.next(3);
        Some(match which {
            0 => Status::internal("the server is out of sorts"),
            1 if [Method::PUT, Method::PATCH].contains(method) => {
                Status::conflict(&resource, &place.name, "somebody was quicker")
            }
            _ => Status::too_many_requests("too many requests, please try again later", 1),
        })
    }

    fn open(&mut self, place: &Place, query: &str) -> Result<Watch, Status> {
        let kind = place.kind()?;
        self.api.answers(kind, false)?;
        let (custom, kind) = (kind.is_custom(), kind.kind.clone());
        let revision = self.api.model.revision;
        let asked = query.split('&').find_map(|pair| pair.strip_prefix("resourceVersion=")?.parse::<u64>().ok());
        let streaming = query.contains("sendInitialEvents=true");
        let mut initial = VecDeque::new();
        if streaming {
            let objects = self.api.model.objects().filter(|(of, object)| {
                *of == kind && (place.namespace.is_empty() || object.header.namespace == place.namespace)
            });
            initial.extend(objects.map(|(_, object)| WatchEvent::Added(object.clone())));
            initial.push_back(WatchEvent::Bookmark { revision, initial_events_end: true });
        }
        self.watches += 1;
        let random = Random::new(self.random.next(1 << 20) as u64 + self.watches);
        let history = self.histories.entry(kind.clone()).or_default();
        let since = asked.filter(|_| !streaming).unwrap_or(revision);
        if since < history.begins {
            return Err(Status::expired("too old resource version"));
        }
        let position = history.events.partition_point(|logged| logged.revision <= since);
        let changed = history.changed.clone();
        let (namespace, due) = (place.namespace.clone(), Instant::now());
        Ok(Watch { kind, custom, namespace, initial, position, changed, random, due })
    }
}

/// The connection of one account.
struct Line {
    server: Server,
    who: String,
    cut: Arc<AtomicBool>,
}

impl Transport for Line {
    fn send(&self, request: Request<Bytes>) -> BoxFuture<'static, Result<Response<Body>, Error>> {
        if self.cut.load(Ordering::SeqCst) {
            return Box::pin(std::future::pending());
        }
        let (server, who, cut) = (self.server.clone(), self.who.clone(), self.cut.clone());
        // A request in flight no longer depends on its client.
        let sent = tokio::spawn(async move { server.travel(&who, &request, &cut).await });
        Box::pin(async move { sent.await.unwrap_or_else(|failed| Err(Error::Transport(failed.to_string()))) })
    }
}

impl Server {
    /// Delivers a request and its response.
    async fn travel(&self, who: &str, request: &Request<Bytes>, cut: &AtomicBool) -> Result<Response<Body>, Error> {
        if request.uri().path().contains("/events") {
            return Ok(self.forgotten(who, request));
        }
        let way = self.state().way();
        sleep(way).await;
        let (outcome, way) = self.arrived(who, request, cut);
        sleep(way).await;
        outcome
    }

    /// Accepts events without faults: their number depends on the time of day.
    fn forgotten(&self, who: &str, request: &Request<Bytes>) -> Response<Body> {
        if request.uri().query().is_some_and(|query| query.contains("watch=true")) {
            let end = WatchEvent::Bookmark { revision: self.state().api.model.revision, initial_events_end: true };
            return Response::new(Body::Events(futures::stream::iter([Ok(end)]).boxed()));
        }
        let event: Value = serde_json::from_slice(request.body()).unwrap_or_default();
        let about = if event["regarding"].is_null() { &event["involvedObject"] } else { &event["regarding"] };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        self.state().events.insert((text(&event["reason"]), text(&about["uid"])));
        let answer = self.state().answer(who, &Method::GET, request.uri().path(), "", &Value::Null);
        Response::new(Body::Full(answer.unwrap_or_default().to_string().into()))
    }

    /// Handles a request at the server; returns the response and its delay.
    fn arrived(
        &self,
        who: &str,
        request: &Request<Bytes>,
        cut: &AtomicBool,
    ) -> (Result<Response<Body>, Error>, Duration) {
        let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
        let place = Place::of(path);
        let mut state = self.state();
        let way = state.way();
        if let Some(refused) = state.refusal(request.method(), &place) {
            return (Ok(failure(&refused)), way);
        }
        if query.contains("watch=true") {
            let opened = state.open(&place, query).map(|watch| Response::new(Body::Events(watch.events(self.clone()))));
            return (Ok(opened.unwrap_or_else(|refused| failure(&refused))), way);
        }
        let body: Value = serde_json::from_slice(request.body()).unwrap_or_default();
        if request.method() == Method::POST && cut.load(Ordering::SeqCst) {
            state.late_creations += 1;
        }
        state.is_late = cut.load(Ordering::SeqCst);
        let answer = state.answer(who, request.method(), path, query, &body);
        state.is_late = false;
        let per_mille = state.faults.lost;
        if request.method() != Method::GET && state.random.per_mille(per_mille) {
            return (Err(Error::Transport("the connection broke".to_owned())), way);
        }
        let response = answer.map(|value| Response::new(Body::Full(value.to_string().into())));
        (Ok(response.unwrap_or_else(|refused| failure(&refused))), way)
    }
}

impl State {
    fn way(&mut self) -> Duration {
        let most = if self.random.per_mille(self.faults.slow) { 8000 } else { 4 };
        Duration::from_millis(self.random.next(most) as u64)
    }
}

fn failure(status: &Status) -> Response<Body> {
    let mut response = Response::new(Body::Full(status.to_value().to_string().into()));
    *response.status_mut() = http::StatusCode::from_u16(status.code).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
    response
}

/// One open watch.
struct Watch {
    kind: String,
    /// Whether the watch ends with its CustomResourceDefinition.
    custom: bool,
    namespace: String,
    initial: VecDeque<WatchEvent>,
    position: usize,
    changed: Arc<Notify>,
    random: Random,
    /// The time before which no event is delivered, so that events stay in order.
    due: Instant,
}

impl Watch {
    fn events(self, server: Server) -> futures::stream::BoxStream<'static, Result<WatchEvent, Error>> {
        futures::stream::unfold(Some((self, server)), |open| async move {
            let (mut watch, server) = open?;
            let event = watch.next(&server).await?;
            let ends = matches!(event, WatchEvent::Error(_));
            Some((Ok(event), (!ends).then_some((watch, server))))
        })
        .boxed()
    }

    /// Returns the next event at its time, or none when the watch breaks.
    async fn next(&mut self, server: &Server) -> Option<WatchEvent> {
        if let Some(event) = self.initial.pop_front() {
            return Some(event);
        }
        loop {
            let changed = self.changed.clone();
            let news = changed.notified();
            let found = {
                let state = server.state();
                if self.custom && !state.api.served().iter().any(|kind| kind.kind == self.kind) {
                    return None;
                }
                let history = state.histories.get(&self.kind)?;
                let next = history.events.get(self.position);
                next.map(|logged| (logged.at, logged.namespace.clone(), logged.event.clone(), state.faults))
            };
            let Some((at, namespace, event, faults)) = found else {
                news.await;
                continue;
            };
            self.position += 1;
            if !self.namespace.is_empty() && namespace != self.namespace {
                continue;
            }
            let late = self.random.per_mille(faults.late);
            let most = if late { faults.most_late.as_millis() as usize } else { 3 };
            self.due = self.due.max(at + Duration::from_millis(self.random.next(most) as u64));
            sleep_until(self.due).await;
            if self.random.per_mille(faults.broken) {
                return match self.random.chance(50) {
                    true => None,
                    false => {
                        let mut state = server.state();
                        let revision = state.api.model.revision;
                        state.histories.get_mut(&self.kind)?.begins = revision;
                        Some(WatchEvent::Error(Status::expired("too old resource version")))
                    }
                };
            }
            return Some(event);
        }
    }
}
