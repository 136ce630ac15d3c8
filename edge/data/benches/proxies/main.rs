//! The cost of a request through the edge, beside HAProxy and NGINX in the same run: requests and handshakes a second,
//! large bodies, and processor time of the proxy for each request. Prints one `figure<TAB>value<TAB>unit` line each.
//!
//! Every proxy has one thread on one processor of its own; the server behind it and the client share another one. The
//! proxies take turns, so that other work on the machine meets them alike. Needs `wrk` and `h2load` (Debian's wrk and
//! nghttp2-client); a proxy that is not installed is left out.

mod peers;
mod server;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use peers::{Peer, Proxy};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The time of one measurement.
const DURATION: Duration = Duration::from_secs(2);
/// The measurements of each figure, of which the best counts: other work on the machine only ever slows.
const ROUNDS: usize = 3;

/// A kind of load.
struct Load {
    name: &'static str,
    client: Client,
    connections: usize,
    is_tls: bool,
    path: &'static str,
    closes: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Client {
    Wrk,
    H2load,
}

const LOADS: &[Load] = &[
    Load {
        name: "HTTP/1.1, 1 connection",
        client: Client::Wrk,
        connections: 1,
        is_tls: false,
        path: "/",
        closes: false,
    },
    Load {
        name: "HTTP/1.1, 64 connections",
        client: Client::Wrk,
        connections: 64,
        is_tls: false,
        path: "/",
        closes: false,
    },
    Load {
        name: "HTTP/1.1, 512 connections",
        client: Client::Wrk,
        connections: 512,
        is_tls: false,
        path: "/",
        closes: false,
    },
    Load {
        name: "HTTP/1.1 with TLS, 64 connections",
        client: Client::Wrk,
        connections: 64,
        is_tls: true,
        path: "/",
        closes: false,
    },
    Load {
        name: "HTTP/2 with TLS, 16 connections",
        client: Client::H2load,
        connections: 16,
        is_tls: true,
        path: "/",
        closes: false,
    },
    Load {
        name: "a TLS handshake for each request",
        client: Client::Wrk,
        connections: 16,
        is_tls: true,
        path: "/",
        closes: true,
    },
    Load {
        name: "bodies of 1 MiB",
        client: Client::Wrk,
        connections: 16,
        is_tls: false,
        path: "/large",
        closes: false,
    },
];

/// The requests a second of the measurement of latencies, and its connections.
const FIXED_RATE: usize = 10_000;
const FIXED_CONNECTIONS: usize = 64;

/// The result of one measurement.
#[derive(Clone, Copy, Default)]
struct Measured {
    requests_per_second: f64,
    /// The proxy's processor time for a request, in microseconds.
    processor: f64,
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some("--serve-edge") => server::edge(&arguments.collect::<Vec<_>>()),
        Some("--serve-backend") => server::backend(),
        _ => compare(),
    }
}

