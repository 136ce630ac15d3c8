//! CreateContainer, StartContainer, StopContainer, RemoveContainer, UpdateContainerResources.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use corten_cri::v1;

use super::sandboxes::blocking;
use super::{Daemon, new_id, propagation};
use crate::Error;
use crate::cgroup::{DeviceRule, Group, Limits};
use crate::container::shim_client::{self, ShimClient};
use crate::container::{Container, ContainerRecord, recorded_exit};
use crate::images::{Digest, ImageConfig, ImageRecord, ImageStore};
use crate::sandbox::Sandbox;
use crate::shim::log::now;
use crate::shim::protocol::{Exit, Outcome};
use crate::spec::{Device, Spec, build, cdi, oci};

/// The time that a killed container may take to exit.
const KILL_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest grace period of a container: a longer one would overflow the clock.
const LONGEST_GRACE: Duration = Duration::from_secs(1 << 30);
/// The interval at which a container is killed again until then.
const KILL_INTERVAL: Duration = Duration::from_millis(100);
/// The time that a shim may take to report the exit of a container that has no process left.
const SHIM_TIMEOUT: Duration = Duration::from_secs(5);

impl Daemon {
    /// Prepares a container: its folder, its spec, its record. Starts nothing yet.
    pub async fn create_container(&self, sandbox_id: &str, mut config: v1::ContainerConfig) -> Result<String, Error> {
        let sandbox = self.sandbox(sandbox_id)?;
        if !sandbox.record().ready {
            return Err(Error::State(format!("sandbox {:?} is not ready", sandbox.id)));
        }
        if config.metadata.is_none() {
            return Err(Error::Invalid("container config must include metadata".into()));
        }
        let name = config.image.clone().unwrap_or_default().image;
        let image = self.images.find(&name)?.ok_or_else(|| Error::NotFound { kind: "image", id: name.clone() })?;
        let image_config = self.images.config(&image.id)?;
        let id = new_id();
        let edits = cdi::apply(&mut config, &self.cdi_folders)?;
        make_missing_sources(&config.mounts)?;
        propagation::share_sources(&config.mounts)?;
        let spec = self.spec(&id, &sandbox, (&config, &edits), &image, &image_config)?;
        let layers = self.layers_of(&image, &config)?;
        self.images.lease(&id, &layers)?;
        self.write_bundle(&id, &spec)?;
        let record =
            ContainerRecord { layers, ..self.new_record(&sandbox, &config, &image, &image_config, &id, &spec) };
        let container = Arc::new(Container::new(id.clone(), config, record));
        container.save(&self.paths)?;
        self.container_map().insert(id.clone(), container.clone());
        self.announce(&container, v1::ContainerEventType::ContainerCreatedEvent);
        Ok(id)
    }

    fn spec(
        &self,
        id: &str,
        sandbox: &Sandbox,
        (config, edits): (&v1::ContainerConfig, &cdi::Edits),
        image: &ImageRecord,
        image_config: &ImageConfig,
    ) -> Result<Spec, Error> {
        let folder = self.paths.container(id);
        let mut lower = layers(image);
        if lower.is_empty() {
            lower.push(folder.join("empty").display().to_string());
        }
        let privileged = security(config).privileged;
        let input = build::Input {
            id,
            config,
            sandbox: &v1::PodSandboxConfig { hostname: sandbox.hostname(), ..sandbox.config.clone() },
            image: &image_config.config,
            image_layers: &|name| self.volume_layers(name),
            lower,
            layers_folder: self.images.layers_folder(),
            folder: &folder,
            sandbox_files: &self.paths.sandbox(&sandbox.id),
            sandbox_run: &self.paths.run_sandbox(&sandbox.id),
            socket: self.paths.shim_socket(id),
            target_pid: self.target_pid(config),
            available_capabilities: self.capabilities,
            node_devices: if privileged { node_devices() } else { Vec::new() },
            cgroup_v2: self.hierarchy.is_v2(),
            devices_open: self.device_filter_error.is_some(),
            seccomp_profiles: &self.seccomp_profiles,
            edits,
        };
        let mut spec = build::build(&input)?;
        let group = self.hierarchy.group(&cgroup_path(sandbox, id));
        spec.cgroup_procs = group.procs_files();
        spec.oom_counter = group.oom_counter();
        spec.oci = self.oci_runtime(&spec, sandbox, config)?;
        Ok(spec)
    }

