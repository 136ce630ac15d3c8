//! Measures a data node among thousands of HTTPRoutes: the time to its first table, its memory, and the time and
//! processor time of a new route, from the event of the watch to the table that serves it.
//!
//! `cargo bench -p corten-gateway [-- ROUTES]`. The API server is in this process, and sends objects as the real one does:
//! encoded, with managed fields, and each new route once more with its status. Prints one `figure<TAB>value<TAB>unit` line
//! each.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod api;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use corten_gateway::data::{self, Applied, DataHalf, Signals, UnknownKeys};
use corten_routing::{BackendKey, Configuration, Endpoints, ListenerProtocol};
use tokio::sync::watch;

use api::Api;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The number of routes unless the command line has another.
const ROUTES: usize = 5000;
/// The number of routes that come later, one by one.
const CHANGES: usize = 200;
/// The pause between two of them.
const PAUSE: Duration = Duration::from_millis(20);

/// A proxy, and the configuration that it serves.
struct Proxy {
    edge: corten_edge::Edge,
    served: watch::Sender<Option<Configuration>>,
}

impl DataHalf for Proxy {
    fn set_endpoints(&self, backend: &BackendKey, endpoints: &Endpoints) {
        self.edge.set_endpoints(backend, endpoints);
    }

    fn apply<'a>(&'a self, configuration: &'a Configuration) -> Applied<'a> {
        Box::pin(async move {
            let failed = self.edge.apply(configuration).await;
            self.served.send_replace(Some(configuration.clone()));
            failed.into_iter().map(|failed| failed.key).collect()
        })
    }

    fn unknown_keys(&self) -> UnknownKeys<'_> {
        Box::pin(self.edge.unknown_keys())
    }
}

fn serves(configuration: &Configuration, host: &str) -> bool {
    configuration.listeners.values().any(|listener| match &listener.protocol {
        ListenerProtocol::Http(hosts) => hosts.find(host).is_some(),
        _ => false,
    })
}

/// Returns the resident memory of this process in MiB.
fn resident() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: f64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4.0 / 1024.0
}

/// Returns the processor time of this process in milliseconds.
fn processor_time() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: f64 = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
    ticks * 10.0
}

#[tokio::main(worker_threads = 2)]
async fn main() {
    let routes = std::env::args().filter_map(|word| word.parse().ok()).next().unwrap_or(ROUTES);
    let api = Api::new(routes);
    let figure = |name: &str, value: f64, unit: &str| println!("{routes} HTTPRoutes: {name}\t{value:.2}\t{unit}");
    figure("resident before the first", resident(), "MiB");
    let (served, mut is_served) = watch::channel(None);
    let addresses = vec![IpAddr::V4(Ipv4Addr::LOCALHOST)];
    let options = corten_edge::Options { addresses, ..corten_edge::Options::default() };
    let proxy = Arc::new(Proxy { edge: corten_edge::Edge::new(options), served });
    let begun = Instant::now();
    tokio::spawn(data::run("node".to_owned(), api.client(), proxy, Signals::default()));
    is_served.wait_for(Option::is_some).await.unwrap();
    figure("first table", begun.elapsed().as_secs_f64() * 1e3, "ms");
    tokio::time::sleep(Duration::from_secs(1)).await;
    figure("resident", resident(), "MiB");

    let before = processor_time();
    let mut times = Vec::new();
    for number in 0..CHANGES {
        let begun = Instant::now();
        let host = api.add_route(routes + number);
        let is_live =
            |configuration: &Option<Configuration>| configuration.as_ref().is_some_and(|one| serves(one, &host));
        is_served.wait_for(is_live).await.unwrap();
        times.push(begun.elapsed().as_secs_f64() * 1e3);
        api.write_status(routes + number);
        tokio::time::sleep(PAUSE).await;
    }
    times.sort_by(f64::total_cmp);
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
    figure("a new route is live, p50", at(0.5), "ms");
    figure("a new route is live, p99", at(0.99), "ms");
    figure("processor time of a new route and its status", (processor_time() - before) / CHANGES as f64, "ms");
    figure("resident at the end", resident(), "MiB");
}
