//! The server over real sockets, with a resolver of the test as its upstream.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use corten_api::Typed;
use corten_dns::{Config, Endpoints, Server, Service};
use hickory_proto::op::{Edns, Message, Query, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{Name, RData, Record, RecordType};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1 as discovery;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio_util::sync::{CancellationToken, DropGuard};

const TIMEOUT: Duration = Duration::from_secs(120);

/// A resolver of `*.example.com` that records the names of datagram queries, and truncates the answer for `long.`
struct Upstream {
    address: SocketAddr,
    queries: Arc<Mutex<Vec<String>>>,
}

impl Upstream {
    /// Returns the queried names. A server that was slow to receive an answer queries again.
    fn names(&self) -> BTreeSet<String> {
        self.queries.lock().unwrap().iter().cloned().collect()
    }
}

/// Returns sockets of both transports at one port, which may be free for one of them and taken for the other.
async fn sockets() -> (TcpListener, UdpSocket) {
    loop {
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        if let Ok(udp) = UdpSocket::bind(tcp.local_addr().unwrap()).await {
            return (tcp, udp);
        }
    }
}

async fn upstream() -> Upstream {
    let (tcp, udp) = sockets().await;
    let address = tcp.local_addr().unwrap();
    let queries: Arc<Mutex<Vec<String>>> = Arc::default();
    let noted = queries.clone();
    tokio::spawn(async move {
        let mut buffer = [0; 4096];
        loop {
            let (length, client) = udp.recv_from(&mut buffer).await.unwrap();
            let request = Message::from_vec(&buffer[..length]).unwrap();
            noted.lock().unwrap().push(request.queries[0].name.to_lowercase().to_ascii());
            let response = foreign_answer(&buffer[..length], true);
            udp.send_to(&response.to_vec().unwrap(), client).await.unwrap();
        }
    });
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = tcp.accept().await.unwrap();
            let length = stream.read_u16().await.unwrap();
            let mut request = vec![0; length.into()];
            stream.read_exact(&mut request).await.unwrap();
            let response = foreign_answer(&request, false).to_vec().unwrap();
            stream.write_u16(response.len() as u16).await.unwrap();
            stream.write_all(&response).await.unwrap();
        }
    });
    Upstream { address, queries }
}

fn foreign_answer(request: &[u8], datagram: bool) -> Message {
    let request = Message::from_vec(request).unwrap();
    let query = request.queries[0].clone();
    let mut response = Message::response(request.metadata.id, request.metadata.op_code);
    response.add_query(query.clone());
    let name = query.name().to_ascii();
    if !name.ends_with("example.com.") {
        response.metadata.response_code = ResponseCode::NXDomain;
        return response;
    }
    let count = if name.starts_with("long.") { 100 } else { 1 };
    if count > 1 && datagram {
        response.metadata.truncation = true;
        return response;
    }
    for n in 0..count {
        let data = RData::A(A::from(Ipv4Addr::new(192, 0, 2, n)));
        response.add_answer(Record::from_rdata(query.name().clone(), 60, data));
    }
    response
}

struct Cluster {
    address: SocketAddr,
    _stop: DropGuard,
}

async fn cluster(upstreams: Vec<SocketAddr>) -> Cluster {
    cluster_with(Config::new(vec!["127.0.0.1:0".parse().unwrap()], upstreams)).await
}

