//! The client of the container runtime interface: the calls that the kubelet makes, with their messages unpacked. Every
//! answer is the runtime's; nothing is cached here.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use corten_cri::v1 as cri;
use corten_cri::{ImageServiceClient, RuntimeServiceClient};
use futures::future::try_join_all;
use tonic::transport::Channel;

use crate::error::{Error, Result};
use crate::metrics::{self, Metrics};
use crate::pod::labels;
use crate::pod::observed::{Instance, Observed, Sandbox};

/// The time limit of a call that should be quick; pulls and stops have their own.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);

/// The runtime and its images.
#[derive(Clone)]
pub struct Runtime {
    runtime: RuntimeServiceClient<Channel>,
    images: ImageServiceClient<Channel>,
    metrics: Arc<Metrics>,
}

/// The result of a command in a container.
#[derive(Clone, Debug, Default)]
pub struct ExecOutput {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub exit_code: i32,
}

fn quick<T>(message: T) -> tonic::Request<T> {
    with_timeout(message, CALL_TIMEOUT)
}

/// The limit of every call: a grace period may be any number of seconds, a gRPC timeout may not.
const LONGEST_CALL: Duration = Duration::from_secs(1 << 30);

fn with_timeout<T>(message: T, timeout: Duration) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(timeout.min(LONGEST_CALL));
    if let Some(Ok(parent)) = corten_spans::traceparent().map(|parent| parent.parse()) {
        request.metadata_mut().insert("traceparent", parent);
    }
    request
}

fn pod_selector(uid: &str) -> HashMap<String, String> {
    HashMap::from([(labels::POD_UID.to_owned(), uid.to_owned())])
}

/// Treats a container or sandbox that no longer exists as a success.
fn gone_is_fine(result: std::result::Result<(), tonic::Status>) -> Result<()> {
    match result {
        Err(status) if status.code() == tonic::Code::NotFound => Ok(()),
        other => Ok(other?),
    }
}

impl Runtime {
    pub fn new(channel: Channel, metrics: Arc<Metrics>) -> Runtime {
        let runtime = corten_cri::runtime_client(channel.clone());
        let images = corten_cri::image_client(channel);
        Runtime { runtime, images, metrics }
    }

    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Makes a call and counts it.
    async fn measured<T>(
        &self,
        operation: &str,
        call: impl Future<Output = std::result::Result<T, tonic::Status>>,
    ) -> std::result::Result<T, tonic::Status> {
        let begun = Instant::now();
        let answer = corten_spans::child(operation, corten_spans::Kind::Client, Vec::new, call).await;
        self.metrics.count(&metrics::RUNTIME_OPERATIONS, &[operation]);
        self.metrics.observe(&metrics::RUNTIME_OPERATION_SECONDS, &[operation], begun.elapsed());
        if answer.is_err() {
            self.metrics.count(&metrics::RUNTIME_OPERATION_ERRORS, &[operation]);
        }
        answer
    }

    pub async fn version(&self) -> Result<cri::VersionResponse> {
        let request = cri::VersionRequest { version: "0.1.0".into() };
        Ok(self.measured("version", self.runtime.clone().version(quick(request))).await?.into_inner())
    }

    pub async fn status(&self) -> Result<cri::StatusResponse> {
        Ok(self
            .measured("status", self.runtime.clone().status(quick(cri::StatusRequest { verbose: false })))
            .await?
            .into_inner())
    }

    /// Refuses, in upstream's words, a pod with a user namespace if the runtime does not support them.
    pub async fn check_user_namespaces(&self, handler: &str) -> Result<()> {
        let handlers = self.status().await?.runtime_handlers;
        let known = handlers.iter().find(|known| known.name == handler);
        if known.and_then(|known| known.features.as_ref()).is_some_and(|features| features.user_namespaces) {
            return Ok(());
        }
        let who = match handler {
            "" => "runtime".to_owned(),
            name => format!("RuntimeClass handler {name:?}"),
        };
        Err(Error::pod(format!("can't set `spec.hostUsers: false`, {who} does not support user namespaces")))
    }