    /// Returns the OCI runtime of the sandbox's handler; `None` for this runtime.
    fn oci_runtime(
        &self,
        spec: &Spec,
        sandbox: &Sandbox,
        config: &v1::ContainerConfig,
    ) -> Result<Option<oci::Runtime>, Error> {
        let handler = sandbox.record().runtime_handler;
        let Some(program) = self.runtime_handlers.get(&handler) else { return Ok(None) };
        if spec.namespaces.users.is_some() {
            return Err(Error::Invalid(format!("the runtime handler {handler:?} has no user namespaces")));
        }
        let resources = config.linux.as_ref().and_then(|linux| linux.resources.clone()).unwrap_or_default();
        Ok(Some(oci::Runtime {
            program: program.clone(),
            state: self.paths.oci_state(),
            bundle: self.paths.container(&spec.id),
            cgroup: cgroup_path(sandbox, &spec.id),
            limits: limits(&resources),
            devices: device_rules(config)?,
            seccomp: build::seccomp_profile(&self.seccomp_profiles, &security(config), &spec.process.capabilities)?,
        }))
    }

    /// Returns the layers that the container uses: those of its image, and those of the images that it mounts.
    fn layers_of(&self, image: &ImageRecord, config: &v1::ContainerConfig) -> Result<Vec<Digest>, Error> {
        let mut layers = image.layers.clone();
        for mounted in config.mounts.iter().filter_map(|mount| mount.image.as_ref()) {
            layers.extend(self.images.find(&mounted.image)?.map(|image| image.layers).unwrap_or_default());
        }
        Ok(layers)
    }

    fn volume_layers(&self, name: &str) -> Result<(std::path::PathBuf, Vec<String>), Error> {
        let image = self.images.find(name)?.ok_or_else(|| Error::NotFound { kind: "image", id: name.to_string() })?;
        let mut lower = layers(&image);
        if lower.len() == 1 {
            lower.push(ImageStore::EMPTY_LAYER.to_owned());
        }
        Ok((self.images.layers_folder(), lower))
    }

    fn target_pid(&self, config: &v1::ContainerConfig) -> Option<i32> {
        let options = security(config).namespace_options?;
        let target = self.container(&options.target_id).ok()?;
        // The pid of a process that has ended may belong to another process, with other namespaces.
        target.require_running().ok()?;
        target.pid()
    }

    /// Writes the folder and its spec. The record comes last; a folder without one is removed when the daemon starts.
    fn write_bundle(&self, id: &str, spec: &Spec) -> Result<(), Error> {
        let folder = self.paths.container(id);
        for part in ["upper", "work", "rootfs", "empty"] {
            let path = folder.join(part);
            std::fs::create_dir_all(&path).map_err(Error::file("create", &path))?;
        }
        let bytes = serde_json::to_vec(spec).map_err(|error| Error::Invalid(format!("spec: {error}")))?;
        if let Some((_, users)) = &spec.namespaces.users {
            // The root of the root file system is the writable layer's, and belongs to the pod's root.
            let upper = folder.join("upper");
            std::os::unix::fs::chown(&upper, Some(users.uid), Some(users.gid)).map_err(Error::file("chown", &upper))?;
        }
        crate::paths::replace(&folder.join("spec.json"), &bytes)
    }

    fn new_record(
        &self,
        sandbox: &Sandbox,
        config: &v1::ContainerConfig,
        image: &ImageRecord,
        image_config: &ImageConfig,
        id: &str,
        spec: &Spec,
    ) -> ContainerRecord {
        let resources = config.linux.as_ref().and_then(|linux| linux.resources.clone()).unwrap_or_default();
        ContainerRecord {
            sandbox_id: sandbox.id.clone(),
            created_at: now(),
            image_id: image.id.to_string(),
            image_ref: image.digests.first().cloned().unwrap_or_else(|| image.id.to_string()),
            log_path: spec.log_path.as_ref().map(|path| path.display().to_string()).unwrap_or_default(),
            stop_signal: stop_signal(config, &image_config.config.stop_signal),
            cgroup: cgroup_path(sandbox, id),
            limits: limits(&resources),
            oom_score_adj: resources.oom_score_adj,
            oci_runtime: spec.oci.as_ref().map(|runtime| runtime.program.clone()),
            ..ContainerRecord::default()
        }
    }

