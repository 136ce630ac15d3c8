//! One pod, one worker: a task that owns the kubelet's state of the pod. It observes, decides, acts and reports until
//! there is nothing to do, then sleeps until it is woken or a deadline passes.
//!
//! Invariant: only this task creates or stops containers of the pod, so no two decisions ever race.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use corten_api::k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use corten_client::DeleteOptions;
use corten_spans::Attribute;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::allocated::Allocated;
use super::plan::{self, Memory, Plan, SandboxAction, Termination};
use super::publisher::Publisher;
use super::status::{self, Facts};
use super::stop::Stops;
use super::termination_message::Messages;
use super::{act, mirror};
use crate::error::Result;
use crate::events::{NORMAL, WARNING};
use crate::images::Pulls;
use crate::metrics;
use crate::objects::{Kind, Reference};
use crate::pod::observed::Observed;
use crate::pod::phase::is_terminal;
use crate::pod::resources;
use crate::pod::source;
use crate::pod::spec;
use crate::pod::view::View;
use crate::pod::waiting::Waiting;
use crate::pod::waker::Waker;
use crate::probes::Probes;
use crate::services::Services;
use crate::volumes::{self, MountedVolumes, teardown};

/// The time limit of a pass after the kubelet's shutdown began; it may wait for an API server that is gone.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);
/// The time until the next attempt after the runtime did not answer.
const RUNTIME_RETRY: Duration = Duration::from_secs(1);

/// The desired state of the pod.
#[derive(Clone, Debug)]
pub struct Desired {
    pub pod: Arc<Pod>,
    /// Whether the object was deleted from the API: everything of the pod must be removed.
    pub gone: bool,
    /// The mirror of a static pod.
    pub mirror: Option<Arc<Pod>>,
}

impl Desired {
    pub fn must_end(&self) -> bool {
        self.gone || self.pod.metadata.deletion_timestamp.is_some()
    }
}

pub struct Worker {
    pub(super) services: Arc<Services>,
    pub(super) desired: watch::Receiver<Desired>,
    pub(super) waker: Waker,
    view: watch::Sender<View>,
    shutdown: CancellationToken,

    pub(super) pod: Arc<Pod>,
    pub(super) memory: Memory,
    pub(super) waiting: HashMap<String, Waiting>,
    /// The times of the next attempts of failed starts, sandboxes and volumes, by name.
    pub(super) retries: act::Retries,
    pub(super) volumes: Option<MountedVolumes>,
    /// Whether the content of the volumes has changed since they were written.
    pub(super) volumes_stale: bool,
    pub(super) pulls: Pulls,
    pub(super) stops: Stops,
    /// The resources that the node has allocated to the pod's containers; `None` before admission.
    pub(super) allocated: Option<Allocated>,
    /// Whether a resize was allocated and its completion is not yet reported.
    pub(super) resizing: bool,
    /// Whether the next failure counts: the pod is in a user namespace and the creation of its sandbox began.
    pub(super) counts_user_error: bool,
    /// Whether the pod comes from a manifest of this node, not from the API.
    pub(super) is_static: bool,
    /// The CPUs that each running container was assigned.
    pub(super) placed: HashMap<String, String>,
    /// Containers that were stopped in order to start them again.
    restarting: HashSet<String>,
    /// The time when this worker first saw the pod, until the duration of its start is known.
    first_seen: Option<Timestamp>,
    probes: Probes,
    messages: Messages,
    publisher: Publisher,
}

/// Returns the attributes of a pod's span, by upstream's names.
fn attributes(pod: &Pod, update_type: &str) -> Vec<Attribute> {
    let name = pod.metadata.name.clone().unwrap_or_default();
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    vec![
        Attribute::text("k8s.pod.uid", spec::uid(pod)),
        Attribute::text("k8s.pod", format!("{namespace}/{name}")),
        Attribute::text("k8s.pod.name", name),
        Attribute::text("k8s.pod.update_type", update_type),
        Attribute::text("k8s.namespace.name", namespace),
    ]
}

