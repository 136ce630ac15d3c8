//! Counts the open connections of a listener and decides which may stay.
//!
//! Invariant: at most `Limits::connections` are open, and at most `Limits::unauthenticated` of them belong to peers
//! that have not authenticated. One more unauthenticated connection closes the oldest of its kind: an attacker that
//! opens connections and holds them loses them first, while a client that authenticates at once keeps its own.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;

use crate::http::HEADER_TIMEOUT;

/// The pause after the first failure to accept; each further failure doubles it.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// The longest pause between two attempts to accept.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The limits of the connections that a listener serves at once.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The limit of all connections.
    pub connections: usize,
    /// The limit of connections whose peer has not authenticated.
    pub unauthenticated: usize,
}

impl Limits {
    /// Returns the limits of a listener without authentication.
    pub const fn anonymous(connections: usize) -> Limits {
        Limits { connections, unauthenticated: connections }
    }
}

/// A listener that connections are accepted from.
pub trait Accept {
    type Connection;

    fn accept(&self) -> impl Future<Output = io::Result<Self::Connection>> + Send;
}

impl Accept for TcpListener {
    type Connection = TcpStream;

    async fn accept(&self) -> io::Result<TcpStream> {
        Ok(TcpListener::accept(self).await?.0)
    }
}

impl Accept for UnixListener {
    type Connection = UnixStream;

    async fn accept(&self) -> io::Result<UnixStream> {
        Ok(UnixListener::accept(self).await?.0)
    }
}

/// The open connections of a listener; clones share them.
#[derive(Clone, Debug)]
pub struct Gate {
    limits: Limits,
    open: Arc<Mutex<Open>>,
}

#[derive(Debug, Default)]
struct Open {
    /// The number of the next connection.
    next: u64,
    /// The connections of unauthenticated peers, oldest first, with the token that closes each.
    unauthenticated: BTreeMap<u64, CancellationToken>,
    authenticated: BTreeSet<u64>,
}

impl Open {
    fn count(&self) -> usize {
        self.unauthenticated.len() + self.authenticated.len()
    }
}

impl Gate {
    pub fn new(limits: Limits) -> Gate {
        Gate { limits, open: Arc::default() }
    }

    /// Accepts the next connection within the limits. Waits longer and longer while accepting fails, which happens as
    /// long as the process has no free file descriptor.
    pub async fn accept<L: Accept>(&self, listener: &L) -> (L::Connection, Slot) {
        let mut pause = FIRST_PAUSE;
        loop {
            match listener.accept().await {
                Ok(connection) => match self.admit() {
                    Some(slot) => return (connection, slot),
                    None => drop(connection),
                },
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(pause).await;
                    pause = LONGEST_PAUSE.min(pause * 2);
                }
            }
        }
    }

    /// Admits a new connection; closes the oldest unauthenticated connection if the limit is reached.
    fn admit(&self) -> Option<Slot> {
        let mut open = lock(&self.open);
        let is_full = open.count() >= self.limits.connections;
        if is_full || open.unauthenticated.len() >= self.limits.unauthenticated {
            let (_, oldest) = open.unauthenticated.pop_first()?;
            oldest.cancel();
        }
        let number = open.next;
        open.next += 1;
        let closing = CancellationToken::new();
        open.unauthenticated.insert(number, closing.clone());
        drop(open);
        Some(Slot {
            open: Arc::clone(&self.open),
            number,
            closing,
            has_request: AtomicBool::new(false),
            is_authenticated: AtomicBool::new(false),
        })
    }
}

fn lock(open: &Mutex<Open>) -> MutexGuard<'_, Open> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The slot of one connection; dropping it frees the slot.
#[derive(Debug)]
pub struct Slot {
    open: Arc<Mutex<Open>>,
    number: u64,
    closing: CancellationToken,
    has_request: AtomicBool,
    is_authenticated: AtomicBool,
}

impl Slot {
    /// Records that the peer authenticated: the connection is no longer closed in favour of another.
    pub fn authenticated(&self) {
        // Every request of a connection calls this; only the first needs the lock.
        if self.is_authenticated.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut open = lock(&self.open);
        if open.unauthenticated.remove(&self.number).is_some() {
            open.authenticated.insert(self.number);
        }
    }

    /// Records that a complete request head arrived.
    pub fn request_arrived(&self) {
        self.has_request.store(true, Ordering::Relaxed);
    }

    /// Resolves when the connection must close: a newer one replaced it, or no request arrived in time.
    pub async fn closed(&self) {
        let silence = async {
            tokio::time::sleep(HEADER_TIMEOUT).await;
            if self.has_request.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = self.closing.cancelled() => {}
            () = silence => {}
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut open = lock(&self.open);
        open.unauthenticated.remove(&self.number);
        open.authenticated.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    fn is_closed(slot: &Slot) -> bool {
        slot.closing.is_cancelled()
    }

    #[test]
    fn the_oldest_unauthenticated_connection_yields() {
        let gate = Gate::new(Limits { connections: 3, unauthenticated: 2 });
        let known = gate.admit().expect("a place");
        known.authenticated();
        let first = gate.admit().expect("a place");
        let second = gate.admit().expect("a place");
        let third = gate.admit().expect("the place of the oldest");
        assert!(is_closed(&first) && !is_closed(&second) && !is_closed(&third) && !is_closed(&known));
        first.authenticated();
        drop(first);
        assert_eq!(lock(&gate.open).count(), 3);
    }

    #[test]
    fn authenticated_connections_are_limited_and_never_closed() {
        let gate = Gate::new(Limits { connections: 2, unauthenticated: 2 });
        let known: Vec<Slot> = (0..2).filter_map(|_| gate.admit()).collect();
        known.iter().for_each(Slot::authenticated);
        assert!(gate.admit().is_none());
        assert!(!known.iter().any(is_closed));
        drop(known);
        assert!(gate.admit().is_some());
        assert_eq!(lock(&gate.open).count(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_connection_closes_and_one_that_asks_does_not() {
        let gate = Gate::new(Limits::anonymous(2));
        let silent = gate.admit().expect("a place");
        let asking = gate.admit().expect("a place");
        asking.request_arrived();
        tokio::select! {
            () = silent.closed() => {}
            () = asking.closed() => panic!("the connection has asked"),
        }
        let longer = tokio::time::timeout(HEADER_TIMEOUT * 100, asking.closed()).await;
        assert!(longer.is_err(), "the connection has asked");
    }

    struct NoDescriptors(AtomicUsize);

    impl Accept for NoDescriptors {
        type Connection = ();

        async fn accept(&self) -> io::Result<()> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Err(io::Error::from_raw_os_error(24))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_file_table_does_not_spin() {
        let listener = NoDescriptors(AtomicUsize::new(0));
        let gate = Gate::new(Limits::anonymous(1));
        let minute = Duration::from_secs(60);
        assert!(tokio::time::timeout(minute, gate.accept(&listener)).await.is_err());
        let attempts = listener.0.load(Ordering::Relaxed);
        assert!(attempts < 80, "{attempts} attempts in a minute");
    }
}
