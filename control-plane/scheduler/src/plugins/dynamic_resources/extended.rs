//! Extended resources that a DeviceClass provides: on a node that does not advertise the resource, a ResourceClaim for
//! devices of the class is created for the pod.

use std::collections::BTreeMap;

use corten_api::k8s_openapi::api::core::v1::ContainerExtendedResourceRequest;
use corten_api::k8s_openapi::api::resource::v1::{
    DeviceClaim, DeviceRequest, ExactDeviceRequest, ResourceClaim, ResourceClaimSpec,
};
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use corten_meta::Key;

use crate::rows::devices::{Devices, EXTENDED_CLAIM};
use crate::rows::extended::{ExtendedUse, is_extended};
use crate::rows::{NodeRow, PodRow};

/// A claim to create, and the mapping of containers to its requests.
#[derive(Debug)]
pub struct Made {
    pub claim: ResourceClaim,
    pub mappings: Vec<ContainerExtendedResourceRequest>,
}

/// Returns the DeviceClasses of the pod's extended resources, by resource.
pub fn classes(pod: &PodRow, devices: &Devices) -> BTreeMap<String, String> {
    if pod.demand.extended.is_empty() {
        return BTreeMap::new();
    }
    let requested = pod.demand.requests.scalar.iter().filter(|(name, quantity)| is_extended(name) && **quantity > 0);
    requested.filter_map(|(name, _)| Some((name.clone(), devices.class_of(name)?.to_owned()))).collect()
}

/// Returns the key under which the allocation is assumed until the claim is written; no claim can have this name.
pub fn promise(pod: &PodRow) -> Key {
    Key { namespace: pod.namespace().to_owned(), name: format!("<extended-resources of {}>", pod.uid) }
}

/// Returns the claim for the resources that the node does not advertise.
pub fn claim(pod: &PodRow, classes: &BTreeMap<String, String>, node: &NodeRow) -> Option<Made> {
    let lacking = classes.iter().filter(|(resource, _)| node.allocatable.get(resource) == 0);
    let mut requests = Vec::new();
    let mut mappings = Vec::new();
    for (resource, class) in lacking {
        let (more, more_mappings) = of_resource(&pod.demand.extended, resource, class);
        requests.extend(more);
        mappings.extend(more_mappings);
    }
    if requests.is_empty() {
        return None;
    }
    requests.sort_by(|one, other| one.name.cmp(&other.name));
    let devices = DeviceClaim { requests: Some(requests), ..DeviceClaim::default() };
    let spec = ResourceClaimSpec { devices: Some(devices) };
    Some(Made { claim: ResourceClaim { metadata: metadata(pod), spec, status: None }, mappings })
}

fn metadata(pod: &PodRow) -> ObjectMeta {
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: pod.name.clone(),
        uid: pod.uid.to_string(),
        controller: Some(true),
        block_owner_deletion: None,
    };
    ObjectMeta {
        namespace: Some(pod.namespace().to_owned()),
        generate_name: Some(format!("{}-extended-resources-", pod.name)),
        owner_references: Some(vec![owner]),
        annotations: Some([(EXTENDED_CLAIM.to_owned(), "true".to_owned())].into()),
        ..ObjectMeta::default()
    }
}

/// A request of one container, with the index of the container.
struct ContainerRequest {
    index: usize,
    name: String,
    count: i64,
}

/// Returns the requests for one resource. App containers and sidecars have requests of their own; an init container
/// uses those of the containers after it, and shares any further demand with other init containers.
fn of_resource(
    uses: &[ExtendedUse],
    resource: &str,
    class: &str,
) -> (Vec<DeviceRequest>, Vec<ContainerExtendedResourceRequest>) {
    let mut mappings = Vec::new();
    let mut staying: Vec<ContainerRequest> = Vec::new();
    for (used, ask) in uses.iter().filter_map(|used| Some((used, used.ask(resource)?))).filter(|(u, _)| !u.ends_early) {
        let name = format!("container-{}-request-{}", used.index, ask.place);
        mappings.push(mapping(used, resource, &name));
        staying.push(ContainerRequest { index: used.index, name, count: ask.count });
    }
    // The demand of init containers beyond that of the others, and the container with the highest.
    let mut most: Option<ContainerRequest> = None;
    let mut in_need: Vec<&ExtendedUse> = Vec::new();
    let mut early = Vec::new();
    for (used, ask) in uses.iter().filter_map(|used| Some((used, used.ask(resource)?))).filter(|(u, _)| u.ends_early) {
        let mut missing = ask.count;
        for later in staying.iter().filter(|later| later.index >= used.index) {
            if missing <= 0 {
                break;
            }
            missing -= later.count;
            early.push(mapping(used, resource, &later.name));
        }
        if missing > 0 {
            in_need.push(used);
            if most.as_ref().is_none_or(|most| most.count < missing) {
                let name = format!("container-{}-request-{}", used.index, ask.place);
                most = Some(ContainerRequest { index: used.index, name, count: missing });
            }
        }
    }
    mappings.extend(early);
    if let Some(most) = &most {
        mappings.extend(in_need.into_iter().map(|used| mapping(used, resource, &most.name)));
    }
    let requests = most.into_iter().chain(staying).map(|requested| request(requested, class)).collect();
    (requests, mappings)
}

fn mapping(used: &ExtendedUse, resource: &str, request: &str) -> ContainerExtendedResourceRequest {
    ContainerExtendedResourceRequest {
        container_name: used.container.clone(),
        resource_name: resource.to_owned(),
        request_name: request.to_owned(),
    }
}

fn request(requested: ContainerRequest, class: &str) -> DeviceRequest {
    let exactly = ExactDeviceRequest {
        device_class_name: class.to_owned(),
        allocation_mode: Some("ExactCount".to_owned()),
        count: Some(requested.count),
        ..ExactDeviceRequest::default()
    };
    DeviceRequest { name: requested.name, exactly: Some(exactly), ..DeviceRequest::default() }
}