/// The result of a pass.
enum Next {
    /// Something changed: the next pass follows at once.
    Again,
    /// Nothing to do before this time, or before the worker is woken.
    Sleep(Option<Timestamp>),
    /// The pod has terminated and is deleted.
    Done,
}

impl Worker {
    pub fn new(
        services: Arc<Services>,
        desired: watch::Receiver<Desired>,
        waker: Waker,
        shutdown: CancellationToken,
    ) -> (Worker, watch::Receiver<View>) {
        let pod = desired.borrow().pod.clone();
        let (view, viewer) = watch::channel(View { pod: pod.clone(), ..View::default() });
        let worker = Worker {
            probes: Probes::new(services.runtime.client.clone(), services.api.events.clone(), waker.clone()),
            publisher: Publisher::new(services.api.client.clone(), &pod),
            is_static: source::is_static(&pod),
            services,
            desired,
            waker,
            view,
            shutdown,
            pod,
            memory: Memory::default(),
            waiting: HashMap::new(),
            retries: act::Retries::default(),
            volumes: None,
            volumes_stale: false,
            pulls: Pulls::default(),
            stops: Stops::default(),
            allocated: None,
            resizing: false,
            counts_user_error: false,
            placed: HashMap::new(),
            restarting: HashSet::new(),
            first_seen: Some(Timestamp::now()),
            messages: Messages::default(),
        };
        (worker, viewer)
    }

    /// Works until the pod is deleted or the kubelet stops; containers outlive the kubelet.
    pub async fn run(mut self) {
        self.services.signals.terminations.register(spec::uid(&self.pod), &self.waker);
        self.services.signals.wakers.register(spec::uid(&self.pod), &self.waker);
        loop {
            let stopped = stopped_for(self.shutdown.clone(), SHUTDOWN_GRACE);
            let begun = Instant::now();
            let kind = if self.view.borrow().status.phase.is_none() { "create" } else { "sync" };
            let services = self.services.clone();
            let pod = self.pod.clone();
            let name = if self.desired.borrow().must_end() { "syncTerminatingPod" } else { "syncPod" };
            // A pass is a large future, which without a box would be on the stack more than once.
            let pass = Box::pin(self.pass());
            let traced = corten_spans::within(services.tracer.as_ref(), name, || attributes(&pod, kind), pass);
            let passed = tokio::select! {
                passed = traced => passed,
                () = stopped => return,
            };
            self.services.metrics.observe(&metrics::POD_WORKER_SECONDS, &[kind], begun.elapsed());
            let next = match passed {
                Ok(next) => next,
                Err(error) => {
                    debug!(%error, pod = %spec::describe(&self.pod), "pass failed");
                    Next::Sleep(Timestamp::now().checked_add(RUNTIME_RETRY).ok())
                }
            };
            match next {
                Next::Again if !self.shutdown.is_cancelled() => {}
                Next::Sleep(until) if !self.shutdown.is_cancelled() => self.sleep(until).await,
                Next::Done => break,
                Next::Again | Next::Sleep(_) => return,
            }
        }
        self.services.signals.terminations.forget(spec::uid(&self.pod));
        self.services.signals.wakers.forget(spec::uid(&self.pod));
        let uid = spec::uid(&self.pod);
        self.services.metrics.forget_pod(uid);
        self.services.resources.allocations.release(spec::uid(&self.pod));
        self.services.resources.share_cpu(&self.services.config.cgroup_root);
        self.services.api.objects.forget(spec::uid(&self.pod));
        self.services.volumes.tokens.forget(spec::uid(&self.pod));
    }

