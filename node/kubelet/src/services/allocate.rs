//! Allocates CPUs, memory and devices to a pod: container by container, aligned by the topology manager.

use corten_api::k8s_openapi::api::core::v1::{Container, Pod};

use super::NodeResources;
use crate::admission::Rejection;
use crate::numa::Hint;
use crate::pod::spec::{self, Role};

impl NodeResources {
    /// Allocates all exclusive resources of the pod, or none.
    pub async fn allocate(&self, pod: &Pod) -> Result<(), Rejection> {
        let concerned = self.devices.concerns(pod) || self.cpus.concerns(pod) || self.memory.concerns(pod);
        if !concerned {
            return Ok(());
        }
        let _alone = self.topology.one_at_a_time().await;
        let allocated = self.allocate_containers(pod).await;
        if allocated.is_err() {
            self.release(spec::uid(pod));
        }
        allocated
    }

    async fn allocate_containers(&self, pod: &Pod) -> Result<(), Rejection> {
        let of_pod = match self.topology.aligns_pods() {
            true => Some(self.align(pod, None)?),
            false => None,
        };
        for declared in spec::containers(pod).filter(|declared| declared.role != Role::Ephemeral) {
            let container = declared.container.as_ref();
            let hint = match of_pod {
                Some(hint) => hint,
                None => self.align(pod, Some(container))?,
            };
            self.devices.allocate(pod, container, hint.nodes).await.map_err(Rejection::of)?;
            self.cpus.allocate(pod, container, hint.nodes).map_err(Rejection::of)?;
            self.memory.allocate(pod, container, hint).map_err(Rejection::of)?;
        }
        Ok(())
    }

    /// Returns the NUMA nodes from which a container, or all containers of a pod together, get their resources.
    fn align(&self, pod: &Pod, container: Option<&Container>) -> Result<Hint, Rejection> {
        self.topology
            .align(|nodes| {
                let mut hints = self.devices.hints(pod, container, nodes);
                hints.extend(self.cpus.hints(pod, container));
                hints.extend(self.memory.hints(pod, container));
                hints
            })
            .ok_or_else(Rejection::topology)
    }
}
