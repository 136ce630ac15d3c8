//! The claims that drivers have prepared on this node, and their checkpoint across restarts.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// A device that a driver prepared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// The requests of the claim that it serves; an empty list is all.
    pub requests: Vec<String>,
    pub pool: String,
    pub name: String,
    pub cdi: Vec<String>,
}

impl Device {
    /// Reports whether a container that names this request sees the device; a subrequest begins with the request's
    /// name.
    pub fn is_for(&self, request: Option<&str>) -> bool {
        let Some(request) = request.filter(|request| !request.is_empty()) else { return true };
        self.requests.is_empty()
            || self.requests.iter().any(|name| name.split('/').next() == Some(request) || name == request)
    }
}

/// A claim that pods of this node use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    pub uid: String,
    /// The uids of the pods.
    pub pods: BTreeSet<String>,
    pub prepared: bool,
    pub drivers: BTreeMap<String, Vec<Device>>,
}

impl Claim {
    /// Returns the devices of one request, or of all, with their drivers.
    pub fn devices_of(&self, request: Option<&str>) -> impl Iterator<Item = (&String, &Device)> {
        let all = self.drivers.iter().flat_map(|(driver, devices)| devices.iter().map(move |device| (driver, device)));
        all.filter(move |(_, device)| device.is_for(request))
    }
}

/// The claims by `namespace/name`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State(BTreeMap<String, Claim>);

impl State {
    pub fn get(&self, namespace: &str, name: &str) -> Option<&Claim> {
        self.0.get(&format!("{namespace}/{name}"))
    }

    pub fn entry(&mut self, namespace: &str, name: &str) -> &mut Claim {
        self.0.entry(format!("{namespace}/{name}")).or_default()
    }

    pub fn uses(&self, pod: &str) -> bool {
        self.0.values().any(|claim| claim.pods.contains(pod))
    }

    pub fn of_pod(&self, pod: &str) -> Vec<(String, String, Claim)> {
        let own = self.0.iter().filter(|(_, claim)| claim.pods.contains(pod));
        own.filter_map(|(key, claim)| {
            let (namespace, name) = key.split_once('/')?;
            Some((namespace.to_owned(), name.to_owned(), claim.clone()))
        })
        .collect()
    }

    /// Removes the pod from the claim; a claim without pods is removed.
    pub fn release(&mut self, namespace: &str, name: &str, pod: &str) {
        self.entry(namespace, name).pods.remove(pod);
        self.0.retain(|_, claim| !claim.pods.is_empty());
    }

    /// Returns the pods that use a device.
    pub fn users(&self, is_meant: impl Fn(&str, &Device) -> bool) -> BTreeSet<String> {
        let using = self.0.values().filter(|claim| claim.devices_of(None).any(|(name, device)| is_meant(name, device)));
        using.flat_map(|claim| claim.pods.iter().cloned()).collect()
    }

    pub fn pods(&self) -> Vec<String> {
        let all: BTreeSet<&String> = self.0.values().flat_map(|claim| &claim.pods).collect();
        all.into_iter().cloned().collect()
    }

    pub fn read(file: &Path) -> State {
        fs::read(file).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
    }

    /// Writes the checkpoint durably: after a power cut a driver is still asked to release what it prepared.
    pub fn write(&self, file: &Path) -> Result<()> {
        let directory = file.parent().unwrap_or(file);
        fs::create_dir_all(directory).map_err(Error::file("create", directory))?;
        let text = serde_json::to_vec(self).unwrap_or_default();
        corten_durable::write(file, &text, 0o600).map_err(Error::file("write", file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_removed_with_its_last_pod() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("claims.json");
        let mut state = State::read(&file);
        let claim = state.entry("ns", "c");
        claim.pods = ["a".to_owned(), "b".to_owned()].into();
        claim.prepared = true;
        state.write(&file).unwrap();
        let mut state = State::read(&file);
        assert_eq!(state.pods(), ["a", "b"]);
        state.release("ns", "c", "a");
        assert!(state.get("ns", "c").is_some() && !state.uses("a"));
        state.release("ns", "c", "b");
        assert!(state.get("ns", "c").is_none());
    }

    #[test]
    fn a_container_sees_the_devices_of_the_request_it_names() {
        let device = |requests: &[&str]| Device {
            requests: requests.iter().map(|name| (*name).to_owned()).collect(),
            ..Device::default()
        };
        assert!(device(&["gpu"]).is_for(None));
        assert!(device(&["gpu"]).is_for(Some("gpu")));
        assert!(device(&["gpu/large"]).is_for(Some("gpu")));
        assert!(!device(&["gpu"]).is_for(Some("nic")));
        assert!(device(&[]).is_for(Some("nic")));
    }
}
