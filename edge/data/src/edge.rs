//! The edge: its listeners, and the changes of its configuration.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use corten_routing::{Backend, BackendKey, Configuration, Endpoints, ListenerKey};
use imbl::OrdMap;
use imbl::ordmap::DiffItem;
use thiserror::Error;
use tokio::sync::{Mutex, MutexGuard};

use crate::access_log::AccessLog;
use crate::listener::{ListenerLimits, RunningListener, Socket, SocketKey};
use crate::shared::Shared;
use crate::table::{Compiler, Table, TlsConfigs, WiderTables};

/// The interval at which idle connections to endpoints are looked through.
const SWEEP_PERIOD: Duration = Duration::from_secs(5);

/// The settings of an edge.
#[derive(Debug)]
pub struct Options {
    /// The addresses that every listener binds.
    pub addresses: Vec<IpAddr>,
    /// The most connections of one listener, or sessions of UDP.
    pub connections: usize,
    /// The tasks that accept connections of one listener.
    pub accept_tasks: usize,
    /// The time for requests in flight when a listener is removed or the edge ends.
    pub grace: Duration,
    pub access_log: Option<AccessLog>,
    /// Sockets of the process that ran before: a listener with the address of one takes it over.
    pub inherited: Vec<OwnedFd>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            addresses: vec![IpAddr::V4(Ipv4Addr::UNSPECIFIED)],
            connections: 65_536,
            accept_tasks: 2,
            grace: Duration::from_secs(30),
            access_log: None,
            inherited: Vec::new(),
        }
    }
}

/// A listener whose socket could not be bound.
#[derive(Debug, Error)]
#[error("port {} cannot be bound: {error}", key.port)]
pub struct ListenerError {
    pub key: ListenerKey,
    #[source]
    pub error: io::Error,
}

/// The data half of a node's front door. It must be made inside a Tokio runtime.
#[derive(Debug)]
pub struct Edge {
    shared: Arc<Shared>,
    addresses: Vec<IpAddr>,
    limits: ListenerLimits,
    grace: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    listeners: HashMap<SocketKey, RunningListener>,
    tls: TlsConfigs,
    wider: WiderTables,
    /// The backends of the configuration that is served.
    backends: OrdMap<BackendKey, Arc<Backend>>,
    /// Backends that left the configuration, while a table or a request still has them.
    left: Vec<BackendKey>,
    inherited: HashMap<SocketKey, Socket>,
    /// Whether another process accepts from the sockets.
    is_retired: bool,
}

impl Edge {
    /// Returns an edge without listeners.
    pub fn new(options: Options) -> Edge {
        let shared = Arc::new(Shared::new(options.access_log));
        tokio::spawn(sweep(Arc::downgrade(&shared)));
        let mut state = State::default();
        for socket in options.inherited {
            let inherited = Socket::inherit(socket).and_then(|socket| Ok((socket.key()?, socket)));
            match inherited {
                Ok((key, socket)) => {
                    state.inherited.insert(key, socket);
                }
                Err(error) => tracing::warn!(%error, "a socket of the last process cannot be taken over"),
            }
        }
        Edge {
            shared,
            addresses: options.addresses,
            limits: ListenerLimits { connections: options.connections, accept_tasks: options.accept_tasks },
            grace: options.grace,
            state: Mutex::new(state),
        }
    }

    /// Takes over a configuration. Listeners that stay keep their sockets and connections. Returns the listeners whose
    /// socket could not be bound; all others serve.
    pub async fn apply(&self, configuration: &Configuration) -> Vec<ListenerError> {
        let mut state = self.state.lock().await;
        self.set_backends(&mut state, configuration);
        let mut errors = Vec::new();
        let mut kept = HashMap::new();
        for (key, listener) in &configuration.listeners {
            let last = self.last_table(&state, key, listener.bind_port);
            let State { tls, wider, .. } = &mut *state;
            let mut compiler = Compiler {
                backend: &|key| self.shared.backend(key),
                metrics: &self.shared.metrics,
                limiters: &self.shared.limiters,
                unknown_keys: &self.shared.unknown_keys,
                tls,
                wider,
                last,
            };
            let table = Arc::new(compiler.table(key.port, listener));
            for address in &self.addresses {
                let address = SocketAddr::new(*address, listener.bind_port);
                let socket = SocketKey { address, transport: key.transport };
                if state.is_retired && !state.listeners.contains_key(&socket) {
                    continue;
                }
                match self.serve(&mut state, socket, &table).await {
                    Ok(running) => {
                        kept.insert(socket, running);
                    }
                    Err(error) => errors.push(ListenerError { key: key.clone(), error }),
                }
            }
        }
        for (_, removed) in std::mem::replace(&mut state.listeners, kept) {
            removed.drain(self.grace);
        }
        self.shared.metrics.listeners.set(state.listeners.len() as f64);
        state.tls.forget_unused();
        state.wider.forget_unused();
        state.left.retain(|key| !configuration.backends.contains_key(key));
        state.left = self.shared.forget(std::mem::take(&mut state.left));
        self.shared.limiters.forget_unused();
        errors
    }

