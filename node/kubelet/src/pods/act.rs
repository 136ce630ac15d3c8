//! Carries out a plan: the sandbox, the volumes, one container after the other. Each step that fails records its reason
//! in `waiting`, an event, and the time of the next attempt; none of them ends the worker.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use corten_api::k8s_openapi::api::core::v1::{ConfigMap, Container, Pod, Secret, Service};
use corten_api::k8s_openapi::api::node::v1::RuntimeClass;
use jiff::Timestamp;
use tracing::{debug, warn};

use super::plan::{Applied, Start, Stop, backoff_key, usable_sandbox};
use super::worker::{Desired, Worker};
use crate::admission::Rejection;
use crate::container::config::{self, Parts};
use crate::container::environment::{self, Environment, Objects};
use crate::container::plugin_parts::PluginParts;
use crate::error::{Error, Result};
use crate::events::{NORMAL, WARNING};
use crate::images::{Progress, ReadyImage, Request, Wanted};
use crate::lifecycle;
use crate::metrics;
use crate::pod::downward_api::Downward;
use crate::pod::observed::{InstanceState, Observed};
use crate::pod::spec::{self, Declared};
use crate::pod::waiting::Waiting;
use crate::services::Services;
use crate::volumes;

const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(60);
const SANDBOX: &str = "/sandbox";
const VOLUMES: &str = "/volumes";
const CLAIMS: &str = "/claims";

/// The times of the next attempts of failed steps. Steps and containers share one table; the name of a step begins with
/// a slash, which a container's name cannot.
#[derive(Default)]
pub struct Retries {
    until: HashMap<String, (Timestamp, Duration)>,
}

impl Retries {
    pub(super) fn blocked(&self, name: &str, now: Timestamp) -> bool {
        self.until.get(name).is_some_and(|(until, _)| *until > now)
    }

    /// Records a failure; returns the time until the next attempt.
    pub(super) fn failed(&mut self, name: &str, now: Timestamp) -> Duration {
        let wait = self.until.get(name).map_or(FIRST_RETRY, |(_, wait)| (*wait * 2).min(LAST_RETRY));
        self.until.insert(name.to_owned(), (now.checked_add(wait).unwrap_or(now), wait));
        wait
    }

    fn set(&mut self, name: &str, until: Timestamp) {
        self.until.insert(name.to_owned(), (until, FIRST_RETRY));
    }

    pub(super) fn succeeded(&mut self, name: &str) {
        self.until.remove(name);
    }

    /// Allows a step, and those whose names begin with its name, to be tried again at once.
    pub(super) fn allow_retry(&mut self, step: &str) {
        self.until.retain(|name, _| !name.starts_with(step));
    }

    pub fn clear(&mut self) {
        self.until.clear();
    }

    pub fn next(&self, now: Timestamp) -> Option<Timestamp> {
        self.until.values().map(|(until, _)| *until).filter(|until| *until > now).min()
    }
}

/// A failed start: the waiting reason and the message.
struct Failed {
    reason: &'static str,
    message: String,
}

impl Failed {
    fn new(reason: &'static str) -> impl FnOnce(Error) -> Failed {
        move |error| Failed { reason, message: error.to_string() }
    }
}

impl Worker {
    /// Creates the pod's sandbox, after its volumes; returns whether there is a new one.
    pub(super) async fn create_sandbox(&mut self, observed: &Observed, attempt: u32, now: Timestamp) -> bool {
        let blocked = self.retries.blocked(SANDBOX, now);
        if blocked || !self.ensure_claims(now).await || !self.ensure_volumes(observed, now).await {
            return false;
        }
        if spec::spec(&self.pod).host_users == Some(false) {
            self.services.metrics.count(&metrics::STARTED_USER_PODS, &[]);
            self.counts_user_error = true;
        }
        match self.try_create_sandbox(observed, attempt).await {
            Ok(id) => {
                debug!(pod = %spec::describe(&self.pod), sandbox = id, "sandbox made");
                self.services.metrics.count(&metrics::STARTED_PODS, &[]);
                self.services.metrics.count(&metrics::STARTED_CONTAINERS, &["pod_sandbox"]);
                self.retries.succeeded(SANDBOX);
                true
            }
            Err(error) => {
                self.services.metrics.count(&metrics::STARTED_POD_ERRORS, &[]);
                self.count_user_error();
                let message = format!("Failed to create pod sandbox: {error}");
                self.services.api.events.pod(&self.pod, WARNING, "FailedCreatePodSandBox", &message);
                self.retries.failed(SANDBOX, now);
                false
            }
        }
    }

