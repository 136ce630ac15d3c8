//! A container runtime for the kubelet's tests: real CRI over a unix socket, containers that are only records. A
//! container runs until the test ends it, or exits at once if its image is `exits:<code>`.

use std::collections::BTreeMap;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use corten_cri::v1 as cri;
use corten_cri::{ImageService, ImageServiceServer, RuntimeService, RuntimeServiceServer};
use futures::{Stream, StreamExt};
use tokio::sync::broadcast;
use tokio_stream::wrappers::{BroadcastStream, UnixListenerStream};
use tonic::{Request, Response, Status};

#[derive(Clone)]
pub struct FakeCri {
    inner: Arc<Mutex<Inner>>,
    events: broadcast::Sender<cri::ContainerEventResponse>,
}

#[derive(Default)]
pub struct Inner {
    pub sandboxes: BTreeMap<String, (cri::PodSandboxStatus, cri::PodSandboxConfig)>,
    pub containers: BTreeMap<String, (cri::ContainerStatus, cri::ContainerConfig, String)>,
    pub images: Vec<String>,
    pub calls: Vec<String>,
    /// The number of answers of `Status` with a network that is not ready yet.
    pub not_ready: usize,
    /// The response of `Exec`.
    pub streaming_url: String,
    next: u32,
}

impl Inner {
    /// Returns statistics in which every container has used a second of CPU and a mebibyte.
    fn stats(&self, sandbox: &cri::PodSandboxStatus) -> cri::PodSandboxStats {
        let number = |value| Some(cri::UInt64Value { value });
        let cpu =
            cri::CpuUsage { timestamp: nanos(), usage_core_nano_seconds: number(1_000_000_000), ..Default::default() };
        let memory = cri::MemoryUsage { timestamp: nanos(), working_set_bytes: number(1 << 20), ..Default::default() };
        let of_sandbox = self.containers.values().filter(|(_, _, id)| *id == sandbox.id);
        let running = of_sandbox.filter(|(status, _, _)| status.state == cri::ContainerState::ContainerRunning as i32);
        let containers = running.map(|(status, _, _)| cri::ContainerStats {
            attributes: Some(cri::ContainerAttributes {
                id: status.id.clone(),
                metadata: status.metadata.clone(),
                labels: status.labels.clone(),
                ..Default::default()
            }),
            cpu: Some(cpu),
            memory: Some(memory),
            ..Default::default()
        });
        cri::PodSandboxStats {
            attributes: Some(cri::PodSandboxAttributes {
                id: sandbox.id.clone(),
                metadata: sandbox.metadata.clone(),
                labels: sandbox.labels.clone(),
                ..Default::default()
            }),
            linux: Some(cri::LinuxPodSandboxStats {
                containers: containers.collect(),
                cpu: Some(cpu),
                memory: Some(memory),
                ..Default::default()
            }),
        }
    }
}

impl FakeCri {
    /// Listens on the socket with the given images present.
    pub fn listen(socket: &Path, images: &[&str]) -> FakeCri {
        let inner = Inner { images: images.iter().map(|image| (*image).to_owned()).collect(), ..Inner::default() };
        let fake = FakeCri { inner: Arc::new(Mutex::new(inner)), events: broadcast::channel(256).0 };
        let listener = tokio::net::UnixListener::bind(socket).unwrap();
        let server = tonic::transport::Server::builder()
            .add_service(RuntimeServiceServer::new(fake.clone()))
            .add_service(ImageServiceServer::new(fake.clone()))
            .serve_with_incoming(UnixListenerStream::new(listener));
        tokio::spawn(server);
        fake
    }

    pub fn with<T>(&self, look: impl FnOnce(&mut Inner) -> T) -> T {
        look(&mut self.inner.lock().unwrap())
    }

    pub fn calls(&self) -> Vec<String> {
        self.with(|inner| inner.calls.clone())
    }