    /// Reports whether the runtime uses the systemd cgroup driver; a runtime that does not report its driver does not.
    pub async fn has_systemd_cgroups(&self) -> bool {
        let mut runtime = self.runtime.clone();
        let answer = self.measured("runtime_config", runtime.runtime_config(quick(cri::RuntimeConfigRequest {}))).await;
        let linux = answer.ok().and_then(|answer| answer.into_inner().linux);
        linux.is_some_and(|linux| linux.cgroup_driver() == cri::CgroupDriver::Systemd)
    }

    pub async fn set_pod_cidr(&self, pod_cidr: &str) -> Result<()> {
        let network_config = Some(cri::NetworkConfig { pod_cidr: pod_cidr.to_owned() });
        let runtime_config = Some(cri::RuntimeConfig { network_config });
        let request = cri::UpdateRuntimeConfigRequest { runtime_config };
        self.measured("update_runtime_config", self.runtime.clone().update_runtime_config(quick(request))).await?;
        Ok(())
    }

    /// Returns the sandboxes and containers that the runtime has of one pod.
    pub async fn observe(&self, pod_uid: &str) -> Result<Observed> {
        let filter = cri::PodSandboxFilter { label_selector: pod_selector(pod_uid), ..Default::default() };
        let sandboxes = self.list_sandboxes(Some(filter)).await?;
        let filter = cri::ContainerFilter { label_selector: pod_selector(pod_uid), ..Default::default() };
        let containers = self.list_containers(Some(filter)).await?;
        let (sandboxes, instances) = futures::try_join!(
            try_join_all(sandboxes.into_iter().map(|sandbox| self.sandbox_status(sandbox.id))),
            try_join_all(containers.into_iter().map(|container| self.instance(container))),
        )?;
        Ok(Observed {
            sandboxes: sandboxes.into_iter().flatten().collect(),
            instances: instances.into_iter().flatten().collect(),
        }
        .sorted())
    }

    async fn sandbox_status(&self, id: String) -> Result<Option<Sandbox>> {
        let request = cri::PodSandboxStatusRequest { pod_sandbox_id: id, verbose: false };
        match self.measured("podsandbox_status", self.runtime.clone().pod_sandbox_status(quick(request))).await {
            Ok(response) => Ok(response.into_inner().status.map(Sandbox::from_status)),
            Err(status) if status.code() == tonic::Code::NotFound => Ok(None),
            Err(status) => Err(status.into()),
        }
    }

    async fn instance(&self, container: cri::Container) -> Result<Option<Instance>> {
        let request = cri::ContainerStatusRequest { container_id: container.id, verbose: false };
        match self.measured("container_status", self.runtime.clone().container_status(quick(request))).await {
            Ok(response) => {
                let status = response.into_inner().status;
                Ok(status.map(|status| Instance::from_status(container.pod_sandbox_id, status)))
            }
            Err(status) if status.code() == tonic::Code::NotFound => Ok(None),
            Err(status) => Err(status.into()),
        }
    }

    pub async fn list_sandboxes(&self, filter: Option<cri::PodSandboxFilter>) -> Result<Vec<cri::PodSandbox>> {
        let request = cri::ListPodSandboxRequest { filter };
        Ok(self
            .measured("list_podsandbox", self.runtime.clone().list_pod_sandbox(quick(request)))
            .await?
            .into_inner()
            .items)
    }

    pub async fn list_containers(&self, filter: Option<cri::ContainerFilter>) -> Result<Vec<cri::Container>> {
        let request = cri::ListContainersRequest { filter };
        Ok(self
            .measured("list_containers", self.runtime.clone().list_containers(quick(request)))
            .await?
            .into_inner()
            .containers)
    }

