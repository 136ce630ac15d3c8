//! The proxy of Gateways outlives the server process: while the server is killed, and while its binary is exchanged, no
//! request fails and an open WebSocket goes on. `corten down` ends it.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Error, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use testkit::cluster::Cluster;
use testkit::machine::ADDRESS;
use testkit::{tools, wait};

const CORTEN: &str = env!("CARGO_BIN_EXE_corten");
/// The port of the Gateway.
const PORT: u16 = 8088;
/// The port of the backend, a server of this test in the machine's network.
const BACKEND: u16 = 9099;
/// The requests of each client after every change.
const REQUESTS: usize = 100;

#[test]
fn no_request_fails_while_the_server_is_killed_and_while_its_binary_is_exchanged() {
    if !tools::is_root() {
        eprintln!("skipped: a cluster needs root");
        return;
    }
    let cluster = Cluster::machine(CORTEN);
    cluster.start(&[]);
    let backend = cluster.machine.in_network(|| TcpListener::bind((ADDRESS, BACKEND)).unwrap());
    std::thread::spawn(move || {
        backend.incoming().flatten().for_each(|stream| drop(std::thread::spawn(|| answer(stream))))
    });
    cluster.apply(&manifest());
    cluster.kubectl_wait(&["wait", "--for=condition=Programmed", "gateway/web"]);
    cluster
        .machine
        .in_network(|| wait::until("the first answer", wait::BOUND, || fresh_request().map_err(|e| e.to_string())));
    let traffic = Traffic::default();
    std::thread::scope(|scope| {
        let clients: [fn(&Traffic); 3] = [keep_alive, fresh, websocket];
        for client in clients {
            let machine = &cluster.machine;
            let traffic = &traffic;
            scope.spawn(move || machine.in_network(|| client(traffic)));
        }
        // Also when an assertion fails: the scope waits for the clients.
        let _stopped = Stop(&traffic.is_stopped);
        traffic.goes_on("at first");
        let first = cluster.proxies();
        assert_eq!(first.len(), 1, "{first:?}");

        cluster.kill_hard();
        traffic.goes_on("without a server");
        cluster.start(&[]);
        traffic.goes_on("with the next server");
        assert_eq!(cluster.proxies(), first, "the proxy was kept");

        cluster.exchange_binary();
        let both = wait::until("a proxy of the other binary", wait::BOUND, || match cluster.proxies() {
            both if both.len() == 2 => Ok(both),
            others => Err(format!("{others:?}")),
        });
        wait::until("the takeover", wait::BOUND, || {
            match log(&cluster).contains("another process serves Gateways now") {
                true => Ok(()),
                false => Err("not yet".to_owned()),
            }
        });
        traffic.goes_on("with another binary");
        traffic.is_websocket_stopped.store(true, Ordering::SeqCst);
        wait::until("the end of the first proxy with its last connection", wait::BOUND, || {
            let left = cluster.proxies();
            if left.len() == 1 && left.keys().all(|pid| both.contains_key(pid) && !first.contains_key(pid)) {
                return Ok(());
            }
            Err(format!("{left:?}"))
        });
        traffic.goes_on("after the first proxy");
    });
    assert_eq!(*traffic.failures.lock().unwrap(), [""; 0]);

    cluster.corten(&["down"]);
    wait::until("the end of all processes", wait::BOUND, || match cluster.machine.processes() {
        none if none.is_empty() => Ok(()),
        left => Err(format!("{left:?}")),
    });
    let sockets = cluster.machine.command(&tools::busybox()).args(["netstat", "-tln"]).output().unwrap();
    let sockets = String::from_utf8_lossy(&sockets.stdout).into_owned();
    assert_eq!(sockets.matches("LISTEN").count(), 1, "the backend of this test alone: {sockets}");
}

