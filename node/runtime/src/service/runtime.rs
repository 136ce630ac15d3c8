//! The runtime service.

use std::pin::Pin;

use corten_cri::v1;
use futures::{Stream, StreamExt};
use tokio_stream::wrappers::BroadcastStream;
use tonic::{Request, Response, Status};

use super::Services;
use crate::Error;
use crate::daemon::{ContainerEvent, Daemon, matches_labels};
use crate::streaming::Target;

pub(crate) struct Runtime(pub Services);

type Answer<T> = Result<Response<T>, Status>;

fn answer<T>(message: T) -> Answer<T> {
    Ok(Response::new(message))
}

#[tonic::async_trait]
impl corten_cri::RuntimeService for Runtime {
    type GetContainerEventsStream = Pin<Box<dyn Stream<Item = Result<v1::ContainerEventResponse, Status>> + Send>>;

    async fn version(&self, _: Request<v1::VersionRequest>) -> Answer<v1::VersionResponse> {
        answer(v1::VersionResponse {
            version: "0.1.0".into(),
            runtime_name: "corten".into(),
            runtime_version: env!("CARGO_PKG_VERSION").into(),
            runtime_api_version: "v1".into(),
        })
    }

    async fn run_pod_sandbox(&self, request: Request<v1::RunPodSandboxRequest>) -> Answer<v1::RunPodSandboxResponse> {
        let request = request.into_inner();
        let config = request.config.ok_or_else(|| Status::invalid_argument("a sandbox needs a config"))?;
        let pod_sandbox_id = self.0.daemon.run_sandbox(config, request.runtime_handler).await?;
        answer(v1::RunPodSandboxResponse { pod_sandbox_id })
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<v1::StopPodSandboxRequest>,
    ) -> Answer<v1::StopPodSandboxResponse> {
        self.0.daemon.stop_sandbox(&request.into_inner().pod_sandbox_id).await?;
        answer(v1::StopPodSandboxResponse {})
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<v1::RemovePodSandboxRequest>,
    ) -> Answer<v1::RemovePodSandboxResponse> {
        self.0.daemon.remove_sandbox(&request.into_inner().pod_sandbox_id).await?;
        answer(v1::RemovePodSandboxResponse {})
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<v1::PodSandboxStatusRequest>,
    ) -> Answer<v1::PodSandboxStatusResponse> {
        let daemon = &self.0.daemon;
        let sandbox = daemon.sandbox(&request.into_inner().pod_sandbox_id)?;
        let containers = daemon.containers_of(&sandbox.id);
        answer(v1::PodSandboxStatusResponse {
            status: Some(daemon.sandbox_status(&sandbox)),
            info: Default::default(),
            containers_statuses: containers.iter().map(|found| daemon.container_status(found)).collect(),
            timestamp: crate::shim::log::now(),
        })
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<v1::ListPodSandboxRequest>,
    ) -> Answer<v1::ListPodSandboxResponse> {
        let filter = request.into_inner().filter.unwrap_or_default();
        answer(v1::ListPodSandboxResponse { items: self.0.daemon.list_sandboxes(&filter) })
    }

    async fn create_container(
        &self,
        request: Request<v1::CreateContainerRequest>,
    ) -> Answer<v1::CreateContainerResponse> {
        let request = request.into_inner();
        let config = request.config.ok_or_else(|| Status::invalid_argument("a container needs a config"))?;
        let container_id = self.0.daemon.create_container(&request.pod_sandbox_id, config).await?;
        answer(v1::CreateContainerResponse { container_id })
    }

    async fn start_container(&self, request: Request<v1::StartContainerRequest>) -> Answer<v1::StartContainerResponse> {
        self.0.daemon.start_container(&request.into_inner().container_id).await?;
        answer(v1::StartContainerResponse {})
    }

