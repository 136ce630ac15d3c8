//! Backends: the endpoints of a Service's port, the choice among them, and the connections to them.
//!
//! Invariant: an endpoint that left the set gets no new request, and the requests that it has end in their own time. An
//! endpoint that stays keeps its connections and its load across changes of the set.

mod connect;
mod endpoint;
mod http1;
mod http2;
mod settings;

pub(crate) use connect::{ConnectError, connect_stream};
pub(crate) use endpoint::{Endpoint, InFlight};
pub use http1::ReadResponse;
pub(crate) use http1::{Http1Connection, read_in_pieces};
pub(crate) use http2::{Http2Stream, StreamSlot};
pub(crate) use settings::Settings;

use arc_swap::ArcSwap;
use corten_routing::{BackendKey, BackendProtocol, Endpoints};
use std::net::SocketAddr;
use std::sync::Arc;

use crate::random;

/// A Service's port as rules see it.
#[derive(Debug)]
pub(crate) struct Backend {
    pub(crate) key: BackendKey,
    settings: ArcSwap<Settings>,
    endpoints: ArcSwap<EndpointSet>,
}

#[derive(Debug, Default)]
struct EndpointSet {
    ready: Vec<Arc<Endpoint>>,
    terminating: Vec<Arc<Endpoint>>,
}

/// A connection that can take a request.
pub(crate) enum Connected {
    Http1(Box<Http1Connection>),
    Http2(Http2Stream),
}

impl Backend {
    pub(crate) fn new(key: BackendKey) -> Backend {
        Backend { key, settings: ArcSwap::from_pointee(Settings::default()), endpoints: ArcSwap::default() }
    }

    pub(crate) fn settings(&self) -> Arc<Settings> {
        self.settings.load_full()
    }

    /// Returns the protocol of the endpoints.
    pub(crate) fn protocol(&self) -> BackendProtocol {
        self.settings.load().protocol
    }

    /// Takes over new settings. Connections that were made by other settings take no more requests.
    pub(crate) fn set_settings(&self, settings: &corten_routing::Backend) {
        if self.settings.load().describes(settings) {
            return;
        }
        self.settings.store(Arc::new(Settings::new(settings)));
        let old = self.endpoints.load_full();
        let renew = |endpoints: &[Arc<Endpoint>]| -> Vec<Arc<Endpoint>> {
            endpoints.iter().map(|endpoint| Arc::new(Endpoint::new(endpoint.address))).collect()
        };
        let renewed = EndpointSet { ready: renew(&old.ready), terminating: renew(&old.terminating) };
        self.endpoints.store(Arc::new(renewed));
        retire(&old, &EndpointSet::default());
    }

    /// Takes over new endpoints. Those that stay keep their connections.
    pub(crate) fn set_endpoints(&self, endpoints: &Endpoints) {
        let old = self.endpoints.load_full();
        let keep = |endpoint: &corten_routing::Endpoint| {
            let known = old.all().find(|known| known.address == endpoint.address);
            known.map_or_else(|| Arc::new(Endpoint::new(endpoint.address)), Arc::clone)
        };
        let set = EndpointSet {
            ready: endpoints.ready.iter().map(keep).collect(),
            terminating: endpoints.terminating.iter().map(keep).collect(),
        };
        retire(&old, &set);
        self.endpoints.store(Arc::new(set));
    }

    /// Closes the idle connections of every endpoint that were idle for too long or that the endpoint closed.
    pub(crate) fn sweep(&self) {
        self.endpoints.load().all().for_each(|endpoint| endpoint.sweep());
    }

