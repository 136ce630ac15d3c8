//! The network between the API server and its clients: slow, and at times without mercy.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use corten_apiserver::{Server, User};
use corten_client::{Body, Client, Error, Transport};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use http::{Request, Response};
use testkit_machine::random::Random;
use tokio::sync::watch;

use crate::host;

/// The longest delay of a request, and of an answer.
const DELAY_MICROSECONDS: u64 = 20_000;
/// While the network is faulty, one request in so many is lost, and one answer.
const LOSS: u64 = 60;
/// While the network is faulty, a watch ends after at most so many seconds.
const WATCH_SECONDS: u64 = 60;
/// The time after which a client notices that its peer is silent.
const SILENCE: Duration = Duration::from_secs(5);

/// The network, and the server that it leads to.
pub struct Network {
    random: Mutex<Random>,
    server: watch::Sender<Option<Arc<Server>>>,
    is_faulty: watch::Sender<bool>,
}

/// The line of one process; all of its clients share it.
#[derive(Clone)]
pub struct Line {
    network: Arc<Network>,
    is_cut: watch::Sender<bool>,
}

impl Network {
    pub fn new(seed: u64) -> Arc<Network> {
        let server = watch::Sender::new(None);
        let is_faulty = watch::Sender::new(false);
        Arc::new(Network { random: Mutex::new(Random::new(seed)), server, is_faulty })
    }

    /// Sets the server; without one, connections are refused, and open ones break.
    pub fn set_server(&self, server: Option<Arc<Server>>) {
        self.server.send_replace(server);
    }

    pub fn set_faulty(&self, is_faulty: bool) {
        self.is_faulty.send_replace(is_faulty);
    }

    pub fn line(self: &Arc<Network>) -> Line {
        Line { network: self.clone(), is_cut: watch::Sender::new(false) }
    }

    fn random(&self) -> MutexGuard<'_, Random> {
        self.random.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn delay(&self) {
        let delay = self.random().below(DELAY_MICROSECONDS);
        tokio::time::sleep(Duration::from_micros(delay)).await;
    }

    /// Reports whether the network loses what passes now.
    fn loses(&self) -> bool {
        *self.is_faulty.borrow() && self.random().once_in(LOSS)
    }
}

impl Line {
    /// Cuts the line, or mends it.
    pub fn set_cut(&self, is_cut: bool) {
        self.is_cut.send_replace(is_cut);
    }

    pub fn transport(&self, user: User) -> Arc<dyn Transport> {
        Arc::new(Caller { line: self.clone(), user })
    }

    pub fn client(&self, user: User) -> Client {
        Client::new(self.transport(user))
    }

    /// Returns once the server that was asked is gone, or the line is cut.
    async fn broken(self, server: Arc<Server>) {
        let mut servers = self.network.server.subscribe();
        let mut cut = self.is_cut.subscribe();
        let is_gone = |current: &Option<Arc<Server>>| !current.as_ref().is_some_and(|one| Arc::ptr_eq(one, &server));
        tokio::select! {
            _ = servers.wait_for(is_gone) => {}
            _ = cut.wait_for(|is_cut| *is_cut) => {}
        }
    }
}

/// A user at one end of a line.
struct Caller {
    line: Line,
    user: User,
}

impl Transport for Caller {
    fn send(&self, request: Request<Bytes>) -> BoxFuture<'static, Result<Response<Body>, Error>> {
        let line = self.line.clone();
        let user = self.user.clone();
        async move {
            let network = line.network.clone();
            network.delay().await;
            tracing::debug!(at = host::seconds(), user = user.name, method = %request.method(), uri = %request.uri());
            let server = network.server.borrow().clone();
            let Some(server) = server else { return Err(lost("connection refused")) };
            if *line.is_cut.borrow() || network.loses() {
                tokio::time::sleep(SILENCE).await;
                return Err(lost("no answer"));
            }
            let transport = testkit::client::transport(server.in_process(user));
            let broken = line.clone().broken(server.clone());
            let answer = tokio::select! {
                answer = transport.send(request) => answer?,
                () = broken => return Err(lost("connection reset by peer")),
            };
            network.delay().await;
            if *line.is_cut.borrow() || network.loses() {
                tokio::time::sleep(SILENCE).await;
                return Err(lost("the answer is lost"));
            }
            Ok(answer.map(|body| passing(body, line, server)))
        }
        .boxed()
    }
}

/// Ends a watch with its server and its line, and earlier while the network is faulty.
fn passing(body: Body, line: Line, server: Arc<Server>) -> Body {
    let Body::Events(events) = body else { return body };
    let lifetime = Duration::from_secs(1 + line.network.random().below(WATCH_SECONDS));
    let mut faulty = line.network.is_faulty.subscribe();
    let old = async move {
        tokio::time::sleep(lifetime).await;
        let _ = faulty.wait_for(|is_faulty| *is_faulty).await;
    };
    let broken = line.broken(server);
    let end = async move {
        tokio::select! {
            () = old => {}
            () = broken => {}
        }
    };
    let broken = futures::stream::once(async { Err(lost("connection reset by peer")) });
    Body::Events(events.take_until(end.boxed()).chain(broken).boxed())
}

fn lost(reason: &str) -> Error {
    Error::Transport(reason.to_owned())
}