    pub async fn run_sandbox(&self, config: cri::PodSandboxConfig, runtime_handler: String) -> Result<String> {
        let request = cri::RunPodSandboxRequest { config: Some(config), runtime_handler };
        Ok(self
            .measured("run_podsandbox", self.runtime.clone().run_pod_sandbox(quick(request)))
            .await?
            .into_inner()
            .pod_sandbox_id)
    }

    pub async fn stop_sandbox(&self, id: &str) -> Result<()> {
        let request = cri::StopPodSandboxRequest { pod_sandbox_id: id.to_owned() };
        gone_is_fine(
            self.measured("stop_podsandbox", self.runtime.clone().stop_pod_sandbox(quick(request))).await.map(drop),
        )
    }

    pub async fn remove_sandbox(&self, id: &str) -> Result<()> {
        let request = cri::RemovePodSandboxRequest { pod_sandbox_id: id.to_owned() };
        gone_is_fine(
            self.measured("remove_podsandbox", self.runtime.clone().remove_pod_sandbox(quick(request))).await.map(drop),
        )
    }

    pub async fn create_container(
        &self,
        sandbox_id: &str,
        config: cri::ContainerConfig,
        sandbox_config: cri::PodSandboxConfig,
    ) -> Result<String> {
        let request = cri::CreateContainerRequest {
            pod_sandbox_id: sandbox_id.to_owned(),
            config: Some(config),
            sandbox_config: Some(sandbox_config),
        };
        Ok(self
            .measured("create_container", self.runtime.clone().create_container(quick(request)))
            .await?
            .into_inner()
            .container_id)
    }

    pub async fn start_container(&self, id: &str) -> Result<()> {
        let request = cri::StartContainerRequest { container_id: id.to_owned() };
        self.measured("start_container", self.runtime.clone().start_container(quick(request))).await?;
        Ok(())
    }

    /// Stops a container: SIGTERM, and SIGKILL after `grace` seconds.
    pub async fn stop_container(&self, id: &str, grace: i64) -> Result<()> {
        let request = cri::StopContainerRequest { container_id: id.to_owned(), timeout: grace.max(0) };
        let limit = CALL_TIMEOUT + Duration::from_secs(u64::try_from(grace).unwrap_or(0));
        gone_is_fine(
            self.measured("stop_container", self.runtime.clone().stop_container(with_timeout(request, limit)))
                .await
                .map(drop),
        )
    }

    pub async fn remove_container(&self, id: &str) -> Result<()> {
        let request = cri::RemoveContainerRequest { container_id: id.to_owned() };
        gone_is_fine(
            self.measured("remove_container", self.runtime.clone().remove_container(quick(request))).await.map(drop),
        )
    }

    pub async fn update_resources(&self, id: &str, linux: cri::LinuxContainerResources) -> Result<()> {
        let request = cri::UpdateContainerResourcesRequest {
            container_id: id.to_owned(),
            linux: Some(linux),
            ..cri::UpdateContainerResourcesRequest::default()
        };
        self.measured("update_container", self.runtime.clone().update_container_resources(quick(request))).await?;
        Ok(())
    }

    pub async fn reopen_log(&self, id: &str) -> Result<()> {
        let request = cri::ReopenContainerLogRequest { container_id: id.to_owned() };
        self.measured("reopen_container_log", self.runtime.clone().reopen_container_log(quick(request))).await?;
        Ok(())
    }

    /// Runs a command until it exits; a command that exceeds `timeout` is an error.
    pub async fn exec_sync(&self, id: &str, command: &[String], timeout: Duration) -> Result<ExecOutput> {
        let request = cri::ExecSyncRequest {
            container_id: id.to_owned(),
            cmd: command.to_vec(),
            timeout: i64::try_from(timeout.as_secs()).unwrap_or(0),
        };
        let limit = if timeout.is_zero() { Duration::from_secs(3600) } else { timeout + Duration::from_secs(5) };
        let output = self
            .measured("exec_sync", self.runtime.clone().exec_sync(with_timeout(request, limit)))
            .await?
            .into_inner();
        Ok(ExecOutput { stdout: output.stdout, stderr: output.stderr, exit_code: output.exit_code })
    }

