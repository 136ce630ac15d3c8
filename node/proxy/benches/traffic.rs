//! What a Service costs the traffic through it: bytes and connections by a cluster address, beside the same without one,
//! among ten thousand Services. Prints one `figure<TAB>value<TAB>unit` line each.
//!
//! Run by `cargo xtask bench`, as root: it works in a network namespace of its own. Client and server share the machine,
//! so the figures say how the two ways compare, not what a network card could do.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use corten_api::Typed;
use corten_network::namespace_node::{pin_new_namespace, unpin};
use corten_network::{Config as NetworkConfig, Limits, PodNetwork, SetupRequest, enter};
use corten_nftables::IpVersion;
use corten_proxy::{Config, Proxier, Service, ServiceKey, Slice, SliceKey};
use k8s_openapi::api::core::v1::Service as ServiceObject;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use nix::sched::{CloneFlags, unshare};

const SERVICES: u32 = 10_000;
const DURATION: Duration = Duration::from_secs(2);
const PORT: u16 = 8080;

fn main() {
    if unshare(CloneFlags::CLONE_NEWNET).is_err() {
        eprintln!("skipped: a network namespace needs root");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let pods = runtime.block_on(start_pods(directory.path()));
    let (client, (server, address)) = (&pods[0].0, &pods[1]);
    let mut proxier = Proxier::new(Config::new("node", vec![(IpAddr::from([10, 244, 0, 0]), 16)]), IpVersion::V4)
        .expect("a netlink socket");
    for number in 0..SERVICES {
        proxier.set_service(key(number), Service::from_object(&service(number), IpVersion::V4));
        proxier.set_slice(slice_key(number), Slice::from_object(&slice(number, *address), IpVersion::V4));
    }
    proxier.sync().expect("the kernel takes the Services");
    serve(server);

    let direct = SocketAddr::new(*address, PORT);
    let through = SocketAddr::new(cluster_ip(SERVICES / 2), 80);
    for (name, to) in [("pod to pod", direct), ("through a Service", through)] {
        figure(&format!("{name}, connections"), enter(client, || connections(to)).expect("the pod is there"), "1/s");
        figure(&format!("{name}, throughput"), enter(client, || throughput(to)).expect("the pod is there"), "Gbit/s");
    }
    for (namespace, _) in &pods {
        unpin(namespace).expect("the namespace goes");
    }
}

/// Two pods of a node: their namespaces and addresses.
async fn start_pods(directory: &Path) -> Vec<(PathBuf, IpAddr)> {
    let range = |text: &str| text.parse().expect("a range");
    let config = NetworkConfig::new(&[range("10.244.0.0/24")], &[range("10.244.0.0/16")], directory);
    let network = PodNetwork::start(config).await.expect("a pod network");
    let mut pods = Vec::new();
    for name in ["client", "server"] {
        let namespace = directory.join("pins").join(name);
        pin_new_namespace(&namespace).expect("a namespace");
        let request = SetupRequest {
            sandbox_id: name.to_owned(),
            netns_path: namespace.clone(),
            pod_namespace: "default".to_owned(),
            pod_name: name.to_owned(),
            pod_uid: String::new(),
            port_mappings: Vec::new(),
            limits: Limits::default(),
        };
        pods.push((namespace, network.setup(request).await.expect("a pod").ips[0]));
    }
    pods
}

/// A server that reads whatever is sent, and closes when its client does.
fn serve(namespace: &Path) {
    let listener =
        enter(namespace, || TcpListener::bind(("0.0.0.0", PORT)).expect("a port")).expect("the pod is there");
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            std::thread::spawn(move || {
                let mut buffer = vec![0; 1 << 18];
                while stream.read(&mut buffer).is_ok_and(|length| length > 0) {}
            });
        }
    });
}

fn connections(to: SocketAddr) -> f64 {
    let (start, mut made) = (Instant::now(), 0);
    while start.elapsed() < DURATION {
        drop(TcpStream::connect(to).expect("the server is there"));
        made += 1;
    }
    f64::from(made) / start.elapsed().as_secs_f64()
}

fn throughput(to: SocketAddr) -> f64 {
    let mut stream = TcpStream::connect(to).expect("the server is there");
    let (buffer, start, mut sent) = (vec![0; 1 << 18], Instant::now(), 0u64);
    while start.elapsed() < DURATION {
        stream.write_all(&buffer).expect("the server reads");
        sent += buffer.len() as u64;
    }
    sent as f64 * 8.0 / 1e9 / start.elapsed().as_secs_f64()
}

fn cluster_ip(number: u32) -> IpAddr {
    Ipv4Addr::from_bits(0x0a60_0100 + number).into()
}

fn key(number: u32) -> ServiceKey {
    ServiceKey { namespace: "default".to_owned(), name: format!("service-{number}") }
}

fn slice_key(number: u32) -> SliceKey {
    SliceKey { namespace: "default".to_owned(), name: format!("service-{number}-a") }
}

fn service(number: u32) -> ServiceObject {
    let text = format!(
        r#"{{"metadata":{{}},"spec":{{"clusterIP":"{}","ports":[{{"name":"http","port":80}}]}}}}"#,
        cluster_ip(number)
    );
    ServiceObject::decode(text.as_bytes()).expect("a Service")
}

fn slice(number: u32, address: IpAddr) -> EndpointSlice {
    let text = format!(
        r#"{{"metadata":{{"namespace":"default","labels":{{"kubernetes.io/service-name":"service-{number}"}}}},
            "addressType":"IPv4","ports":[{{"name":"http","port":{PORT}}}],"endpoints":[{{"addresses":["{address}"]}}]}}"#
    );
    EndpointSlice::decode(text.as_bytes()).expect("an EndpointSlice")
}

fn figure(name: &str, value: f64, unit: &str) {
    println!("{name}\t{value:.2}\t{unit}");
}
