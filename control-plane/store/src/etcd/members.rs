//! The members of the etcd cluster, and the choice of the one that a call goes to.
//!
//! Any member may vanish at any moment. A call goes to a member that was verified; a failed call marks its member as
//! down, and only an answer to a check, with the right cluster and version, marks it as up again. The endpoints may be
//! replaced while calls are under way; a call ends with the member that it began with.
//!
//! Invariant: nothing is written through a member before its cluster id and its version were checked.

use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use corten_etcd::etcdserverpb::maintenance_client::MaintenanceClient;
use corten_etcd::etcdserverpb::{ResponseHeader, StatusRequest, StatusResponse};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic::{Response, Status};

use super::config::{Config, Tls};
use super::dial::{self, LastError, SharedTls};
use super::failure::{Failure, Refusal};
use super::messages::Answer;
use crate::{Error, Revision};

/// The time of one attempt of a call; then another member is tried.
pub(super) const ATTEMPT: Duration = Duration::from_secs(5);
/// The time of a call with all its attempts.
pub(super) const TOTAL: Duration = Duration::from_secs(20);
/// The time that a member has to answer a check.
const CHECK: Duration = Duration::from_secs(2);
/// The pause between two rounds of checks while no member is up.
const PAUSE: Duration = Duration::from_millis(100);
/// The oldest version whose progress notifications of watches are right.
const FLOOR: (u32, u32, u32) = (3, 5, 13);

const DOWN: u8 = 0;
const UP: u8 = 1;

pub(super) struct Member {
    pub url: String,
    pub channel: Channel,
    last_error: LastError,
    state: AtomicU8,
    /// The reason why the member is never used.
    refused: OnceLock<Arc<str>>,
    /// Cancelled once the endpoint is no longer one of the cluster's.
    removed: CancellationToken,
}

impl Member {
    /// Makes the member at `url`; it is not dialled yet.
    fn new(url: &str, tls: &SharedTls) -> Result<Arc<Member>, Error> {
        let (channel, last_error) = dial::channel(url, tls)?;
        Ok(Arc::new(Member {
            url: url.to_owned(),
            channel,
            last_error,
            state: AtomicU8::new(DOWN),
            refused: OnceLock::new(),
            removed: CancellationToken::new(),
        }))
    }

    /// Waits until the endpoint is removed from the list.
    pub async fn removed(&self) {
        self.removed.cancelled().await;
    }

    fn is_up(&self) -> bool {
        self.state.load(Ordering::Acquire) == UP && self.refused.get().is_none()
    }

    fn mark(&self, state: u8) {
        if self.state.swap(state, Ordering::AcqRel) != state && state == DOWN {
            tracing::warn!(member = self.url, "a member of etcd does not answer");
        }
    }
}

pub(super) struct Members {
    all: RwLock<Arc<[Arc<Member>]>>,
    tls: SharedTls,
    /// Notified when the endpoints or the TLS configuration changed, so that the members are checked at once.
    changed: Notify,
    preferred: AtomicUsize,
    /// Whether the first endpoint is preferred, however the others do.
    prefers_first: bool,
    /// The id of the cluster: that of the first member that answered.
    cluster: OnceLock<u64>,
    /// The highest revision that an answer carried.
    revision: AtomicU64,
    /// Held by the caller that checks the members for all that wait for one.
    checking: tokio::sync::Mutex<()>,
}

/// A call with the history of its attempts.
pub(super) struct Called<T> {
    pub result: Result<T, Failure>,
    /// Whether an earlier attempt had an unknown outcome.
    pub is_repeated: bool,
}

impl<T> Called<T> {
    /// Returns the answer of a call that a repetition does not harm.
    pub fn answer(self) -> Result<T, Error> {
        self.result.map_err(|failure| match failure {
            Failure::Refused(refusal) => refusal.error(),
            Failure::NotDone(reason) | Failure::Lost(reason) => Error::Unavailable { reason: reason.into() },
        })
    }