    /// Makes the control group and starts the shim.
    pub async fn start_container(self: &Arc<Self>, id: &str) -> Result<(), Error> {
        let container = self.container(id)?;
        let _changing = container.changing.lock().await;
        if container.state() != v1::ContainerState::ContainerCreated {
            return Err(Error::State(format!(
                "container {:?} is in {} state, it can be started only once",
                container.id,
                container.state().as_str_name()
            )));
        }
        match self.launch(&container).await {
            Ok(Outcome::Started { pid, started_at, identity }) => {
                container.update(&self.paths, |record| {
                    record.started_at = Some(started_at);
                    record.pid = Some(pid);
                    record.identity = Some(identity);
                })?;
                self.announce(&container, v1::ContainerEventType::ContainerStartedEvent);
                self.watches.spawn(self.clone().watch(container.clone()));
                Ok(())
            }
            Ok(Outcome::Failed(failure)) => Err(self.start_failed(&container, Error::Start(failure)).await),
            Err(error) => Err(self.start_failed(&container, error).await),
        }
    }

    async fn launch(&self, container: &Container) -> Result<Outcome, Error> {
        let record = container.record();
        let group = self.hierarchy.group(&record.cgroup);
        let rules = device_rules(&container.config)?;
        let filters_devices = self.device_filter_error.is_none();
        blocking(move || {
            group.create()?;
            group.apply(&record.limits)?;
            // On a node that cannot filter devices, the spec gives the container no access to any.
            if filters_devices { group.allow_devices(&rules) } else { Ok(()) }
        })
        .await?;
        let spec = self.paths.container(&container.id).join("spec.json");
        shim_client::start(&container.id, &self.zygote, spec).await
    }

    /// Records the exit of a container that could not start: the kubelet reads the reason from its status.
    async fn start_failed(&self, container: &Container, error: Error) -> Error {
        let exit = Exit { code: 128, finished_at: now(), oom_killed: false };
        container.end(&self.paths, exit, "StartError", &error.to_string());
        self.clean_group(container).await;
        error
    }

    /// Waits for the exit of a container; none if its shim does not report one.
    async fn exit_of(&self, container: &Container) -> Option<Exit> {
        match self.shim(container).await_end().await {
            Ok(mut ending) => {
                container.follow_shim(ending.shim.take());
                ending.exit().await
            }
            Err(error) => {
                tracing::debug!(container = container.id, %error, "the shim could not be reached");
                None
            }
        }
    }

    /// Follows a running container until it exits.
    pub(super) async fn watch(self: Arc<Self>, container: Arc<Container>) {
        let exit = tokio::select! {
            exit = self.exit_of(&container) => exit,
            () = self.stop.cancelled() => return,
        };
        container.follow_shim(None);
        match exit.or_else(|| recorded_exit(&self.paths, &container.id)) {
            Some(exit) => {
                let reason = match (exit.oom_killed, exit.code) {
                    (true, _) => "OOMKilled",
                    (false, 0) => "Completed",
                    (false, _) => "Error",
                };
                self.clean_group(&container).await;
                container.end(&self.paths, exit, reason, "");
            }
            None => {
                // The shim is gone without a report: killed, or the node restarted.
                self.clean_group(&container).await;
                let exit = Exit { code: 255, finished_at: now(), oom_killed: false };
                container.end(&self.paths, exit, "Unknown", "the shim of the container is gone");
            }
        }
        self.announce(&container, v1::ContainerEventType::ContainerStoppedEvent);
    }

    pub fn shim(&self, container: &Container) -> ShimClient {
        ShimClient::new(&container.id, self.paths.shim_socket(&container.id))
    }

    /// Kills all processes in the container's group and removes it. Another OCI runtime deletes the container first.
    async fn clean_group(&self, container: &Container) {
        let record = container.record();
        if let Some(program) = record.oci_runtime {
            let state = self.paths.oci_state();
            let bundle = self.paths.container(&container.id);
            let runtime = oci::Runtime { program, state, bundle, ..oci::Runtime::default() };
            let id = container.id.clone();
            let deleted = blocking(move || crate::executor::oci::delete(&runtime, &id).map_err(Error::State)).await;
            if let Err(error) = deleted {
                tracing::warn!(container = container.id, %error, "an OCI runtime could not delete a container");
            }
        }
        let group = self.hierarchy.group(&record.cgroup);
        if let Err(error) = blocking(move || empty_and_remove(&group)).await {
            tracing::warn!(container = container.id, %error, "the control group of a container could not be removed");
        }
    }

