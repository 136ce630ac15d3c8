//! Controllers that reconcile on caches of their own and write nothing, for the benchmark.

use std::sync::Arc;
use std::time::{Duration, Instant};

use corten_client::Caches;
use corten_meta::Key;
use tokio_util::sync::CancellationToken;

use crate::runtime::{Clients, Decide, DryRun, Memory};
use crate::{Config, MANAGER, registry};

/// The controllers, their caches and their memory of keys.
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

    /// Measures one reconcile of a key by the first controller with this service account.
    pub fn decide(&self, account: &str, namespace: &str, name: &str) -> Duration {
        let found = self.controllers.iter().find(|(one, _)| one.name() == account);
        found.map_or(Duration::MAX, |(controller, memory)| self.measure(&**controller, memory, namespace, name))
    }

    /// Measures one reconcile without memory, as after a change or by a new leader.
    pub fn decide_anew(&self, account: &str, namespace: &str, name: &str) -> Duration {
        let found = self.controllers.iter().find(|(one, _)| one.name() == account);
        found.map_or(Duration::MAX, |(controller, _)| self.measure(&**controller, &Memory::default(), namespace, name))
    }

    fn measure(&self, controller: &dyn Decide, memory: &Memory, namespace: &str, name: &str) -> Duration {
        let key = Key::new(namespace, name);
        let begin = Instant::now();
        let plan = self.dry_run.reconcile(controller, memory, &key);
        let taken = begin.elapsed();
        // A plan with writes means that the object is not in its desired state, so the time is not comparable.
        if plan.is_empty() { taken } else { Duration::MAX }
    }
}