    /// Counts the first failure of a pod in a user namespace since the creation of its sandbox began.
    fn count_user_error(&mut self) {
        if std::mem::take(&mut self.counts_user_error) {
            self.services.metrics.count(&metrics::STARTED_USER_POD_ERRORS, &[]);
        }
    }

    async fn try_create_sandbox(&mut self, observed: &Observed, attempt: u32) -> Result<String> {
        let services = self.services.clone();
        if !observed.sandboxes.is_empty() {
            let message = "Pod sandbox changed, it will be killed and re-created.";
            services.api.events.pod(&self.pod, NORMAL, "SandboxChanged", message);
        }
        for old in &observed.sandboxes {
            services.runtime.client.stop_sandbox(&old.id).await?;
        }
        let handler = runtime_handler(&services, &self.pod).await?;
        let users = services.volumes.users.of(&self.pod)?;
        if users.is_some() {
            services.runtime.client.check_user_namespaces(&handler).await?;
        }
        let config = config::sandbox(&services.config, &self.pod, users, attempt);
        fs::create_dir_all(&config.log_directory).map_err(Error::file("create", config.log_directory.as_ref()))?;
        self.set_pod_cgroup();
        services.runtime.client.run_sandbox(config, handler).await
    }

    /// Prepares the pod's claims unless they are prepared; a failure is an event.
    async fn ensure_claims(&mut self, now: Timestamp) -> bool {
        if self.retries.blocked(CLAIMS, now) {
            return false;
        }
        match self.services.resources.claims.prepare(&self.pod, &self.waker).await {
            Ok(()) => {
                self.retries.succeeded(CLAIMS);
                true
            }
            Err(error) => {
                let message = format!("Failed to prepare dynamic resources: prepare dynamic resources: {error}");
                self.services.api.events.pod(&self.pod, WARNING, "FailedPrepareDynamicResources", &message);
                self.retries.failed(CLAIMS, now);
                false
            }
        }
    }

    /// Mounts the volumes unless they are mounted; a failure is an event.
    async fn ensure_volumes(&mut self, observed: &Observed, now: Timestamp) -> bool {
        let fresh = |volumes: &volumes::MountedVolumes| volumes.refresh_at.is_none_or(|at| at > now);
        if !self.volumes_stale && self.volumes.as_ref().is_some_and(fresh) {
            return true;
        }
        if self.retries.blocked(VOLUMES, now) {
            return self.volumes.is_some();
        }
        self.watch_objects();
        let pod_dir = self.services.config.pod_dir(spec::uid(&self.pod));
        let context = volumes::Context {
            client: &self.services.api.client,
            tokens: &self.services.volumes.tokens,
            csi: &self.services.volumes.csi,
            metrics: &self.services.metrics,
            events: &self.services.api.events,
            waker: &self.waker,
            pod: &self.pod,
            pod_dir: &pod_dir,
            downward: &self.downward(observed),
            now,
        };
        let mut desired = self.desired.clone();
        let set_up = tokio::select! {
            set_up = volumes::set_up(&context) => set_up,
            // A driver that hangs must not delay the pod's termination; the record of its call is on disk.
            _ = desired.wait_for(Desired::must_end) => return self.volumes.is_some(),
        };
        match set_up {
            Ok(mounted) => {
                self.volumes = Some(mounted);
                self.volumes_stale = false;
                self.retries.succeeded(VOLUMES);
                true
            }
            Err(error @ Error::Admission { .. }) if self.volumes.is_none() => {
                self.reject(Rejection::of(error), now);
                self.waker.refresh();
                false
            }
            Err(error) => {
                let wait = self.retries.failed(VOLUMES, now);
                // A volume that only waits gets an event after an unusually long time.
                if !matches!(error, Error::Waiting(_)) || wait == LAST_RETRY {
                    self.services.api.events.pod(&self.pod, WARNING, "FailedMount", &error.to_string());
                }
                self.volumes.is_some()
            }
        }
    }

