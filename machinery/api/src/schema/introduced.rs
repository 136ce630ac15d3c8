//! Fields that came after the oldest version that the server can emulate (see [`crate::emulation`]), each with the minor
//! version that enabled it by default.

use std::collections::BTreeSet;

use corten_meta::Value;

use super::{FieldType, Type, schema};
use crate::emulation::MinorVersion;

/// Fields of one type that one minor version introduced.
struct Introduced {
    /// The type, without the common part of the name.
    type_name: &'static str,
    fields: &'static [&'static str],
    since: MinorVersion,
}

const fn fields(type_name: &'static str, fields: &'static [&'static str], minor: u16) -> Introduced {
    Introduced { type_name, fields, since: MinorVersion::new(minor) }
}

const INTRODUCED: &[Introduced] = &[
    fields("apps.v1.DeploymentStatus", &["terminatingReplicas"], 35),
    fields("apps.v1.ReplicaSetStatus", &["terminatingReplicas"], 35),
    fields("autoscaling.v2.HPAScalingRules", &["tolerance"], 35),
    fields("core.v1.Container", &["restartPolicyRules"], 35),
    fields("core.v1.ContainerStatus", &["allocatedResourcesStatus"], 36),
    fields("core.v1.EnvVarSource", &["fileKeyRef"], 35),
    fields("core.v1.EphemeralContainer", &["restartPolicyRules"], 35),
    fields("core.v1.NodeStatus", &["declaredFeatures"], 36),
    fields("core.v1.PersistentVolumeClaimSpec", &["volumeAttributesClassName"], 34),
    fields("core.v1.PersistentVolumeClaimStatus", &["currentVolumeAttributesClassName", "modifyVolumeStatus"], 34),
    fields("core.v1.PersistentVolumeSpec", &["volumeAttributesClassName"], 34),
    fields("core.v1.PodCondition", &["observedGeneration"], 34),
    fields("core.v1.PodSpec", &["hostnameOverride"], 35),
    fields("core.v1.PodSpec", &["resourceClaims", "resources"], 34),
    fields("core.v1.PodStatus", &["allocatedResources", "extendedResourceClaimStatus", "resources"], 36),
    fields("core.v1.PodStatus", &["observedGeneration", "resourceClaimStatuses"], 34),
    fields("core.v1.ResourceRequirements", &["claims"], 34),
    fields("core.v1.Volume", &["image"], 35),
    fields("resource.v1.AllocatedDeviceStatus", &["shareID"], 36),
    fields("resource.v1.AllocationResult", &["allocationTimestamp"], 36),
    fields("resource.v1.Device", &["allNodes", "consumesCounters", "nodeName", "nodeSelector"], 36),
    fields("resource.v1.Device", &["allowMultipleAllocations", "taints"], 36),
    fields("resource.v1.Device", &["bindingConditions", "bindingFailureConditions", "bindsToNode"], 36),
    fields("resource.v1.DeviceCapacity", &["requestPolicy"], 36),
    fields("resource.v1.DeviceClassSpec", &["extendedResourceName"], 36),
    fields("resource.v1.DeviceConstraint", &["distinctAttribute"], 36),
    fields("resource.v1.DeviceRequestAllocationResult", &["bindingConditions", "bindingFailureConditions"], 36),
    fields("resource.v1.DeviceRequestAllocationResult", &["consumedCapacity", "shareID", "tolerations"], 36),
    fields("resource.v1.DeviceSubRequest", &["capacity", "tolerations"], 36),
    fields("resource.v1.ExactDeviceRequest", &["capacity", "tolerations"], 36),
    fields("resource.v1.ResourceSliceSpec", &["perDeviceNodeSelection", "sharedCounters"], 36),
    fields("storage.v1.CSIDriverSpec", &["nodeAllocatableUpdatePeriodSeconds", "serviceAccountTokenInSecrets"], 35),
];

const POD_SPEC: &str = "io.k8s.api.core.v1.PodSpec";
const CONTAINER: &str = "io.k8s.api.core.v1.Container";
const VOLUME: &str = "io.k8s.api.core.v1.Volume";

/// A field of a type, by their names.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Used<'a> {
    type_name: &'a str,
    field: &'a str,
}

/// Returns the version that introduced a field, if it is in the table.
pub(super) fn since(type_name: &str, field: &str) -> Option<MinorVersion> {
    let name = type_name.strip_prefix("io.k8s.api.")?;
    INTRODUCED.iter().find(|row| row.type_name == name && row.fields.contains(&field)).map(|row| row.since)
}

