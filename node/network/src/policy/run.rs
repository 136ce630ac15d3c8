//! Enforcement as a component: watches policies, the addresses of pods and namespaces, and reconciles the kernel with
//! them.

use std::time::Duration;

use corten_api::{NETWORK_GROUP, POD_ADDRESSES};
use corten_client::{Caches, Change, Client, Resource, Subscription};
use std::collections::BTreeMap;

use corten_meta::{Key, Labels};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use tokio::sync::oneshot;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

use super::enforcer::Enforcer;
use super::gate::{LocalPod, Request, Requests};
use super::objects::{Pod, Policy, PortName};
use super::{Config, chains};
use crate::error::Error;

/// The intervals at which the tables are checked, and a refused sync is retried.
const CHECK: Duration = Duration::from_secs(30);
const RETRY: Duration = Duration::from_secs(1);

/// A pod that waits for its policies.
struct Waiting {
    pod: LocalPod,
    done: oneshot::Sender<()>,
}

/// Enforces the cluster's policies on this node until shutdown. The rules stay: they apply while the process restarts,
/// and [`super::cleanup`] deletes them.
///
/// Invariant: the first batch replaces the rules of the earlier run, and covers every running pod. So it is sent only
/// once the API's objects and the node's sandboxes are both known.
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
    let mut waiting: Vec<Waiting> = Vec::new();
    tokio::select! {
        request = requests.0.recv() => match request {
            Some(request) => take(request, &mut enforcer, &mut waiting),
            None => return Ok(()),
        },
        () = shutdown.cancelled() => return Ok(()),
    }

    let mut events =
        Events { policies: policies.subscribe(), pods: pods.subscribe(), namespaces: namespaces.subscribe() };
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
        tokio::select! {
            open = events.next(&mut enforcer) => if !open { return Ok(()) },
            request = requests.0.recv() => match request {
                Some(request) => take(request, &mut enforcer, &mut waiting),
                None => return Ok(()),
            },
            () = tokio::time::sleep(RETRY), if refused => {}
            _ = checks.tick() => if let Err(error) = enforcer.check() {
                warn!("cannot reconcile the policy rules: {error}");
            },
            () = shutdown.cancelled() => return Ok(()),
        }
    }
}

/// Returns cluster DNS on this node, as the pod that policies select it by.
fn dns_pod(config: &Config) -> (Key, Pod) {
    let labels = Labels::new(BTreeMap::from([("k8s-app".to_owned(), "kube-dns".to_owned())]));
    let port = |protocol, name: &str| (PortName { protocol, name: name.to_owned() }, chains::DNS_PORT);
    let ports = vec![port(corten_nftables::Protocol::Udp, "dns"), port(corten_nftables::Protocol::Tcp, "dns-tcp")];
    // No object has this name: names have no colon.
    let key = Key::new("kube-system", "corten:dns");
    (key, Pod { uid: String::new(), labels, addresses: config.dns.clone(), ports })
}

fn take(request: Request, enforcer: &mut Enforcer, waiting: &mut Vec<Waiting>) {
    match request {
        Request::Adopt(sandboxes) => sandboxes.into_iter().for_each(|sandbox| enforcer.attach(sandbox)),
        Request::Attach { sandbox, done } => {
            waiting.push(Waiting { pod: sandbox.pod.clone(), done });
            enforcer.attach(sandbox);
        }
        Request::Detach { sandbox } => enforcer.detach(&sandbox),
    }
}

/// Releases the pods whose policies are in the kernel.
fn release(enforcer: &Enforcer, waiting: &mut Vec<Waiting>) {
    let all = std::mem::take(waiting).into_iter();
    let (ready, rest): (Vec<_>, Vec<_>) = all.partition(|pod| enforcer.knows(&pod.pod));
    waiting.extend(rest.into_iter().filter(|pod| !pod.done.is_closed()));
    for pod in ready {
        // A setup that has failed before needs no answer.
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
    /// Applies the next change; returns false after the caches were shut down.
    async fn next(&mut self, enforcer: &mut Enforcer) -> bool {
        tokio::select! {
            change = self.policies.next() => change.map(|change| policy(change, enforcer)).is_some(),
            change = self.pods.next() => change.map(|change| pod(&change, enforcer)).is_some(),
            change = self.namespaces.next() => change.map(|change| namespace(&change, enforcer)).is_some(),
        }
    }

    /// Applies all pending changes, so that one batch serves all of them.
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