    async fn stop_container(&self, request: Request<v1::StopContainerRequest>) -> Answer<v1::StopContainerResponse> {
        let request = request.into_inner();
        match self.0.daemon.container(&request.container_id) {
            Ok(container) => self.0.daemon.stop_container(&container, request.timeout).await?,
            // Stopping a missing container succeeds, so that the kubelet may repeat it.
            Err(crate::Error::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        answer(v1::StopContainerResponse {})
    }

    async fn remove_container(
        &self,
        request: Request<v1::RemoveContainerRequest>,
    ) -> Answer<v1::RemoveContainerResponse> {
        self.0.daemon.remove_container(&request.into_inner().container_id).await?;
        answer(v1::RemoveContainerResponse {})
    }

    async fn list_containers(&self, request: Request<v1::ListContainersRequest>) -> Answer<v1::ListContainersResponse> {
        let filter = request.into_inner().filter.unwrap_or_default();
        answer(v1::ListContainersResponse { containers: self.0.daemon.list_containers(&filter) })
    }

    async fn container_status(
        &self,
        request: Request<v1::ContainerStatusRequest>,
    ) -> Answer<v1::ContainerStatusResponse> {
        let request = request.into_inner();
        let container = self.0.daemon.container(&request.container_id)?;
        let info = if request.verbose { self.0.daemon.container_info(&container) } else { Default::default() };
        answer(v1::ContainerStatusResponse { status: Some(self.0.daemon.container_status(&container)), info })
    }

    async fn update_container_resources(
        &self,
        request: Request<v1::UpdateContainerResourcesRequest>,
    ) -> Answer<v1::UpdateContainerResourcesResponse> {
        let request = request.into_inner();
        let resources = request.linux.unwrap_or_default();
        self.0.daemon.update_resources(&request.container_id, &resources).await?;
        answer(v1::UpdateContainerResourcesResponse {})
    }

    async fn reopen_container_log(
        &self,
        request: Request<v1::ReopenContainerLogRequest>,
    ) -> Answer<v1::ReopenContainerLogResponse> {
        self.0.daemon.reopen_log(&request.into_inner().container_id).await?;
        answer(v1::ReopenContainerLogResponse {})
    }

    async fn exec_sync(&self, request: Request<v1::ExecSyncRequest>) -> Answer<v1::ExecSyncResponse> {
        let request = request.into_inner();
        let output = self.0.daemon.exec_sync(&request.container_id, request.cmd, request.timeout).await?;
        answer(v1::ExecSyncResponse { stdout: output.stdout, stderr: output.stderr, exit_code: output.code })
    }

    async fn exec(&self, request: Request<v1::ExecRequest>) -> Answer<v1::ExecResponse> {
        let request = request.into_inner();
        self.0.daemon.container(&request.container_id)?.require_running()?;
        if request.tty && request.stderr {
            return Err(Status::invalid_argument("tty and stderr cannot both be true"));
        }
        answer(v1::ExecResponse { url: self.0.streaming.url(Target::Exec(request)) })
    }

    async fn attach(&self, request: Request<v1::AttachRequest>) -> Answer<v1::AttachResponse> {
        let request = request.into_inner();
        self.0.daemon.container(&request.container_id)?.require_running()?;
        if request.tty && request.stderr {
            return Err(Status::invalid_argument("tty and stderr cannot both be true"));
        }
        answer(v1::AttachResponse { url: self.0.streaming.url(Target::Attach(request)) })
    }

    async fn port_forward(&self, request: Request<v1::PortForwardRequest>) -> Answer<v1::PortForwardResponse> {
        let request = request.into_inner();
        let sandbox = self.0.daemon.sandbox(&request.pod_sandbox_id)?;
        if !sandbox.record().ready {
            return Err(Status::failed_precondition("sandbox container is not running"));
        }
        answer(v1::PortForwardResponse { url: self.0.streaming.url(Target::PortForward(request)) })
    }

    async fn container_stats(&self, request: Request<v1::ContainerStatsRequest>) -> Answer<v1::ContainerStatsResponse> {
        let container = self.0.daemon.container(&request.into_inner().container_id)?;
        answer(v1::ContainerStatsResponse { stats: self.0.daemon.container_stats(vec![container]).await?.pop() })
    }

    async fn list_container_stats(
        &self,
        request: Request<v1::ListContainerStatsRequest>,
    ) -> Answer<v1::ListContainerStatsResponse> {
        let filter = request.into_inner().filter.unwrap_or_default();
        let mut containers = self.0.daemon.all_containers();
        containers.retain(|container| {
            (filter.id.is_empty() || container.id == filter.id)
                && (filter.pod_sandbox_id.is_empty() || container.is_of(&filter.pod_sandbox_id))
                && matches_labels(&filter.label_selector, &container.config.labels)
                && container.state() == v1::ContainerState::ContainerRunning
        });
        answer(v1::ListContainerStatsResponse { stats: self.0.daemon.container_stats(containers).await? })
    }

    async fn pod_sandbox_stats(
        &self,
        request: Request<v1::PodSandboxStatsRequest>,
    ) -> Answer<v1::PodSandboxStatsResponse> {
        let sandbox = self.0.daemon.sandbox(&request.into_inner().pod_sandbox_id)?;
        answer(v1::PodSandboxStatsResponse { stats: self.0.daemon.sandbox_stats(vec![sandbox]).await?.pop() })
    }

    async fn list_pod_sandbox_stats(
        &self,
        request: Request<v1::ListPodSandboxStatsRequest>,
    ) -> Answer<v1::ListPodSandboxStatsResponse> {
        let filter = request.into_inner().filter.unwrap_or_default();
        let mut sandboxes = self.0.daemon.all_sandboxes();
        sandboxes.retain(|sandbox| {
            (filter.id.is_empty() || sandbox.id == filter.id)
                && matches_labels(&filter.label_selector, &sandbox.config.labels)
                && sandbox.record().ready
        });
        answer(v1::ListPodSandboxStatsResponse { stats: self.0.daemon.sandbox_stats(sandboxes).await? })
    }

    /// Passes the pod CIDR of this node from the kubelet to the pod network.
    async fn update_runtime_config(
        &self,
        request: Request<v1::UpdateRuntimeConfigRequest>,
    ) -> Answer<v1::UpdateRuntimeConfigResponse> {
        let network = request.into_inner().runtime_config.and_then(|config| config.network_config);
        if let Some(range) = network.map(|network| network.pod_cidr).filter(|range| !range.is_empty()) {
            self.0.daemon.network.pod_range(&range).await.map_err(Error::Network)?;
        }
        answer(v1::UpdateRuntimeConfigResponse {})
    }

    async fn status(&self, _: Request<v1::StatusRequest>) -> Answer<v1::StatusResponse> {
        let condition = |name: &str, error: Option<String>, reason: &str| v1::RuntimeCondition {
            r#type: name.into(),
            status: error.is_none(),
            reason: if error.is_some() { reason.into() } else { String::new() },
            message: error.unwrap_or_default(),
        };
        let network = self.0.daemon.network.not_ready().await;
        let frames = self.0.daemon.network.unfiltered().await;
        let devices = self.0.daemon.device_filter_error.clone();
        let user_namespaces = self.0.daemon.user_namespaces;
        let handler = |name: &str, user_namespaces| v1::RuntimeHandler {
            name: name.into(),
            features: Some(v1::RuntimeHandlerFeatures { recursive_read_only_mounts: true, user_namespaces }),
        };
        let others = &self.0.daemon.runtime_handlers;
        let own = crate::daemon::OWN_HANDLERS.into_iter().filter(|name| !others.contains_key(*name));
        answer(v1::StatusResponse {
            status: Some(v1::RuntimeStatus {
                conditions: vec![
                    condition("RuntimeReady", None, ""),
                    condition("NetworkReady", network, "NetworkPluginNotReady"),
                    condition("DeviceFilterReady", devices, "DeviceCgroupMissing"),
                    condition("BridgeFilterReady", frames, "BridgeFilterMissing"),
                ],
            }),
            info: Default::default(),
            runtime_handlers: own
                .map(|name| handler(name, user_namespaces))
                .chain(others.keys().map(|name| handler(name, false)))
                .collect(),
            features: Some(v1::RuntimeFeatures { supplemental_groups_policy: true, ..Default::default() }),
        })
    }

    async fn get_container_events(
        &self,
        _: Request<v1::GetEventsRequest>,
    ) -> Result<Response<Self::GetContainerEventsStream>, Status> {
        let daemon = self.0.daemon.clone();
        let events = BroadcastStream::new(daemon.subscribe()).map(move |event| match event {
            Ok(event) => Ok(event_response(&daemon, event)),
            // The kubelet lists again when the stream breaks, which also recovers lost events.
            Err(lost) => Err(Status::data_loss(lost.to_string())),
        });
        Ok(Response::new(Box::pin(events)))
    }

    async fn runtime_config(&self, _: Request<v1::RuntimeConfigRequest>) -> Answer<v1::RuntimeConfigResponse> {
        let linux = v1::LinuxRuntimeConfiguration { cgroup_driver: v1::CgroupDriver::Cgroupfs.into() };
        answer(v1::RuntimeConfigResponse { linux: Some(linux) })
    }

    /// Does nothing: the kubelet resizes the pod's own group by itself, and there is no overhead of a pause image.
    async fn update_pod_sandbox_resources(
        &self,
        request: Request<v1::UpdatePodSandboxResourcesRequest>,
    ) -> Answer<v1::UpdatePodSandboxResourcesResponse> {
        self.0.daemon.sandbox(&request.into_inner().pod_sandbox_id)?;
        answer(v1::UpdatePodSandboxResourcesResponse {})
    }
}

fn event_response(daemon: &Daemon, event: ContainerEvent) -> v1::ContainerEventResponse {
    let containers = daemon.containers_of(&event.sandbox_id);
    v1::ContainerEventResponse {
        container_id: event.container_id,
        container_event_type: event.kind.into(),
        created_at: event.at,
        pod_sandbox_status: daemon.sandbox(&event.sandbox_id).ok().map(|found| daemon.sandbox_status(&found)),
        containers_statuses: containers.iter().map(|found| daemon.container_status(found)).collect(),
    }
}
