//! NodePorts: no two pods of a node use the same host port.

use crate::framework::{ClusterEvent, Plugin, PreFilter, State, Verdict};
use crate::rows::{HostPort, NodeRow, PodRow, Snapshot};

pub struct NodePorts;

impl Plugin for NodePorts {
    fn is_local(&self) -> bool {
        true
    }

    fn pre_filter(&self, pod: &PodRow, _: &mut Snapshot) -> PreFilter {
        if pod.demand.host_ports.is_empty() { PreFilter::Skip } else { PreFilter::Continue(Box::new(())) }
    }

    fn filter(&self, _: &State, pod: &PodRow, node: &NodeRow, _: &Snapshot) -> Verdict {
        match node.with_ports > 0 && node.pods.iter().any(|other| collide(pod, other)) {
            true => Verdict::unschedulable("node(s) didn't have free ports for the requested pod ports"),
            false => Verdict::Fits,
        }
    }

    fn wakes(&self, pod: &PodRow, event: &ClusterEvent<'_>, _: &Snapshot) -> bool {
        match event {
            ClusterEvent::NodeAdded(_) => true,
            ClusterEvent::PodRemoved(other) => collide(pod, other),
            _ => false,
        }
    }
}

fn collide(a: &PodRow, b: &PodRow) -> bool {
    a.demand.host_ports.iter().any(|port| b.demand.host_ports.iter().any(|other| conflicts(port, other)))
}

/// Reports whether port number and protocol are equal, on the same address or on all of them.
fn conflicts(a: &HostPort, b: &HostPort) -> bool {
    a.0 == b.0 && a.2 == b.2 && (a.1 == b.1 || a.1 == "0.0.0.0" || b.1 == "0.0.0.0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_conflict_on_the_same_or_on_all_addresses() {
        let port = |address: &str, number| ("TCP".to_owned(), address.to_owned(), number);
        for (a, b, expected) in [
            (port("0.0.0.0", 80), port("127.0.0.1", 80), true),
            (port("127.0.0.1", 80), port("127.0.0.2", 80), false),
            (port("127.0.0.1", 80), port("127.0.0.1", 81), false),
            (("UDP".to_owned(), "0.0.0.0".to_owned(), 80), port("0.0.0.0", 80), false),
        ] {
            assert_eq!(conflicts(&a, &b), expected, "{a:?} {b:?}");
        }
    }
}
