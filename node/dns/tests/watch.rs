//! The component as the binary runs it: names follow the objects of the API.

#![allow(clippy::unwrap_used)]

mod api;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use api::Api;
use corten_dns::{Config, Server};
use hickory_proto::op::{Message, Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use tokio::net::UdpSocket;
use tokio_util::sync::CancellationToken;

const TIMEOUT: Duration = Duration::from_secs(300);

async fn ask(server: SocketAddr, name: &str) -> (ResponseCode, Vec<String>) {
    let mut message = Message::query();
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.send_to(&message.to_vec().unwrap(), server).await.unwrap();
    let mut buffer = [0; 1500];
    let length = tokio::time::timeout(TIMEOUT, socket.recv(&mut buffer)).await.unwrap().unwrap();
    let response = Message::from_vec(&buffer[..length]).unwrap();
    (response.metadata.response_code, response.answers.iter().map(|record| record.data.to_string()).collect())
}

/// Queries until the answer is as expected.
async fn becomes(server: SocketAddr, name: &str, expected: &[&str]) {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let (code, found) = ask(server, name).await;
        if found == expected && (code == ResponseCode::NXDomain) == expected.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "{name}: {code} {found:?}, not {expected:?}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn names_follow_the_api() {
    let api = Api::default();
    api.put("namespaces", r#"{"metadata":{"name":"default"}}"#);
    let service =
        |ip: &str| format!(r#"{{"metadata":{{"name":"web","namespace":"default"}},"spec":{{"clusterIP":"{ip}"}}}}"#);
    api.put("services", &service("10.96.0.7"));
    let server = Server::bind(&Config::new(vec!["127.0.0.1:0".parse().unwrap()], Vec::new())).await.unwrap();
    let address = server.addresses()[0];
    let mut ready = server.ready();
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(server.run(api.client(), shutdown.clone()));
    tokio::time::timeout(TIMEOUT, ready.wait()).await.unwrap();

    let (code, found) = ask(address, "web.default.svc.cluster.local.").await;
    assert_eq!((code, found), (ResponseCode::NoError, vec!["10.96.0.7".to_owned()]));
    assert_eq!(ask(address, "db.default.svc.cluster.local.").await.0, ResponseCode::NXDomain);

    api.put("services", r#"{"metadata":{"name":"db","namespace":"default"},"spec":{"clusterIP":"None"}}"#);
    api.put(
        "endpointslices",
        r#"{"addressType":"IPv4","endpoints":[{"addresses":["10.244.0.9"]}],
            "metadata":{"labels":{"kubernetes.io/service-name":"db"},"name":"db-1","namespace":"default"}}"#,
    );
    becomes(address, "db.default.svc.cluster.local.", &["10.244.0.9"]).await;
    api.put("services", &service("10.96.0.8"));
    becomes(address, "web.default.svc.cluster.local.", &["10.96.0.8"]).await;
    api.delete("services", "default", "web");
    becomes(address, "web.default.svc.cluster.local.", &[]).await;

    shutdown.cancel();
    tokio::time::timeout(TIMEOUT, running).await.unwrap().unwrap().unwrap();
}
