//! The extended resources that the containers of a pod request: if a DeviceClass provides them, each container gets
//! devices of its own.

use corten_api::k8s_openapi::api::core::v1::{Container, PodSpec};

use crate::resources::Resources;

/// The prefix of a DeviceClass name: every class is an extended resource under this name.
pub const CLASS_PREFIX: &str = "deviceclass.resource.kubernetes.io/";

/// A container that requests extended resources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtendedUse {
    /// The index among all containers, init containers first.
    pub index: usize,
    pub container: String,
    /// Whether it terminates before the containers after it start, which can use its devices then.
    pub ends_early: bool,
    pub asks: Vec<Ask>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    pub resource: String,
    pub count: i64,
    /// The index among all resources of the container, sorted by name.
    pub place: usize,
}

impl ExtendedUse {
    pub fn ask(&self, resource: &str) -> Option<&Ask> {
        self.asks.iter().find(|ask| ask.resource == resource)
    }
}

/// Reports whether a DeviceClass can provide the resource.
pub fn is_extended(name: &str) -> bool {
    name.starts_with(CLASS_PREFIX)
        || (name.contains('/') && !name.contains("kubernetes.io/") && !name.starts_with("requests."))
}

pub fn uses(spec: &PodSpec) -> Vec<ExtendedUse> {
    let init = spec.init_containers.iter().flatten();
    let early = init.map(|container| (container, container.restart_policy.as_deref() != Some("Always")));
    let all = early.chain(spec.containers.iter().map(|container| (container, false)));
    all.enumerate().filter_map(|(index, (container, ends_early))| of(index, container, ends_early)).collect()
}

fn of(index: usize, container: &Container, ends_early: bool) -> Option<ExtendedUse> {
    let requests = container.resources.as_ref()?.requests.as_ref()?;
    let quantities = Resources::from_list(Some(requests));
    let asks: Vec<Ask> = requests
        .keys()
        .enumerate()
        .filter(|(_, name)| is_extended(name) && quantities.get(name) > 0)
        .map(|(place, name)| Ask { resource: name.clone(), count: quantities.get(name), place })
        .collect();
    (!asks.is_empty()).then(|| ExtendedUse { index, container: container.name.clone(), ends_early, asks })
}