    /// Updates the volumes of a running pod after a change of their content.
    pub(super) async fn refresh_volumes(&mut self, observed: &Observed, now: Timestamp) {
        if usable_sandbox(&self.pod, observed).is_some() {
            self.ensure_volumes(observed, now).await;
        }
    }

    fn downward(&self, observed: &Observed) -> Downward {
        Downward {
            pod_ips: self.pod_ips(observed),
            host_ips: self.services.config.host_ips(),
            allocatable: self.services.resources.allocatable(),
        }
    }

    /// Starts the containers of the plan; returns whether one of them now runs.
    pub(super) async fn start_containers(&mut self, starts: &[Start], observed: &Observed, now: Timestamp) -> bool {
        let mut started = false;
        for start in starts {
            if self.retries.blocked(&start.name, now) || !self.ensure_volumes(observed, now).await {
                continue;
            }
            match self.start_container(start, observed, now).await {
                Ok(true) => {
                    self.services.metrics.count(&metrics::STARTED_CONTAINERS, &[container_type(&self.pod, start)]);
                    self.waiting.remove(&start.name);
                    self.retries.succeeded(&start.name);
                    started = true;
                }
                Ok(false) => {}
                Err(failed) => self.start_failed(start, failed, now),
            }
        }
        started
    }

    fn start_failed(&mut self, start: &Start, failed: Failed, now: Timestamp) {
        let labels = [failed.reason, container_type(&self.pod, start)];
        self.services.metrics.count(&metrics::STARTED_CONTAINER_ERRORS, &labels);
        self.count_user_error();
        let message = format!("Error: {}", failed.message);
        self.services.api.events.container(&self.pod, &start.name, WARNING, "Failed", &message);
        let waiting = Waiting { reason: failed.reason.to_owned(), message: failed.message };
        self.waiting.insert(start.name.clone(), waiting);
        self.retries.failed(&start.name, now);
        // The status must show the reason before the next attempt.
        self.waker.wake();
    }

    /// Moves running containers to the CPUs that they may use now.
    pub(super) async fn move_containers(&mut self, observed: &Observed) {
        self.placed.retain(|id, _| observed.running().any(|instance| instance.id == *id));
        for instance in observed.running() {
            let cpus = self.services.resources.cpus.of(spec::uid(&self.pod), &instance.name);
            if cpus.is_empty() || self.placed.get(&instance.id) == Some(&cpus) {
                continue;
            }
            let linux = corten_cri::v1::LinuxContainerResources { cpuset_cpus: cpus.clone(), ..Default::default() };
            match self.services.runtime.client.update_resources(&instance.id, linux).await {
                Ok(()) => drop(self.placed.insert(instance.id.clone(), cpus)),
                Err(error) => warn!(%error, container = instance.name, "container not moved to its CPUs"),
            }
        }
    }

