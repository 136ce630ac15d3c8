//! Section 2: the store. It consists of files of the API server's own process, and has no listener.

use super::facts::Facts;
use super::{Item, Outcome, item};

/// The ports of an etcd, for clients and for peers.
const ETCD_PORTS: [u16; 2] = [2379, 2380];
const CLOSE_PORT: &str = "stop whatever listens on the port; the embedded store needs no port";
const NO_PEERS: &str = "the embedded store has no peers: one control-plane machine";

pub const ITEMS: &[Item] = &[
    item("2.1", "The store is not served without TLS", CLOSE_PORT, no_port),
    item("2.2", "The store is not served to clients without a certificate", CLOSE_PORT, no_port),
    item("2.3", "The store accepts no self-signed client certificates", CLOSE_PORT, no_port),
    item("2.4", "Peers of the store use TLS", CLOSE_PORT, |_| Outcome::NotApplicable(NO_PEERS)),
    item("2.5", "Peers of the store authenticate each other", CLOSE_PORT, |_| Outcome::NotApplicable(NO_PEERS)),
    item("2.6", "Peers of the store use no self-signed certificates", CLOSE_PORT, |_| Outcome::NotApplicable(NO_PEERS)),
    item("2.7", "The store has a certificate authority of its own", CLOSE_PORT, no_port),
];

fn no_port(facts: &Facts) -> Outcome {
    let open: Vec<String> = ETCD_PORTS
        .iter()
        .flat_map(|port| {
            facts.reachable(*port).into_iter().map(move |address| format!("{address} port {port} is open"))
        })
        .collect();
    Outcome::of(open, "the store is files of the API server's process and listens nowhere")
}