    /// Takes over the settings of backends that differ from those that are served.
    fn set_backends(&self, state: &mut State, configuration: &Configuration) {
        for item in state.backends.diff(&configuration.backends) {
            match item {
                DiffItem::Add(key, backend) | DiffItem::Update { new: (key, backend), .. } => {
                    self.shared.backend(key).set_settings(backend);
                }
                DiffItem::Remove(key, _) => state.left.push(key.clone()),
            }
        }
        state.backends = configuration.backends.clone();
    }

    /// Returns the table of the listener that has a socket now.
    fn last_table(&self, state: &State, key: &ListenerKey, port: u16) -> Option<Arc<Table>> {
        let sockets = self.addresses.iter().map(|address| SocketAddr::new(*address, port));
        let mut running =
            sockets.filter_map(|address| state.listeners.get(&SocketKey { address, transport: key.transport }));
        running.next().map(RunningListener::table)
    }

    /// Returns the listener of a socket with a new table: the one that runs, or one on a new or inherited socket.
    async fn serve(
        &self,
        state: &mut MutexGuard<'_, State>,
        key: SocketKey,
        table: &Arc<crate::table::Table>,
    ) -> io::Result<RunningListener> {
        if let Some(running) = state.listeners.remove(&key) {
            running.set_table(Arc::clone(table));
            return Ok(running);
        }
        let socket = match state.inherited.remove(&key) {
            Some(socket) => socket,
            None => Socket::bind(key).await?,
        };
        Ok(RunningListener::start(socket, Arc::clone(table), &self.shared, self.limits))
    }

    /// Takes over the endpoints of a backend. Those that left get no new request; their requests in flight go on.
    pub fn set_endpoints(&self, key: &BackendKey, endpoints: &Endpoints) {
        self.shared.backend(key).set_endpoints(endpoints);
    }

    /// Returns the sockets of all listeners, for the process that runs next.
    pub async fn listeners(&self) -> io::Result<Vec<OwnedFd>> {
        let state = self.state.lock().await;
        state.listeners.values().filter_map(|running| running.socket()).map(Socket::duplicate).collect()
    }

    /// Returns the addresses that listeners are bound to.
    pub async fn addresses(&self) -> Vec<SocketAddr> {
        let state = self.state.lock().await;
        state.listeners.values().filter_map(|running| Some(running.socket()?.key().ok()?.address)).collect()
    }

    /// Closes inherited sockets that no listener took.
    pub async fn forget_inherited(&self) {
        self.state.lock().await.inherited.clear();
    }

    /// Stops to accept, because another process accepts from the same sockets. Connections go on, with the tables and
    /// endpoints of the time; those of HTTP/1.1 end with their next answer, those of HTTP/2 with their last stream.
    pub async fn retire(&self) {
        let mut state = self.state.lock().await;
        state.is_retired = true;
        state.listeners.values_mut().for_each(RunningListener::retire);
        self.shared.tasks.close();
    }

    /// Waits until an edge that has retired has no connection left.
    pub async fn idle(&self) {
        self.shared.tasks.wait().await;
    }

    /// Stops to accept, and waits until all requests in flight ended, or the grace period did.
    pub async fn drain(&self) {
        let listeners = std::mem::take(&mut self.state.lock().await.listeners);
        for (_, listener) in listeners {
            listener.drain(self.grace);
        }
        self.shared.tasks.close();
        // A task ends at once when its listener is killed.
        let _ = tokio::time::timeout(self.grace * 2, self.shared.tasks.wait()).await;
    }

    /// Waits for tokens with keys that their key sets lack, and returns the names of these sets.
    pub async fn unknown_keys(&self) -> BTreeSet<Arc<str>> {
        self.shared.unknown_keys.take().await
    }

    /// Returns the metrics in Prometheus' text format.
    pub fn metrics(&self) -> String {
        self.shared.metrics.render()
    }
}

/// Closes idle connections to endpoints for as long as the edge lives.
async fn sweep(shared: Weak<Shared>) {
    loop {
        tokio::time::sleep(SWEEP_PERIOD).await;
        let Some(shared) = shared.upgrade() else {
            return;
        };
        shared.sweep();
    }
}