    /// Pulls the image, creates and starts the container and runs postStart. False if the image is still being pulled.
    async fn start_container(
        &mut self,
        start: &Start,
        observed: &Observed,
        now: Timestamp,
    ) -> std::result::Result<bool, Failed> {
        let pod = self.pod.clone();
        let Some(sandbox) = usable_sandbox(&pod, observed) else { return Ok(false) };
        let Some(declared) = spec::container(&pod, &start.name) else { return Ok(false) };
        let users = self.services.volumes.users.of(&pod).map_err(Failed::new("CreateContainerConfigError"))?;
        let sandbox_config = config::sandbox(&self.services.config, &pod, users, sandbox.attempt);
        let own = Wanted::of_container(&declared.container);
        let Some(image) = self.image(&declared.container, &own, &sandbox_config, now).await else { return Ok(false) };
        let image_volumes = self.image_volumes(&declared.container, &sandbox_config, now).await;
        let Some(image_volumes) = image_volumes else { return Ok(false) };
        let environment = self.environment(&declared.container, observed).await;
        let environment = environment.map_err(Failed::new("CreateContainerConfigError"))?;
        let restart_count = self.restart_count(start, observed);
        let mut config = self
            .container_config(&declared, restart_count, &environment, &image, &image_volumes, observed)
            .map_err(Failed::new("CreateContainerConfigError"))?;
        let cpus = self.services.resources.cpus.of(spec::uid(&pod), &start.name);
        if let Some(resources) = config.linux.as_mut().and_then(|linux| linux.resources.as_mut()) {
            resources.cpuset_cpus.clone_from(&cpus);
            resources.cpuset_mems = self.services.resources.memory.of(spec::uid(&pod), &start.name);
        }
        self.plugin_parts(&declared.container)
            .await
            .map_err(Failed::new("CreateContainerConfigError"))?
            .apply(&mut config);
        if observed.newest(&start.name).is_some_and(|before| before.state == InstanceState::Exited) {
            self.memory.backoffs.next(&backoff_key(&declared.container), now);
        }
        let log = format!("{}/{}", sandbox_config.log_directory, config.log_path);
        let runtime = self.services.runtime.client.clone();
        let created = runtime.create_container(&sandbox.id, config, sandbox_config).await;
        self.pulls.used(&start.name);
        let id = created.map_err(Failed::new("CreateContainerError"))?;
        self.services.api.events.container(&pod, &start.name, NORMAL, "Created", "Container created");
        runtime.start_container(&id).await.map_err(Failed::new("RunContainerError"))?;
        self.services.api.events.container(&pod, &start.name, NORMAL, "Started", "Container started");
        self.memory.applied.insert(id.clone(), Applied::new(&pod, &declared.container));
        self.placed.insert(id.clone(), cpus);
        self.link_log(&start.name, &id, &log);
        self.post_start(&declared, &id, observed).await?;
        Ok(true)
    }

    /// Removes exited containers but not their logs, which show how often each ran. It stops at the first that cannot
    /// be removed, because the later ones show the reason. Returns whether one was removed.
    pub(super) async fn reset_containers(&mut self, ids: &[String]) -> bool {
        for (at, id) in ids.iter().enumerate() {
            if let Err(error) = self.services.runtime.client.remove_container(id).await {
                warn!(%error, container = id, "container not removed");
                return at > 0;
            }
        }
        !ids.is_empty()
    }

    /// Returns the parts that plugins of the node add to the container.
    async fn plugin_parts(&self, container: &Container) -> Result<PluginParts> {
        let mut parts = self.services.resources.devices.plugin_parts(&self.pod, &container.name).await?;
        parts.add_cdi(self.services.resources.claims.cdi_devices(&self.pod, container));
        Ok(parts)
    }

    /// Returns the images of the container's image volumes, or `None` if one of them is not present yet.
    async fn image_volumes(
        &mut self,
        container: &Container,
        sandbox_config: &corten_cri::v1::PodSandboxConfig,
        now: Timestamp,
    ) -> Option<HashMap<String, String>> {
        let pod = self.pod.clone();
        let mut images = HashMap::new();
        for mount in container.volume_mounts.iter().flatten() {
            let volume = spec::spec(&pod).volumes.iter().flatten().find(|volume| volume.name == mount.name);
            let Some(wanted) = volume.and_then(|volume| Wanted::of_volume(container, volume)) else { continue };
            let image = self.image(container, &wanted, sandbox_config, now).await?;
            images.insert(mount.name.clone(), image.reference);
        }
        Some(images)
    }

    /// Returns the image, or `None` after recording the reason in `waiting` and the time of the next attempt.
    async fn image(
        &mut self,
        container: &Container,
        wanted: &Wanted,
        sandbox_config: &corten_cri::v1::PodSandboxConfig,
        now: Timestamp,
    ) -> Option<ReadyImage> {
        let request = Request {
            runtime: &self.services.runtime.client,
            client: &self.services.api.client,
            events: &self.services.api.events,
            waker: &self.waker,
            slots: &self.services.runtime.pulls,
            pod: &self.pod,
            wanted,
            sandbox_config,
            now,
        };
        match self.pulls.ensure(&request).await {
            Progress::Ready(image) => Some(image),
            Progress::Pulling => None,
            Progress::Failed { waiting, retry_at } => {
                let backing_off = waiting.reason == "ImagePullBackOff";
                match retry_at {
                    // The first status after a failed pull shows ErrImagePull, the next one ImagePullBackOff.
                    Some(_) if !backing_off => drop(self.retries.failed(&container.name, now)),
                    Some(at) => self.retries.set(&container.name, at),
                    None => drop(self.retries.failed(&container.name, now)),
                }
                self.waiting.insert(container.name.clone(), waiting);
                self.waker.wake();
                None
            }
        }
    }

