//! Hundreds of pods are added and deleted under load: no connection ever reaches a pod of another Service.

#![allow(clippy::unwrap_used, dead_code)]

mod node;

use std::collections::VecDeque;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use corten_network::enter;
use corten_proxy::Mode;
use node::{Node, TIMEOUT, on_node, slice};

const SERVICES: [&str; 2] = ["red", "blue"];
/// The number of concurrent pods of each Service; the range has room for few more, so that addresses are reused again
/// and again.
const PODS: usize = 4;
const ROUNDS: usize = 150;
const ATTEMPT: Duration = Duration::from_millis(200);

fn cluster_ip(service: usize) -> IpAddr {
    Ipv4Addr::new(10, 96, 0, 1 + service as u8).into()
}

/// Connects until `end` is set; returns how many connections were answered. Panics at an answer of the wrong Service.
fn load(
    client: PathBuf,
    service: usize,
    end: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        enter(&client, || {
            while !end.load(Ordering::Relaxed) {
                let to = SocketAddr::new(cluster_ip(service), 80);
                let Ok(mut stream) = TcpStream::connect_timeout(&to, ATTEMPT) else { continue };
                stream.set_read_timeout(Some(ATTEMPT)).unwrap();
                let mut answer = String::new();
                // A pod may be deleted during the read; the bytes until then still count.
                let _ = stream.read_to_string(&mut answer);
                assert!(
                    answer.is_empty() || answer.starts_with(SERVICES[service]),
                    "{} answered {answer}",
                    SERVICES[service]
                );
                answered.fetch_add(usize::from(!answer.is_empty()), Ordering::Relaxed);
            }
        })
        .unwrap();
    })
}

fn set_endpoints(node: &mut Node, service: usize, pods: &VecDeque<String>) {
    let pods: Vec<(&str, &Node)> = pods.iter().map(|pod| (pod.as_str(), &*node)).collect();
    let json = slice(SERVICES[service], "TCP", 8080, &pods);
    node.slice(&format!("{}-1", SERVICES[service]), &json);
    node.sync();
}

#[test]
fn no_connection_reaches_a_pod_of_another_service() {
    on_node(|| async {
        let mut node = Node::with_range(Mode::Nftables, "10.244.0.0/28", &["client"]).await;
        for (index, service) in SERVICES.iter().enumerate() {
            node.service(&format!(
                r#"{{"metadata":{{"name":"{service}","namespace":"default"}},
                    "spec":{{"clusterIP":"{}","ports":[{{"name":"p","port":80}}]}}}}"#,
                cluster_ip(index)
            ));
        }
        let end = Arc::new(AtomicBool::new(false));
        let answered = Arc::new(AtomicUsize::new(0));
        let client = node.namespace("client");
        let clients: Vec<_> =
            (0..2).map(|service| load(client.clone(), service, end.clone(), answered.clone())).collect();
        let mut pods: [VecDeque<String>; 2] = Default::default();
        for round in 0..ROUNDS {
            let service = round % 2;
            // An old pod of one Service is deleted, and a new one of the other may get its address.
            if pods[1 - service].len() >= PODS {
                let deleted = pods[1 - service].pop_front().unwrap();
                set_endpoints(&mut node, 1 - service, &pods[1 - service]);
                node.remove_pod(&deleted).await;
            }
            let name = format!("{}-{round}", SERVICES[service]);
            node.add_pod(&name).await;
            node.serve_tcp(&name, 8080);
            pods[service].push_back(name);
            set_endpoints(&mut node, service, &pods[service]);
        }
        // A machine that was busy with the pods serves the clients now.
        let deadline = Instant::now() + TIMEOUT;
        while answered.load(Ordering::Relaxed) <= ROUNDS && Instant::now() < deadline {
            tokio::task::yield_now().await;
        }
        end.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().expect("every answer is of the requested Service");
        }
        let answered = answered.load(Ordering::Relaxed);
        assert!(answered > ROUNDS, "{answered} connections in {ROUNDS} rounds");
    });
}
