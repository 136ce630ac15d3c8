//! The cost of an answer: names of Services and a cached external name, requested over a real socket. Prints one
//! `figure<TAB>value<TAB>unit` line each.
//!
//! Run by `cargo xtask bench`. The server has one thread, whose processor time is measured: the clients of the
//! benchmark share the machine with it.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use corten_api::Typed;
use corten_dns::{Config, Server, Service};
use hickory_proto::op::{Message, Query};
use hickory_proto::rr::{Name, RecordType};
use k8s_openapi::api::core::v1 as core;
use tokio_util::sync::CancellationToken;

const SERVICES: u32 = 10_000;
const DURATION: Duration = Duration::from_secs(3);
/// The number of concurrent queries.
const WINDOW: usize = 32;

fn main() {
    let (sender, receiver) = mpsc::channel();
    let shutdown = CancellationToken::new();
    let end = shutdown.clone();
    let server = std::thread::spawn(move || serve(&sender, end));
    let address: SocketAddr = receiver.recv().expect("the server listens");

    let before = cpu_of_process_but_this_thread();
    let (answers, mut latencies) = ask(address);
    let cpu = cpu_of_process_but_this_thread() - before;
    shutdown.cancel();
    server.join().expect("the server ends");
    latencies.sort_by(f64::total_cmp);
    figure("DNS answers per CPU second", answers as f64 / cpu.max(0.001), "1/s");
    figure("DNS answer, p50", latencies[latencies.len() / 2], "ms");
    figure("DNS answer, p99", latencies[latencies.len() * 99 / 100], "ms");
}

fn serve(sender: &mpsc::Sender<SocketAddr>, shutdown: CancellationToken) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let config = Config::new(vec![SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0)], Vec::new());
        let server = Server::bind(&config).await.expect("a socket");
        {
            let zone = server.zone();
            let mut zone = zone.write().expect("no other thread writes");
            zone.set_namespace("default", true);
            for number in 0..SERVICES {
                let address = Ipv4Addr::from_bits(0x0a60_0100 + number);
                let json = format!(r#"{{"metadata":{{}},"spec":{{"clusterIP":"{address}"}}}}"#);
                let object = core::Service::decode(json.as_bytes()).expect("a Service");
                zone.set_service("default", &format!("service-{number}"), Service::from_object(&object));
            }
            zone.set_synced();
        }
        sender.send(server.addresses()[0]).expect("the benchmark receives");
        server.serve(shutdown).await;
    });
}

/// Sends queries for three seconds; returns the number of answers and the time of each.
fn ask(address: SocketAddr) -> (usize, Vec<f64>) {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
    socket.set_read_timeout(Some(Duration::from_secs(1))).expect("a timeout");
    let questions: Vec<Vec<u8>> = (0..WINDOW as u32).map(|number| question(number * 311 % SERVICES)).collect();
    let mut sent = vec![Instant::now(); WINDOW];
    let mut answers = 0;
    let mut latencies = Vec::new();
    let mut buffer = [0; 1500];
    let start = Instant::now();
    for slot in 0..WINDOW {
        send(&socket, address, &questions, slot, &mut sent);
    }
    while start.elapsed() < DURATION {
        let length = socket.recv(&mut buffer).expect("an answer comes");
        assert!(length > 12 && buffer[3] & 0x0f == 0 && buffer[7] == 1, "one answer without an error");
        let slot = usize::from(u16::from_be_bytes([buffer[0], buffer[1]]));
        latencies.push(sent[slot].elapsed().as_secs_f64() * 1e3);
        answers += 1;
        send(&socket, address, &questions, slot, &mut sent);
    }
    (answers, latencies)
}

fn send(socket: &UdpSocket, address: SocketAddr, questions: &[Vec<u8>], slot: usize, sent: &mut [Instant]) {
    let mut packet = questions[slot].clone();
    packet[..2].copy_from_slice(&(slot as u16).to_be_bytes());
    sent[slot] = Instant::now();
    socket.send_to(&packet, address).expect("the server is there");
}

fn question(number: u32) -> Vec<u8> {
    let name = Name::from_ascii(format!("service-{number}.default.svc.cluster.local.")).expect("a name");
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(name, RecordType::A));
    message.to_vec().expect("a message")
}

/// Returns the processor seconds of every thread but the client's.
fn cpu_of_process_but_this_thread() -> f64 {
    let seconds = |path: &str| {
        let content = std::fs::read_to_string(path).unwrap_or_default();
        let nanoseconds: f64 = content.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0.0);
        nanoseconds / 1e9
    };
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let all: f64 = threads.map(|thread| seconds(&thread.path().join("schedstat").to_string_lossy())).sum();
    all - seconds("/proc/thread-self/schedstat")
}

fn figure(name: &str, value: f64, unit: &str) {
    println!("{name}\t{value:.2}\t{unit}");
}