    /// Returns the reason of a refusal.
    pub fn refusal(&self) -> Option<&Refusal> {
        match &self.result {
            Err(Failure::Refused(refusal)) => Some(refusal),
            _ => None,
        }
    }
}

/// Makes the request of a message, with the span of the present task.
pub fn traced<T>(message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    if let Some(Ok(parent)) = corten_spans::traceparent().map(|parent| parent.parse()) {
        request.metadata_mut().insert("traceparent", parent);
    }
    request
}

impl Members {
    /// Makes the members of the configured endpoints; none is dialled yet.
    pub fn new(config: &Config) -> Result<Members, Error> {
        let tls = SharedTls::new(config.tls.as_ref())?;
        let all = renewed(&[], &config.endpoints, &tls)?;
        let first = if config.prefers_first { 0 } else { uuid::Uuid::new_v4().as_u128() as usize % all.len() };
        Ok(Members {
            all: RwLock::new(all),
            tls,
            changed: Notify::new(),
            preferred: AtomicUsize::new(first),
            prefers_first: config.prefers_first,
            cluster: OnceLock::new(),
            revision: AtomicU64::new(0),
            checking: Default::default(),
        })
    }

    fn all(&self) -> Arc<[Arc<Member>]> {
        Arc::clone(&self.all.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the endpoints. A member that stays keeps its connection; the streams of one that goes move to another.
    pub fn set_endpoints(&self, endpoints: &[String]) -> Result<(), Error> {
        let removed: Vec<Arc<Member>> = {
            let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
            let next = renewed(&all, endpoints, &self.tls)?;
            let first = all.get(self.preferred.load(Ordering::Acquire) % all.len());
            let preferred = first.and_then(|first| next.iter().position(|member| Arc::ptr_eq(member, first)));
            let preferred = preferred.filter(|_| !self.prefers_first).unwrap_or(0);
            self.preferred.store(preferred, Ordering::Release);
            let before = std::mem::replace(&mut *all, next);
            before.iter().filter(|old| !all.iter().any(|member| Arc::ptr_eq(member, old))).cloned().collect()
        };
        removed.iter().for_each(|member| member.removed.cancel());
        self.changed.notify_one();
        Ok(())
    }

    /// Replaces the TLS configuration of the next connections.
    pub fn set_tls(&self, files: &Tls) -> Result<(), Error> {
        self.tls.set(files)?;
        self.changed.notify_one();
        Ok(())
    }

    /// Waits until the endpoints or the TLS configuration are replaced.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Returns the highest revision that an answer carried.
    pub fn revision(&self) -> Revision {
        self.revision.load(Ordering::Acquire)
    }

    /// Waits for the first member that answers, and checks all that do. Returns the errors of unsuitable ones.
    pub async fn start(&self, timeout: Duration) -> Result<(), Error> {
        let deadline = Instant::now() + timeout;
        loop {
            let all = self.all();
            let checks = futures::future::join_all(all.iter().map(|member| self.check(member))).await;
            let checks: Vec<Result<(), Status>> = checks.into_iter().map(|checked| checked.map(drop)).collect();
            if let Some(reason) = all.iter().find_map(|member| member.refused.get()) {
                return Err(Error::Unsuitable { reason: Arc::clone(reason) });
            }
            if self.up().is_some() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let reason = explain(&all, &checks).into();
                return Err(Error::Unsuitable { reason });
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Returns a member that is up, the preferred one first.
    fn up(&self) -> Option<Arc<Member>> {
        let all = self.all();
        let first = self.preferred.load(Ordering::Acquire) % all.len();
        let found = (0..all.len()).map(|i| (first + i) % all.len()).find(|at| all[*at].is_up())?;
        if found != first && !self.prefers_first {
            self.preferred.store(found, Ordering::Release);
        }
        all.get(found).cloned()
    }

    /// Returns a member that is up; checks all of them until one is.
    pub async fn ready(&self, deadline: Instant) -> Result<Arc<Member>, Error> {
        let mut reason = "etcdserver: no leader".to_owned();
        loop {
            if let Some(member) = self.up() {
                return Ok(member);
            }
            if let Ok(_checking) = self.checking.try_lock() {
                reason = self.check_until_up().await.unwrap_or(reason);
            }
            if let Some(member) = self.up() {
                return Ok(member);
            }
            if Instant::now() >= deadline {
                return Err(Error::Unavailable { reason: reason.into() });
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Checks the members until the first is up. Returns the last error.
    async fn check_until_up(&self) -> Option<String> {
        let mut reason = None;
        let all = self.all();
        let mut checks: FuturesUnordered<_> = all.iter().map(|member| self.check(member)).collect();
        while let Some(checked) = checks.next().await {
            if self.up().is_some() {
                return None;
            }
            reason = checked.err().map(|status| status.message().to_owned()).or(reason);
        }
        reason.or_else(|| all.iter().find_map(|member| member.refused.get()).map(|refused| refused.to_string()))
    }

    /// Asks a member for its state, and marks it up or down by the answer.
    pub async fn check(&self, member: &Member) -> Result<StatusResponse, Status> {
        let mut client = MaintenanceClient::new(member.channel.clone());
        let asked = tokio::time::timeout(CHECK, client.status(StatusRequest {})).await;
        let answer = asked.unwrap_or_else(|_| Err(Status::deadline_exceeded("context deadline exceeded")));
        let status = match answer {
            Ok(answer) => answer.into_inner(),
            Err(status) => {
                member.mark(DOWN);
                return Err(status);
            }
        };
        if let Err(reason) = self.verify(member, &status) {
            tracing::error!(member = member.url, reason, "a member of etcd is not used");
            // The first reason stays.
            let _ = member.refused.set(reason.into());
        }
        let serves = status.leader != 0 && !status.is_learner;
        member.mark(if serves { UP } else { DOWN });
        Ok(status)
    }

    fn verify(&self, member: &Member, status: &StatusResponse) -> Result<(), String> {
        let url = &member.url;
        if version(&status.version).is_none_or(|version| version < FLOOR) {
            let found = &status.version;
            let (major, minor, patch) = FLOOR;
            return Err(format!(
                "the etcd member {url} has version {found}; {major}.{minor}.{patch} or newer is needed"
            ));
        }
        let found = status.header.as_ref().map_or(0, |header| header.cluster_id);
        let expected = *self.cluster.get_or_init(|| found);
        if found != expected {
            return Err(format!(
                "the etcd member {url} belongs to the cluster {found:x}, and other endpoints to {expected:x}"
            ));
        }
        Ok(())
    }

    /// Checks every member, and returns the states of those that answered.
    pub async fn check_all(&self) -> Vec<StatusResponse> {
        let all = self.all();
        let checks = futures::future::join_all(all.iter().map(|member| self.check(member))).await;
        checks.into_iter().flatten().collect()
    }

    /// Calls one member once. A member that does not answer is marked as down.
    pub async fn attempt<T, F>(&self, member: &Member, limit: Duration, call: F) -> Result<T, Failure>
    where
        T: Answer,
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let failure = match tokio::time::timeout(limit, call).await {
            Err(_) => Failure::timed_out(),
            Ok(Err(status)) => Failure::of(&status),
            Ok(Ok(answer)) => {
                let answer = answer.into_inner();
                self.note(answer.header());
                return Ok(answer);
            }
        };
        if !matches!(failure, Failure::Refused(_)) {
            member.mark(DOWN);
        }
        Err(failure)
    }

    /// Calls members until one answers. Only for calls whose repetition does no harm.
    pub async fn call<T, F>(&self, call: impl Fn(Channel) -> F) -> Called<T>
    where
        T: Answer,
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let deadline = Instant::now() + TOTAL;
        let mut is_repeated = false;
        loop {
            let member = match self.ready(deadline).await {
                Ok(member) => member,
                Err(error) => return Called { result: Err(Failure::NotDone(error.to_string())), is_repeated },
            };
            let result = self.attempt(&member, ATTEMPT, call(member.channel.clone())).await;
            match &result {
                Ok(_) | Err(Failure::Refused(_)) => return Called { result, is_repeated },
                Err(_) if Instant::now() >= deadline => return Called { result, is_repeated },
                Err(Failure::Lost(_)) => is_repeated = true,
                Err(Failure::NotDone(_)) => {}
            }
        }
    }

    /// Notes the revision of an answer.
    pub fn note(&self, header: Option<&ResponseHeader>) {
        if let Some(header) = header {
            self.revision.fetch_max(header.revision.max(0) as u64, Ordering::AcqRel);
        }
    }

    /// Marks the member of a lost stream as down, until it answers a check.
    pub fn lost(&self, member: &Member) {
        member.mark(DOWN);
    }
}

/// Returns the members of the endpoints, in their order; those that are known stay the same.
fn renewed(known: &[Arc<Member>], endpoints: &[String], tls: &SharedTls) -> Result<Arc<[Arc<Member>]>, Error> {
    if endpoints.is_empty() {
        return Err(Error::Unsuitable { reason: "etcd has no endpoints".into() });
    }
    let member = |url: &String| match known.iter().find(|member| member.url == *url) {
        Some(member) => Ok(Arc::clone(member)),
        None => Member::new(url, tls),
    };
    endpoints.iter().map(member).collect()
}

/// Returns the sentence of why no member can be used.
fn explain(members: &[Arc<Member>], checks: &[Result<(), Status>]) -> String {
    let reasons = members.iter().zip(checks).map(|(member, checked)| {
        let url = &member.url;
        let status = checked.as_ref().err().map_or("it has no leader", Status::message);
        match member.last_error.get() {
            Some(error) if error.contains("certificate") => {
                format!("the TLS connection to {url} fails: {error} (see --etcd-cafile, --etcd-certfile)")
            }
            Some(error) => format!("{url} cannot be reached: {error}"),
            None => format!("{url} does not serve: {status}"),
        }
    });
    format!("no member of etcd can be used: {}", reasons.collect::<Vec<_>>().join("; "))
}

/// Returns the parts of a version such as `3.6.8` or `3.7.0-rc.1`.
fn version(version: &str) -> Option<(u32, u32, u32)> {
    let mut parts = version.split(['.', '-', '+']);
    let mut next = || parts.next()?.parse().ok();
    Some((next()?, next()?, next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        for (found, is_enough) in [
            ("3.4.23", false),
            ("3.5.12", false),
            ("3.5.13", true),
            ("3.5.30", true),
            ("3.6.0", true),
            ("3.7.0-rc.1", true),
            ("10.0.0", true),
            ("", false),
            ("three", false),
        ] {
            assert_eq!(version(found).is_some_and(|version| version >= FLOOR), is_enough, "{found}");
        }
    }
    #[tokio::test]
    async fn an_old_member_and_one_of_another_cluster_are_refused() {
        let members = Members::new(&Config::new(vec!["http://127.0.0.1:1".to_owned()])).unwrap();
        let status = |version: &str, cluster_id| StatusResponse {
            version: version.to_owned(),
            header: Some(ResponseHeader { cluster_id, ..ResponseHeader::default() }),
            ..StatusResponse::default()
        };
        let verify = |status: StatusResponse| members.verify(&members.all()[0], &status);
        let old = verify(status("3.4.23", 7)).unwrap_err();
        assert_eq!(old, "the etcd member http://127.0.0.1:1 has version 3.4.23; 3.5.13 or newer is needed");
        assert_eq!(verify(status("3.6.8", 7)), Ok(()));
        let other = verify(status("3.6.8", 8)).unwrap_err();
        assert!(other.ends_with("belongs to the cluster 8, and other endpoints to 7"), "{other}");
    }
}
