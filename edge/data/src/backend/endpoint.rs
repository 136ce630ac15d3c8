//! One endpoint: its load, its health as connections see it, and its idle connections.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::http1::Http1Connection;
use super::http2::{Http2Connection, Http2Stream};
use crate::clock;
use crate::policy::session;

/// The time that an endpoint gets no requests after its first failed connection; each further failure doubles it.
const FIRST_EJECTION: Duration = Duration::from_secs(1);
/// The longest time that an endpoint gets no requests because connections failed.
const LONGEST_EJECTION: Duration = Duration::from_secs(30);
/// The most idle connections of one endpoint.
const MAX_IDLE: usize = 512;
/// The time after which an idle connection is closed. Servers close theirs after a minute or more, so ours go first.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) address: SocketAddr,
    /// The endpoint's name in sessions.
    pub(super) session: u64,
    requests: AtomicUsize,
    failures: AtomicU32,
    /// The time, in milliseconds of the process, until which the endpoint gets no requests.
    ejected_until: AtomicU64,
    is_retired: AtomicBool,
    idle: Mutex<Vec<Idle>>,
    http2: Mutex<Vec<Http2Connection>>,
}

#[derive(Debug)]
struct Idle {
    connection: Box<Http1Connection>,
    since: Instant,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Endpoint {
    pub(super) fn new(address: SocketAddr) -> Endpoint {
        Endpoint {
            address,
            session: session::digest(address),
            requests: AtomicUsize::new(0),
            failures: AtomicU32::new(0),
            ejected_until: AtomicU64::new(0),
            is_retired: AtomicBool::new(false),
            idle: Mutex::default(),
            http2: Mutex::default(),
        }
    }

    /// Returns the number of requests in flight.
    pub(super) fn load(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    /// Counts a request until the guard is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> InFlight {
        self.requests.fetch_add(1, Ordering::Relaxed);
        InFlight(Arc::clone(self))
    }

    pub(super) fn is_ejected(&self) -> bool {
        let until = self.ejected_until.load(Ordering::Relaxed);
        until != 0 && clock::milliseconds() < until
    }

    /// Records that a connection could not be made: the endpoint gets no requests for a while if there are others.
    pub(crate) fn failed(&self) {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed).min(5);
        let ejection = LONGEST_EJECTION.min(FIRST_EJECTION * 2u32.pow(failures));
        let milliseconds = u64::try_from(ejection.as_millis()).unwrap_or(u64::MAX);
        self.ejected_until.store(clock::milliseconds().saturating_add(milliseconds), Ordering::Relaxed);
    }

    /// Records that a connection was made.
    pub(super) fn succeeded(&self) {
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
            self.ejected_until.store(0, Ordering::Relaxed);
        }
    }

    /// Returns an idle connection that the endpoint has not closed.
    pub(super) fn idle(&self) -> Option<Box<Http1Connection>> {
        loop {
            let mut idle = lock(&self.idle).pop()?;
            if idle.connection.is_silent() {
                return Some(idle.connection);
            }
        }
    }

    /// Keeps a connection for the next request.
    pub(super) fn keep(&self, mut connection: Box<Http1Connection>) {
        if self.is_retired.load(Ordering::Relaxed) || !connection.is_open() {
            return;
        }
        let mut idle = lock(&self.idle);
        if idle.len() < MAX_IDLE {
            idle.push(Idle { connection, since: Instant::now() });
        }
    }

    /// Returns a free stream of a connection of HTTP/2.
    pub(super) fn stream(&self) -> Option<Http2Stream> {
        let mut connections = lock(&self.http2);
        connections.retain(|connection| !connection.is_closed());
        connections.iter().find_map(Http2Connection::stream)
    }

    pub(super) fn keep_http2(&self, connection: Http2Connection) {
        if !self.is_retired.load(Ordering::Relaxed) {
            lock(&self.http2).push(connection);
        }
    }

    pub(super) fn sweep(&self) {
        let now = Instant::now();
        let is_kept = |idle: &mut Idle| now.duration_since(idle.since) < IDLE_TIMEOUT && idle.connection.is_open();
        lock(&self.idle).retain_mut(is_kept);
        lock(&self.http2).retain(|connection| !connection.is_closed());
    }

    /// Closes all idle connections.
    pub(crate) fn close_idle(&self) {
        lock(&self.idle).clear();
    }

    /// Closes all idle connections, and those in use once their requests ended.
    pub(super) fn retire(&self) {
        self.is_retired.store(true, Ordering::Relaxed);
        self.close_idle();
        lock(&self.http2).clear();
    }
}

/// A request in flight.
#[derive(Debug)]
pub(crate) struct InFlight(Arc<Endpoint>);

impl InFlight {
    pub(crate) fn endpoint(&self) -> &Arc<Endpoint> {
        &self.0
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}
