//! The loop of the leader: orders every certificate that is due.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use corten_client::{Cache, Caches, Client, LeaderConfig, LeaderElector, ListOptions, Resource as Kind, Subscription};
use corten_client::{EventRecorder, EventType, ObjectRef};
use corten_gateway::crds;
use corten_gateway::issuer::{self, IssuerSpec, acme_issuers};
use corten_gateway::objects::decode;
use corten_meta::{Key, Value};
use jiff::Timestamp;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::answers::Answers;
use crate::order::{Done, Job, held};
use crate::plan::{self, Due};
use crate::store::{self, OrderState};
use crate::wanted::{self, Certificates, Owner, Wanted};

/// The name of the Lease by which one of several processes leads.
const LEASE: &str = "corten-acme";
/// The most orders under way.
const MAX_ORDERS: usize = 4;
/// The longest time between two looks at all certificates.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);
/// Changes that come within this time are looked at together.
const SETTLE: Duration = Duration::from_millis(50);
/// The pause before the API server is asked again for AcmeIssuers, and before a leader begins again.
const RETRY: Duration = Duration::from_secs(1);

/// The settings of the process.
#[derive(Clone, Debug)]
pub struct Config {
    /// The identity of this process in the leader election.
    pub identity: String,
    /// Whether other processes may do the same work.
    pub leader_elect: bool,
}

/// Orders certificates until shutdown, whenever this process leads. It does nothing before the first AcmeIssuer.
pub async fn run(config: Config, client: Client, shutdown: CancellationToken) {
    if shutdown.run_until_cancelled(first_issuer(&client)).await.is_none() {
        return;
    }
    while !shutdown.is_cancelled() {
        if config.leader_elect {
            let lease = LeaderConfig::new("kube-system", LEASE, &config.identity);
            let elector = LeaderElector::new(client.clone(), lease);
            elector.run(shutdown.clone(), |leading| lead(client.clone(), leading)).await;
        } else {
            lead(client.clone(), shutdown.clone()).await;
        }
    }
}

/// Waits until there is an AcmeIssuer.
async fn first_issuer(client: &Client) {
    let path = format!("/apis/{}/{}", issuer::GROUP, issuer::VERSION);
    while client.get_raw(&path).await.is_err() {
        tokio::time::sleep(RETRY).await;
    }
    let stop = CancellationToken::new();
    let _stopped = stop.clone().drop_guard();
    let issuers = Caches::new(client.clone(), stop).dynamic(&acme_issuers());
    let mut changes = issuers.subscribe();
    while issuers.is_empty() && changes.next().await.is_some() {}
}

/// Leads until the token is cancelled, or until it cannot go on.
async fn lead(client: Client, shutdown: CancellationToken) {
    let stop = shutdown.child_token();
    let _stopped = stop.clone().drop_guard();
    let caches = Caches::new(client.clone(), stop);
    let opened = shutdown.run_until_cancelled(Leader::open(client, &caches)).await;
    match opened {
        Some(Ok(leader)) => leader.run(shutdown).await,
        Some(Err(error)) => {
            tracing::warn!(%error, "certificates cannot be ordered yet");
            shutdown.run_until_cancelled(tokio::time::sleep(RETRY)).await;
        }
        None => {}
    }
}

/// The caches of the leader, and the orders under way.
struct Leader {
    client: Client,
    issuers: Arc<Cache>,
    gateways: Arc<Cache>,
    ingresses: Arc<Cache>,
    /// Those of this package.
    secrets: Arc<Cache>,
    answers: Arc<Answers>,
    events: EventRecorder,
    bell: Arc<Notify>,
    subscriptions: Vec<Subscription>,
    under_way: BTreeSet<Key>,
    orders: JoinSet<Ended>,
}

/// The end of an order.
struct Ended {
    secret: Key,
    owner: Owner,
    done: Result<Done, crate::Error>,
}

impl Leader {
    async fn open(client: Client, caches: &Caches) -> Result<Leader, crate::Error> {
        let issuers = caches.dynamic(&acme_issuers());
        let gateways = caches.dynamic(&Kind::new(crds::GROUP, "v1", "gateways", true));
        let ingresses = caches.dynamic(&Kind::new("networking.k8s.io", "v1", "ingresses", true));
        let secrets = caches.resource(&store::secrets(), "", ListOptions::labels(store::LABEL));
        let answers = Arc::new(Answers::open(client.clone(), caches).await?);
        caches.synced().await;
        let bell = Arc::new(Notify::new());
        let all = [&issuers, &gateways, &ingresses, &secrets];
        let subscriptions = all.map(|cache| cache.subscribe_with(&bell)).into();
        let events = EventRecorder::new(client.clone(), "corten-acme", "");
        Ok(Leader {
            client,
            issuers,
            gateways,
            ingresses,
            secrets,
            answers,
            events,
            bell,
            subscriptions,
            under_way: BTreeSet::new(),
            orders: JoinSet::new(),
        })
    }