    async fn environment(&self, container: &Container, observed: &Observed) -> Result<Environment> {
        let namespace = spec::namespace(&self.pod);
        let client = &self.services.api.client;
        let (config_maps, secrets) = environment::references(container);
        let mut objects = Objects { volumes: self.volume_paths(), ..Objects::default() };
        for name in config_maps {
            objects.config_maps.insert(name.to_owned(), client.find::<ConfigMap>(namespace, name).await?);
        }
        for name in secrets {
            objects.secrets.insert(name.to_owned(), client.find::<Secret>(namespace, name).await?);
        }
        self.services.api.services.synced().await;
        let services: Vec<Service> = ["default", namespace]
            .iter()
            .enumerate()
            .filter(|(at, namespace)| *at == 0 || **namespace != "default")
            .flat_map(|(_, namespace)| self.services.api.services.typed_list::<Service>(namespace))
            .collect();
        let services = environment::service_variables(&self.pod, &services);
        environment::environment(&self.pod, container, &objects, &services, &self.downward(observed))
    }

    /// Returns the paths of the pod's volumes, for variables from files in them.
    fn volume_paths(&self) -> BTreeMap<String, PathBuf> {
        let volumes = self.volumes.iter().flat_map(|volumes| &volumes.by_name);
        volumes.map(|(name, mounted)| (name.clone(), mounted.path.clone())).collect()
    }

    fn container_config(
        &self,
        declared: &Declared<'_>,
        restart_count: u32,
        environment: &Environment,
        image: &ReadyImage,
        image_volumes: &HashMap<String, String>,
        observed: &Observed,
    ) -> Result<corten_cri::v1::ContainerConfig> {
        let target = match declared.target {
            None => None,
            Some(target) => {
                let running = observed.running().find(|instance| instance.name == target);
                Some(
                    running
                        .map(|instance| instance.id.clone())
                        .ok_or_else(|| Error::pod(format!("unable to find target container {target}")))?,
                )
            }
        };
        let no_volumes = volumes::MountedVolumes::default();
        config::container(&Parts {
            config: &self.services.config,
            pod: &self.pod,
            declared,
            restart_count,
            environment,
            volumes: self.volumes.as_ref().unwrap_or(&no_volumes),
            image_volumes,
            image_ref: &image.reference,
            image_user: &image.user,
            pod_ips: &self.pod_ips(observed),
            target,
            memory_capacity: self.services.resources.memory_capacity,
            users: self.services.volumes.users.of(&self.pod)?,
        })
    }

    /// Returns the restart count. After the runtime has lost its records (a reboot), the log files still show it.
    fn restart_count(&self, start: &Start, observed: &Observed) -> u32 {
        if observed.newest(&start.name).is_some() {
            return start.restart_count;
        }
        let namespace = spec::namespace(&self.pod);
        let name = spec::name(&self.pod);
        let uid = spec::uid(&self.pod);
        let directory = self.services.config.pod_log_dir(namespace, name, uid).join(&start.name);
        let files = fs::read_dir(directory).into_iter().flatten().flatten();
        let counts = files.filter_map(|file| file.file_name().to_str()?.split('.').next()?.parse::<u32>().ok());
        counts.max().map_or(0, |last| last + 1)
    }

    /// Links `containers/<pod>_<namespace>_<container>-<id>.log`, which log collectors read.
    fn link_log(&self, container: &str, id: &str, log: &str) {
        let directory = self.services.config.log_dir.join("containers");
        let link = directory.join(log_link(&self.pod, container, id));
        let made = fs::create_dir_all(&directory).and_then(|()| std::os::unix::fs::symlink(log, &link));
        if let Err(error) = made {
            debug!(%error, link = %link.display(), "log not linked");
        }
    }

