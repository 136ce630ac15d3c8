//! The answers to challenges that nodes serve now, in the Secret that they watch.
//!
//! Invariant: the version grows with every write, also of another leader, so a node that reports it serves all answers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use corten_client::{Cache, Caches, Client, ListOptions};
use corten_gateway::control::served_by;
use corten_gateway::data::leases;
use corten_gateway::resolve::{CHALLENGES_ENTRY, Challenges, HttpChallenge, NAMESPACE, TlsChallenge};
use corten_meta::Key;
use tokio::sync::Mutex;

use crate::Error;
use crate::store::{self, Part};

/// The time after which the authority is asked, though some node does not serve the answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// An answer to one challenge.
pub enum Answer {
    Http(HttpChallenge),
    Tls(TlsChallenge),
}

/// The answers of all orders under way.
pub struct Answers {
    client: Client,
    leases: Arc<Cache>,
    /// Held while the Secret is written: the last write must be the one of all answers.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    challenges: Challenges,
    /// Whether the Secret may have other answers: a write failed, or the leader before left some.
    is_stale: bool,
}

impl Answers {
    /// Begins without answers, with the version of the leader before.
    pub async fn open(client: Client, caches: &Caches) -> Result<Answers, Error> {
        let leases = caches.resource(&leases(), NAMESPACE, ListOptions::default());
        leases.synced().await;
        let secret = store::read(&client, &Challenges::secret()).await?;
        let stored = secret.and_then(|secret| store::entry(&secret, CHALLENGES_ENTRY));
        let stored: Option<Challenges> = stored.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let is_stale = stored.as_ref().is_some_and(|stored| !stored.http.is_empty() || !stored.tls.is_empty());
        let version = stored.map(|stored| stored.version).unwrap_or_default();
        let challenges = Challenges { version, ..Challenges::default() };
        Ok(Answers { client, leases, state: Mutex::new(State { challenges, is_stale }) })
    }

    /// Adds an answer, and waits until all nodes serve it.
    pub async fn add(&self, answer: Answer) -> Result<(), Error> {
        let version = {
            let mut state = self.state.lock().await;
            let challenges = &mut state.challenges;
            match answer {
                Answer::Http(one) => {
                    challenges.http.retain(|other| (&other.host, &other.token) != (&one.host, &one.token));
                    challenges.http.push(one);
                }
                Answer::Tls(one) => {
                    challenges.tls.retain(|other| other.host != one.host);
                    challenges.tls.push(one);
                }
            }
            self.write(&mut state).await?
        };
        if tokio::time::timeout(PATIENCE, self.served(version)).await.is_err() {
            tracing::warn!("some node does not serve the answers to ACME's challenges yet");
        }
        Ok(())
    }

    /// Removes all answers for a host.
    pub async fn remove(&self, host: &str) -> Result<(), Error> {
        let mut state = self.state.lock().await;
        let challenges = &mut state.challenges;
        let before = challenges.http.len() + challenges.tls.len();
        challenges.http.retain(|one| one.host != host);
        challenges.tls.retain(|one| one.host != host);
        if challenges.http.len() + challenges.tls.len() < before {
            self.write(&mut state).await?;
        }
        Ok(())
    }

    /// Removes answers that the Secret still has although no order needs them: their removal failed, or the leader before
    /// ended in the middle of an order. Called while no order is under way.
    pub async fn remove_stale(&self) -> Result<(), Error> {
        let mut state = self.state.lock().await;
        if state.is_stale {
            self.write(&mut state).await?;
        }
        Ok(())
    }

    async fn write(&self, state: &mut State) -> Result<i64, Error> {
        state.is_stale = true;
        let challenges = &mut state.challenges;
        challenges.version += 1;
        let secret = store::of_entry(&Challenges::secret(), Part::Challenges, CHALLENGES_ENTRY, challenges);
        match store::put(&self.client, &secret).await? {
            true => {
                state.is_stale = false;
                Ok(state.challenges.version)
            }
            false => Err(Error::Invalid(format!("Secret {} is of another owner", Challenges::secret()))),
        }
    }

    /// Waits until every node serves a version.
    async fn served(&self, version: i64) {
        let mut changes = self.leases.subscribe();
        let key = Challenges::reported();
        loop {
            let now = corten_meta::time::now();
            let leases = self.leases.all();
            let alive: Vec<_> = leases.iter().filter_map(|lease| served_by(&lease.value(), now)).collect();
            let is_served = |serves: &BTreeMap<Key, i64>| serves.get(&key).is_some_and(|served| *served >= version);
            if !alive.is_empty() && alive.iter().all(is_served) {
                return;
            }
            if changes.next().await.is_none() {
                return;
            }
        }
    }
}
