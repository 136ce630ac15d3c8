//! Key sets of JSON Web Tokens that policies name by URL: the leader fetches them, and keeps them in ConfigMaps.
//!
//! A set that cannot be fetched keeps its last keys, and the reason is a condition of the policy. A set is fetched again
//! after the time that its server names, and soon after a node met a token whose key the set lacks.

mod fetch;
mod schedule;

pub use fetch::{Fetching, is_elsewhere};

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use corten_client::{Client, Error, Patch, Resource as Kind};
use corten_crds::covers;
use corten_meta::{Key, Value};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use crate::resolve::{KEYS_ENTRY, KEYS_LABEL, KeySource, OWNED_LABEL, PROBLEM_ANNOTATION, URI_ANNOTATION};
use fetch::Fetched;
use schedule::Schedule;

/// The most fetches at one time.
const MAX_FETCHES: usize = 8;
/// The most characters of a reason.
const MAX_PROBLEM: usize = 256;

/// The keys that nodes missed: a node's name and a value that changes with each report, by the name of the set.
pub type Missed = BTreeMap<String, BTreeMap<String, String>>;

/// Returns the resource of ConfigMaps.
pub fn config_maps() -> Kind {
    Kind::new("", "v1", "configmaps", true)
}

/// The key sets of the cluster, and the fetches under way.
pub struct KeySets {
    fetching: Fetching,
    client: Client,
    sets: BTreeMap<Key, Set>,
    fetches: JoinSet<Finished>,
    slots: Arc<Semaphore>,
}

struct Set {
    source: KeySource,
    schedule: Schedule,
    running: Option<AbortHandle>,
    /// The reports of nodes that were seen.
    missed: BTreeMap<String, String>,
}

/// A fetch that has ended.
struct Finished {
    key: Key,
    outcome: Result<Option<Duration>, String>,
    ended: Instant,
}

impl KeySets {
    pub fn new(fetching: Fetching, client: Client) -> KeySets {
        let slots = Arc::new(Semaphore::new(MAX_FETCHES));
        KeySets { fetching, client, sets: BTreeMap::new(), fetches: JoinSet::new(), slots }
    }

    /// Takes over the sets that policies name and the reports of nodes, and starts the fetches that are due.
    pub fn follow(&mut self, wanted: &BTreeMap<Key, KeySource>, missed: &Missed) {
        let now = Instant::now();
        self.sets.retain(|key, set| set.running.is_some() || wanted.contains_key(key));
        for (key, source) in wanted {
            let set = self.sets.entry(key.clone()).or_insert_with(|| Set {
                source: source.clone(),
                schedule: Schedule::new(now),
                running: None,
                missed: missed.get(&key.name).cloned().unwrap_or_default(),
            });
            if set.source != *source {
                set.source = source.clone();
                set.schedule.changed(now);
            }
            let reports = missed.get(&key.name).cloned().unwrap_or_default();
            if reports.iter().any(|(node, report)| set.missed.get(node) != Some(report)) {
                set.schedule.lacks_key(now);
            }
            set.missed = reports;
        }
        self.start(now);
    }

    fn start(&mut self, now: Instant) {
        for (key, set) in self.sets.iter_mut().filter(|(_, set)| set.running.is_none() && set.schedule.next() <= now) {
            let fetch = Fetch {
                fetching: self.fetching,
                client: self.client.clone(),
                key: key.clone(),
                source: set.source.clone(),
                slots: Arc::clone(&self.slots),
            };
            set.running = Some(self.fetches.spawn(fetch.run()));
        }
    }

    /// Waits until a fetch has ended, or until one is due.
    pub async fn changed(&mut self) {
        let waiting = self.sets.values().filter(|set| set.running.is_none());
        let next = waiting.map(|set| set.schedule.next()).min();
        let due = async {
            match next {
                Some(next) => tokio::time::sleep_until(next).await,
                None => std::future::pending().await,
            }
        };
        let finished = tokio::select! {
            Some(finished) = self.fetches.join_next() => finished,
            () = due => return,
        };
        match finished {
            Ok(finished) => self.finish(finished),
            Err(_) => self.forget_failed(),
        }
    }

    fn finish(&mut self, finished: Finished) {
        let Some(set) = self.sets.get_mut(&finished.key) else { return };
        set.running = None;
        match finished.outcome {
            Ok(max_age) => set.schedule.succeeded(max_age, finished.ended),
            Err(error) => {
                tracing::info!(uri = %set.source.uri, error, "a key set cannot be fetched");
                set.schedule.failed(finished.ended);
            }
        }
    }

    /// Lets sets be fetched again whose tasks ended without a result.
    fn forget_failed(&mut self) {
        for set in self.sets.values_mut() {
            if set.running.take_if(|task| task.is_finished()).is_some() {
                set.schedule.failed(Instant::now());
            }
        }
    }
}

/// One fetch of a set.
struct Fetch {
    fetching: Fetching,
    client: Client,
    key: Key,
    source: KeySource,
    slots: Arc<Semaphore>,
}

impl Fetch {
    async fn run(self) -> Finished {
        let _slot = self.slots.acquire().await;
        let fetched = self.fetching.fetch(&self.source).await;
        let kept = self.keep(&fetched).await;
        let outcome = match (fetched, kept) {
            (Ok(fetched), Ok(())) => Ok(fetched.max_age),
            (Err(error), _) => Err(error),
            (Ok(_), Err(error)) => Err(error.to_string()),
        };
        Finished { key: self.key, outcome, ended: Instant::now() }
    }

    /// Writes the keys, or the reason why there are no newer ones, unless the ConfigMap has them already.
    async fn keep(&self, fetched: &Result<Fetched, String>) -> Result<(), Error> {
        let wanted = config_map(&self.key, &self.source.uri, fetched);
        let maps = self.client.dynamic(&config_maps());
        let current = match maps.get(&self.key.namespace, &self.key.name).await {
            Ok(current) => current,
            Err(error) if error.is_not_found() => return maps.post(&self.key.namespace, &wanted).await,
            Err(error) => return Err(error),
        };
        if current["metadata"]["labels"][OWNED_LABEL] != KEYS_LABEL || covers(&current, &wanted) {
            return Ok(());
        }
        maps.send_patch(&self.key.namespace, &self.key.name, &Patch::Merge(wanted)).await
    }
}

/// Returns the ConfigMap of a set after a fetch. One that failed names no keys, so that the last ones stay.
fn config_map(key: &Key, uri: &str, fetched: &Result<Fetched, String>) -> Value {
    let problem: String = match fetched {
        Ok(_) => String::new(),
        Err(error) => error.chars().filter(|character| !character.is_control()).take(MAX_PROBLEM).collect(),
    };
    let mut object = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": key.name,
            "namespace": key.namespace,
            "labels": {OWNED_LABEL: KEYS_LABEL},
            "annotations": {URI_ANNOTATION: uri, PROBLEM_ANNOTATION: problem},
        },
    });
    if let Ok(fetched) = fetched {
        object["data"] = json!({KEYS_ENTRY: fetched.keys});
    }
    object
}
