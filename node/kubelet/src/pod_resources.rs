//! The pod resources API v1, on a socket of root: shows monitoring agents of the node the devices of each pod.

use std::sync::Arc;

use corten_plugins::pod_resources as api;
use corten_plugins::pod_resources::pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use tracing::warn;

use crate::plugin_api::serve;
use crate::pod::spec;
use crate::pod::view::{View, Views};
use crate::services::Services;

/// Serves the API until shutdown.
pub async fn run(services: Arc<Services>, views: Views, stop: CancellationToken) {
    let socket = services.config.root_dir.join("pod-resources/kubelet.sock");
    match serve::listen(&socket) {
        Ok(listener) => serve::serve(listener, PodResourcesListerServer::new(Lister { services, views }), stop).await,
        Err(error) => warn!(%error, "pod resources are not shown"),
    }
}

struct Lister {
    services: Arc<Services>,
    views: Views,
}

impl Lister {
    fn pod(&self, view: &View) -> api::PodResources {
        let pod = &view.pod;
        let containers = spec::containers(pod).filter(|declared| declared.role != spec::Role::Ephemeral);
        api::PodResources {
            name: spec::name(pod).to_owned(),
            namespace: spec::namespace(pod).to_owned(),
            containers: containers
                .map(|declared| api::ContainerResources {
                    name: declared.container.name.clone(),
                    devices: self.services.resources.devices.shown(spec::uid(pod), &declared.container.name),
                    cpu_ids: ids(&self.services.resources.cpus.own(spec::uid(pod), &declared.container.name)),
                    memory: memory(self.services.resources.memory.blocks(spec::uid(pod), &declared.container.name)),
                    dynamic_resources: self.services.resources.claims.shown(pod, &declared.container),
                })
                .collect(),
        }
    }
}

#[tonic::async_trait]
impl PodResourcesLister for Lister {
    async fn list(
        &self,
        _: Request<api::ListPodResourcesRequest>,
    ) -> Result<Response<api::ListPodResourcesResponse>, Status> {
        let pod_resources = self.views.all().iter().map(|view| self.pod(view)).collect();
        Ok(Response::new(api::ListPodResourcesResponse { pod_resources }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<api::AllocatableResourcesRequest>,
    ) -> Result<Response<api::AllocatableResourcesResponse>, Status> {
        let devices = self.services.resources.devices.all_shown();
        let cpu_ids = ids(&self.services.resources.cpus.allocatable());
        let memory = memory(self.services.resources.memory.allocatable());
        Ok(Response::new(api::AllocatableResourcesResponse { devices, cpu_ids, memory }))
    }

    async fn get(
        &self,
        request: Request<api::GetPodResourcesRequest>,
    ) -> Result<Response<api::GetPodResourcesResponse>, Status> {
        let request = request.into_inner();
        let fits = |view: &&View| {
            spec::name(&view.pod) == request.pod_name && spec::namespace(&view.pod) == request.pod_namespace
        };
        let views = self.views.all();
        let Some(view) = views.iter().find(fits) else {
            let message = format!("pod {} in namespace {} not found", request.pod_name, request.pod_namespace);
            return Err(Status::not_found(message));
        };
        Ok(Response::new(api::GetPodResourcesResponse { pod_resources: Some(self.pod(view)) }))
    }
}

fn memory(blocks: Vec<crate::memory::Block>) -> Vec<api::ContainerMemory> {
    let shown = blocks.into_iter().map(|block| api::ContainerMemory {
        topology: Some(api::TopologyInfo {
            nodes: crate::numa::numbers(block.nodes).map(|id| api::NumaNode { id: i64::from(id) }).collect(),
        }),
        memory_type: block.kind,
        size: block.size,
    });
    shown.collect()
}

fn ids(cpus: &crate::cpus::set::CpuSet) -> Vec<i64> {
    cpus.iter().map(|cpu| i64::from(*cpu)).collect()
}
