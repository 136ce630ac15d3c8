//! The cost of Services for a node: the first sync of ten thousand, one changed endpoint among them, memory. Prints one
//! `figure<TAB>value<TAB>unit` line each.
//!
//! Run by `cargo xtask bench`, as root: it works in a network namespace of its own.

use std::time::Instant;

use corten_api::Typed;
use corten_nftables::IpFamily;
use corten_proxy::{Config, Proxier, Service, ServiceKey, Slice, SliceKey};
use k8s_openapi::api::core::v1::Service as ServiceObject;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use nix::sched::{CloneFlags, unshare};

const SERVICES: u32 = 10_000;
const ENDPOINTS: u32 = 4;
const CHANGES: usize = 500;

fn main() {
    if unshare(CloneFlags::CLONE_NEWNET).is_err() {
        eprintln!("skipped: a network namespace needs root");
        return;
    }
    let before = resident_mebibytes();
    let mut proxier = Proxier::new(Config::new("node", Vec::new()), IpFamily::V4).expect("a netlink socket");
    for number in 0..SERVICES {
        proxier.set_service(service_key(number), Service::from_object(&service(number), IpFamily::V4));
        proxier.set_slice(slice_key(number), Slice::from_object(&slice(number, 0), IpFamily::V4));
    }
    let start = Instant::now();
    proxier.sync().expect("the kernel takes the first sync");
    figure("10,000 Services, first sync", start.elapsed().as_secs_f64() * 1e3, "ms");
    figure("10,000 Services, memory", resident_mebibytes() - before, "MiB");

    let mut times: Vec<f64> = (0..CHANGES)
        .map(|round| {
            let number = round as u32 * 19 % SERVICES;
            proxier.set_slice(slice_key(number), moved(number, round));
            let start = Instant::now();
            let synced = proxier.sync().expect("the kernel takes a change");
            assert!(!synced.replaced, "a change is no replacement");
            start.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    times.sort_by(f64::total_cmp);
    figure("one endpoint among 10,000 Services, p50", times[CHANGES / 2], "ms");
    figure("one endpoint among 10,000 Services, p99", times[CHANGES * 99 / 100], "ms");

    let start = Instant::now();
    let mut again = Proxier::new(Config::new("node", Vec::new()), IpFamily::V4).expect("a netlink socket");
    for number in 0..SERVICES {
        again.set_service(service_key(number), Service::from_object(&service(number), IpFamily::V4));
        again.set_slice(slice_key(number), Slice::from_object(&slice(number, 0), IpFamily::V4));
    }
    again.sync().expect("the kernel takes the replacement");
    figure("10,000 Services, restart with decoding", start.elapsed().as_secs_f64() * 1e3, "ms");
}

fn moved(number: u32, round: usize) -> Option<Slice> {
    Slice::from_object(&slice(number, 1 + round as u32 % 200), IpFamily::V4)
}

fn service_key(number: u32) -> ServiceKey {
    ServiceKey { namespace: format!("ns-{}", number % 100), name: format!("service-{number}") }
}

fn slice_key(number: u32) -> SliceKey {
    SliceKey { namespace: format!("ns-{}", number % 100), name: format!("service-{number}-a") }
}

fn service(number: u32) -> ServiceObject {
    let address = std::net::Ipv4Addr::from_bits(0x0a60_0100 + number);
    let json = format!(
        r#"{{"metadata":{{"namespace":"ns-{}","name":"service-{number}"}},
            "spec":{{"clusterIP":"{address}","ports":[{{"name":"http","port":80}}]}}}}"#,
        number % 100
    );
    ServiceObject::decode(json.as_bytes()).expect("a Service")
}

/// Returns the endpoints of a Service; a moved one has another last endpoint.
fn slice(number: u32, moved: u32) -> EndpointSlice {
    let endpoint = |index: u32| {
        let last = if index + 1 == ENDPOINTS { index + moved * ENDPOINTS } else { index };
        let address = std::net::Ipv4Addr::from_bits(0x0af4_0000 + (number * ENDPOINTS + last) % 0xffff);
        format!(r#"{{"addresses":["{address}"],"nodeName":"other"}}"#)
    };
    let endpoints: Vec<String> = (0..ENDPOINTS).map(endpoint).collect();
    let json = format!(
        r#"{{"metadata":{{"namespace":"ns-{}","name":"service-{number}-a",
            "labels":{{"kubernetes.io/service-name":"service-{number}"}}}},"addressType":"IPv4",
            "ports":[{{"name":"http","port":8080}}],"endpoints":[{}]}}"#,
        number % 100,
        endpoints.join(",")
    );
    EndpointSlice::decode(json.as_bytes()).expect("an EndpointSlice")
}

fn figure(name: &str, value: f64, unit: &str) {
    println!("{name}\t{value:.2}\t{unit}");
}

fn resident_mebibytes() -> f64 {
    let json = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = json.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0 kB");
    line.split_whitespace().next().and_then(|kib| kib.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
}