async fn cluster_with(config: Config) -> Cluster {
    let server = Server::bind(&config).await.unwrap();
    let address = server.addresses()[0];
    {
        let zone = server.zone();
        let mut zone = zone.write().unwrap();
        zone.set_namespace("default", true);
        let service = |spec: &str| {
            let object = core::Service::decode(format!(r#"{{"metadata":{{}},"spec":{spec}}}"#).as_bytes()).unwrap();
            Service::from_object(&object)
        };
        zone.set_service("default", "web", service(r#"{"clusterIP":"10.96.0.7"}"#));
        zone.set_service("default", "many", service(r#"{"clusterIP":"None"}"#));
        zone.set_service("default", "out", service(r#"{"type":"ExternalName","externalName":"www.example.com"}"#));
        let loops = r#"{"type":"ExternalName","externalName":"ring.default.svc.cluster.local"}"#;
        zone.set_service("default", "ring", service(loops));
        let endpoints: Vec<String> = (0..200).map(|n| format!(r#"{{"addresses":["10.244.1.{n}"]}}"#)).collect();
        let slice = format!(
            r#"{{"metadata":{{"labels":{{"kubernetes.io/service-name":"many"}}}},"addressType":"IPv4","endpoints":[{}]}}"#,
            endpoints.join(",")
        );
        let slice = discovery::EndpointSlice::decode(slice.as_bytes()).unwrap();
        zone.set_endpoints("default", "many-1", Endpoints::from_object(&slice));
        zone.set_synced();
    }
    let shutdown = CancellationToken::new();
    tokio::spawn(server.serve(shutdown.clone()));
    Cluster { address, _stop: shutdown.drop_guard() }
}

fn query(name: &str, record_type: RecordType, payload: Option<u16>) -> Message {
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), record_type));
    if let Some(payload) = payload {
        let mut edns = Edns::new();
        edns.set_max_payload(payload);
        message.set_edns(edns);
    }
    message
}

impl Cluster {
    async fn send(&self, bytes: &[u8]) -> (Message, usize) {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.send_to(bytes, self.address).await.unwrap();
        let mut buffer = [0; 4096];
        let length = tokio::time::timeout(TIMEOUT, socket.recv(&mut buffer)).await.unwrap().unwrap();
        (Message::from_vec(&buffer[..length]).unwrap(), length)
    }

    async fn udp(&self, message: &Message) -> (Message, usize) {
        let (response, length) = self.send(&message.to_vec().unwrap()).await;
        assert_eq!(response.metadata.id, message.metadata.id);
        (response, length)
    }

    async fn a(&self, name: &str) -> Message {
        self.udp(&query(name, RecordType::A, None)).await.0
    }
}

fn addresses(message: &Message) -> Vec<String> {
    message.answers.iter().map(|record| record.data.to_string()).collect()
}

#[tokio::test]
async fn names_of_the_cluster_are_answered_with_authority() {
    let cluster = cluster(Vec::new()).await;
    let found = cluster.a("WEB.default.svc.cluster.local.").await;
    assert_eq!(addresses(&found), ["10.96.0.7"]);
    assert!(found.metadata.authoritative && found.metadata.recursion_available);
    assert_eq!(found.answers[0].name.to_ascii(), "WEB.default.svc.cluster.local.");

    let nodata = cluster.udp(&query("web.default.svc.cluster.local.", RecordType::AAAA, None)).await.0;
    assert_eq!(nodata.metadata.response_code, ResponseCode::NoError);
    assert!(nodata.answers.is_empty() && nodata.authorities[0].record_type() == RecordType::SOA);

    let missing = cluster.a("nobody.default.svc.cluster.local.").await;
    assert_eq!(missing.metadata.response_code, ResponseCode::NXDomain);
    assert_eq!(missing.authorities[0].record_type(), RecordType::SOA);
    assert_eq!(cluster.a("example.com.").await.metadata.response_code, ResponseCode::Refused);
}

#[tokio::test]
async fn large_answers_are_truncated_for_udp_and_complete_over_tcp() {
    let cluster = cluster(Vec::new()).await;
    for (payload, room) in [(None, 512), (Some(1232), 1232), (Some(4096), 1232)] {
        let (cut, length) = cluster.udp(&query("many.default.svc.cluster.local.", RecordType::A, payload)).await;
        assert!(cut.metadata.truncation && length <= room, "{payload:?}: {length}");
        assert!(!cut.answers.is_empty());
        assert_eq!(cut.edns.is_some(), payload.is_some());
    }
    // Each answer begins with another record, because many clients take the first.
    let mut first = BTreeSet::new();
    for _ in 0..4 {
        let (cut, _) = cluster.udp(&query("many.default.svc.cluster.local.", RecordType::A, None)).await;
        first.insert(cut.answers[0].data.to_string());
    }
    assert_eq!(first.len(), 4);
    let mut stream = TcpStream::connect(cluster.address).await.unwrap();
    for _ in 0..2 {
        let request = query("many.default.svc.cluster.local.", RecordType::A, None).to_vec().unwrap();
        stream.write_u16(request.len() as u16).await.unwrap();
        stream.write_all(&request).await.unwrap();
        let mut response = vec![0; stream.read_u16().await.unwrap().into()];
        stream.read_exact(&mut response).await.unwrap();
        let response = Message::from_vec(&response).unwrap();
        assert_eq!((response.answers.len(), response.metadata.truncation), (200, false));
    }
}

#[tokio::test]
async fn external_names_are_forwarded_once_and_cached() {
    let upstream = upstream().await;
    let cluster = cluster(vec![upstream.address]).await;
    let mut counts = Vec::new();
    for _ in 0..3 {
        let found = cluster.a("www.EXAMPLE.com.").await;
        assert_eq!(addresses(&found), ["192.0.2.0"]);
        assert!(!found.metadata.authoritative);
        counts.push(upstream.queries.lock().unwrap().len());
    }
    assert!(counts[0] > 0 && counts == [counts[0]; 3], "{counts:?}");
    assert_eq!(cluster.a("nobody.test.").await.metadata.response_code, ResponseCode::NXDomain);
    // A truncated answer of the resolver is fetched by TCP, and truncated again for our client.
    assert!(cluster.a("long.example.com.").await.metadata.truncation);
    let (complete, _) = cluster.udp(&query("long.example.com.", RecordType::A, Some(1232))).await;
    assert!(!complete.answers.is_empty());
}

#[tokio::test]
async fn a_dead_resolver_is_skipped() {
    // A port that no test uses.
    let dead = "127.9.9.9:9".parse().unwrap();
    let upstream = upstream().await;
    let cluster = cluster(vec![dead, upstream.address]).await;
    assert_eq!(addresses(&cluster.a("www.example.com.").await), ["192.0.2.0"]);
}

#[tokio::test]
async fn aliases_are_followed_out_of_the_cluster_and_never_in_circles() {
    let upstream = upstream().await;
    let cluster = cluster(vec![upstream.address]).await;
    let found = cluster.a("out.default.svc.cluster.local.").await;
    assert_eq!(addresses(&found), ["www.example.com.", "192.0.2.0"]);
    assert_eq!(cluster.a("ring.default.svc.cluster.local.").await.metadata.response_code, ResponseCode::ServFail);
}

/// A resolver that leads back to this server: every query comes back, and must not multiply.
#[tokio::test]
async fn a_loop_ends_as_a_failure() {
    let relay = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let relay_address = relay.local_addr().unwrap();
    let cluster = cluster(vec![relay_address]).await;
    let target = cluster.address;
    let passed = Arc::new(AtomicUsize::new(0));
    let count = passed.clone();
    tokio::spawn(async move {
        let relay = Arc::new(relay);
        let mut buffer = [0; 4096];
        loop {
            let (length, client) = relay.recv_from(&mut buffer).await.unwrap();
            count.fetch_add(1, Ordering::SeqCst);
            let bytes = buffer[..length].to_vec();
            let relay = relay.clone();
            tokio::spawn(async move {
                let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
                socket.send_to(&bytes, target).await.unwrap();
                let mut buffer = [0; 4096];
                let length = socket.recv(&mut buffer).await.unwrap();
                relay.send_to(&buffer[..length], client).await.unwrap();
            });
        }
    });
    let failed = cluster.a("www.example.com.").await;
    assert_eq!(failed.metadata.response_code, ResponseCode::ServFail);
    assert!(passed.load(Ordering::SeqCst) <= 4, "{}", passed.load(Ordering::SeqCst));
}

#[tokio::test]
async fn a_malformed_query_gets_a_valid_answer() {
    let cluster = cluster(Vec::new()).await;
    let any = cluster.udp(&query("web.default.svc.cluster.local.", RecordType::ANY, None)).await.0;
    assert_eq!(any.metadata.response_code, ResponseCode::NotImp);
    // A header that announces a query, and none follows.
    let (broken, _) = cluster.send(&[0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await;
    assert_eq!((broken.metadata.id, broken.metadata.response_code), (0x1234, ResponseCode::FormErr));
}

#[tokio::test]
async fn before_the_first_lists_are_complete_clients_must_retry() {
    let server = Server::bind(&Config::new(vec!["127.0.0.1:0".parse().unwrap()], Vec::new())).await.unwrap();
    let shutdown = CancellationToken::new();
    let cluster = Cluster { address: server.addresses()[0], _stop: shutdown.clone().drop_guard() };
    let served = tokio::spawn(server.serve(shutdown.clone()));
    let early = cluster.a("web.default.svc.cluster.local.").await;
    assert_eq!(early.metadata.response_code, ResponseCode::ServFail);
    shutdown.cancel();
    tokio::time::timeout(TIMEOUT, served).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_stub_domain_has_resolvers_of_its_own() {
    let usual = upstream().await;
    let corp = upstream().await;
    let deeper = upstream().await;
    let mut config = Config::new(vec!["127.0.0.1:0".parse().unwrap()], vec![usual.address]);
    config.stub_domains = vec![
        ("corp.example.com".to_owned(), vec![corp.address]),
        ("lab.corp.example.com".to_owned(), vec![deeper.address]),
    ];
    let cluster = cluster_with(config).await;
    for name in ["www.example.com.", "a.corp.example.com.", "B.Lab.Corp.example.com.", "notcorp.example.com."] {
        let (answer, _) = cluster.send(&query(name, RecordType::A, None).to_vec().unwrap()).await;
        assert_eq!(answer.answers.len(), 1, "{name}");
    }
    let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(usual.names(), names(&["www.example.com.", "notcorp.example.com."]));
    assert_eq!(corp.names(), names(&["a.corp.example.com."]));
    assert_eq!(deeper.names(), names(&["b.lab.corp.example.com."]));
}
