//! The devices of pods, and their checkpoint: a restarted kubelet must not allocate them twice.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use corten_api::k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::pod::spec::{self, Role};

pub(crate) const FILE: &str = "allocations.json";

/// The devices of one resource that are allocated to one container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceAllocation {
    pub devices: BTreeSet<String>,
    /// The plugin's response; it is used again for every start of the container.
    pub answer: Vec<u8>,
}

/// The allocations, by pod, container and resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceAllocations(BTreeMap<(String, String, String), DeviceAllocation>);

impl DeviceAllocations {
    pub fn of(&self, pod: &str, container: &str, resource: &str) -> Option<&DeviceAllocation> {
        self.0.get(&(pod.to_owned(), container.to_owned(), resource.to_owned()))
    }

    pub fn of_container(&self, pod: &str, container: &str) -> Vec<(String, DeviceAllocation)> {
        let own = self.0.iter().filter(|((uid, name, _), _)| uid == pod && name == container);
        own.map(|((_, _, resource), allotment)| (resource.clone(), allotment.clone())).collect()
    }

    pub fn insert(&mut self, pod: &str, container: &str, resource: &str, allotment: DeviceAllocation) {
        self.0.insert((pod.to_owned(), container.to_owned(), resource.to_owned()), allotment);
    }

    /// Returns the pods that have one of these devices.
    pub fn users(&self, resource: &str, devices: &BTreeSet<String>) -> BTreeSet<String> {
        let using = self.0.iter().filter(|((_, _, name), own)| name == resource && !own.devices.is_disjoint(devices));
        using.map(|((uid, _, _), _)| uid.clone()).collect()
    }

    /// Removes the pod; returns whether it had devices.
    pub fn remove(&mut self, pod: &str) -> bool {
        let before = self.0.len();
        self.0.retain(|(uid, _, _), _| uid != pod);
        self.0.len() != before
    }

    pub fn in_use(&self, resource: &str) -> BTreeSet<String> {
        let own = self.0.iter().filter(|((_, _, name), _)| name == resource);
        own.flat_map(|(_, allotment)| allotment.devices.iter().cloned()).collect()
    }

    /// Returns the devices that init containers of the pod had and no later container has: the next one reuses them.
    pub fn reusable(&self, pod: &Pod, resource: &str) -> BTreeSet<String> {
        let mut left = BTreeSet::new();
        for declared in spec::containers(pod) {
            match (self.of(spec::uid(pod), &declared.container.name, resource), declared.role) {
                (Some(own), Role::Init) => left.extend(own.devices.iter().cloned()),
                (Some(own), _) => left.retain(|id| !own.devices.contains(id)),
                (None, _) => {}
            }
        }
        left
    }

    pub fn pods(&self) -> BTreeSet<String> {
        self.0.keys().map(|(uid, _, _)| uid.clone()).collect()
    }
}

pub fn write<'a>(
    directory: &Path,
    allotments: &DeviceAllocations,
    resources: impl Iterator<Item = &'a String>,
) -> Result<()> {
    let entries: Vec<Value> = allotments
        .0
        .iter()
        .map(|((pod, container, resource), allotment)| {
            json!({"podUID": pod, "container": container, "resource": resource, "devices": allotment.devices,
                   "answer": STANDARD.encode(&allotment.answer)})
        })
        .collect();
    let text = json!({"allocations": entries, "resources": resources.collect::<Vec<_>>()}).to_string();
    fs::create_dir_all(directory).map_err(Error::file("create", directory))?;
    // A partial file would allocate devices twice.
    let path = directory.join(FILE);
    corten_durable::write(&path, text.as_bytes(), 0o600).map_err(Error::file("write", &path))
}

/// Returns the last checkpoint and the known resources; empty if there is none.
pub fn read(directory: &Path) -> (DeviceAllocations, Vec<String>) {
    let Ok(text) = fs::read(directory.join(FILE)) else { return Default::default() };
    let value: Value = serde_json::from_slice(&text).unwrap_or_default();
    let list = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(|item| item.as_str().map(str::to_owned)).collect()
    };
    let mut allotments = DeviceAllocations::default();
    for entry in value["allocations"].as_array().into_iter().flatten() {
        let text = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
        let devices = list(&entry["devices"]).into_iter().collect();
        let answer = STANDARD.decode(text("answer")).unwrap_or_default();
        allotments.insert(&text("podUID"), &text("container"), &text("resource"), DeviceAllocation { devices, answer });
    }
    (allotments, list(&value["resources"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_survive_a_restart() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(read(root.path()), (DeviceAllocations::default(), Vec::new()));
        let mut allotments = DeviceAllocations::default();
        let allotment = DeviceAllocation { devices: ["d1".to_owned()].into(), answer: vec![1, 2, 255] };
        allotments.insert("uid", "c", "e.com/d", allotment);
        write(root.path(), &allotments, ["e.com/d".to_owned()].iter()).unwrap();
        let (again, resources) = read(root.path());
        assert_eq!((&again, resources), (&allotments, vec!["e.com/d".to_owned()]));
        assert_eq!(again.in_use("e.com/d"), ["d1".to_owned()].into());
        allotments.remove("uid");
        assert!(allotments.in_use("e.com/d").is_empty());
    }
}
