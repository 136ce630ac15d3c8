//! Leader election on a Lease: one of several processes with the same work leads.
//!
//! Contract: `lead` runs only while this process holds the lease by its own, monotonic clock; its token is cancelled as
//! soon as the lease could not be renewed in time. Two leaders at once are possible only if clocks run at very
//! different speeds, or if `lead` does not stop when cancelled. A clean stop releases the lease at once.

use crate::backoff::jitter;
use crate::{Client, Error, ListOptions, WatchEvent};
use corten_api::Typed;
use corten_api::k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use futures::StreamExt;
use futures::stream::BoxStream;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The lease of an election and its timing.
#[derive(Debug, Clone)]
pub struct LeaderConfig {
    /// The namespace of the Lease: `kube-system` unless there is a reason.
    pub namespace: String,
    /// The name of the Lease, such as `kube-scheduler`.
    pub name: String,
    /// The identity of this process: unique among the candidates.
    pub identity: String,
    /// The time that others wait before they take over from a silent leader. Default 15 s.
    pub lease_duration: Duration,
    /// The time without a renewal after which the leader gives up. Default 10 s.
    pub renew_deadline: Duration,
    /// The pause between two attempts. Default 2 s.
    pub retry_period: Duration,
}

impl LeaderConfig {
    pub fn new(namespace: impl Into<String>, name: impl Into<String>, identity: impl Into<String>) -> LeaderConfig {
        LeaderConfig {
            namespace: namespace.into(),
            name: name.into(),
            identity: identity.into(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }
}

/// The result of an election for this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Shut down; the lease, if held, is released.
    Stopped,
    /// The lease was lost; `lead` was stopped.
    Lost,
    /// `lead` returned by itself; the lease is released.
    Finished,
}

/// One candidate.
pub struct LeaderElector {
    client: Client,
    config: LeaderConfig,
    /// The lease as last read, and the time since when it is in that state.
    observed: Option<(LeaseSpec, Instant)>,
    /// The last failure that was logged: a repeated one is logged once.
    complaint: Option<String>,
    /// The metrics that show whether this process leads.
    metrics: crate::Metrics,
}

impl LeaderElector {
    pub fn new(client: Client, config: LeaderConfig) -> LeaderElector {
        LeaderElector { client, config, observed: None, complaint: None, metrics: Default::default() }
    }

    /// Sets the metrics that show whether this process leads.
    pub fn with_metrics(mut self, metrics: &crate::Metrics) -> LeaderElector {
        metrics.leads(&self.config.name, false);
        self.metrics = metrics.clone();
        self
    }

    /// Waits to become the leader, then runs `lead` until it returns, the lease is lost, or shutdown. In the latter
    /// cases it cancels the token of `lead` and waits for `lead` to end.
    pub async fn run<F, Fut>(mut self, shutdown: CancellationToken, lead: F) -> Outcome
    where
        F: FnOnce(CancellationToken) -> Fut,
        Fut: Future<Output = ()>,
    {
        if shutdown.run_until_cancelled(self.acquire()).await.is_none() {
            return Outcome::Stopped;
        }
        tracing::info!(lease = %self.config.name, identity = %self.config.identity, "became the leader");
        self.metrics.leads(&self.config.name, true);
        let stop = CancellationToken::new();
        let leading = lead(stop.clone());
        tokio::pin!(leading);
        let outcome = tokio::select! {
            biased;
            () = &mut leading => Outcome::Finished,
            () = shutdown.cancelled() => Outcome::Stopped,
            () = self.renew_until_lost() => Outcome::Lost,
        };
        if outcome != Outcome::Finished {
            stop.cancel();
            leading.await;
        }
        self.metrics.leads(&self.config.name, false);
        if outcome == Outcome::Lost {
            tracing::warn!(lease = %self.config.name, "lost the lease");
        } else if let Err(error) = self.release().await {
            tracing::warn!(lease = %self.config.name, %error, "cannot release the lease");
        }
        outcome
    }

    /// Tries periodically, and at once when the holder releases the lease.
    async fn acquire(&mut self) {
        let mut news = None;
        while !self.attempt().await {
            let pause = self.config.retry_period.mul_f64(1.0 + 1.2 * jitter());
            let deadline = Instant::now() + pause;
            if news.is_none() {
                news = tokio::time::timeout_at(deadline, self.follow()).await.unwrap_or_default();
            }
            match &mut news {
                Some(events) => {
                    if let Ok(false) = tokio::time::timeout_at(deadline, self.released(events)).await {
                        // A watch that ended or was refused is opened again with the next attempt.
                        news = None;
                        tokio::time::sleep_until(deadline).await;
                    }
                }
                None => tokio::time::sleep_until(deadline).await,
            }
        }
    }

    /// Watches the lease from now on; `None` if this process may not watch it.
    async fn follow(&self) -> Option<BoxStream<'static, Result<WatchEvent, Error>>> {
        let LeaderConfig { namespace, name, .. } = &self.config;
        let options = ListOptions { field_selector: format!("metadata.name={name}"), ..ListOptions::default() };
        self.client.watch::<Lease>(namespace, &options).await.ok()
    }

