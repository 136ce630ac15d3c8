//! UDP: the datagrams of one client go to one endpoint for as long as its session lasts.
//!
//! A session is a socket of its own towards the endpoint, so that answers find their client. Sessions end when they are
//! idle; their number is bounded, and beyond the bound the session that is idle for longest ends.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio_util::sync::CancellationToken;

use crate::backend::{Backend, InFlight};
use crate::clock;
use crate::listener_state::ListenerState;
use crate::shared::Shared;
use crate::table::Protocol;

/// The largest datagram.
const MAX_DATAGRAM: usize = 65_535;
/// The time without datagrams after which a session ends.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Session {
    socket: UdpSocket,
    /// The time of the last datagram, in milliseconds of the process.
    used: AtomicU64,
    ended: CancellationToken,
    endpoint: InFlight,
}

impl Session {
    fn touch(&self) {
        self.used.store(clock::milliseconds(), Ordering::Relaxed);
    }

    fn idle(&self) -> Duration {
        Duration::from_millis(clock::milliseconds().saturating_sub(self.used.load(Ordering::Relaxed)))
    }
}

/// The sessions of one socket.
#[derive(Debug, Default)]
pub(crate) struct Sessions(Mutex<HashMap<SocketAddr, Arc<Session>>>);

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, HashMap<SocketAddr, Arc<Session>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Receives datagrams until another process does, or the listener drains.
pub(crate) async fn serve(
    socket: Arc<UdpSocket>,
    listener: Arc<ListenerState>,
    shared: Arc<Shared>,
    max_sessions: usize,
) {
    let sessions = Arc::new(Sessions::default());
    let mut buffer = vec![0; MAX_DATAGRAM];
    loop {
        let received = tokio::select! {
            received = socket.recv_from(&mut buffer) => received,
            () = listener.retired() => return,
        };
        let Ok((length, client)) = received else {
            // An error of an earlier answer; the next datagram may be well.
            tokio::task::yield_now().await;
            continue;
        };
        let datagram = buffer.get(..length).unwrap_or_default();
        let known = sessions.lock().get(&client).map(Arc::clone);
        let session = match known {
            // A session whose endpoint is gone begins anew.
            Some(session) if is_current(&listener, &session) => Some(session),
            _ => begin(&socket, &listener, &shared, &sessions, client, max_sessions).await,
        };
        if let Some(session) = session {
            session.touch();
            if session.socket.send(datagram).await.is_err() {
                session.ended.cancel();
            }
        }
    }
}

/// Reports whether the endpoint of a session still takes datagrams.
fn is_current(listener: &ListenerState, session: &Session) -> bool {
    let table = listener.table();
    let Protocol::Udp(targets) = &table.protocol else {
        return false;
    };
    let mut backends = targets.all().iter().filter_map(|target| target.backend.as_ref());
    !session.ended.is_cancelled() && backends.any(|backend| backend.contains(session.endpoint.endpoint()))
}

/// Begins a session for a client.
async fn begin(
    socket: &Arc<UdpSocket>,
    listener: &Arc<ListenerState>,
    shared: &Arc<Shared>,
    sessions: &Arc<Sessions>,
    client: SocketAddr,
    max_sessions: usize,
) -> Option<Arc<Session>> {
    let backend = {
        let table = listener.table();
        let Protocol::Udp(targets) = &table.protocol else {
            return None;
        };
        Arc::clone(targets.choose()?.backend.as_ref()?)
    };
    let session = Arc::new(open(&backend).await.ok()?);
    let replaced = {
        let mut sessions = sessions.lock();
        let idlest = || sessions.iter().max_by_key(|(_, session)| session.idle()).map(|(client, _)| *client);
        let evicted = if sessions.len() >= max_sessions { idlest() } else { None };
        let evicted = evicted.and_then(|client| sessions.remove(&client));
        let replaced = sessions.insert(client, Arc::clone(&session));
        [evicted, replaced]
    };
    replaced.into_iter().flatten().for_each(|session| session.ended.cancel());
    shared.metrics.connected("udp");
    let answering =
        Answering { socket: Arc::clone(socket), session: Arc::clone(&session), sessions: Arc::clone(sessions), client };
    let listener = Arc::clone(listener);
    shared.tasks.spawn(async move {
        tokio::select! {
            () = answering.run() => {}
            () = listener.killed() => {}
        }
    });
    Some(session)
}

async fn open(backend: &Backend) -> io::Result<Session> {
    let endpoint = backend.choose(&[]).ok_or(io::ErrorKind::NotConnected)?;
    let local: SocketAddr = match endpoint.address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(local).await?;
    socket.connect(endpoint.address).await?;
    Ok(Session {
        socket,
        used: AtomicU64::new(clock::milliseconds()),
        ended: CancellationToken::new(),
        endpoint: endpoint.begin(),
    })
}

/// The way back of one session.
struct Answering {
    socket: Arc<UdpSocket>,
    session: Arc<Session>,
    sessions: Arc<Sessions>,
    client: SocketAddr,
}

impl Answering {
    /// Passes answers on until the session is idle.
    async fn run(&self) {
        let mut buffer = vec![0; MAX_DATAGRAM];
        loop {
            let left = IDLE_TIMEOUT.saturating_sub(self.session.idle());
            let received = tokio::select! {
                received = self.session.socket.recv(&mut buffer) => received,
                () = tokio::time::sleep(left) => {
                    if self.session.idle() >= IDLE_TIMEOUT {
                        return;
                    }
                    continue;
                }
                () = self.session.ended.cancelled() => return,
            };
            let Ok(length) = received else {
                // The endpoint refuses datagrams; the next one of the client chooses anew.
                return;
            };
            self.session.touch();
            // A client that cannot be reached does not end its session.
            let _ = self.socket.send_to(buffer.get(..length).unwrap_or_default(), self.client).await;
        }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.session.ended.cancel();
        let mut sessions = self.sessions.lock();
        if sessions.get(&self.client).is_some_and(|session| Arc::ptr_eq(session, &self.session)) {
            sessions.remove(&self.client);
        }
    }
}