    /// Chooses the endpoint of a new request: of two random ones the one with fewer requests in flight. One that was
    /// tried already, or whose connections fail, is taken only if there is no other.
    pub(crate) fn choose(&self, tried: &[SocketAddr]) -> Option<Arc<Endpoint>> {
        let set = self.endpoints.load();
        let candidates = if set.ready.is_empty() { &set.terminating } else { &set.ready };
        let first = random::below(candidates.len())?;
        let is_fit = |endpoint: &Endpoint| !endpoint.is_ejected() && !tried.contains(&endpoint.address);
        let one = candidates.get(first)?;
        if candidates.len() == 1 {
            return (!tried.contains(&one.address)).then(|| Arc::clone(one));
        }
        let second = (first + 1 + random::below(candidates.len() - 1)?) % candidates.len();
        let other = candidates.get(second)?;
        let chosen = match (is_fit(one), is_fit(other)) {
            (true, true) if other.load() < one.load() => other,
            (true, _) => one,
            (false, true) => other,
            (false, false) => {
                let rotated = || candidates.iter().cycle().skip(first).take(candidates.len());
                let fit = rotated().find(|endpoint| is_fit(endpoint));
                fit.or_else(|| rotated().find(|endpoint| !tried.contains(&endpoint.address)))?
            }
        };
        Some(Arc::clone(chosen))
    }

    /// Returns the endpoint of a hash: the one with the highest rank for it, so that a change of the set moves only the
    /// requests of the endpoints that came or left.
    pub(crate) fn choose_by_hash(&self, hash: u64, tried: &[SocketAddr]) -> Option<Arc<Endpoint>> {
        let set = self.endpoints.load();
        let candidates = if set.ready.is_empty() { &set.terminating } else { &set.ready };
        let fit = candidates.iter().filter(|endpoint| !endpoint.is_ejected() && !tried.contains(&endpoint.address));
        fit.max_by_key(|endpoint| random::mix(endpoint.session ^ hash)).map(Arc::clone)
    }

    /// Returns the endpoint of a session if it takes requests.
    pub(crate) fn session_endpoint(&self, session: u64) -> Option<Arc<Endpoint>> {
        let set = self.endpoints.load();
        let mut candidates = set.all();
        candidates.find(|endpoint| endpoint.session == session && !endpoint.is_ejected()).map(Arc::clone)
    }

    /// Reports whether an endpoint is still one of this backend's.
    pub(crate) fn contains(&self, endpoint: &Arc<Endpoint>) -> bool {
        self.endpoints.load().all().any(|known| Arc::ptr_eq(known, endpoint))
    }

    /// Reports whether some endpoint takes requests.
    pub(crate) fn has_endpoints(&self) -> bool {
        let set = self.endpoints.load();
        !set.ready.is_empty() || !set.terminating.is_empty()
    }

    /// Returns a connection to an endpoint: an idle one, or a new one. `client` is the client's address, for endpoints
    /// that learn it by the PROXY protocol.
    pub(crate) async fn connect(
        &self,
        endpoint: &Arc<Endpoint>,
        client: connect::Client,
    ) -> Result<Connected, ConnectError> {
        let settings = self.settings.load();
        let is_shared = settings.proxy_protocol.is_none();
        let protocol = settings.protocol;
        if is_shared {
            let idle = match protocol {
                BackendProtocol::Http1 => endpoint.idle().map(Connected::Http1),
                BackendProtocol::Http2 => endpoint.stream().map(Connected::Http2),
            };
            if let Some(idle) = idle {
                return Ok(idle);
            }
        }
        // Boxed, because it is rare: most requests find an idle connection, and need not carry this future.
        Box::pin(open(endpoint, arc_swap::Guard::into_inner(settings), client)).await
    }
}

/// Makes a new connection to an endpoint.
async fn open(
    endpoint: &Arc<Endpoint>,
    settings: Arc<Settings>,
    client: connect::Client,
) -> Result<Connected, ConnectError> {
    let is_shared = settings.proxy_protocol.is_none();
    let stream = connect_stream(endpoint, &settings, client).await?;
    match settings.protocol {
        BackendProtocol::Http1 => Ok(Connected::Http1(Box::new(Http1Connection::new(stream, is_shared)))),
        BackendProtocol::Http2 => Ok(Connected::Http2(http2::open(endpoint, stream, is_shared).await?)),
    }
}

pub(crate) use connect::Client;

impl EndpointSet {
    fn all(&self) -> impl Iterator<Item = &Arc<Endpoint>> {
        self.ready.iter().chain(&self.terminating)
    }
}

/// Closes the idle connections of endpoints that are no longer there.
fn retire(old: &EndpointSet, new: &EndpointSet) {
    for endpoint in old.all() {
        if !new.all().any(|kept| Arc::ptr_eq(kept, endpoint)) {
            endpoint.retire();
        }
    }
}