    /// Returns the configuration of the newest container with that name.
    pub fn config(&self, name: &str) -> cri::ContainerConfig {
        self.with(|inner| {
            let named =
                inner.containers.values().filter(|(status, _, _)| status.metadata.as_ref().unwrap().name == name);
            named.max_by_key(|(status, _, _)| status.created_at).expect("the container was made").1.clone()
        })
    }

    /// Exits the running container with that name.
    pub fn exit(&self, name: &str, code: i32) {
        let id = self.with(|inner| {
            let running = inner.containers.iter_mut().find(|(_, (status, _, _))| {
                status.metadata.as_ref().unwrap().name == name
                    && status.state == cri::ContainerState::ContainerRunning as i32
            });
            let (id, (status, _, _)) = running.expect("the container runs");
            end(status, code);
            id.clone()
        });
        self.tell(&id);
    }

    fn tell(&self, container_id: &str) {
        let sandbox = self.with(|inner| {
            let sandbox_id = inner.containers.get(container_id).map(|(_, _, sandbox)| sandbox.clone())?;
            inner.sandboxes.get(&sandbox_id).map(|(status, _)| status.clone())
        });
        let _ = self.events.send(cri::ContainerEventResponse {
            container_id: container_id.to_owned(),
            pod_sandbox_status: sandbox,
            ..Default::default()
        });
    }

    fn id(&self, prefix: &str) -> String {
        self.with(|inner| {
            inner.next += 1;
            format!("{prefix}{}", inner.next)
        })
    }

    fn call(&self, what: impl Into<String>) {
        self.with(|inner| inner.calls.push(what.into()));
    }
}

fn nanos() -> i64 {
    i64::try_from(jiff::Timestamp::now().as_nanosecond()).unwrap()
}

fn end(status: &mut cri::ContainerStatus, code: i32) {
    status.state = cri::ContainerState::ContainerExited as i32;
    status.exit_code = code;
    status.finished_at = nanos();
}

fn fits(
    selector: &std::collections::HashMap<String, String>,
    labels: &std::collections::HashMap<String, String>,
) -> bool {
    selector.iter().all(|(name, value)| labels.get(name) == Some(value))
}

type Answer<T> = Result<Response<T>, Status>;

fn ok<T>(message: T) -> Answer<T> {
    Ok(Response::new(message))
}

#[tonic::async_trait]
impl RuntimeService for FakeCri {
    async fn version(&self, _: Request<cri::VersionRequest>) -> Answer<cri::VersionResponse> {
        ok(cri::VersionResponse { runtime_name: "fake".into(), runtime_version: "1".into(), ..Default::default() })
    }