    /// Sends the stop signal to a container, and kills it after `timeout` seconds.
    pub async fn stop_container(&self, container: &Arc<Container>, timeout: i64) -> Result<(), Error> {
        if container.state() != v1::ContainerState::ContainerRunning {
            return Ok(());
        }
        let shim = self.shim(container);
        if timeout > 0 {
            let grace_period = Duration::from_secs(timeout.unsigned_abs()).min(LONGEST_GRACE);
            let deadline = tokio::time::Instant::now() + grace_period;
            let signal = container.record().stop_signal;
            match tokio::time::timeout_at(deadline, shim.signal(signal)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::debug!(container = container.id, %error, "the stop signal could not be sent");
                }
                Err(_) => tracing::debug!(container = container.id, "the shim did not send the stop signal in time"),
            }
            if tokio::time::timeout_at(deadline, container.wait()).await.is_ok() {
                return Ok(());
            }
        }
        self.kill_container(container).await
    }

    /// Kills every process of the container until its exit is known, without waiting for any of them. A shim that does
    /// not report the exit of a container without processes hangs, and is killed too.
    async fn kill_container(&self, container: &Arc<Container>) -> Result<(), Error> {
        let group = self.hierarchy.group(&container.record().cgroup);
        let begun = tokio::time::Instant::now();
        while begun.elapsed() < KILL_TIMEOUT {
            let group = group.clone();
            let empty = blocking(move || Ok(group.kill())).await?;
            if tokio::time::timeout(KILL_INTERVAL, container.wait()).await.is_ok() {
                return Ok(());
            }
            if empty && begun.elapsed() > SHIM_TIMEOUT {
                container.kill_shim();
            }
        }
        Err(Error::State(format!("container {:?} did not end after it was killed", container.id)))
    }

    /// Removes a container; kills a running one first. Succeeds when the container does not exist.
    pub async fn remove_container(&self, id: &str) -> Result<(), Error> {
        let container = match self.container(id) {
            Ok(container) => container,
            Err(Error::NotFound { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        let _changing = container.changing.lock().await;
        self.stop_container(&container, 0).await?;
        self.clean_group(&container).await;
        let folder = self.paths.container(&container.id);
        let trash = self.paths.containers().join(format!(".{}", container.id));
        blocking(move || {
            // A rename first: a crash in the middle must not leave half a container.
            match std::fs::rename(&folder, &trash) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
                renamed => renamed.map_err(Error::file("remove", &folder))?,
            }
            corten_files::remove_tree(&trash).map_err(Error::file("remove", &trash))
        })
        .await?;
        let _ = std::fs::remove_file(self.paths.shim_socket(&container.id));
        self.images.release(&container.id)?;
        self.container_map().remove(&container.id);
        self.samples.forget(&container.id);
        self.announce(&container, v1::ContainerEventType::ContainerDeletedEvent);
        Ok(())
    }

    /// Changes limits of a container, running or not yet started.
    pub async fn update_resources(&self, id: &str, resources: &v1::LinuxContainerResources) -> Result<(), Error> {
        let container = self.container(id)?;
        let _changing = container.changing.lock().await;
        let update = limits(resources);
        if container.state() == v1::ContainerState::ContainerRunning {
            let group = self.hierarchy.group(&container.record().cgroup);
            let applied = update.clone();
            blocking(move || group.apply(&applied)).await?;
        }
        container.update(&self.paths, |record| record.limits = record.limits.updated(&update))
    }

    pub async fn reopen_log(&self, id: &str) -> Result<(), Error> {
        let container = self.container(id)?;
        container.require_running()?;
        self.shim(&container).reopen_log().await
    }
}

/// Kills the group's processes and removes it. The kernel takes a moment to reap killed processes; a group with
/// processes cannot be removed.
pub(super) fn empty_and_remove(group: &Group) -> Result<(), Error> {
    let mut result = Ok(());
    for attempt in 0..50 {
        if !group.processes().is_empty() {
            group.kill();
        }
        result = group.remove();
        if result.is_ok() {
            return result;
        }
        std::thread::sleep(Duration::from_millis(2 + attempt));
    }
    result
}

/// Returns the layers from the highest to the lowest, as overlayfs wants them.
fn layers(image: &ImageRecord) -> Vec<String> {
    image.layers.iter().rev().map(ImageStore::layer_name).collect()
}

fn security(config: &v1::ContainerConfig) -> v1::LinuxContainerSecurityContext {
    config.linux.as_ref().and_then(|linux| linux.security_context.clone()).unwrap_or_default()
}

fn cgroup_path(sandbox: &Sandbox, id: &str) -> String {
    format!("{}/{id}", sandbox.cgroup_parent().trim_matches('/'))
}

pub(super) fn limits(resources: &v1::LinuxContainerResources) -> Limits {
    Limits {
        cpu_shares: resources.cpu_shares,
        cpu_quota: resources.cpu_quota,
        cpu_period: resources.cpu_period,
        memory: resources.memory_limit_in_bytes,
        memory_swap: resources.memory_swap_limit_in_bytes,
        cpuset_cpus: resources.cpuset_cpus.clone(),
        cpuset_mems: resources.cpuset_mems.clone(),
        hugepages: resources.hugepage_limits.iter().map(|limit| (limit.page_size.clone(), limit.limit)).collect(),
        unified: resources.unified.clone().into_iter().collect(),
    }
}

fn device_rules(config: &v1::ContainerConfig) -> Result<Vec<DeviceRule>, Error> {
    if security(config).privileged {
        return Ok(DeviceRule::all());
    }
    let mut rules = DeviceRule::defaults();
    for requested in &config.devices {
        let device = build::node_device(Path::new(&requested.host_path))?;
        let kind = if device.block { 'b' } else { 'c' };
        let access = requested.permissions.clone();
        rules.push(DeviceRule { kind, major: Some(device.major), minor: Some(device.minor), access });
    }
    Ok(rules)
}

/// Returns the pod's stop signal, else the image's, else SIGTERM.
fn stop_signal(config: &v1::ContainerConfig, image: &str) -> i32 {
    let requested = config.stop_signal().as_str_name().trim_start_matches("SIGNAL_").to_string();
    let name = if config.stop_signal() == v1::Signal::RuntimeDefault { image } else { &requested };
    signal_number(name).unwrap_or(libc::SIGTERM)
}

/// Parses `SIGTERM`, `TERM`, `15` or `SIGRTMIN+3`.
fn signal_number(name: &str) -> Option<i32> {
    if let Ok(number) = name.parse() {
        return (1..=64).contains(&number).then_some(number);
    }
    let name = name.trim_start_matches("SIG");
    if let Some(offset) = name.strip_prefix("RTMIN") {
        let offset = offset.trim_start_matches("PLUS").trim_start_matches('+');
        return offset
            .parse::<i32>()
            .or(if offset.is_empty() { Ok(0) } else { Err(()) })
            .ok()
            .map(|offset| 34 + offset);
    }
    if let Some(offset) = name.strip_prefix("RTMAX") {
        let offset = offset.trim_start_matches("MINUS").trim_start_matches('-');
        return offset
            .parse::<i32>()
            .or(if offset.is_empty() { Ok(0) } else { Err(()) })
            .ok()
            .map(|offset| 64 - offset);
    }
    format!("SIG{name}").parse::<nix::sys::signal::Signal>().ok().map(|signal| signal as i32)
}

/// Creates a folder for each missing mount source, as other runtimes do.
fn make_missing_sources(mounts: &[v1::Mount]) -> Result<(), Error> {
    for mount in mounts.iter().filter(|mount| mount.image.is_none() && !mount.host_path.is_empty()) {
        let path = Path::new(&mount.host_path);
        if !path.exists() {
            std::fs::create_dir_all(path).map_err(Error::file("create mount source", path))?;
        }
    }
    Ok(())
}

/// Returns every device of the node except terminals and the mounts of `/dev` itself.
fn node_devices() -> Vec<Device> {
    let mut found = Vec::new();
    let mut folders = vec![std::path::PathBuf::from("/dev")];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            let path = entry.path();
            let skipped = ["/dev/pts", "/dev/shm", "/dev/mqueue", "/dev/fd", "/dev/console", "/dev/ptmx"];
            if skipped.iter().any(|skip| path == Path::new(skip)) {
                continue;
            }
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(path),
                Ok(kind) if !kind.is_symlink() => found.extend(build::node_device(&path)),
                _ => {}
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_read_in_every_spelling() {
        for (name, number) in
            [("SIGTERM", 15), ("QUIT", 3), ("9", 9), ("SIGRTMIN+3", 37), ("SIGRTMINPLUS3", 37), ("SIGRTMAX", 64)]
        {
            assert_eq!(signal_number(name), Some(number), "{name}");
        }
        assert_eq!(signal_number("NOTHING"), None);
        assert_eq!(stop_signal(&v1::ContainerConfig::default(), ""), libc::SIGTERM);
        assert_eq!(stop_signal(&v1::ContainerConfig::default(), "SIGQUIT"), libc::SIGQUIT);
    }
}