/// Drops the fields that came after `version` from an object of the named type, except those that the stored object
/// uses.
pub(crate) fn drop_later(type_name: &str, version: MinorVersion, value: &mut Value, old: Option<&Value>) {
    let Some(t) = schema().type_(type_name) else { return };
    let mut used = BTreeSet::new();
    if let Some(old) = old {
        note_used(t, old, &mut used);
    }
    drop_of(t, value, &|t, field| {
        since(&t.name, field).is_some_and(|since| since > version)
            && !used.contains(&Used { type_name: t.name.as_str(), field })
    });
}

/// Notes the fields of the table that a value has.
fn note_used(t: &'static Type, value: &Value, used: &mut BTreeSet<Used<'static>>) {
    for field in t.introduced.iter().map(|at| &t.fields[*at]) {
        let Some(inner) = value.get(&field.name) else { continue };
        if since(&t.name, &field.name).is_some() {
            used.insert(Used { type_name: &t.name, field: &field.name });
        }
        note_used_in(&field.kind, inner, used);
    }
}

fn note_used_in(kind: &'static FieldType, value: &Value, used: &mut BTreeSet<Used<'static>>) {
    match kind {
        FieldType::Ref(id) => note_used(schema().get(*id), value, used),
        FieldType::List(items) => {
            value.as_array().into_iter().flatten().for_each(|item| note_used_in(items, item, used));
        }
        FieldType::Map(values) => {
            value.as_object().into_iter().flatten().for_each(|(_, item)| note_used_in(values, item, used));
        }
        _ => {}
    }
}

fn drop_of(t: &Type, value: &mut Value, is_dropped: &dyn Fn(&Type, &str) -> bool) {
    if t.name == POD_SPEC {
        drop_of_pod(value, is_dropped);
    }
    let Some(object) = value.as_object_mut() else { return };
    for field in t.introduced.iter().map(|at| &t.fields[*at]) {
        if !object.contains_key(&field.name) {
            continue;
        }
        if is_dropped(t, &field.name) {
            object.remove(&field.name);
        } else if let Some(inner) = object.get_mut(&field.name) {
            drop_in(&field.kind, inner, is_dropped);
        }
    }
}

/// Drops the parts of a pod that follow from dropped fields: an image volume with its mounts, because a volume without
/// a source would be an empty directory, and the restart policy of a container that is no sidecar.
fn drop_of_pod(pod: &mut Value, is_dropped: &dyn Fn(&Type, &str) -> bool) {
    let is_gone = |type_name: &str, field: &str| schema().type_(type_name).is_some_and(|t| is_dropped(t, field));
    if is_gone(VOLUME, "image") {
        drop_image_volumes(pod);
    }
    if is_gone(CONTAINER, "restartPolicyRules") {
        for container in items_mut(pod, "containers") {
            container.as_object_mut().map(|container| container.remove("restartPolicy"));
        }
    }
}

fn items_mut<'a>(object: &'a mut Value, list: &str) -> impl Iterator<Item = &'a mut Value> {
    object.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten()
}

fn drop_image_volumes(pod: &mut Value) {
    let volumes = pod["volumes"].as_array().into_iter().flatten();
    let names: Vec<Value> = volumes.filter(|v| v.get("image").is_some()).map(|v| v["name"].clone()).collect();
    if names.is_empty() {
        return;
    }
    if let Some(volumes) = pod.get_mut("volumes").and_then(Value::as_array_mut) {
        volumes.retain(|volume| !names.contains(&volume["name"]));
    }
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for container in items_mut(pod, list) {
            if let Some(mounts) = container.get_mut("volumeMounts").and_then(Value::as_array_mut) {
                mounts.retain(|mount| !names.contains(&mount["name"]));
            }
        }
    }
}

fn drop_in(kind: &FieldType, value: &mut Value, is_dropped: &dyn Fn(&Type, &str) -> bool) {
    match kind {
        FieldType::Ref(id) => drop_of(schema().get(*id), value, is_dropped),
        FieldType::List(items) => {
            value.as_array_mut().into_iter().flatten().for_each(|item| drop_in(items, item, is_dropped));
        }
        FieldType::Map(values) => {
            value.as_object_mut().into_iter().flatten().for_each(|(_, item)| drop_in(values, item, is_dropped));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_introduced_field_is_in_the_schema() {
        for row in INTRODUCED {
            let t =
                schema().type_(&format!("io.k8s.api.{}", row.type_name)).unwrap_or_else(|| panic!("{}", row.type_name));
            for field in row.fields {
                assert!(t.field(field).is_some(), "{}.{field}", row.type_name);
            }
            assert!((MinorVersion::OLDEST..=MinorVersion::NEWEST).contains(&row.since));
        }
    }
}
