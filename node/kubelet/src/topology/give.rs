//! Giving a pod its parts: container by container, from every manager, near each other.

use corten_api::k8s_openapi::api::core::v1::{Container, Pod};

use super::{Hint, Policy, Topology, merge};
use crate::pods::Services;
use crate::pods::admission::Rejection;
use crate::pods::spec::{self, Role};

impl Topology {
    /// Gives the pod everything that it has for itself, or nothing.
    pub async fn give(&self, services: &Services, pod: &Pod) -> Result<(), Rejection> {
        let concerned = services.devices.concerns(pod) || services.cpus.concerns(pod) || services.memory.concerns(pod);
        if !concerned {
            return Ok(());
        }
        let _alone = self.giving.lock().await;
        let given = self.give_containers(services, pod).await;
        if given.is_err() {
            services.release_parts(spec::uid(pod));
        }
        given
    }

    async fn give_containers(&self, services: &Services, pod: &Pod) -> Result<(), Rejection> {
        let whole = match self.whole_pod && self.policy != Policy::None {
            true => Some(self.place(services, pod, None)?),
            false => None,
        };
        for declared in spec::containers(pod).filter(|declared| declared.role != Role::Ephemeral) {
            let container = declared.container.as_ref();
            let place = match whole {
                Some(place) => place,
                None => self.place(services, pod, Some(container))?,
            };
            services.devices.allocate(pod, container, place.nodes).await.map_err(Rejection::of)?;
            services.cpus.allocate(pod, container, place.nodes).map_err(Rejection::of)?;
            services.memory.allocate(pod, container, place).map_err(Rejection::of)?;
        }
        Ok(())
    }

    /// Where the container, or the whole pod, gets its parts from.
    fn place(&self, services: &Services, pod: &Pod, container: Option<&Container>) -> Result<Hint, Rejection> {
        if self.policy == Policy::None {
            return Ok(Hint { nodes: None, preferred: false });
        }
        let mut hints = services.devices.hints(pod, container, self.machine.nodes);
        hints.extend(services.cpus.hints(pod, container));
        hints.extend(services.memory.hints(pod, container));
        merge::merge(self.policy, &self.machine, &hints).ok_or_else(Rejection::topology)
    }
}
