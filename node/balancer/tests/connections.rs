//! A balancer between real sockets: which server a connection reaches, and when it breaks.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use corten_balancer::{Balancer, Check, Config, Health};
use futures::FutureExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

/// The longest that a test waits for anything.
const BOUND: Duration = Duration::from_secs(60);

/// A server that says its name and then repeats its client; it ends with the guard.
struct Server {
    address: String,
    _ends: DropGuard,
}

impl Server {
    async fn start(name: &'static str) -> Server {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let end = CancellationToken::new();
        let ended = end.clone();
        tokio::spawn(async move {
            let serve = async {
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    let ended = ended.clone();
                    tokio::spawn(async move {
                        tokio::select! {
                            () = echo(stream, name) => {}
                            () = ended.cancelled() => {}
                        }
                    });
                }
            };
            tokio::select! {
                () = serve => {}
                () = ended.cancelled() => {}
            }
        });
        Server { address, _ends: end.drop_guard() }
    }
}

async fn echo(mut stream: TcpStream, name: &str) {
    let _ = stream.write_all(name.as_bytes()).await;
    let (mut reader, mut writer) = stream.split();
    let _ = tokio::io::copy(&mut reader, &mut writer).await;
}

/// A balancer over servers whose health the test says.
struct World {
    address: SocketAddr,
    servers: watch::Sender<Vec<String>>,
    health: Arc<Mutex<BTreeMap<String, bool>>>,
    _ends: DropGuard,
}

impl World {
    async fn new(servers: &[&Server], fallback: &[&Server]) -> World {
        let addresses = |servers: &[&Server]| servers.iter().map(|server| server.address.clone()).collect::<Vec<_>>();
        let (sender, receiver) = watch::channel(addresses(servers));
        let health: Arc<Mutex<BTreeMap<String, bool>>> = Arc::default();
        let known = Arc::clone(&health);
        let check: Check = Arc::new(move |address| {
            let is_healthy = known.lock().unwrap().get(&address).copied().unwrap_or(true);
            async move { if is_healthy { Health::Healthy } else { Health::Failing } }.boxed()
        });
        let config =
            Config { interval: Duration::from_millis(5), ..Config::new("node", addresses(fallback), receiver, check) };
        let balancer = Balancer::bind(&[(Ipv4Addr::LOCALHOST, 0).into()], config).await.unwrap();
        let address = balancer.address().unwrap();
        let end = CancellationToken::new();
        tokio::spawn(balancer.run(end.clone()));
        World { address, servers: sender, health, _ends: end.drop_guard() }
    }

    fn set_health(&self, server: &Server, is_healthy: bool) {
        self.health.lock().unwrap().insert(server.address.clone(), is_healthy);
    }

    /// Connects, and returns the connection with the name of the server behind it; an empty name for none.
    async fn connect(&self) -> (TcpStream, String) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let mut name = [0; 1];
        let read = tokio::time::timeout(BOUND, stream.read(&mut name)).await.unwrap().unwrap_or(0);
        (stream, String::from_utf8_lossy(&name[..read]).into_owned())
    }

    /// Connects until the server of this name answers.
    async fn until(&self, wanted: &str) -> TcpStream {
        let found = async {
            loop {
                let (stream, name) = self.connect().await;
                if name == wanted {
                    return stream;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(BOUND, found).await.unwrap_or_else(|_| panic!("{wanted} never answers"))
    }
}

async fn is_open(stream: &mut TcpStream) -> bool {
    let mut byte = [0; 1];
    stream.write_all(b"x").await.is_ok() && stream.read(&mut byte).await.is_ok_and(|read| read == 1)
}

/// Waits until the other side closes.
async fn closed(stream: &mut TcpStream) {
    let mut byte = [0; 1];
    let read = tokio::time::timeout(BOUND, stream.read(&mut byte)).await.expect("the connection stays open");
    assert!(read.is_err() || read.is_ok_and(|read| read == 0));
}

#[tokio::test]
async fn clients_of_a_server_that_ends_get_another_at_once() {
    let a = Server::start("a").await;
    let b = Server::start("b").await;
    let world = World::new(&[&a, &b], &[]).await;
    let (mut stream, name) = world.connect().await;
    assert!(is_open(&mut stream).await);
    let (ending, other) = if name == "a" { (a, "b") } else { (b, "a") };
    drop(ending);
    closed(&mut stream).await;
    // The first attempt already: a refused connection is tried at the next server.
    let (mut stream, name) = world.connect().await;
    assert_eq!(name, other);
    assert!(is_open(&mut stream).await);
}

#[tokio::test]
async fn a_server_that_is_alive_but_not_healthy_loses_its_clients_and_gets_them_back() {
    let a = Server::start("a").await;
    let b = Server::start("b").await;
    let world = World::new(&[&a, &b], &[]).await;
    let (mut stream, preferred) = world.connect().await;
    let (first, other) = if preferred == "a" { (&a, "b") } else { (&b, "a") };
    world.set_health(first, false);
    closed(&mut stream).await;
    let mut moved = world.until(other).await;
    world.set_health(first, true);
    world.until(&preferred).await;
    assert!(is_open(&mut moved).await, "a connection that works stays");
}

#[tokio::test]
async fn the_list_is_followed_and_the_fallback_serves_where_it_fails() {
    let a = Server::start("a").await;
    let b = Server::start("b").await;
    let c = Server::start("c").await;
    let world = World::new(&[&a], &[&c]).await;
    assert_eq!(world.connect().await.1, "a");
    world.servers.send(vec![b.address.clone()]).unwrap();
    world.until("b").await;
    world.servers.send(Vec::new()).unwrap();
    assert_eq!(world.connect().await.1, "b", "an empty list changes nothing");
    drop(b);
    world.until("c").await;
    drop((a, c));
    let nothing = async { while !world.connect().await.1.is_empty() {} };
    tokio::time::timeout(BOUND, nothing).await.expect("a connection to nobody is closed");
}
