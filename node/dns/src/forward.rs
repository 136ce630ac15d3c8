//! Forwards queries for external names to the node's resolvers.
//!
//! Equal concurrent queries share one request, so a resolver that leads back here (a loop in the node's configuration)
//! ends as one time-out and not as a storm. The number of concurrent queries is bounded; beyond that a client gets a
//! failure and has to retry.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use hickory_proto::op::{Edns, Message, MessageType, Query};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tracing::debug;

use crate::cache::{Cache, Question};

/// The time that one resolver may take.
const ATTEMPT: Duration = Duration::from_secs(2);
/// The number of times that the list of resolvers is tried.
const ROUNDS: usize = 2;
/// The most concurrent queries.
const MAX_PENDING: usize = 1000;
/// The payload that passes unfragmented nearly everywhere.
const PAYLOAD: u16 = 1232;

type Outcome = Option<Arc<Message>>;
type Pending = Shared<BoxFuture<'static, Outcome>>;

/// The forwarder of external names. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Forwarder {
    inner: Arc<Inner>,
}

struct Inner {
    upstreams: Vec<SocketAddr>,
    /// The resolver that answered last; it is tried first.
    preferred: AtomicUsize,
    cache: Mutex<Cache>,
    under_way: Mutex<HashMap<Question, Pending>>,
    permits: Semaphore,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Forwarder {
    pub fn new(upstreams: Vec<SocketAddr>, cache_size: usize) -> Forwarder {
        let inner = Inner {
            upstreams,
            preferred: AtomicUsize::new(0),
            cache: Mutex::new(Cache::new(cache_size)),
            under_way: Mutex::default(),
            permits: Semaphore::new(MAX_PENDING),
        };
        Forwarder { inner: Arc::new(inner) }
    }

    pub fn has_upstreams(&self) -> bool {
        !self.inner.upstreams.is_empty()
    }

    /// Returns the number of cached answers.
    pub fn entries(&self) -> usize {
        lock(&self.inner.cache).len()
    }

    /// Returns the answer, if it is cached.
    pub fn cached(&self, question: &Question) -> Option<Message> {
        lock(&self.inner.cache).get(question, Instant::now())
    }

    /// Returns the answer of a resolver; `None` if none answers or too many queries are running.
    pub async fn resolve(&self, question: Question) -> Option<Message> {
        if let Some(known) = self.cached(&question) {
            return Some(known);
        }
        let pending = self.join(question);
        pending.await.map(|response| Message::clone(&response))
    }

    fn join(&self, question: Question) -> Pending {
        let mut under_way = lock(&self.inner.under_way);
        let forwarder = self.clone();
        let key = question.clone();
        let start = || async move { forwarder.ask(key).await }.boxed().shared();
        under_way.entry(question).or_insert_with(start).clone()
    }

    async fn ask(self, question: Question) -> Outcome {
        // Removes the query also when the last client that waits for it disconnects.
        let _forget = Forget { forwarder: &self, question: &question };
        let _permit = self.inner.permits.try_acquire().ok()?;
        let response = Arc::new(self.inner.ask_in_turn(&question).await?);
        lock(&self.inner.cache).insert(question.clone(), response.clone(), Instant::now());
        Some(response)
    }
}

struct Forget<'a> {
    forwarder: &'a Forwarder,
    question: &'a Question,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        lock(&self.forwarder.inner.under_way).remove(self.question);
    }
}

impl Inner {
    async fn ask_in_turn(&self, question: &Question) -> Option<Message> {
        let count = self.upstreams.len();
        let first = self.preferred.load(Ordering::Relaxed);
        for attempt in 0..count * ROUNDS {
            let index = (first + attempt) % count;
            let upstream = self.upstreams[index];
            match timeout(ATTEMPT, exchange(upstream, question)).await {
                Ok(Ok(response)) => {
                    self.preferred.store(index, Ordering::Relaxed);
                    return Some(response);
                }
                Ok(Err(error)) => debug!(%upstream, name = %question.name, "a resolver failed: {error}"),
                Err(_) => debug!(%upstream, name = %question.name, "a resolver did not answer in time"),
            }
        }
        None
    }
}

/// Sends one query to one resolver; over TCP if the answer does not fit a datagram.
async fn exchange(upstream: SocketAddr, question: &Question) -> io::Result<Message> {
    let mut request = Message::query();
    request.metadata.recursion_desired = true;
    request.add_query(Query::query(question.name.clone(), question.record_type));
    let mut edns = Edns::new();
    edns.set_max_payload(PAYLOAD);
    edns.set_dnssec_ok(question.dnssec);
    request.set_edns(edns);
    let bytes = request.to_vec().map_err(io::Error::other)?;
    let response = over_udp(upstream, &request, &bytes).await?;
    if response.metadata.truncation { over_tcp(upstream, &request, &bytes).await } else { Ok(response) }
}

async fn over_udp(upstream: SocketAddr, request: &Message, bytes: &[u8]) -> io::Result<Message> {
    let any: IpAddr = if upstream.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // A socket of its own, so that the port cannot be guessed.
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(upstream).await?;
    socket.send(bytes).await?;
    let mut buffer = vec![0; usize::from(u16::MAX)];
    loop {
        let length = socket.recv(&mut buffer).await?;
        if let Some(response) = accept(request, &buffer[..length]) {
            return Ok(response);
        }
    }
}

async fn over_tcp(upstream: SocketAddr, request: &Message, bytes: &[u8]) -> io::Result<Message> {
    let mut stream = TcpStream::connect(upstream).await?;
    let length = u16::try_from(bytes.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes()[..], bytes].concat()).await?;
    let mut buffer = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut buffer).await?;
    accept(request, &buffer).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// Returns the response, if it is one to this request.
pub(crate) fn accept(request: &Message, bytes: &[u8]) -> Option<Message> {
    let response = Message::from_vec(bytes).ok()?;
    let answers = response.metadata.id == request.metadata.id
        && response.metadata.message_type == MessageType::Response
        && response.queries == request.queries;
    answers.then_some(response)
}
