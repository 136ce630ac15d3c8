//! The health check ports of Services whose external traffic policy is Local: a load balancer checks there whether this
//! node has an endpoint of the Service.
//!
//! One listener per Service, as in upstream's proxy: any request is answered with the number of local endpoints, 200 if
//! there is one and 503 if not.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use corten_listen::{Gate, Limits, Slot};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::service::ServiceKey;

/// The time that a client may take for its request.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The time until a port that is in use is tried again.
pub(crate) const RETRY: Duration = Duration::from_secs(10);
/// The longest request head that is read.
const HEAD: usize = 8 * 1024;
/// The connections of one port at once.
pub(crate) const LIMITS: Limits = Limits::anonymous(64);

/// The state of a health check port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Check {
    pub port: u16,
    pub local_endpoints: usize,
}

pub(crate) type Checks = BTreeMap<ServiceKey, Check>;

/// Joins the checks of both IP families: an endpoint with two addresses is one.
pub(crate) fn joined(of_versions: impl Iterator<Item = Checks>) -> Checks {
    let mut all = Checks::new();
    for (key, check) in of_versions.flatten() {
        let known = all.entry(key).or_insert_with(|| check.clone());
        known.local_endpoints = known.local_endpoints.max(check.local_endpoints);
    }
    all
}

/// Serves the current checks until shutdown.
pub(crate) async fn serve(mut checks: watch::Receiver<Checks>, shutdown: CancellationToken) {
    let mut listening: BTreeMap<(ServiceKey, u16), CancellationToken> = BTreeMap::new();
    let mut tasks = JoinSet::new();
    loop {
        let wanted: Vec<(ServiceKey, u16)> =
            checks.borrow_and_update().iter().map(|(key, check)| (key.clone(), check.port)).collect();
        listening.retain(|listener, end| {
            let stays = wanted.contains(listener);
            if !stays {
                end.cancel();
            }
            stays
        });
        for (key, port) in wanted {
            listening.entry((key.clone(), port)).or_insert_with(|| {
                let end = shutdown.child_token();
                tasks.spawn(listen(key, port, checks.clone(), end.clone()));
                end
            });
        }
        tokio::select! {
            changed = checks.changed() => if changed.is_err() { break },
            () = shutdown.cancelled() => break,
        }
    }
    listening.into_values().for_each(|end| end.cancel());
    while tasks.join_next().await.is_some() {}
}

/// Listens on one port until it is no longer wanted.
async fn listen(key: ServiceKey, port: u16, checks: watch::Receiver<Checks>, end: CancellationToken) {
    let work = async {
        let listener = loop {
            match bind(port).await {
                Ok(listener) => break listener,
                Err(error) => warn!(port, service = ?key, "cannot listen on a health check port: {error}"),
            }
            tokio::time::sleep(RETRY).await;
        };
        let mut connections = JoinSet::new();
        let gate = Gate::new(LIMITS);
        loop {
            tokio::select! {
                (stream, slot) = gate.accept(&listener) => {
                    let count = checks.borrow().get(&key).map_or(0, |check| check.local_endpoints);
                    connections.spawn(in_time(slot, answer(stream, response(&key, count))));
                }
                Some(_) = connections.join_next() => {}
            }
        }
    };
    tokio::select! {
        () = work => {}
        () = end.cancelled() => {}
    }
}

/// Binds a port of both families where the kernel has both.
pub(crate) async fn bind(port: u16) -> std::io::Result<TcpListener> {
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        Ok(listener) => Ok(listener),
        Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await,
    }
}

/// Serves a connection until it is done, out of time, or closed in favour of another.
pub(crate) async fn in_time(slot: Slot, work: impl Future<Output = ()>) {
    tokio::select! {
        () = slot.closed() => {}
        _ = tokio::time::timeout(TIMEOUT, work) => {}
    }
}

/// Reads the head of any request, and answers.
async fn answer(mut stream: TcpStream, response: String) {
    if read_head(&mut stream).await.is_some() {
        write_answer(stream, &response).await;
    }
}

/// Reads the head of a request, up to the limit; returns `None` if the client disconnected.
pub(crate) async fn read_head(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut head = Vec::new();
    let mut chunk = [0; 1024];
    while !head.windows(4).any(|window| window == b"\r\n\r\n") && head.len() < HEAD {
        match stream.read(&mut chunk).await {
            Ok(0) | Err(_) => return None,
            Ok(length) => head.extend_from_slice(&chunk[..length]),
        }
    }
    Some(head)
}

/// Writes the answer and closes the connection.
pub(crate) async fn write_answer(mut stream: TcpStream, response: &str) {
    let answered = async {
        stream.write_all(response.as_bytes()).await?;
        stream.shutdown().await
    };
    if let Err(error) = answered.await {
        debug!("a health check disconnected: {error}");
    }
}

fn response(key: &ServiceKey, count: usize) -> String {
    let status = if count > 0 { "200 OK" } else { "503 Service Unavailable" };
    let body = format!(
        "{{\n\t\"service\": {{\n\t\t\"namespace\": \"{}\",\n\t\t\"name\": \"{}\"\n\t}},\n\t\"localEndpoints\": {count},\n\t\"serviceProxyHealthy\": true\n}}",
        key.namespace, key.name
    );
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nX-Content-Type-Options: nosniff\r\n\
         X-Load-Balancing-Endpoint-Weight: {count}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn ask(port: u16) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        Some(answer)
    }

    async fn until(port: u16, expected: impl Fn(&Option<String>) -> bool) -> Option<String> {
        for _ in 0..1_000_000 {
            let answer = ask(port).await;
            if expected(&answer) {
                return answer;
            }
            tokio::task::yield_now().await;
        }
        panic!("port {port} never answers as expected");
    }

    #[tokio::test]
    async fn a_port_opens_reports_the_endpoints_and_closes() {
        // A port outside of the ephemeral range: the system gives it to no other test before it is served, and not to a
        // client here while no server listens, which would then be connected to itself.
        let first = 25_000 + (std::process::id() % 5_000) as u16;
        let is_free = |port: &u16| std::net::TcpListener::bind(("0.0.0.0", *port)).is_ok();
        let port = (first..first + 1000).find(is_free).unwrap();
        let key = ServiceKey { namespace: "n".to_owned(), name: "web".to_owned() };
        let checks = |count| Checks::from([(key.clone(), Check { port, local_endpoints: count })]);
        let (sender, receiver) = watch::channel(checks(2));
        let shutdown = CancellationToken::new();
        let serving = tokio::spawn(serve(receiver, shutdown.clone()));
        let answer = until(port, Option::is_some).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("\"localEndpoints\": 2"), "{answer}");
        sender.send_replace(checks(0));
        let empty = |answer: &Option<String>| answer.as_ref().is_some_and(|answer| answer.starts_with("HTTP/1.1 503 "));
        until(port, empty).await;
        sender.send_replace(Checks::new());
        until(port, Option::is_none).await;
        shutdown.cancel();
        serving.await.unwrap();
    }
}
