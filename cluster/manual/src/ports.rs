//! The page of ports.

use corten::reference::{Listener, listeners};

use crate::{cell, heading};

pub fn page() -> String {
    let rows: String = listeners().iter().map(row).collect();
    format!(
        "{}Everything that is not in this list is closed. A test compares the list with the sockets of a running cluster.\n\n\
         | listener | port | where | clients |\n|---|---|---|---|\n{rows}\n\
         Pods reach the node's addresses as any host does. `--network-policy-host-egress` has NetworkPolicies restrict that.\n\
         No packet that comes in for 127.0.0.0/8 is accepted from pods, although host ports work on localhost.\n",
        heading("Ports")
    )
}

fn row(listener: &Listener) -> String {
    let port = listener.port.map(|port| format!(" {port}")).unwrap_or_default();
    let Listener { name, transport, place, clients, .. } = listener;
    format!("| {name} | {transport}{port} | {} | {} |\n", cell(place), cell(clients))
}
