//! Plugins of the node against a complete kubelet: a CSI driver, a device plugin and a DRA driver in this process, on
//! sockets where the kubelet expects them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use corten_plugins::csi::node_server::{Node, NodeServer};
use corten_plugins::csi::node_service_capability::{Rpc, Type, rpc};
use corten_plugins::device_plugin::device_plugin_server::{DevicePlugin, DevicePluginServer};
use corten_plugins::device_plugin::registration_client::RegistrationClient;
use corten_plugins::dynamic_resources::dra_plugin_server::{DraPlugin, DraPluginServer};
use corten_plugins::dynamic_resources_health as health;
use corten_plugins::dynamic_resources_health::dra_resource_health_server::{
    DraResourceHealth, DraResourceHealthServer,
};
use corten_plugins::registration::registration_server::{Registration, RegistrationServer};
use corten_plugins::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use corten_plugins::{csi, device_plugin, dynamic_resources};
use serde_json::{Value, json};
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status};

use super::*;

type Answer<T> = Result<Response<T>, Status>;

/// A plugin of any type; it records its calls.
#[derive(Clone)]
pub struct Plugin {
    kind: &'static str,
    name: &'static str,
    versions: &'static [&'static str],
    socket: PathBuf,
    calls: Arc<Mutex<Vec<String>>>,
    /// The calls that it refuses, with their codes.
    refusals: Arc<Mutex<HashMap<&'static str, Code>>>,
    /// The health of its device `gpu-0`, with a message.
    health: tokio::sync::watch::Sender<(health::HealthStatus, String)>,
}

impl Plugin {
    pub fn new(root: &Path, kind: &'static str, name: &'static str, versions: &'static [&'static str]) -> Plugin {
        let socket = root.join(format!("{name}.sock"));
        let health = tokio::sync::watch::Sender::default();
        Plugin { kind, name, versions, socket, calls: Arc::default(), refusals: Arc::default(), health }
    }

    /// Sets the code with which the plugin refuses these calls; none accepts them.
    pub fn refuse(&self, call: &'static str, code: Option<Code>) {
        let mut refusals = self.refusals.lock().unwrap();
        match code {
            Some(code) => refusals.insert(call, code),
            None => refusals.remove(call),
        };
    }

    fn answer(&self, call: &str) -> Result<(), Status> {
        let code = self.refusals.lock().unwrap().get(call).copied();
        code.map_or(Ok(()), |code| Err(Status::new(code, "told to")))
    }

    fn note(&self, call: impl Into<String>) {
        self.calls.lock().unwrap().push(call.into());
    }

    pub async fn called(&self, what: &str) {
        let found = || self.calls.lock().unwrap().iter().any(|call| call.contains(what)).then_some(());
        eventually(what, found, || self.calls.lock().unwrap().join("\n")).await;
    }

    pub fn count(&self, what: &str) -> usize {
        self.calls.lock().unwrap().iter().filter(|call| call.contains(what)).count()
    }

    /// Serves the plugin's own service and its registration.
    pub fn register(&self, kubelet_root: &Path) {
        let registry = kubelet_root.join("plugins_registry");
        std::fs::create_dir_all(&registry).unwrap();
        let own = listen(&self.socket);
        let registration = listen(&registry.join(format!("{}-reg.sock", self.name)));
        let plugin = self.clone();
        tokio::spawn(async move {
            Server::builder()
                .add_service(NodeServer::new(plugin.clone()))
                .add_service(DraPluginServer::new(plugin.clone()))
                .add_service(DraResourceHealthServer::new(plugin))
                .serve_with_incoming(own)
                .await
        });
        let plugin = self.clone();
        tokio::spawn(Server::builder().add_service(RegistrationServer::new(plugin)).serve_with_incoming(registration));
    }
}

fn listen(socket: &Path) -> UnixListenerStream {
    UnixListenerStream::new(tokio::net::UnixListener::bind(socket).unwrap())
}

