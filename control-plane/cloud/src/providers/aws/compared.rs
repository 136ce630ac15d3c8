//! The load balancers that were compared with the cloud a while ago, and the targets that they have since.
//!
//! A node that comes or goes concerns every Service. A load balancer that differs from its Service in nodes alone gets
//! those without a question: one call for each target group.
//!
//! Invariant: a load balancer is forgotten before anything of it is changed, and remembered when all of it succeeded. So
//! one whose change failed, or was interrupted, is compared again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use crate::provider::{Balancer, BalancerStatus, COMPARE_INTERVAL};

/// The IDs of targets.
pub type Targets = BTreeSet<String>;

/// A load balancer as it is in the cloud.
#[derive(Clone)]
pub struct Compared {
    /// The load balancer that the Service asked for, without its nodes.
    wanted: Balancer,
    /// The moment at which the comparison began.
    began: Instant,
    pub groups: Vec<Filled>,
    /// The targets of all its target groups.
    pub targets: Arc<Targets>,
    /// The security groups that have its rules.
    pub security_groups: BTreeSet<String>,
    pub status: BalancerStatus,
}

/// A target group that has its targets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filled {
    pub arn: String,
    pub node_port: u16,
}

impl Compared {
    /// Returns a load balancer whose comparison began at this moment, without its parts.
    pub fn new(wanted: &Balancer, began: Instant) -> Compared {
        let wanted = Balancer { nodes: Vec::new(), ..wanted.clone() };
        Compared {
            wanted,
            began,
            groups: Vec::new(),
            targets: Arc::default(),
            security_groups: BTreeSet::new(),
            status: BalancerStatus::default(),
        }
    }

    fn is_recent(&self) -> bool {
        self.began.elapsed() < COMPARE_INTERVAL
    }

    /// Reports whether a Service differs from its load balancer in nodes alone.
    fn fits(&self, wanted: &Balancer) -> bool {
        self.is_recent() && self.wanted == Balancer { nodes: Vec::new(), ..wanted.clone() }
    }
}

/// The load balancers that this process has compared, by their names.
#[derive(Default)]
pub struct AllCompared(Mutex<State>);

#[derive(Default)]
struct State {
    balancers: BTreeMap<String, Compared>,
    /// The targets of the load balancer that was remembered last: most have the same ones.
    targets: Arc<Targets>,
}

impl AllCompared {
    /// Forgets a load balancer; returns it if the Service differs from it in nodes alone.
    pub fn take(&self, wanted: &Balancer) -> Option<Compared> {
        self.lock().balancers.remove(&wanted.name).filter(|compared| compared.fits(wanted))
    }

    /// Remembers a load balancer, and forgets old ones.
    pub fn remember(&self, mut compared: Compared) {
        let mut state = self.lock();
        match state.targets == compared.targets {
            true => compared.targets = Arc::clone(&state.targets),
            false => state.targets = Arc::clone(&compared.targets),
        }
        state.balancers.retain(|_, one| one.is_recent());
        state.balancers.insert(compared.wanted.name.clone(), compared);
    }

    /// Forgets the load balancer of a name.
    pub fn forget(&self, name: &str) {
        self.lock().balancers.remove(name);
    }

    /// Forgets all.
    pub fn clear(&self) {
        *self.lock() = State::default();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use corten_meta::Key;

    use super::*;
    use crate::provider::BalancerNode;

    fn wanted(nodes: &[&str], source_range: &str) -> Balancer {
        let node = |name: &&str| BalancerNode {
            name: (*name).to_owned(),
            provider_id: format!("aws:///z/{name}"),
            internal_addresses: Vec::new(),
        };
        Balancer {
            name: "a1".to_owned(),
            service: Key::new("default", "web"),
            ports: Vec::new(),
            nodes: nodes.iter().map(node).collect(),
            source_ranges: vec![source_range.to_owned()],
            health_check_port: None,
            requested_address: None,
            annotations: Vec::new(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_load_balancer_is_known_while_nothing_but_its_nodes_changes() {
        let all = AllCompared::default();
        let one = wanted(&["i-1"], "10.0.0.0/8");
        let remember = || all.remember(Compared::new(&one, Instant::now()));
        assert!(all.take(&one).is_none());
        remember();
        assert!(all.take(&wanted(&["i-2"], "10.0.0.0/8")).is_some());
        assert!(all.take(&one).is_none(), "it is forgotten until its change has succeeded");
        remember();
        assert!(all.take(&wanted(&["i-1"], "11.0.0.0/8")).is_none());
        assert!(all.take(&one).is_none(), "another process may have ended in the middle of the change");
        remember();
        tokio::time::advance(COMPARE_INTERVAL - Duration::from_secs(1)).await;
        let known = all.take(&one).unwrap();
        all.remember(known);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(all.take(&one).is_none(), "a change of nodes does not put off the comparison");
        remember();
        all.clear();
        assert!(all.take(&one).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn equal_targets_are_held_once() {
        let all = AllCompared::default();
        for name in ["a1", "a2"] {
            let one = Balancer { name: name.to_owned(), ..wanted(&[], "") };
            let targets = Arc::new(Targets::from(["i-1".to_owned()]));
            all.remember(Compared { targets, ..Compared::new(&one, Instant::now()) });
        }
        let state = all.lock();
        assert!(Arc::ptr_eq(&state.balancers["a1"].targets, &state.balancers["a2"].targets));
    }
}
