//! The decisions alone, on caches of their own, for the benchmark: nothing is written.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use corten_client::Caches;
use corten_meta::Key;
use tokio_util::sync::CancellationToken;

use crate::runtime::{Clients, Decide, Watched};
use crate::{Config, MANAGER, registry};

/// Controllers by name, and what they see.
pub struct Measured {
    controllers: HashMap<&'static str, Arc<dyn Decide>>,
    view: Watched,
}

impl Measured {
    /// Fills the caches of all controllers.
    pub async fn open(config: Config, clients: &Clients, shutdown: CancellationToken) -> Measured {
        let all = registry::controllers(&config).unwrap_or_default();
        let all: Vec<Arc<dyn Decide>> = all.into_iter().map(|(.., controller)| controller).collect();
        let caches = Caches::new(clients(MANAGER), shutdown);
        let view = Watched::open(&all, &caches).await;
        Measured { controllers: all.into_iter().map(|one| (one.name(), one)).collect(), view }
    }

    /// How long one look at a key takes the controller with this account.
    pub fn decide(&self, account: &str, namespace: &str, name: &str) -> Duration {
        let Some(controller) = self.controllers.get(account) else { return Duration::MAX };
        let key = Key::new(namespace, name);
        let begin = Instant::now();
        let plan = controller.decide(self.view.view(), &key, corten_meta::time::now());
        let taken = begin.elapsed();
        // A plan means that something was not in order: no time is the answer to that.
        if plan.is_empty() { taken } else { Duration::MAX }
    }
}
