//! The decisions alone, on caches of their own, for the benchmark: nothing is written.

use std::sync::Arc;
use std::time::{Duration, Instant};

use corten_client::Caches;
use corten_meta::Key;
use tokio_util::sync::CancellationToken;

use crate::runtime::{Clients, Decide, DryRun, Memory};
use crate::{Config, MANAGER, registry};

/// The controllers, and what they see and remember.
pub struct Measured {
    controllers: Vec<(Arc<dyn Decide>, Memory)>,
    dry_run: DryRun,
}

impl Measured {
    /// Fills the caches of all controllers.
    pub async fn open(config: Config, clients: &Clients, shutdown: CancellationToken) -> Measured {
        let all = registry::controllers(&config).unwrap_or_default();
        let controllers: Vec<Arc<dyn Decide>> = all.into_iter().map(|(.., controller)| controller).collect();
        let caches = Caches::new(clients(MANAGER), shutdown);
        let dry_run = DryRun::open(&controllers, &caches).await;
        let controllers = controllers.into_iter().map(|controller| (controller, Memory::default())).collect();
        Measured { controllers, dry_run }
    }

    /// How long one look at a key takes the first controller with this account.
    pub fn decide(&self, account: &str, namespace: &str, name: &str) -> Duration {
        let found = self.controllers.iter().find(|(one, _)| one.name() == account);
        found.map_or(Duration::MAX, |(controller, memory)| self.measure(&**controller, memory, namespace, name))
    }

    /// The same of one that remembers nothing, as after a change or a new leader.
    pub fn decide_anew(&self, account: &str, namespace: &str, name: &str) -> Duration {
        let found = self.controllers.iter().find(|(one, _)| one.name() == account);
        found.map_or(Duration::MAX, |(controller, _)| self.measure(&**controller, &Memory::default(), namespace, name))
    }

    fn measure(&self, controller: &dyn Decide, memory: &Memory, namespace: &str, name: &str) -> Duration {
        let key = Key::new(namespace, name);
        let begin = Instant::now();
        let plan = self.dry_run.reconcile(controller, memory, &key);
        let taken = begin.elapsed();
        // A plan means that something was not in order: no time is the answer to that.
        if plan.is_empty() { taken } else { Duration::MAX }
    }
}