    async fn status(&self, _: Request<cri::StatusRequest>) -> Answer<cri::StatusResponse> {
        let is_connected = self.with(|inner| {
            let is_connected = inner.not_ready == 0;
            inner.not_ready = inner.not_ready.saturating_sub(1);
            is_connected
        });
        let condition =
            |name: &str, status| cri::RuntimeCondition { r#type: name.into(), status, ..Default::default() };
        let conditions = vec![condition("RuntimeReady", true), condition("NetworkReady", is_connected)];
        ok(cri::StatusResponse { status: Some(cri::RuntimeStatus { conditions }), ..Default::default() })
    }

    async fn run_pod_sandbox(&self, request: Request<cri::RunPodSandboxRequest>) -> Answer<cri::RunPodSandboxResponse> {
        let config = request.into_inner().config.unwrap();
        let id = self.id("sandbox");
        self.call(format!("run sandbox {id}"));
        let status = cri::PodSandboxStatus {
            id: id.clone(),
            metadata: config.metadata.clone(),
            state: cri::PodSandboxState::SandboxReady as i32,
            created_at: nanos(),
            network: Some(cri::PodSandboxNetworkStatus { ip: "10.244.0.5".into(), additional_ips: vec![] }),
            labels: config.labels.clone(),
            ..Default::default()
        };
        self.with(|inner| inner.sandboxes.insert(id.clone(), (status, config)));
        ok(cri::RunPodSandboxResponse { pod_sandbox_id: id })
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<cri::StopPodSandboxRequest>,
    ) -> Answer<cri::StopPodSandboxResponse> {
        let id = request.into_inner().pod_sandbox_id;
        self.call(format!("stop sandbox {id}"));
        self.with(|inner| {
            if let Some((status, _)) = inner.sandboxes.get_mut(&id) {
                status.state = cri::PodSandboxState::SandboxNotready as i32;
            }
        });
        ok(cri::StopPodSandboxResponse {})
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<cri::RemovePodSandboxRequest>,
    ) -> Answer<cri::RemovePodSandboxResponse> {
        let id = request.into_inner().pod_sandbox_id;
        self.call(format!("remove sandbox {id}"));
        self.with(|inner| {
            inner.sandboxes.remove(&id);
            inner.containers.retain(|_, (_, _, sandbox)| *sandbox != id);
        });
        ok(cri::RemovePodSandboxResponse {})
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<cri::PodSandboxStatusRequest>,
    ) -> Answer<cri::PodSandboxStatusResponse> {
        let id = request.into_inner().pod_sandbox_id;
        let status = self.with(|inner| inner.sandboxes.get(&id).map(|(status, _)| status.clone()));
        let status = Some(status.ok_or_else(|| Status::not_found("no such sandbox"))?);
        ok(cri::PodSandboxStatusResponse { status, ..Default::default() })
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<cri::ListPodSandboxRequest>,
    ) -> Answer<cri::ListPodSandboxResponse> {
        let filter = request.into_inner().filter.unwrap_or_default();
        let items = self.with(|inner| {
            let fitting = inner.sandboxes.values().filter(|(status, _)| fits(&filter.label_selector, &status.labels));
            fitting
                .map(|(status, _)| cri::PodSandbox {
                    id: status.id.clone(),
                    metadata: status.metadata.clone(),
                    state: status.state,
                    labels: status.labels.clone(),
                    ..Default::default()
                })
                .collect()
        });
        ok(cri::ListPodSandboxResponse { items })
    }

    async fn create_container(
        &self,
        request: Request<cri::CreateContainerRequest>,
    ) -> Answer<cri::CreateContainerResponse> {
        let request = request.into_inner();
        let config = request.config.unwrap();
        let metadata = config.metadata.clone().unwrap();
        let id = self.id(&format!("{}-", metadata.name));
        self.call(format!("create {id}"));
        let directory = request.sandbox_config.unwrap().log_directory;
        let status = cri::ContainerStatus {
            id: id.clone(),
            metadata: Some(metadata),
            state: cri::ContainerState::ContainerCreated as i32,
            created_at: nanos(),
            image: config.image.clone(),
            image_ref: config.image.clone().unwrap().image,
            labels: config.labels.clone(),
            annotations: config.annotations.clone(),
            log_path: format!("{directory}/{}", config.log_path),
            ..Default::default()
        };
        self.with(|inner| inner.containers.insert(id.clone(), (status, config, request.pod_sandbox_id)));
        ok(cri::CreateContainerResponse { container_id: id })
    }

    async fn start_container(
        &self,
        request: Request<cri::StartContainerRequest>,
    ) -> Answer<cri::StartContainerResponse> {
        let id = request.into_inner().container_id;
        self.call(format!("start {id}"));
        self.with(|inner| {
            let (status, config, _) = inner.containers.get_mut(&id).unwrap();
            status.state = cri::ContainerState::ContainerRunning as i32;
            status.started_at = nanos();
            std::fs::write(&status.log_path, "2026-01-01T00:00:00Z stdout F hello\n").unwrap();
            let image = config.image.clone().unwrap().user_specified_image;
            if let Some(code) = image.strip_prefix("exits:") {
                end(status, code.parse().unwrap());
            }
        });
        self.tell(&id);
        ok(cri::StartContainerResponse {})
    }

    async fn stop_container(&self, request: Request<cri::StopContainerRequest>) -> Answer<cri::StopContainerResponse> {
        let request = request.into_inner();
        self.call(format!("stop {} {}", request.container_id, request.timeout));
        self.with(|inner| {
            if let Some((status, _, _)) = inner.containers.get_mut(&request.container_id) {
                end(status, 0);
            }
        });
        self.tell(&request.container_id);
        ok(cri::StopContainerResponse {})
    }

    async fn remove_container(
        &self,
        request: Request<cri::RemoveContainerRequest>,
    ) -> Answer<cri::RemoveContainerResponse> {
        let id = request.into_inner().container_id;
        self.with(|inner| inner.containers.remove(&id));
        ok(cri::RemoveContainerResponse {})
    }

    async fn list_containers(
        &self,
        request: Request<cri::ListContainersRequest>,
    ) -> Answer<cri::ListContainersResponse> {
        let filter = request.into_inner().filter.unwrap_or_default();
        let containers = self.with(|inner| {
            let fitting =
                inner.containers.values().filter(|(status, _, _)| fits(&filter.label_selector, &status.labels));
            fitting
                .map(|(status, _, sandbox)| cri::Container {
                    id: status.id.clone(),
                    pod_sandbox_id: sandbox.clone(),
                    state: status.state,
                    ..Default::default()
                })
                .collect()
        });
        ok(cri::ListContainersResponse { containers })
    }

    async fn container_status(
        &self,
        request: Request<cri::ContainerStatusRequest>,
    ) -> Answer<cri::ContainerStatusResponse> {
        let id = request.into_inner().container_id;
        let status = self.with(|inner| inner.containers.get(&id).map(|(status, _, _)| status.clone()));
        let status = Some(status.ok_or_else(|| Status::not_found("no such container"))?);
        ok(cri::ContainerStatusResponse { status, ..Default::default() })
    }

    async fn update_container_resources(
        &self,
        request: Request<cri::UpdateContainerResourcesRequest>,
    ) -> Answer<cri::UpdateContainerResourcesResponse> {
        let request = request.into_inner();
        self.call(format!("resize {} memory={}", request.container_id, request.linux.unwrap().memory_limit_in_bytes));
        ok(cri::UpdateContainerResourcesResponse {})
    }

    async fn reopen_container_log(
        &self,
        _: Request<cri::ReopenContainerLogRequest>,
    ) -> Answer<cri::ReopenContainerLogResponse> {
        ok(cri::ReopenContainerLogResponse {})
    }

    /// Runs `/bin/true` and `/bin/false`, and nothing else.
    async fn exec_sync(&self, request: Request<cri::ExecSyncRequest>) -> Answer<cri::ExecSyncResponse> {
        let request = request.into_inner();
        self.call(format!("exec {} {}", request.container_id, request.cmd.join(" ")));
        let exit_code = i32::from(request.cmd.last().is_some_and(|word| word == "/bin/false"));
        ok(cri::ExecSyncResponse { exit_code, ..Default::default() })
    }

    async fn exec(&self, request: Request<cri::ExecRequest>) -> Answer<cri::ExecResponse> {
        let request = request.into_inner();
        self.call(format!(
            "stream {} {} stdin={} tty={}",
            request.container_id,
            request.cmd.join(" "),
            request.stdin,
            request.tty
        ));
        ok(cri::ExecResponse { url: self.with(|inner| inner.streaming_url.clone()) })
    }

    async fn attach(&self, _: Request<cri::AttachRequest>) -> Answer<cri::AttachResponse> {
        Err(Status::unimplemented("not asked"))
    }

    async fn port_forward(&self, _: Request<cri::PortForwardRequest>) -> Answer<cri::PortForwardResponse> {
        Err(Status::unimplemented("not asked"))
    }

    async fn container_stats(&self, _: Request<cri::ContainerStatsRequest>) -> Answer<cri::ContainerStatsResponse> {
        Err(Status::unimplemented("not asked"))
    }

    async fn list_container_stats(
        &self,
        _: Request<cri::ListContainerStatsRequest>,
    ) -> Answer<cri::ListContainerStatsResponse> {
        ok(cri::ListContainerStatsResponse { stats: vec![] })
    }

    async fn pod_sandbox_stats(&self, _: Request<cri::PodSandboxStatsRequest>) -> Answer<cri::PodSandboxStatsResponse> {
        Err(Status::unimplemented("not asked"))
    }

    async fn list_pod_sandbox_stats(
        &self,
        _: Request<cri::ListPodSandboxStatsRequest>,
    ) -> Answer<cri::ListPodSandboxStatsResponse> {
        let stats = self.with(|inner| inner.sandboxes.values().map(|(status, _)| inner.stats(status)).collect());
        ok(cri::ListPodSandboxStatsResponse { stats })
    }

    async fn update_runtime_config(
        &self,
        _: Request<cri::UpdateRuntimeConfigRequest>,
    ) -> Answer<cri::UpdateRuntimeConfigResponse> {
        ok(cri::UpdateRuntimeConfigResponse {})
    }

    type GetContainerEventsStream = Pin<Box<dyn Stream<Item = Result<cri::ContainerEventResponse, Status>> + Send>>;

    async fn get_container_events(&self, _: Request<cri::GetEventsRequest>) -> Answer<Self::GetContainerEventsStream> {
        let events = BroadcastStream::new(self.events.subscribe());
        let events = events.filter_map(|event| futures::future::ready(event.ok().map(Ok)));
        ok(Box::pin(events) as Self::GetContainerEventsStream)
    }

    async fn runtime_config(&self, _: Request<cri::RuntimeConfigRequest>) -> Answer<cri::RuntimeConfigResponse> {
        Err(Status::unimplemented("not asked"))
    }

    async fn update_pod_sandbox_resources(
        &self,
        _: Request<cri::UpdatePodSandboxResourcesRequest>,
    ) -> Answer<cri::UpdatePodSandboxResourcesResponse> {
        Err(Status::unimplemented("not asked"))
    }
}

#[tonic::async_trait]
impl ImageService for FakeCri {
    async fn list_images(&self, _: Request<cri::ListImagesRequest>) -> Answer<cri::ListImagesResponse> {
        ok(cri::ListImagesResponse { images: vec![] })
    }