    /// Returns the runtime's URL for an exec stream.
    pub async fn exec(&self, request: cri::ExecRequest) -> Result<String> {
        Ok(self.measured("exec", self.runtime.clone().exec(quick(request))).await?.into_inner().url)
    }

    pub async fn attach(&self, request: cri::AttachRequest) -> Result<String> {
        Ok(self.measured("attach", self.runtime.clone().attach(quick(request))).await?.into_inner().url)
    }

    pub async fn port_forward(&self, request: cri::PortForwardRequest) -> Result<String> {
        Ok(self.measured("port_forward", self.runtime.clone().port_forward(quick(request))).await?.into_inner().url)
    }

    /// Streams the runtime's container events.
    pub async fn events(&self) -> Result<tonic::Streaming<cri::ContainerEventResponse>> {
        Ok(self.runtime.clone().get_container_events(cri::GetEventsRequest {}).await?.into_inner())
    }

    /// Returns the resource usage of every sandbox and its containers.
    pub async fn sandbox_stats(&self) -> Result<Vec<cri::PodSandboxStats>> {
        let request = cri::ListPodSandboxStatsRequest { filter: None };
        Ok(self
            .measured("list_podsandbox_stats", self.runtime.clone().list_pod_sandbox_stats(quick(request)))
            .await?
            .into_inner()
            .stats)
    }

    /// Returns the memory usage of each running container of a pod, by container id.
    pub async fn memory_in_use(&self, pod_uid: &str) -> Result<HashMap<String, u64>> {
        let filter = cri::PodSandboxStatsFilter {
            label_selector: pod_selector(pod_uid),
            ..cri::PodSandboxStatsFilter::default()
        };
        let request = cri::ListPodSandboxStatsRequest { filter: Some(filter) };
        let mut runtime = self.runtime.clone();
        let answer = self.measured("list_podsandbox_stats", runtime.list_pod_sandbox_stats(quick(request))).await?;
        let pods = answer.into_inner().stats.into_iter().filter_map(|stats| stats.linux);
        let containers = pods.flat_map(|linux| linux.containers);
        let used = containers.filter_map(|container| {
            let usage = container.memory?.usage_bytes?.value;
            Some((container.attributes?.id, usage))
        });
        Ok(used.collect())
    }

    /// Returns the usage of the file systems of images and writable layers.
    pub async fn image_file_systems(&self) -> Result<cri::ImageFsInfoResponse> {
        Ok(self
            .measured("image_fs_info", self.images.clone().image_fs_info(quick(cri::ImageFsInfoRequest {})))
            .await?
            .into_inner())
    }

    pub async fn remove_image(&self, image: cri::ImageSpec) -> Result<()> {
        let request = cri::RemoveImageRequest { image: Some(image) };
        gone_is_fine(self.measured("remove_image", self.images.clone().remove_image(quick(request))).await.map(drop))
    }

    pub async fn list_images(&self) -> Result<Vec<cri::Image>> {
        let request = cri::ListImagesRequest { filter: None };
        Ok(self.measured("list_images", self.images.clone().list_images(quick(request))).await?.into_inner().images)
    }

    /// Returns the image, if it is on this node.
    pub async fn image(&self, image: cri::ImageSpec) -> Result<Option<cri::Image>> {
        let request = cri::ImageStatusRequest { image: Some(image), verbose: false };
        let image =
            self.measured("image_status", self.images.clone().image_status(quick(request))).await?.into_inner().image;
        Ok(image.filter(|image| !image.id.is_empty()))
    }

    pub async fn pull_image(
        &self,
        image: cri::ImageSpec,
        auth: Option<cri::AuthConfig>,
        sandbox_config: cri::PodSandboxConfig,
    ) -> Result<String> {
        let request = cri::PullImageRequest { image: Some(image), auth, sandbox_config: Some(sandbox_config) };
        Ok(self.measured("pull_image", self.images.clone().pull_image(request)).await?.into_inner().image_ref)
    }
}