fn manifest() -> String {
    format!(
        r#"
apiVersion: v1
kind: Service
metadata: {{name: web}}
spec: {{ports: [{{port: 80}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web, labels: {{kubernetes.io/service-name: web}}}}
addressType: IPv4
ports: [{{port: {BACKEND}, protocol: TCP}}]
endpoints: [{{addresses: [{ADDRESS}]}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: web}}
spec: {{gatewayClassName: corten, listeners: [{{name: http, port: {PORT}, protocol: HTTP}}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: web}}
spec:
  parentRefs: [{{name: web}}]
  rules: [{{backendRefs: [{{name: web, port: 80}}]}}]
"#
    )
}

fn log(cluster: &Cluster) -> String {
    std::fs::read_to_string(cluster.data_dir().join("corten.log")).unwrap_or_default()
}

/// The requests of all clients.
#[derive(Default)]
struct Traffic {
    is_stopped: AtomicBool,
    is_websocket_stopped: AtomicBool,
    kept: AtomicUsize,
    fresh: AtomicUsize,
    messages: AtomicUsize,
    failures: Mutex<Vec<String>>,
}

/// Stops the clients when it is dropped.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Traffic {
    fn is_over(&self) -> bool {
        self.is_stopped.load(Ordering::SeqCst)
    }

    fn fail(&self, client: &str, error: &Error) {
        self.failures.lock().unwrap().push(format!("{client}: {error}"));
    }

    /// Waits until each client has sent further requests, and none has failed.
    #[track_caller]
    fn goes_on(&self, when: &str) {
        let has_websocket = !self.is_websocket_stopped.load(Ordering::SeqCst);
        let messages = has_websocket.then_some(&self.messages);
        for count in [Some(&self.kept), Some(&self.fresh), messages].into_iter().flatten() {
            let before = count.load(Ordering::SeqCst);
            wait::until(when, wait::BOUND, || match count.load(Ordering::SeqCst) - before {
                enough if enough >= REQUESTS => Ok(()),
                few => Err(format!("{few} requests, {:?}", self.failures.lock().unwrap())),
            });
        }
        assert_eq!(*self.failures.lock().unwrap(), [""; 0], "{when}");
    }
}

/// Sends requests over one connection for as long as the proxy keeps it.
fn keep_alive(traffic: &Traffic) {
    let mut connection = None;
    while !traffic.is_over() {
        let mut exchange = || {
            let mut stream = match connection.take() {
                Some(stream) => stream,
                None => connect()?,
            };
            if send(&mut stream, "Connection: keep-alive\r\n")? {
                connection = Some(stream);
            }
            Ok(())
        };
        match exchange() {
            Ok(()) => drop(traffic.kept.fetch_add(1, Ordering::SeqCst)),
            Err(error) => traffic.fail("a kept connection", &error),
        }
    }
}

/// Sends each request over a connection of its own.
fn fresh(traffic: &Traffic) {
    while !traffic.is_over() {
        match fresh_request() {
            Ok(()) => drop(traffic.fresh.fetch_add(1, Ordering::SeqCst)),
            Err(error) => traffic.fail("a fresh connection", &error),
        }
    }
}

/// Sends messages over one connection that has changed protocols.
fn websocket(traffic: &Traffic) {
    let exchange = || {
        let mut stream = connect()?;
        let request = "GET / HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
        stream.get_mut().write_all(request.as_bytes())?;
        assert_eq!(head(&mut stream)?.status, "101");
        while !traffic.is_over() && !traffic.is_websocket_stopped.load(Ordering::SeqCst) {
            stream.get_mut().write_all(b"message\n")?;
            let mut line = String::new();
            stream.read_line(&mut line)?;
            if line != "message\n" {
                return Err(Error::other(format!("{line:?} instead of the message")));
            }
            traffic.messages.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    };
    if let Err(error) = exchange() {
        traffic.fail("the WebSocket", &error);
    }
}

fn connect() -> Result<BufReader<TcpStream>, Error> {
    let stream = TcpStream::connect((ADDRESS, PORT))?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    Ok(BufReader::new(stream))
}

fn fresh_request() -> Result<(), Error> {
    send(&mut connect()?, "Connection: close\r\n").map(drop)
}

/// Sends a request, and reports whether the connection is kept.
fn send(stream: &mut BufReader<TcpStream>, headers: &str) -> Result<bool, Error> {
    stream.get_mut().write_all(format!("GET / HTTP/1.1\r\nHost: a.test\r\n{headers}\r\n").as_bytes())?;
    let head = head(stream)?;
    let mut body = vec![0; head.length];
    stream.read_exact(&mut body)?;
    if head.status != "200" || body != b"web" {
        return Err(Error::other(format!("{} {}", head.status, String::from_utf8_lossy(&body))));
    }
    Ok(head.is_kept)
}

struct Head {
    status: String,
    length: usize,
    is_kept: bool,
    is_upgrade: bool,
}

/// Reads the head of a request or a response.
fn head(stream: &mut BufReader<TcpStream>) -> Result<Head, Error> {
    let mut first = String::new();
    if stream.read_line(&mut first)? == 0 {
        return Err(Error::other("the connection was closed"));
    }
    let status = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut head = Head { status, length: 0, is_kept: true, is_upgrade: false };
    loop {
        let mut line = String::new();
        stream.read_line(&mut line)?;
        let line = line.trim().to_ascii_lowercase();
        match line.split_once(": ") {
            None => return Ok(head),
            Some(("content-length", length)) => head.length = length.parse().unwrap_or_default(),
            Some(("connection", "close")) => head.is_kept = false,
            Some(("upgrade", _)) => head.is_upgrade = true,
            Some(_) => {}
        }
    }
}

/// Answers the requests of a connection; one that changes protocols echoes lines.
fn answer(stream: TcpStream) {
    let mut stream = BufReader::new(stream);
    while let Ok(head) = head(&mut stream) {
        if !head.is_upgrade {
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nweb";
            if stream.get_mut().write_all(answer).is_err() {
                return;
            }
            continue;
        }
        let answer = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
        let _ = stream.get_mut().write_all(answer);
        let mut line = String::new();
        while stream.read_line(&mut line).is_ok_and(|read| read > 0) {
            let _ = stream.get_mut().write_all(line.as_bytes());
            line.clear();
        }
        return;
    }
}