#[tonic::async_trait]
impl Registration for Plugin {
    async fn get_info(&self, _: Request<InfoRequest>) -> Answer<PluginInfo> {
        Ok(Response::new(PluginInfo {
            r#type: self.kind.into(),
            name: self.name.into(),
            endpoint: self.socket.display().to_string(),
            supported_versions: self.versions.iter().map(|version| (*version).to_owned()).collect(),
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Answer<RegistrationStatusResponse> {
        let status = request.into_inner();
        self.note(format!("registered {} {}", status.plugin_registered, status.error));
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[tonic::async_trait]
impl Node for Plugin {
    async fn node_stage_volume(
        &self,
        request: Request<csi::NodeStageVolumeRequest>,
    ) -> Answer<csi::NodeStageVolumeResponse> {
        let request = request.into_inner();
        assert!(Path::new(&request.staging_target_path).is_dir(), "the kubelet makes the staging directory");
        self.note(format!("stage {} {:?} {:?}", request.volume_id, request.publish_context, request.secrets));
        self.answer("stage")?;
        Ok(Response::new(csi::NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<csi::NodeUnstageVolumeRequest>,
    ) -> Answer<csi::NodeUnstageVolumeResponse> {
        self.note(format!("unstage {}", request.into_inner().volume_id));
        self.answer("unstage")?;
        Ok(Response::new(csi::NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<csi::NodePublishVolumeRequest>,
    ) -> Answer<csi::NodePublishVolumeResponse> {
        let request = request.into_inner();
        std::fs::create_dir_all(&request.target_path).unwrap();
        let info = request.volume_context.get("csi.storage.k8s.io/pod.name").cloned().unwrap_or_default();
        self.note(format!("publish {} for {info}", request.volume_id));
        Ok(Response::new(csi::NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<csi::NodeUnpublishVolumeRequest>,
    ) -> Answer<csi::NodeUnpublishVolumeResponse> {
        let request = request.into_inner();
        let _ = std::fs::remove_dir(&request.target_path);
        self.note(format!("unpublish {}", request.volume_id));
        Ok(Response::new(csi::NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        _: Request<csi::NodeGetVolumeStatsRequest>,
    ) -> Answer<csi::NodeGetVolumeStatsResponse> {
        Err(Status::unimplemented("not asked"))
    }

    async fn node_expand_volume(
        &self,
        request: Request<csi::NodeExpandVolumeRequest>,
    ) -> Answer<csi::NodeExpandVolumeResponse> {
        let request = request.into_inner();
        let capacity_bytes = request.capacity_range.unwrap().required_bytes;
        self.note(format!("expand {} to {capacity_bytes}", request.volume_id));
        self.answer("expand")?;
        Ok(Response::new(csi::NodeExpandVolumeResponse { capacity_bytes }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<csi::NodeGetCapabilitiesRequest>,
    ) -> Answer<csi::NodeGetCapabilitiesResponse> {
        let kinds = [rpc::Type::StageUnstageVolume, rpc::Type::ExpandVolume];
        let capabilities =
            kinds.map(|kind| csi::NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: kind as i32 })) });
        Ok(Response::new(csi::NodeGetCapabilitiesResponse { capabilities: capabilities.to_vec() }))
    }

    async fn node_get_info(&self, _: Request<csi::NodeGetInfoRequest>) -> Answer<csi::NodeGetInfoResponse> {
        let segments = HashMap::from([("topology.d.example/rack".to_owned(), "r1".to_owned())]);
        Ok(Response::new(csi::NodeGetInfoResponse {
            node_id: "id-of-n1".into(),
            max_volumes_per_node: 3,
            accessible_topology: Some(csi::Topology { segments }),
        }))
    }
}

#[tonic::async_trait]
impl DraPlugin for Plugin {
    async fn node_prepare_resources(
        &self,
        request: Request<dynamic_resources::NodePrepareResourcesRequest>,
    ) -> Answer<dynamic_resources::NodePrepareResourcesResponse> {
        let claims = request.into_inner().claims.into_iter().map(|claim| {
            self.note(format!("prepare {}/{}", claim.namespace, claim.name));
            let device = dynamic_resources::Device {
                request_names: vec!["gpu".into()],
                pool_name: "n1".into(),
                device_name: "gpu-0".into(),
                cdi_device_ids: vec!["example.com/gpu=0".into()],
                share_id: None,
            };
            let answer = dynamic_resources::NodePrepareResourceResponse { devices: vec![device], error: String::new() };
            (claim.uid, answer)
        });
        let claims = claims.collect();
        Ok(Response::new(dynamic_resources::NodePrepareResourcesResponse { claims }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<dynamic_resources::NodeUnprepareResourcesRequest>,
    ) -> Answer<dynamic_resources::NodeUnprepareResourcesResponse> {
        let claims = request.into_inner().claims.into_iter().map(|claim| {
            self.note(format!("unprepare {}/{}", claim.namespace, claim.name));
            (claim.uid, dynamic_resources::NodeUnprepareResourceResponse::default())
        });
        let claims = claims.collect();
        Ok(Response::new(dynamic_resources::NodeUnprepareResourcesResponse { claims }))
    }
}

#[tonic::async_trait]
impl DraResourceHealth for Plugin {
    type NodeWatchResourcesStream = ReceiverStream<Result<health::NodeWatchResourcesResponse, Status>>;

    async fn node_watch_resources(
        &self,
        _: Request<health::NodeWatchResourcesRequest>,
    ) -> Answer<Self::NodeWatchResourcesStream> {
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        let mut news = self.health.subscribe();
        tokio::spawn(async move {
            while news.changed().await.is_ok() {
                let (status, message) = news.borrow_and_update().clone();
                let device = health::DeviceHealth {
                    device: Some(health::DeviceIdentifier { pool_name: "n1".into(), device_name: "gpu-0".into() }),
                    health: status.into(),
                    health_check_timeout_seconds: 3600,
                    message,
                    ..Default::default()
                };
                let _ = sender.send(Ok(health::NodeWatchResourcesResponse { devices: vec![device] })).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

pub fn put_claim(fixture: &Fixture, attach: bool) {
    fixture.api.put(
        "/apis/storage.k8s.io/v1/csidrivers/d.example",
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": "d.example"},
               "spec": {"attachRequired": attach, "podInfoOnMount": true,
                        "volumeLifecycleModes": ["Persistent", "Ephemeral"]}}),
    );
    fixture.api.put(
        "/api/v1/namespaces/ns/persistentvolumeclaims/data",
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data", "namespace": "ns"},
               "spec": {"volumeName": "pv-1"},
               "status": {"phase": "Bound", "capacity": {"storage": "1Gi"},
                          "conditions": [{"type": "FileSystemResizePending", "status": "True"}]}}),
    );
    fixture.api.put(
        "/api/v1/persistentvolumes/pv-1",
        json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv-1"},
               "spec": {"claimRef": {"uid": "uid-data"}, "capacity": {"storage": "2Gi"},
                        "accessModes": ["ReadWriteOnce"], "csi": {"driver": "d.example", "volumeHandle": "h-1"}}}),
    );
}

pub fn with_volume(source: Value) -> Value {
    let mut spec = one("present");
    let mut volume = json!({"name": "v"});
    volume.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
    spec["volumes"] = json!([volume]);
    spec["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/data"}]);
    spec
}

pub fn running(status: &Value) -> bool {
    status["phase"] == "Running"
}

#[tokio::test]
async fn a_csi_volume_is_staged_published_expanded_and_unpublished() {
    let fixture = Fixture::start().await;
    put_claim(&fixture, false);
    fixture.create_pod("p", with_volume(json!({"persistentVolumeClaim": {"claimName": "data"}})));
    fixture.event("driver name d.example not found in the list of registered CSI drivers").await;

    let driver = Plugin::new(fixture.root.path(), "CSIPlugin", "d.example", &["1.0.0"]);
    driver.register(&fixture.config.root_dir);
    driver.called("registered true").await;
    fixture.pod("p", "the pod to run once its driver is there", running).await;
    driver.called("publish h-1 for p").await;
    driver.called("expand h-1 to 2147483648").await;

    let csi_node = fixture.api.get("/apis/storage.k8s.io/v1/csinodes/n1").unwrap();
    let reported = &csi_node["spec"]["drivers"][0];
    assert_eq!((&reported["nodeID"], &reported["allocatable"]["count"]), (&json!("id-of-n1"), &json!(3)), "{csi_node}");
    let node = fixture.api.get("/api/v1/nodes/n1").unwrap();
    assert_eq!(node["metadata"]["labels"]["topology.d.example/rack"], "r1");
    let claim = fixture.api.get("/api/v1/namespaces/ns/persistentvolumeclaims/data").unwrap();
    assert_eq!(claim["status"]["capacity"]["storage"], "2Gi");
    let pod_dir = fixture.config.root_dir.join("pods/uid-p");
    let target = pod_dir.join("volumes/kubernetes.io~csi/pv-1/mount");
    let mounts = fixture.cri.config("main").mounts;
    assert!(mounts.iter().any(|mount| Path::new(&mount.host_path) == target && mount.container_path == "/data"));

    fixture.delete_pod("p", 0);
    driver.called("unstage h-1").await;
    eventually("the pod's directory to go", || (!pod_dir.exists()).then_some(()), || format!("{pod_dir:?}")).await;
    assert_eq!((driver.count("stage h-1 "), driver.count("unpublish h-1")), (1, 1));
}

#[tokio::test]
async fn an_attachable_volume_waits_for_its_attachment() {
    let fixture = Fixture::start().await;
    put_claim(&fixture, true);
    let driver = Plugin::new(fixture.root.path(), "CSIPlugin", "d.example", &["1.0.0"]);
    driver.register(&fixture.config.root_dir);
    driver.called("registered true").await;
    fixture.create_pod("p", with_volume(json!({"persistentVolumeClaim": {"claimName": "data"}})));

    let name = "kubernetes.io/csi/d.example^h-1";
    let in_use = || {
        let node = fixture.api.get("/api/v1/nodes/n1")?;
        node["status"]["volumesInUse"].as_array()?.contains(&json!(name)).then_some(())
    };
    eventually("the node to use the volume", in_use, || format!("{:?}", fixture.api.get("/api/v1/nodes/n1"))).await;
    assert_eq!(driver.count("stage"), 0, "not before it is attached");

    let id = attachment();
    fixture.api.put(
        &format!("/apis/storage.k8s.io/v1/volumeattachments/{id}"),
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": id},
               "spec": {"attacher": "d.example", "nodeName": "n1", "source": {"persistentVolumeName": "pv-1"}},
               "status": {"attached": true, "attachmentMetadata": {"device": "/dev/xyz"}}}),
    );
    fixture.api.change("/api/v1/nodes/n1", |node| {
        node["status"]["volumesAttached"] = json!([{"name": name, "devicePath": ""}]);
    });
    driver.called("stage h-1 {\"device\": \"/dev/xyz\"}").await;
    fixture.pod("p", "the pod to run", running).await;

    fixture.delete_pod("p", 0);
    driver.called("unstage h-1").await;
    let free = || {
        let node = fixture.api.get("/api/v1/nodes/n1")?;
        let list = node["status"]["volumesInUse"].as_array().cloned().unwrap_or_default();
        list.is_empty().then_some(())
    };
    eventually("the node to use it no more", free, || format!("{:?}", fixture.api.get("/api/v1/nodes/n1"))).await;
}

/// Returns the name that upstream's attacher gives the attachment of `h-1` by `d.example` to `n1`.
fn attachment() -> String {
    use sha2::{Digest, Sha256};
    let digest = Sha256::digest(b"h-1d.examplen1");
    format!("csi-{}", digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

#[tokio::test]
async fn an_inline_volume_survives_a_kubelet_and_is_removed_with_a_deleted_pod() {
    let mut fixture = Fixture::start().await;
    put_claim(&fixture, false);
    let driver = Plugin::new(fixture.root.path(), "CSIPlugin", "d.example", &["1.0.0"]);
    driver.register(&fixture.config.root_dir);
    fixture.create_pod("p", with_volume(json!({"csi": {"driver": "d.example"}})));
    fixture.pod("p", "the pod to run", running).await;
    assert_eq!(driver.count("stage"), 0, "an inline volume is never staged");

    fixture.stop().await;
    fixture.api.remove(&path("p"));
    fixture.resume();
    driver.called("unpublish csi-").await;
    let pod_dir = fixture.config.root_dir.join("pods/uid-p");
    eventually("the orphan's directory to go", || (!pod_dir.exists()).then_some(()), || format!("{pod_dir:?}")).await;
}

#[tokio::test]
async fn a_plugin_of_an_unsupported_version_is_refused() {
    let fixture = Fixture::start().await;
    let driver = Plugin::new(fixture.root.path(), "CSIPlugin", "old.example", &["0.3.0"]);
    driver.register(&fixture.config.root_dir);
    driver.called("registered false").await;
    let other = Plugin::new(fixture.root.path(), "Nonsense", "other.example", &["1.0.0"]);
    other.register(&fixture.config.root_dir);
    other.called("no handler registered for plugin type: Nonsense").await;
}

#[tokio::test]
async fn a_claim_is_prepared_before_the_pod_and_unprepared_after_it() {
    let fixture = Fixture::start().await;
    let driver = Plugin::new(fixture.root.path(), "DRAPlugin", "gpu.example", &["v1.DRAPlugin"]);
    driver.register(&fixture.config.root_dir);
    driver.called("registered true").await;
    fixture.api.put(
        "/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/mine",
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
               "metadata": {"name": "mine", "namespace": "ns"}, "spec": {},
               "status": {"reservedFor": [{"resource": "pods", "name": "p", "uid": "uid-p"}],
                          "allocation": {"devices": {"results": [
                              {"request": "gpu", "driver": "gpu.example", "pool": "n1", "device": "gpu-0"}]}}}}),
    );
    let mut spec = one("present");
    spec["resourceClaims"] = json!([{"name": "c", "resourceClaimName": "mine"}]);
    spec["containers"][0]["resources"] = json!({"claims": [{"name": "c", "request": "gpu"}]});
    fixture.create_pod("p", spec);
    fixture.pod("p", "the pod to run", running).await;
    driver.called("prepare ns/mine").await;
    assert_eq!(fixture.cri.config("main").cdi_devices[0].name, "example.com/gpu=0");

    let shows = |health: &'static str, message: Option<&'static str>| {
        move |status: &Value| {
            let shown = &status["containerStatuses"][0]["allocatedResourcesStatus"][0];
            let mut device = json!({"resourceID": "example.com/gpu=0", "health": health});
            message.into_iter().for_each(|message| device["message"] = message.into());
            *shown == json!({"name": "claim:c/gpu", "resources": [device]})
        }
    };
    fixture.pod("p", "a device without a report", shows("Unknown", None)).await;
    let following = || (driver.health.receiver_count() > 0).then_some(());
    eventually("the kubelet to follow the health", following, String::new).await;
    driver.health.send_replace((health::HealthStatus::Unhealthy, "too hot".into()));
    fixture.pod("p", "an unhealthy device", shows("Unhealthy", Some("too hot"))).await;
    driver.health.send_replace((health::HealthStatus::Healthy, String::new()));
    fixture.pod("p", "a healthy device", shows("Healthy", None)).await;
    std::fs::remove_file(fixture.config.root_dir.join("plugins_registry/gpu.example-reg.sock")).unwrap();
    fixture.pod("p", "a device without its driver", shows("Unknown", None)).await;
    std::fs::remove_file(&driver.socket).unwrap();
    driver.register(&fixture.config.root_dir);
    fixture.delete_pod("p", 0);
    driver.called("unprepare ns/mine").await;
}

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    async fn get_device_plugin_options(
        &self,
        _: Request<device_plugin::Empty>,
    ) -> Answer<device_plugin::DevicePluginOptions> {
        let options =
            device_plugin::DevicePluginOptions { pre_start_required: true, get_preferred_allocation_available: true };
        Ok(Response::new(options))
    }

    type ListAndWatchStream = ReceiverStream<Result<device_plugin::ListAndWatchResponse, Status>>;

    async fn list_and_watch(&self, _: Request<device_plugin::Empty>) -> Answer<Self::ListAndWatchStream> {
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        let device =
            |id: &str, health: &str| device_plugin::Device { id: id.into(), health: health.into(), topology: None };
        let devices = vec![device("d1", "Healthy"), device("d2", "Healthy"), device("d3", "Unhealthy")];
        tokio::spawn(async move {
            let _ = sender.send(Ok(device_plugin::ListAndWatchResponse { devices })).await;
            sender.closed().await;
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn get_preferred_allocation(
        &self,
        _: Request<device_plugin::PreferredAllocationRequest>,
    ) -> Answer<device_plugin::PreferredAllocationResponse> {
        let first = device_plugin::ContainerPreferredAllocationResponse { device_i_ds: vec!["d2".into()] };
        Ok(Response::new(device_plugin::PreferredAllocationResponse { container_responses: vec![first] }))
    }

    async fn allocate(
        &self,
        request: Request<device_plugin::AllocateRequest>,
    ) -> Answer<device_plugin::AllocateResponse> {
        let ids = request.into_inner().container_requests.remove(0).devices_ids.join(",");
        self.note(format!("allocate {ids}"));
        let answer = device_plugin::ContainerAllocateResponse {
            envs: HashMap::from([("DEVICES".to_owned(), ids)]),
            ..Default::default()
        };
        Ok(Response::new(device_plugin::AllocateResponse { container_responses: vec![answer] }))
    }

    async fn pre_start_container(
        &self,
        request: Request<device_plugin::PreStartContainerRequest>,
    ) -> Answer<device_plugin::PreStartContainerResponse> {
        self.note(format!("start {}", request.into_inner().devices_ids.join(",")));
        Ok(Response::new(device_plugin::PreStartContainerResponse {}))
    }
}

/// Serves the plugin in the kubelet's directory and registers it there.
async fn register_devices(fixture: &Fixture, plugin: &Plugin) {
    let directory = fixture.config.root_dir.join("device-plugins");
    let kubelet = directory.join("kubelet.sock");
    eventually("the kubelet's socket", || kubelet.exists().then_some(()), || format!("{kubelet:?}")).await;
    let socket = directory.join("gpu.sock");
    let _ = std::fs::remove_file(&socket);
    let incoming = listen(&socket);
    let service = DevicePluginServer::new(plugin.clone());
    tokio::spawn(Server::builder().add_service(service).serve_with_incoming(incoming));
    let mut client = RegistrationClient::new(corten_plugins::connect_lazy(&kubelet).unwrap());
    let request = device_plugin::RegisterRequest {
        version: "v1beta1".into(),
        endpoint: "gpu.sock".into(),
        resource_name: "example.com/gpu".into(),
        options: None,
    };
    // The socket of an earlier kubelet may still exist without a listener.
    let deadline = tokio::time::Instant::now() + BOUND;
    while let Err(refused) = client.register(request.clone()).await {
        assert!(tokio::time::Instant::now() < deadline, "{refused}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn wants_gpu() -> Value {
    let mut spec = one("present");
    spec["containers"][0]["resources"] =
        json!({"limits": {"example.com/gpu": "1"}, "requests": {"example.com/gpu": "1"}});
    spec
}

#[tokio::test]
async fn devices_are_reported_allocated_once_and_remembered() {
    let mut fixture = Fixture::start().await;
    let plugin = Plugin::new(fixture.root.path(), "DevicePlugin", "gpu", &["v1beta1"]);
    register_devices(&fixture, &plugin).await;
    let api = fixture.api.clone();
    let are_reported = || {
        let status = api.get("/api/v1/nodes/n1")?["status"].clone();
        let fits = status["capacity"]["example.com/gpu"] == "3" && status["allocatable"]["example.com/gpu"] == "2";
        fits.then_some(())
    };
    eventually("the devices in the node's status", &are_reported, || {
        format!("{:?}", fixture.api.get("/api/v1/nodes/n1"))
    })
    .await;

    fixture.create_pod("a", wants_gpu());
    fixture.pod("a", "the pod to run", running).await;
    plugin.called("start d2").await;
    let healthy = json!([{"name": "example.com/gpu", "resources": [{"resourceID": "d2", "health": "Healthy"}]}]);
    let status = fixture.pod("a", "the pod to run", running).await;
    assert_eq!(status["containerStatuses"][0]["allocatedResourcesStatus"], healthy);
    let envs = fixture.cri.config("main").envs;
    assert!(envs.iter().any(|env| env.key == "DEVICES" && env.value == b"d2".as_slice()), "the preferred device");

    fixture.stop().await;
    // The report of the earlier kubelet must not count as that of this one.
    fixture.api.change("/api/v1/nodes/n1", |node| {
        for list in ["capacity", "allocatable"] {
            node["status"][list].as_object_mut().unwrap().remove("example.com/gpu");
        }
    });
    fixture.resume();
    register_devices(&fixture, &plugin).await;
    eventually("the devices to be back", &are_reported, || format!("{:?}", fixture.api.get("/api/v1/nodes/n1"))).await;
    fixture.create_pod("b", wants_gpu());
    fixture.pod("b", "the second pod to run", running).await;
    plugin.called("allocate d1").await;
    fixture.create_pod("c", wants_gpu());
    let status = fixture.pod("c", "the third pod to be refused", |status| status["phase"] == "Failed").await;
    assert_eq!(status["reason"], "OutOfexample.com/gpu", "{status}");
}