    async fn sleep(&mut self, until: Option<Timestamp>) {
        let wait = until.map(|until| Duration::try_from(until.duration_since(Timestamp::now())).unwrap_or_default());
        let timer = async {
            match wait {
                Some(wait) => tokio::time::sleep(wait).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.shutdown.cancelled() => {}
            () = self.waker.woken() => {}
            () = timer => {}
        }
    }

    /// Observes, decides, reports and acts once.
    async fn pass(&mut self) -> Result<Next> {
        let now = Timestamp::now();
        let desired = self.take_desired();
        let mut observed = self.services.runtime.client.observe(spec::uid(&self.pod)).await?;
        self.messages.fill(&self.services.config, &self.pod, &mut observed);
        self.note_termination(&desired, &observed, now);
        self.admit(&observed, now).await?;
        self.keep_mirror(desired.mirror.as_ref()).await?;
        if self.waits_for_room() {
            return Ok(Next::Sleep(None));
        }
        self.sync_probes(&observed);
        self.memory.stopping = self.stops.ids();
        self.note_applied(&observed);
        self.note_resized(&observed);
        let plan = plan::plan(&self.pod, &observed, &self.memory, now);
        let ended = self.has_ended(&observed);
        self.note_backing_off(&plan);
        if !self.is_restarting(&plan, &observed) {
            self.report(&observed, ended, now);
        }
        if ended {
            return self.end(&desired, &observed).await;
        }
        let acted = self.act(&plan, &observed, now).await;
        Ok(if acted { Next::Again } else { Next::Sleep(self.wake_at(&plan, now)) })
    }

    fn take_desired(&mut self) -> Desired {
        let desired = self.desired.borrow_and_update().clone();
        if self.waker.take_refresh()
            || self.pod.metadata.labels != desired.pod.metadata.labels
            || self.pod.metadata.annotations != desired.pod.metadata.annotations
        {
            self.volumes_stale = true;
            self.retries.clear();
        }
        self.pod = self.allocate(&desired.pod);
        if self.is_static {
            // The API has the status of a static pod in its mirror.
            self.publisher.retarget(desired.mirror.as_ref());
            if let Some(mirror) = &desired.mirror {
                let mut pod = Pod::clone(&self.pod);
                pod.status.clone_from(&mirror.status);
                self.pod = Arc::new(pod);
            }
        }
        desired
    }

    /// Reports whether the plan is the second half of a restart that was decided here. The state between stop and start
    /// is not reported: the container did not fail, and its pod goes on serving.
    fn is_restarting(&mut self, plan: &Plan, observed: &Observed) -> bool {
        self.restarting.extend(plan.stop.iter().filter(|stop| stop.restart).map(|stop| stop.id.clone()));
        let mut restarted = false;
        for start in &plan.start {
            let ended = observed.newest(&start.name);
            restarted |= ended.is_some_and(|ended| self.restarting.remove(&ended.id));
        }
        restarted
    }

    /// Decides whether, since when and why the pod terminates. Once set, it only gets more urgent.
    fn note_termination(&mut self, desired: &Desired, observed: &Observed, now: Timestamp) {
        let deleted = desired.must_end();
        let reported = spec::status(&self.pod).phase.as_deref().is_some_and(is_terminal);
        let overdue = self.deadline().is_some_and(|deadline| deadline <= now) && !deleted && !reported;
        let order = self.services.signals.terminations.of(spec::uid(&self.pod)).filter(|_| !reported);
        let grace = spec::grace_period_seconds(&self.pod);
        match &mut self.memory.termination {
            None if deleted || reported || overdue || order.is_some() => {
                let overdue = overdue.then(|| {
                    let message = "Pod was active on the node longer than the specified deadline";
                    self.services.api.events.pod(&self.pod, NORMAL, "DeadlineExceeded", message);
                    ("DeadlineExceeded".to_owned(), message.to_owned())
                });
                self.pulls.abort();
                let grace = order.as_ref().map_or(grace, |order| order.grace.min(grace));
                let disrupted = order.as_ref().filter(|order| order.disrupted).map(|order| order.message.clone());
                let failed = order.map(|order| (order.reason, order.message)).or(overdue);
                self.memory.termination = Some(Termination { since: now, grace, failed, rejected: false, disrupted });
            }
            Some(termination) if order.as_ref().is_some_and(|order| order.grace < termination.grace) => {
                termination.grace = order.map_or(0, |order| order.grace);
                self.stops.shorten_grace(&self.services, &self.waker, termination.grace);
            }
            Some(termination) if deleted && grace < termination.grace => {
                termination.grace = grace;
                if plan::is_active(observed) {
                    let left = grace - now.duration_since(termination.since).as_secs();
                    self.stops.shorten_grace(&self.services, &self.waker, left.max(0));
                }
            }
            _ => {}
        }
    }

    /// Returns the end of `activeDeadlineSeconds`.
    fn deadline(&self) -> Option<Timestamp> {
        let seconds = spec::spec(&self.pod).active_deadline_seconds?;
        let start = self.view.borrow().status.start_time.clone().or(spec::status(&self.pod).start_time.clone())?;
        start.0.checked_add(SignedDuration::from_secs(seconds)).ok()
    }

    fn sync_probes(&mut self, observed: &Observed) {
        let ip = self.pod_ip(observed);
        let pod = self.pod.clone();
        self.probes.sync(&pod, observed, &ip, self.memory.termination.is_some());
        self.memory.verdicts = self.probes.verdicts();
    }

    /// Returns the primary address of the pod; the node's own for a pod in its network.
    pub(super) fn pod_ip(&self, observed: &Observed) -> String {
        self.pod_ips(observed).into_iter().next().unwrap_or_default()
    }

    pub(super) fn pod_ips(&self, observed: &Observed) -> Vec<String> {
        if spec::host_network(&self.pod) {
            return self.services.config.host_ips().iter().map(ToString::to_string).collect();
        }
        plan::usable_sandbox(&self.pod, observed).map(|sandbox| sandbox.ips.clone()).unwrap_or_default()
    }

    fn note_backing_off(&mut self, plan: &Plan) {
        for backing_off in &plan.backing_off {
            let waiting = Waiting { reason: "CrashLoopBackOff".into(), message: backing_off.message.clone() };
            if self.waiting.get(&backing_off.name) != Some(&waiting) {
                let message = format!(
                    "Back-off restarting failed container {} in pod {}",
                    backing_off.name,
                    spec::describe(&self.pod)
                );
                self.services.api.events.container(&self.pod, &backing_off.name, WARNING, "BackOff", &message);
                debug!(message = backing_off.message, "backing off");
            }
            self.waiting.insert(backing_off.name.clone(), waiting);
        }
    }

    /// Reports whether the pod must terminate, none of its containers runs, and its sandbox is stopped.
    fn has_ended(&self, observed: &Observed) -> bool {
        self.memory.termination.is_some()
            && !plan::is_active(observed)
            && !observed.sandboxes.iter().any(|sandbox| sandbox.ready)
    }

    fn report(&mut self, observed: &Observed, ended: bool, now: Timestamp) {
        let facts = Facts {
            pod: &self.pod,
            observed,
            memory: &self.memory,
            waiting: &self.waiting,
            device_health: &self.services.resources.device_health(&self.pod),
            host_ips: &self.services.config.host_ips(),
            runtime_name: &self.services.runtime.name,
            ended,
            now,
        };
        let mut status = status::status(&facts);
        keep_times(&self.view.borrow().status, &mut status);
        self.note_started(&status, now);
        self.count_terminations(&status);
        self.publisher.publish(&self.pod, &status);
        self.view.send_replace(View { pod: self.pod.clone(), status, observed: observed.clone() });
    }

    /// Counts the containers that have exited since the last report of this kubelet or the one before it.
    fn count_terminations(&self, status: &PodStatus) {
        let view = self.view.borrow();
        let is_first = view.status.phase.is_none();
        let before = if is_first { spec::status(&self.pod) } else { &view.status };
        for end in status::new_terminations(before, status) {
            let labels = [end.container_type, &end.exit_code.to_string(), end.reason];
            self.services.metrics.count(&metrics::TERMINATED_CONTAINERS, &labels);
        }
    }

    /// Observes the duration of the pod's start: once, and not for one that an earlier kubelet started.
    fn note_started(&mut self, status: &PodStatus, now: Timestamp) {
        let Some(seen) = self.first_seen else { return };
        let containers = status.container_statuses.as_deref().unwrap_or_default();
        if containers.is_empty() || !containers.iter().all(|container| running_since(container).is_some()) {
            return;
        }
        self.first_seen = None;
        let earlier =
            containers.iter().filter_map(running_since).flatten().any(|at| at.0.as_second() < seen.as_second());
        if !earlier {
            let since = |at: Timestamp| Duration::try_from(now.duration_since(at)).unwrap_or_default();
            let metrics = &self.services.metrics;
            metrics.observe(&metrics::POD_START_SECONDS, &[], since(seen));
            let created = self.pod.metadata.creation_timestamp.as_ref().map_or(seen, |created| created.0);
            metrics.observe(&metrics::POD_START_SLI_SECONDS, &[], since(created));
        }
    }

    /// Stops, removes and creates what the plan lists; returns whether something changed.
    async fn act(&mut self, plan: &Plan, observed: &Observed, now: Timestamp) -> bool {
        let ip = self.pod_ip(observed);
        for stop in &plan.stop {
            self.stops.begin(&self.services, &self.waker, &self.pod, &ip, stop.clone());
        }
        for id in &plan.remove {
            act::remove_instance(self, observed, id).await;
        }
        let mut acted = !plan.remove.is_empty();
        acted |= self.reset_containers(&plan.reset).await;
        match plan.sandbox {
            SandboxAction::Keep => {}
            SandboxAction::Create { attempt } => return self.create_sandbox(observed, attempt, now).await || acted,
            SandboxAction::Stop => {
                self.stop_sandboxes(observed).await;
                return true;
            }
        }
        self.grow_pod();
        if !plan.start.is_empty() {
            acted |= self.start_containers(&plan.start, observed, now).await;
        }
        acted |= self.resize(&plan.resize, observed, now).await;
        self.move_containers(observed).await;
        self.refresh_volumes(observed, now).await;
        acted
    }

    async fn stop_sandboxes(&self, observed: &Observed) {
        for sandbox in observed.sandboxes.iter().filter(|sandbox| sandbox.ready) {
            if let Err(error) = self.services.runtime.client.stop_sandbox(&sandbox.id).await {
                warn!(%error, pod = %spec::describe(&self.pod), "sandbox not stopped");
                tokio::time::sleep(RUNTIME_RETRY).await;
            }
        }
    }

    fn wake_at(&self, plan: &Plan, now: Timestamp) -> Option<Timestamp> {
        let refresh = self.volumes.as_ref().and_then(|volumes| volumes.refresh_at);
        let deadline = self.deadline().filter(|_| self.memory.termination.is_none());
        // A static pod without a mirror tries again: nothing would wake it.
        let mirror = (self.is_static && self.desired.borrow().mirror.is_none() && self.memory.termination.is_none())
            .then(|| now.checked_add(RUNTIME_RETRY).ok());
        [plan.wake_at, self.retries.next(now), refresh, deadline, mirror.flatten()].into_iter().flatten().min()
    }

    /// Ends a terminated pod: reports its last status, then removes everything that it had on this node.
    async fn end(&mut self, desired: &Desired, observed: &Observed) -> Result<Next> {
        self.publisher.flushed().await;
        let uid = spec::uid(&self.pod).to_owned();
        let pod_dir = self.services.config.pod_dir(&uid);
        // Another node may wait for a volume that no container uses any more.
        self.services.volumes.csi.tear_down(&pod_dir).await.inspect_err(|error| {
            warn!(%error, pod = %spec::describe(&self.pod), "volumes not unpublished");
        })?;
        if let Err(error) = teardown::release(&pod_dir) {
            warn!(%error, pod = %spec::describe(&self.pod), "local and NFS volumes not unmounted");
        }
        self.services.resources.claims.unprepare(&uid).await.inspect_err(|error| {
            warn!(%error, pod = %spec::describe(&self.pod), "dynamic resources not unprepared");
        })?;
        self.services.resources.release(&uid);
        self.services.resources.allocations.release(&uid);
        if !desired.must_end() {
            // The pod stays readable, with its logs, until a client deletes it.
            return Ok(Next::Sleep(None));
        }
        if let Err(error) = teardown::remove(&pod_dir) {
            warn!(%error, pod = %spec::describe(&self.pod), "volumes not removed");
        }
        match &desired.mirror {
            Some(mirror) if self.is_static => mirror::delete(&self.services, mirror).await?,
            _ if desired.gone || self.is_static => {}
            _ => self.delete_object(&uid).await?,
        }
        act::remove_everything(&self.services, &self.pod, observed).await?;
        self.services.volumes.users.release(&uid);
        self.services.resources.cgroups.remove(&resources::pod_cgroup(&self.services.config.cgroup_root, &self.pod));
        Ok(Next::Done)
    }

    async fn delete_object(&self, uid: &str) -> Result<()> {
        let options = DeleteOptions {
            grace_period_seconds: Some(0),
            precondition_uid: Some(uid.to_owned()),
            ..DeleteOptions::default()
        };
        let namespace = spec::namespace(&self.pod);
        let name = spec::name(&self.pod);
        match self.services.api.client.delete::<Pod>(namespace, name, &options).await {
            Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Watches the objects of this pod: its volumes show them, or its next container reads them.
    pub(super) fn watch_objects(&self) {
        let namespace = spec::namespace(&self.pod);
        let mut references = HashSet::new();
        let mut add = |kind, name: &str| {
            references.insert(Reference { kind, namespace: namespace.to_owned(), name: name.to_owned() });
        };
        let (config_maps, secrets) = volumes::references(&self.pod);
        config_maps.iter().for_each(|name| add(Kind::ConfigMap, name));
        secrets.iter().for_each(|name| add(Kind::Secret, name));
        for declared in spec::containers(&self.pod) {
            let (config_maps, secrets) = crate::container::environment::references(&declared.container);
            config_maps.into_iter().for_each(|name| add(Kind::ConfigMap, name));
            secrets.into_iter().for_each(|name| add(Kind::Secret, name));
        }
        self.services.api.objects.set(spec::uid(&self.pod), &self.waker, &references);
    }
}

/// Returns the start time of a running container, if it is known.
fn running_since(container: &ContainerStatus) -> Option<&Option<Time>> {
    Some(&container.state.as_ref()?.running.as_ref()?.started_at)
}

async fn stopped_for(shutdown: CancellationToken, time: Duration) {
    shutdown.cancelled().await;
    tokio::time::sleep(time).await;
}

/// Keeps times from the last reported status: the API's copy may be stale, and its times must not jump forward.
fn keep_times(
    last: &corten_api::k8s_openapi::api::core::v1::PodStatus,
    new: &mut corten_api::k8s_openapi::api::core::v1::PodStatus,
) {
    if last.start_time.is_some() {
        new.start_time = last.start_time.clone();
    }
    for condition in new.conditions.iter_mut().flatten() {
        let before = last.conditions.iter().flatten().find(|before| before.type_ == condition.type_);
        if let Some(before) = before.filter(|before| before.status == condition.status) {
            condition.last_transition_time = before.last_transition_time.clone();
        }
    }
}