fn is_installed(program: &str) -> bool {
    Command::new(program).arg("-v").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

fn compare() {
    if !is_installed("wrk") || !is_installed("h2load") {
        println!("wrk or h2load is not installed; nothing is measured");
        return;
    }
    let only = std::env::var("EDGE_LOAD").ok();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let certificate = peers::certificate(folder.path());
    let backend = peers::backend();
    let mut proxies: Vec<Proxy> = Vec::new();
    for peer in [Peer::Corten, Peer::HaProxy, Peer::Nginx] {
        match peer.start(folder.path(), &certificate, backend.port) {
            Some(proxy) => proxies.push(proxy),
            None => println!("{} is not installed and left out", peer.name()),
        }
    }
    for load in LOADS.iter().filter(|load| only.as_ref().is_none_or(|only| load.name.contains(only.as_str()))) {
        let mut best = vec![Measured::default(); proxies.len()];
        for _ in 0..ROUNDS {
            for (proxy, best) in proxies.iter().zip(&mut best) {
                let measured = measure(load, proxy);
                best.requests_per_second = best.requests_per_second.max(measured.requests_per_second);
                if best.processor == 0.0 || measured.processor < best.processor {
                    best.processor = measured.processor;
                }
            }
        }
        for (proxy, best) in proxies.iter().zip(&best) {
            let name = proxy.peer.name();
            println!("{name}: {}\t{:.0}\t1/s", load.name, best.requests_per_second);
            println!("{name}: {}, processor time\t{:.1}\tµs", load.name, best.processor);
        }
    }
    if only.is_none_or(|only| only == "fixed") {
        compare_latencies(&proxies, folder.path());
    }
}

/// Measures the latencies of a fixed rate, which every proxy can serve.
fn compare_latencies(proxies: &[Proxy], folder: &Path) {
    let mut best = vec![f64::INFINITY; proxies.len()];
    for _ in 0..ROUNDS {
        for (proxy, best) in proxies.iter().zip(&mut best) {
            *best = best.min(latency(proxy, &folder.join("latencies")));
        }
    }
    for (proxy, best) in proxies.iter().zip(&best) {
        println!("{}: {FIXED_RATE} requests a second over HTTP/1.1, p99\t{best:.0}\tµs", proxy.peer.name());
    }
}

/// Returns the 99th percentile of the latencies of a fixed rate in microseconds.
fn latency(proxy: &Proxy, log: &Path) -> f64 {
    // The client appends to its log.
    let _ = std::fs::remove_file(log);
    let connections = FIXED_CONNECTIONS.to_string();
    let rate = (FIXED_RATE / FIXED_CONNECTIONS).to_string();
    let seconds = DURATION.as_secs().to_string();
    let mut command = Command::new("taskset");
    command.args(["-c", peers::CLIENT_PROCESSOR, "h2load", "--h1", "-t1", "-c", &connections, "-D", &seconds]);
    command.args(["--rps", &rate, "--log-file"]).arg(log).arg(format!("http://127.0.0.1:{}/", proxy.port));
    command.output().expect("the client runs");
    let lines = std::fs::read_to_string(log).expect("a log of requests");
    let time = |line: &str| line.split('\t').nth(2)?.parse::<f64>().ok();
    let mut times: Vec<f64> = lines.lines().filter_map(time).collect();
    times.sort_by(f64::total_cmp);
    times.get(times.len() * 99 / 100).copied().unwrap_or(f64::NAN)
}

/// Loads a proxy and measures it.
fn measure(load: &Load, proxy: &Proxy) -> Measured {
    let port = if load.is_tls { proxy.tls_port } else { proxy.port };
    let scheme = if load.is_tls { "https" } else { "http" };
    let url = format!("{scheme}://127.0.0.1:{port}{}", load.path);
    let seconds = DURATION.as_secs().to_string();
    let connections = load.connections.to_string();
    let mut command = Command::new("taskset");
    command.args(["-c", peers::CLIENT_PROCESSOR]);
    match load.client {
        Client::Wrk => {
            command.args(["wrk", "-t1", "-c", &connections, "-d", &seconds, &url]);
            if load.closes {
                command.args(["-H", "Connection: close"]);
            }
        }
        Client::H2load => {
            command.args(["h2load", "-t1", "-c", &connections, "-m", "10", "-D", &seconds, &url]);
        }
    }
    let before = processor_seconds(proxy.process.id());
    let output = command.output().expect("the client runs");
    let used = processor_seconds(proxy.process.id()) - before;
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(!text.contains("Non-2xx"), "{} failed: {text}", proxy.peer.name());
    let rate = match load.client {
        Client::Wrk => number_after(&text, "Requests/sec:"),
        Client::H2load => number_after(text.split_once("finished in").map_or("", |(_, rest)| rest), "s, "),
    };
    let requests = match load.client {
        Client::Wrk => number_before(&text, " requests in "),
        Client::H2load => number_after(&text, "requests: "),
    };
    Measured { requests_per_second: rate, processor: used / requests.max(1.0) * 1e6 }
}

fn number_after(text: &str, mark: &str) -> f64 {
    let rest = text.split_once(mark).map_or("", |(_, rest)| rest).trim_start();
    rest.split(|c: char| !c.is_ascii_digit() && c != '.').next().and_then(|number| number.parse().ok()).unwrap_or(0.0)
}

fn number_before(text: &str, mark: &str) -> f64 {
    let before = text.split_once(mark).map_or("", |(before, _)| before);
    before.split_whitespace().last().and_then(|number| number.parse().ok()).unwrap_or(0.0)
}

/// Returns the processor time of a process and of its children that it runs as workers.
fn processor_seconds(process: u32) -> f64 {
    let children = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    let workers = children.split_whitespace().filter_map(|child| child.parse().ok());
    std::iter::once(process).chain(workers).map(nanoseconds).sum::<f64>() / 1e9
}

/// Returns the processor time of all threads of a process.
fn nanoseconds(process: u32) -> f64 {
    let threads = std::fs::read_dir(Path::new("/proc").join(process.to_string()).join("task"));
    let times = threads.into_iter().flatten().flatten().filter_map(|thread| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    });
    times.sum()
}
