//! Enforcement as a component: watches policies, the addresses of pods and namespaces, and keeps the kernel as they
//! say.

use std::time::Duration;

use corten_api::{NETWORK_GROUP, POD_ADDRESSES};
use corten_client::{Caches, Change, Client, Resource, Subscription};
use std::collections::BTreeMap;

use corten_meta::{Key, Labels};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

use super::enforcer::Enforcer;
use super::gate::{LocalPod, Request, Requests};
use super::objects::{Pod, Policy, PortName};
use super::{Config, chains};
use crate::error::Error;

/// How often to look whether the tables still stand, and to repeat a sync that the kernel refused.
const CHECK: Duration = Duration::from_secs(30);
const RETRY: Duration = Duration::from_secs(1);
/// How long a pod waits for its object. The kubelet saw it before us, so it is on its way; a static
/// pod may have none, and is judged as a pod without labels then.
const OBJECT: Duration = Duration::from_secs(2);

/// A pod that waits for its policies.
struct Waiting {
    pod: LocalPod,
    done: oneshot::Sender<()>,
    until: Instant,
}

/// Enforces the cluster's policies on this node until shutdown. The rules stay: they hold while the
/// process restarts, and [`super::cleanup`] is for those who want them gone.
pub async fn run(
    config: Config,
    client: Client,
    mut requests: Requests,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    let caches = Caches::new(client, shutdown.clone());
    let policies = caches.of::<NetworkPolicy>();
    let pods = caches.dynamic(&Resource::new(NETWORK_GROUP, "v1", POD_ADDRESSES, true));
    let namespaces = caches.of::<Namespace>();
    let mut enforcer = Enforcer::new(config.clone())?;
    let (key, dns) = dns_pod(&config);
    enforcer.set_pod(&key, Some(dns));
    caches.synced().await;

    let mut events =
        Events { policies: policies.subscribe(), pods: pods.subscribe(), namespaces: namespaces.subscribe() };
    let mut waiting: Vec<Waiting> = Vec::new();
    let mut checks = tokio::time::interval(CHECK);
    checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        events.drain(&mut enforcer);
        while let Ok(request) = requests.0.try_recv() {
            take(request, &mut enforcer, &mut waiting);
        }
        let mut refused = false;
        if enforcer.is_dirty() && !shutdown.is_cancelled() {
            let (returned, result) = sync(enforcer).await?;
            enforcer = returned;
            refused = result.is_err();
            report(result);
        }
        if !refused {
            release(&enforcer, &mut waiting);
        }
        let next = waiting.iter().map(|waiting| waiting.until).min();
        let next = if refused { Some(Instant::now() + RETRY) } else { next };
        tokio::select! {
            open = events.next(&mut enforcer) => if !open { return Ok(()) },
            request = requests.0.recv() => match request {
                Some(request) => take(request, &mut enforcer, &mut waiting),
                None => return Ok(()),
            },
            () = until(next) => {}
            _ = checks.tick() => if let Err(error) = enforcer.check() {
                warn!("cannot look after the policy rules: {error}");
            },
            () = shutdown.cancelled() => return Ok(()),
        }
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Cluster DNS on this node, as the pod that policies know it by.
fn dns_pod(config: &Config) -> (Key, Pod) {
    let labels = Labels::new(BTreeMap::from([("k8s-app".to_owned(), "kube-dns".to_owned())]));
    let port = |protocol, name: &str| (PortName { protocol, name: name.to_owned() }, chains::DNS_PORT);
    let ports = vec![port(corten_nftables::Protocol::Udp, "dns"), port(corten_nftables::Protocol::Tcp, "dns-tcp")];
    // The name can be no object's: names have no colon.
    let key = Key::new("kube-system", "corten:dns");
    (key, Pod { uid: String::new(), labels, addresses: config.dns.clone(), ports })
}

fn take(request: Request, enforcer: &mut Enforcer, waiting: &mut Vec<Waiting>) {
    match request {
        Request::Attach { sandbox, pod, done } => {
            enforcer.attach(sandbox, pod.clone());
            let until = Instant::now() + OBJECT;
            waiting.extend(done.map(|done| Waiting { pod, done, until }));
        }
        Request::Detach { sandbox } => enforcer.detach(&sandbox),
    }
}

/// Lets those pass whose policies hold.
fn release(enforcer: &Enforcer, waiting: &mut Vec<Waiting>) {
    let now = Instant::now();
    let (ready, rest): (Vec<_>, Vec<_>) =
        std::mem::take(waiting).into_iter().partition(|pod| enforcer.knows(&pod.pod) || pod.until <= now);
    *waiting = rest;
    for pod in ready {
        // One that has given up meanwhile needs no answer.
        let _ = pod.done.send(());
    }
}

/// Syncs on a thread that may block: a large batch keeps the kernel busy for milliseconds.
async fn sync(mut enforcer: Enforcer) -> Result<(Enforcer, Result<usize, Error>), Error> {
    let work = tokio::task::spawn_blocking(move || {
        let result = enforcer.sync();
        (enforcer, result)
    });
    work.await.map_err(|_| Error::Cancelled("applying network policies"))
}

fn report(result: Result<usize, Error>) {
    match result {
        Ok(bytes) => debug!(bytes, "synced the policy rules"),
        Err(error) => error!("cannot sync the policy rules: {error}"),
    }
}

struct Events {
    policies: Subscription,
    pods: Subscription,
    namespaces: Subscription,
}

impl Events {
    /// Takes the next change; false after the caches were shut down.
    async fn next(&mut self, enforcer: &mut Enforcer) -> bool {
        tokio::select! {
            change = self.policies.next() => change.map(|change| policy(change, enforcer)).is_some(),
            change = self.pods.next() => change.map(|change| pod(&change, enforcer)).is_some(),
            change = self.namespaces.next() => change.map(|change| namespace(&change, enforcer)).is_some(),
        }
    }

    /// Takes what has arrived meanwhile, so that one batch serves all of it.
    fn drain(&mut self, enforcer: &mut Enforcer) {
        while let Some(change) = self.policies.try_next() {
            policy(change, enforcer);
        }
        while let Some(change) = self.namespaces.try_next() {
            namespace(&change, enforcer);
        }
        while let Some(change) = self.pods.try_next() {
            pod(&change, enforcer);
        }
    }
}

fn policy(change: Change, enforcer: &mut Enforcer) {
    let policy = change.new.as_deref().map(Policy::from_object);
    enforcer.set_policy(change.key, policy);
}

fn pod(change: &Change, enforcer: &mut Enforcer) {
    enforcer.set_pod(&change.key, change.new.as_deref().map(Pod::from_object));
}

fn namespace(change: &Change, enforcer: &mut Enforcer) {
    enforcer.set_namespace(&change.key.name, change.new.as_ref().map(|namespace| namespace.header.labels.clone()));
}
