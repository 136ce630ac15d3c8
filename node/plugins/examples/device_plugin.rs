//! A device plugin in one file, for testing a node's side: its devices are all `/dev/null`.
//!
//! `device_plugin <kubelet root> <resource> <how many> [CDI device]` registers and serves until it is killed. With a
//! CDI device, containers get that name too, and the runtime looks it up.

use std::collections::HashMap;
use std::path::PathBuf;

use corten_plugins::device_plugin::device_plugin_server::{DevicePlugin, DevicePluginServer};
use corten_plugins::device_plugin::registration_client::RegistrationClient;
use corten_plugins::device_plugin::{self as api};
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::{Request, Response, Status};

type Answer<T> = Result<Response<T>, Status>;

#[derive(Clone)]
struct Plugin {
    count: usize,
    cdi: Option<String>,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [root, resource, count, cdi @ ..] = arguments.as_slice() else {
        anyhow::bail!("usage: device_plugin <kubelet root> <resource> <how many> [CDI device]");
    };
    let plugin = Plugin { count: count.parse()?, cdi: cdi.first().cloned() };
    let directory = PathBuf::from(root).join("device-plugins");
    let name = format!("{}.sock", resource.replace('/', "_"));
    let socket = directory.join(&name);
    let _ = std::fs::remove_file(&socket);
    let incoming = UnixListenerStream::new(tokio::net::UnixListener::bind(&socket)?);
    let serving = tokio::spawn(
        tonic::transport::Server::builder().add_service(DevicePluginServer::new(plugin)).serve_with_incoming(incoming),
    );
    let mut kubelet = RegistrationClient::new(corten_plugins::connect_lazy(&directory.join("kubelet.sock"))?);
    let request = api::RegisterRequest {
        version: "v1beta1".into(),
        endpoint: name,
        resource_name: resource.clone(),
        options: None,
    };
    kubelet.register(request).await?;
    serving.await??;
    Ok(())
}

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    async fn get_device_plugin_options(&self, _: Request<api::Empty>) -> Answer<api::DevicePluginOptions> {
        Ok(Response::new(api::DevicePluginOptions::default()))
    }

    type ListAndWatchStream = ReceiverStream<Result<api::ListAndWatchResponse, Status>>;

    async fn list_and_watch(&self, _: Request<api::Empty>) -> Answer<Self::ListAndWatchStream> {
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        let device = |number| api::Device { id: format!("dev-{number}"), health: "Healthy".into(), topology: None };
        let devices = (0..self.count).map(device).collect();
        tokio::spawn(async move {
            let _ = sender.send(Ok(api::ListAndWatchResponse { devices })).await;
            sender.closed().await;
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn get_preferred_allocation(
        &self,
        _: Request<api::PreferredAllocationRequest>,
    ) -> Answer<api::PreferredAllocationResponse> {
        Err(Status::unimplemented("any device is as good as another"))
    }

    async fn allocate(&self, request: Request<api::AllocateRequest>) -> Answer<api::AllocateResponse> {
        let containers = request.into_inner().container_requests.into_iter().map(|container| {
            let device = |id: &String| api::DeviceSpec {
                container_path: format!("/dev/{id}"),
                host_path: "/dev/null".into(),
                permissions: "rw".into(),
            };
            api::ContainerAllocateResponse {
                envs: HashMap::from([("DEVICES".to_owned(), container.devices_ids.join(","))]),
                devices: container.devices_ids.iter().map(device).collect(),
                cdi_devices: self.cdi.iter().map(|name| api::CdiDevice { name: name.clone() }).collect(),
                ..api::ContainerAllocateResponse::default()
            }
        });
        Ok(Response::new(api::AllocateResponse { container_responses: containers.collect() }))
    }

    async fn pre_start_container(
        &self,
        _: Request<api::PreStartContainerRequest>,
    ) -> Answer<api::PreStartContainerResponse> {
        Ok(Response::new(api::PreStartContainerResponse {}))
    }
}