    /// Waits until the lease has no holder, and observes every renewal; false if the watch ends.
    async fn released(&mut self, events: &mut BoxStream<'static, Result<WatchEvent, Error>>) -> bool {
        while let Some(Ok(event)) = events.next().await {
            let object = match event {
                WatchEvent::Deleted(_) => return true,
                WatchEvent::Added(object) | WatchEvent::Modified(object) => object,
                _ => continue,
            };
            let spec = Lease::decode(&object.bytes).ok().and_then(|lease| lease.spec).unwrap_or_default();
            let free = spec.holder_identity.as_deref().unwrap_or_default().is_empty();
            self.observe(spec);
            if free {
                return true;
            }
        }
        false
    }

    /// Renews the lease until that fails.
    async fn renew_until_lost(&mut self) {
        let mut renewed = Instant::now();
        loop {
            tokio::time::sleep(self.config.retry_period).await;
            let deadline = renewed + self.config.renew_deadline;
            match tokio::time::timeout_at(deadline, self.attempt()).await {
                Ok(true) => renewed = Instant::now(),
                // Another process holds it: trying until the deadline is of no use.
                Ok(false) if self.held_by_other() => return,
                Ok(false) if Instant::now() < deadline => {}
                _ => return,
            }
        }
    }

    fn held_by_other(&self) -> bool {
        let holder = self.observed.as_ref().and_then(|(spec, _)| spec.holder_identity.as_deref());
        holder.is_some_and(|holder| !holder.is_empty() && holder != self.config.identity)
    }

    /// Tries once to take or renew the lease.
    async fn attempt(&mut self) -> bool {
        match self.try_attempt().await {
            Ok(held) => {
                self.complaint = None;
                held
            }
            // Another candidate was faster.
            Err(error) if error.is_conflict() || error.is_already_exists() => false,
            Err(error) => {
                let complaint = Some(error.to_string());
                if self.complaint != complaint {
                    tracing::warn!(lease = %self.config.name, %error, "cannot acquire or renew the lease");
                    self.complaint = complaint;
                }
                false
            }
        }
    }

    async fn try_attempt(&mut self) -> Result<bool, Error> {
        let LeaderConfig { namespace, name, .. } = &self.config;
        let Some(mut lease) = self.client.find::<Lease>(namespace, name).await? else {
            let spec = next_spec(None, &self.config, corten_meta::time::now());
            let metadata =
                ObjectMeta { name: Some(name.clone()), namespace: Some(namespace.clone()), ..ObjectMeta::default() };
            let created = self.client.create(&Lease { metadata, spec: Some(spec) }).await?;
            self.observe(created.spec.unwrap_or_default());
            return Ok(true);
        };
        let spec = lease.spec.clone().unwrap_or_default();
        self.observe(spec.clone());
        if let Some((_, since)) = &self.observed
            && !may_take(&spec, *since, Instant::now(), &self.config)
        {
            return Ok(false);
        }
        lease.spec = Some(next_spec(Some(&spec), &self.config, corten_meta::time::now()));
        let updated = self.client.update(&lease).await?;
        self.observe(updated.spec.unwrap_or_default());
        Ok(true)
    }

    fn observe(&mut self, spec: LeaseSpec) {
        if self.observed.as_ref().is_none_or(|(seen, _)| *seen != spec) {
            self.observed = Some((spec, Instant::now()));
        }
    }

    /// Releases the lease if this process still holds it.
    async fn release(&mut self) -> Result<(), Error> {
        let LeaderConfig { namespace, name, identity, .. } = &self.config;
        let Some(mut lease) = self.client.find::<Lease>(namespace, name).await? else { return Ok(()) };
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() != Some(identity) {
            return Ok(());
        }
        let now = MicroTime(corten_meta::time::now());
        *spec = LeaseSpec {
            holder_identity: Some(String::new()),
            lease_duration_seconds: Some(1),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            lease_transitions: spec.lease_transitions,
            ..LeaseSpec::default()
        };
        self.client.update(&lease).await.map(|_| ())
    }
}

/// Reports whether this process holds the lease, or it is free or expired.
fn may_take(spec: &LeaseSpec, unchanged_since: Instant, now: Instant, config: &LeaderConfig) -> bool {
    let holder = spec.holder_identity.as_deref().unwrap_or_default();
    holder.is_empty() || holder == config.identity || now >= unchanged_since + config.lease_duration
}

/// Returns the lease as this process writes it.
fn next_spec(current: Option<&LeaseSpec>, config: &LeaderConfig, now: jiff::Timestamp) -> LeaseSpec {
    let ours = current.is_some_and(|spec| spec.holder_identity.as_deref() == Some(&config.identity));
    let transitions = current.map(|spec| spec.lease_transitions.unwrap_or(0));
    let acquired = current.filter(|_| ours).and_then(|spec| spec.acquire_time.clone());
    LeaseSpec {
        holder_identity: Some(config.identity.clone()),
        lease_duration_seconds: Some(i32::try_from(config.lease_duration.as_secs()).unwrap_or(i32::MAX)),
        acquire_time: acquired.or(Some(MicroTime(now))),
        renew_time: Some(MicroTime(now)),
        lease_transitions: Some(transitions.map_or(0, |n| n + i32::from(!ours))),
        ..LeaseSpec::default()
    }
}

#[cfg(test)]
mod tests;
