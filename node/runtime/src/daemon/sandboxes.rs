//! RunPodSandbox, StopPodSandbox, RemovePodSandbox.

use std::sync::Arc;

use corten_cri::v1;

use super::{Daemon, new_id};
use crate::Error;
use crate::sandbox::{Sandbox, SandboxRecord, files, namespaces, pause};
use crate::shim::log::now;

/// The handlers of this runtime itself.
pub(crate) const OWN_HANDLERS: [&str; 3] = ["", "corten", "runc"];

impl Daemon {
    /// Makes a sandbox. Undoes everything if a step fails.
    pub async fn run_sandbox(&self, config: v1::PodSandboxConfig, handler: String) -> Result<String, Error> {
        if config.metadata.is_none() {
            return Err(Error::Invalid("sandbox config must include metadata".into()));
        }
        self.check_handler(&handler)?;
        let record = SandboxRecord { created_at: now(), runtime_handler: handler, ..SandboxRecord::default() };
        let sandbox = Arc::new(Sandbox::new(new_id(), config, record));
        sandbox.save(&self.paths)?;
        self.sandbox_map().insert(sandbox.id.clone(), sandbox.clone());
        let _changing = sandbox.changing.lock().await;
        if let Err(error) = self.build_sandbox(&sandbox).await {
            if let Err(undo) = self.dismantle(&sandbox).await {
                // The record stays, so that the kubelet's StopPodSandbox can try again.
                tracing::warn!(sandbox = sandbox.id, error = %undo, "a failed sandbox could not be undone");
            } else {
                self.forget_sandbox(&sandbox)?;
            }
            return Err(error);
        }
        Ok(sandbox.id.clone())
    }

    /// Refuses an unknown handler. This runtime's handler is empty, `corten`, or the `runc` that every node is expected
    /// to know; the others are configured programs.
    fn check_handler(&self, handler: &str) -> Result<(), Error> {
        match OWN_HANDLERS.contains(&handler) || self.runtime_handlers.contains_key(handler) {
            true => Ok(()),
            false => Err(Error::Invalid(format!("no runtime for {handler:?} is configured"))),
        }
    }

    async fn build_sandbox(&self, sandbox: &Arc<Sandbox>) -> Result<(), Error> {
        let options = sandbox.namespace_options();
        let hostname = sandbox.hostname();
        files::write(&self.paths.sandbox(&sandbox.id), &hostname, sandbox.config.dns_config.as_ref())?;
        let sysctls = sandbox.config.linux.as_ref().map(|linux| linux.sysctls.clone()).unwrap_or_default();
        let plan = namespaces::Plan::new(&options, hostname, sysctls.into_iter().collect())?;
        let run = self.paths.run_sandbox(&sandbox.id);
        let program = self.program.clone();
        blocking(move || namespaces::create(&plan, &program, &run)).await?;
        if options.pid() == v1::NamespaceMode::Pod {
            self.start_pause(sandbox).await?;
        }
        if !sandbox.uses_node_network() {
            // Recorded first: if this process dies in the middle, the network is still cleaned up.
            sandbox.update(&self.paths, |record| record.connected = true)?;
            let connected = self.network.setup(sandbox.network_request(&self.paths)).await;
            let ips = connected.map_err(Error::Network)?.ips;
            sandbox.update(&self.paths, |record| record.ips = ips)?;
        }
        sandbox.update(&self.paths, |record| record.ready = true)
    }

    /// Starts the pause process and pins the pod's pid namespace.
    async fn start_pause(&self, sandbox: &Arc<Sandbox>) -> Result<(), Error> {
        let group = self.hierarchy.group(&format!("{}/{}", sandbox.cgroup_parent(), sandbox.id));
        group.create()?;
        let program = self.program.clone();
        let pid = blocking(move || pause::start(&program, &group.procs_files())).await?;
        sandbox.update(&self.paths, |record| record.pause_pid = Some(pid))?;
        let pin = self.paths.run_sandbox(&sandbox.id).join("pid");
        namespaces::pin_from(&format!("/proc/{pid}/ns/pid"), &pin)
    }

    /// Stops all containers of a sandbox and disconnects its network. Succeeds when there is nothing to do.
    pub async fn stop_sandbox(&self, id: &str) -> Result<(), Error> {
        let sandbox = match self.sandbox(id) {
            Ok(sandbox) => sandbox,
            Err(Error::NotFound { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        let _changing = sandbox.changing.lock().await;
        for container in self.containers_of(&sandbox.id) {
            self.stop_container(&container, 0).await?;
        }
        self.dismantle(&sandbox).await
    }

    /// Reverses `build_sandbox`; every step may be repeated.
    async fn dismantle(&self, sandbox: &Arc<Sandbox>) -> Result<(), Error> {
        sandbox.update(&self.paths, |record| record.ready = false)?;
        if sandbox.record().connected {
            self.network.teardown(sandbox.network_request(&self.paths)).await.map_err(Error::Network)?;
            sandbox.update(&self.paths, |record| record.connected = false)?;
        }
        if sandbox.record().pause_pid.is_some() {
            let group = self.hierarchy.group(&format!("{}/{}", sandbox.cgroup_parent(), sandbox.id));
            // By its group and not by its pid, which may belong to another process after a reboot.
            blocking(move || super::containers::empty_and_remove(&group)).await?;
            sandbox.update(&self.paths, |record| record.pause_pid = None)?;
        }
        let run = self.paths.run_sandbox(&sandbox.id);
        blocking(move || namespaces::release(&run)).await
    }

    /// Removes a sandbox with all its containers.
    pub async fn remove_sandbox(&self, id: &str) -> Result<(), Error> {
        self.stop_sandbox(id).await?;
        let Ok(sandbox) = self.sandbox(id) else { return Ok(()) };
        for container in self.containers_of(&sandbox.id) {
            self.remove_container(&container.id).await?;
        }
        self.forget_sandbox(&sandbox)
    }

    fn forget_sandbox(&self, sandbox: &Sandbox) -> Result<(), Error> {
        let folder = self.paths.sandbox(&sandbox.id);
        match corten_files::remove_tree(&folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::file("remove", folder)(error));
            }
            _ => {}
        }
        self.sandbox_map().remove(&sandbox.id);
        Ok(())
    }
}

/// Runs a blocking function on a thread that may block.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(Error::State(format!("a task of the runtime failed: {error}"))))
}