    async fn image_status(&self, request: Request<cri::ImageStatusRequest>) -> Answer<cri::ImageStatusResponse> {
        let name = request.into_inner().image.unwrap().user_specified_image;
        let present = self.with(|inner| inner.images.contains(&name));
        let image = present.then(|| cri::Image { id: format!("sha256:{name}"), ..Default::default() });
        ok(cri::ImageStatusResponse { image, ..Default::default() })
    }

    async fn pull_image(&self, request: Request<cri::PullImageRequest>) -> Answer<cri::PullImageResponse> {
        let name = request.into_inner().image.unwrap().user_specified_image;
        if name.starts_with("missing") {
            return Err(Status::not_found(format!("{name}: not found")));
        }
        self.with(|inner| inner.images.push(name.clone()));
        ok(cri::PullImageResponse { image_ref: name })
    }

    async fn remove_image(&self, request: Request<cri::RemoveImageRequest>) -> Answer<cri::RemoveImageResponse> {
        self.call(format!("remove image {}", request.into_inner().image.unwrap().image));
        ok(cri::RemoveImageResponse {})
    }

    async fn image_fs_info(&self, _: Request<cri::ImageFsInfoRequest>) -> Answer<cri::ImageFsInfoResponse> {
        let usage = cri::FilesystemUsage {
            fs_id: Some(cri::FilesystemIdentifier { mountpoint: "/".into() }),
            ..Default::default()
        };
        ok(cri::ImageFsInfoResponse { image_filesystems: vec![usage], container_filesystems: vec![] })
    }
}