    async fn post_start(
        &mut self,
        declared: &Declared<'_>,
        id: &str,
        observed: &Observed,
    ) -> std::result::Result<(), Failed> {
        let container = &declared.container;
        let handler = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.post_start.as_ref());
        let Some(handler) = handler else { return Ok(()) };
        let ip = self.pod_ip(observed);
        let mut desired = self.desired.clone();
        let done = tokio::select! {
            done = lifecycle::run(&self.services.runtime.client, handler, container, id, &ip) => done,
            // A hook that hangs must not delay the pod's termination; the container is stopped with all others.
            _ = desired.wait_for(Desired::must_end) => return Ok(()),
        };
        let Err(error) = done else { return Ok(()) };
        warn!(%error, container = container.name, pod = %spec::describe(&self.pod), "postStart hook failed");
        self.services.api.events.container(
            &self.pod,
            &container.name,
            WARNING,
            "FailedPostStartHook",
            "PostStartHook failed",
        );
        let stop = Stop {
            id: id.to_owned(),
            name: container.name.clone(),
            message: "FailedPostStartHook".into(),
            grace: spec::grace_period_seconds(&self.pod),
            restart: false,
        };
        self.stops.begin(&self.services, &self.waker, &self.pod, &ip, stop);
        Err(Failed { reason: "PostStartHookError", message: error.to_string() })
    }
}

/// Returns the container type of upstream's metrics.
fn container_type(pod: &Pod, start: &Start) -> &'static str {
    match spec::container(pod, &start.name).map(|declared| declared.role) {
        Some(spec::Role::Init | spec::Role::Sidecar) => "init_container",
        Some(spec::Role::Ephemeral) => "ephemeral_container",
        _ => "container",
    }
}

fn log_link(pod: &Pod, container: &str, id: &str) -> String {
    format!("{}_{}_{container}-{id}.log", spec::name(pod), spec::namespace(pod))
}

async fn runtime_handler(services: &Services, pod: &Pod) -> Result<String> {
    match spec::spec(pod).runtime_class_name.as_deref().filter(|name| !name.is_empty()) {
        None => Ok(String::new()),
        Some(name) => Ok(services.api.client.get::<RuntimeClass>("", name).await?.handler),
    }
}

/// Removes an instance that is no longer needed, with its log.
pub(super) async fn remove_instance(worker: &Worker, observed: &Observed, id: &str) {
    let services = &worker.services;
    if let Err(error) = services.runtime.client.remove_container(id).await {
        debug!(%error, container = id, "container not removed");
        return;
    }
    let Some(instance) = observed.instances.iter().find(|instance| instance.id == id) else { return };
    // A container that is already removed needs no call.
    if instance.state == InstanceState::Exited {
        let _ = fs::remove_file(&instance.log_path);
    }
    let _ = fs::remove_file(services.config.log_dir.join("containers").join(log_link(&worker.pod, &instance.name, id)));
    let uid = spec::uid(&worker.pod);
    let _ = fs::remove_file(config::termination_file(&services.config, uid, &instance.name, instance.restart_count));
}

/// Removes everything that the runtime and the log directory have of a terminated pod.
pub(super) async fn remove_everything(services: &Services, pod: &Pod, observed: &Observed) -> Result<()> {
    for instance in &observed.instances {
        services.runtime.client.remove_container(&instance.id).await?;
        let link = log_link(pod, &instance.name, &instance.id);
        let _ = fs::remove_file(services.config.log_dir.join("containers").join(link));
    }
    for sandbox in &observed.sandboxes {
        services.runtime.client.stop_sandbox(&sandbox.id).await?;
        services.runtime.client.remove_sandbox(&sandbox.id).await?;
    }
    let logs = services.config.pod_log_dir(spec::namespace(pod), spec::name(pod), spec::uid(pod));
    match fs::remove_dir_all(&logs) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::file("remove", &logs)(error)),
        _ => Ok(()),
    }
}