    async fn run(mut self, shutdown: CancellationToken) {
        while !shutdown.is_cancelled() {
            for subscription in &mut self.subscriptions {
                while subscription.try_next().is_some() {}
            }
            let mut sleep = self.begin_orders(corten_meta::time::now());
            if self.under_way.is_empty()
                && let Err(error) = self.answers.remove_stale().await
            {
                tracing::warn!(%error, "answers to challenges cannot be removed");
                sleep = sleep.min(RETRY);
            }
            tokio::select! {
                () = self.bell.notified() => {}
                () = tokio::time::sleep(sleep) => {}
                Some(ended) = self.orders.join_next() => match ended {
                    Ok(ended) => self.end_order(ended),
                    Err(error) => tracing::warn!(%error, "an order ended unexpectedly"),
                },
                () = shutdown.cancelled() => {}
            }
            shutdown.run_until_cancelled(tokio::time::sleep(SETTLE)).await;
        }
    }

    /// Begins every order that is due, and returns the time until the next one is.
    fn begin_orders(&mut self, now: Timestamp) -> Duration {
        let mut sleep = LONGEST_SLEEP;
        for (secret, wanted) in self.wanted() {
            if self.under_way.contains(&secret) {
                continue;
            }
            match self.due(&secret, &wanted, now) {
                Due::Now => {
                    if self.under_way.len() < MAX_ORDERS {
                        self.begin_order(secret, wanted);
                    }
                }
                Due::At(at) => {
                    let left = Duration::try_from(at.duration_since(now)).unwrap_or_default();
                    sleep = sleep.min(left.max(SETTLE));
                }
            }
        }
        sleep
    }

    fn wanted(&self) -> Certificates {
        let mut wanted = Certificates::new();
        for gateway in self.gateways.all() {
            if let Some(gateway) = decode(gateway.value()) {
                wanted::add_gateway(&gateway, &mut wanted);
            }
        }
        for ingress in self.ingresses.all() {
            if let Some(ingress) = decode(ingress.value()) {
                wanted::add_ingress(&ingress, &mut wanted);
            }
        }
        wanted
    }

    fn due(&self, secret: &Key, wanted: &Wanted, now: Timestamp) -> Due {
        let value = |key: &Key| self.secrets.get(key).map(|secret| secret.value());
        let held = value(secret).as_ref().and_then(held);
        let state: Option<OrderState> = value(&store::order_key(secret)).as_ref().and_then(store::state);
        // Other names, or another issuer, may succeed where the last ones failed.
        let same = state.filter(|state| state.issuer == wanted.issuer && state.names.iter().eq(&wanted.names));
        let retry_at = same.and_then(|state| state.retry_at.parse().ok());
        plan::due(held.as_ref(), &wanted.names, retry_at, now)
    }

    fn begin_order(&mut self, secret: Key, wanted: Wanted) {
        let issuer = self.issuers.get(&Key::new("", wanted.issuer.clone()));
        // An issuer that does not exist yet rings the bell when it does.
        let Some(spec) = issuer.and_then(|issuer| spec_of(&issuer.value())) else { return };
        self.under_way.insert(secret.clone());
        let owner = wanted.owner.clone();
        let job = Job {
            client: self.client.clone(),
            answers: self.answers.clone(),
            issuer: wanted.issuer.clone(),
            spec,
            secret: secret.clone(),
            wanted,
        };
        self.orders.spawn(async move {
            let done = job.run().await;
            if done.is_err() {
                tokio::time::sleep(RETRY).await;
            }
            Ended { secret, owner, done }
        });
    }

    fn end_order(&mut self, ended: Ended) {
        self.under_way.remove(&ended.secret);
        let owner = ObjectRef {
            api_version: ended.owner.api_version.to_owned(),
            kind: ended.owner.kind.to_owned(),
            namespace: ended.owner.key.namespace.clone(),
            name: ended.owner.key.name.clone(),
            uid: ended.owner.uid,
            ..ObjectRef::default()
        };
        match ended.done {
            Ok(Done::NotDue) => {}
            Ok(Done::Issued) => {
                let message = format!("Secret {} has a new certificate", ended.secret.name);
                self.events.event(&owner, EventType::Normal, "CertificateIssued", message);
            }
            Ok(Done::Failed { error, retry_at }) => {
                let at = corten_meta::time::rfc3339(retry_at);
                tracing::info!(%error, secret = %ended.secret, retry = at, "a certificate cannot be issued");
                let message = format!("The certificate of Secret {}: {error}; next try at {at}", ended.secret.name);
                self.events.event(&owner, EventType::Warning, "CertificateFailed", message);
            }
            Err(error) => tracing::warn!(%error, secret = %ended.secret, "an order cannot be recorded"),
        }
    }
}

fn spec_of(issuer: &Value) -> Option<IssuerSpec> {
    serde_json::from_value(issuer["spec"].clone()).ok()
}
