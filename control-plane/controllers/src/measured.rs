//! The decisions alone, on caches of their own, for the benchmark: nothing is written.

use std::sync::Arc;
use std::time::{Duration, Instant};

use corten_client::Caches;
use corten_meta::Key;
use tokio_util::sync::CancellationToken;

use crate::runtime::{Clients, Decide, Watched};
use crate::{Config, MANAGER, registry};

/// The controllers, and what they see.
pub struct Measured {
    controllers: Vec<Arc<dyn Decide>>,
    view: Watched,
}

impl Measured {
    /// Fills the caches of all controllers.
    pub async fn open(config: Config, clients: &Clients, shutdown: CancellationToken) -> Measured {
        let all = registry::controllers(&config).unwrap_or_default();
        let controllers: Vec<Arc<dyn Decide>> = all.into_iter().map(|(.., controller)| controller).collect();
        let caches = Caches::new(clients(MANAGER), shutdown);
        let view = Watched::open(&controllers, &caches).await;
        Measured { controllers, view }
    }

    /// How long one look at a key takes the first controller with this account.
    pub fn decide(&self, account: &str, namespace: &str, name: &str) -> Duration {
        let Some(controller) = self.controllers.iter().find(|one| one.name() == account) else { return Duration::MAX };
        let key = Key::new(namespace, name);
        let begin = Instant::now();
        let plan = controller.decide(self.view.view(), &key, corten_meta::time::now());
        let taken = begin.elapsed();
        // A plan means that something was not in order: no time is the answer to that.
        if plan.is_empty() { taken } else { Duration::MAX }
    }
}
