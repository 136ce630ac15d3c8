//! User namespaces of pods (`hostUsers: false`): each such pod has 65536 user ids of the node for itself, so that its
//! root has no rights on the node and is no user of another pod.
//!
//! The ids of a pod are written into its directory before they are used, as upstream does.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use corten_api::k8s_openapi::api::core::v1::Pod;
use corten_cri::v1 as cri;
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::pod::spec;

const LENGTH: u32 = 65536;
/// The ids below are the node's own; the kernel reserves the last one.
const MOST_PODS: u32 = u32::MAX / LENGTH - 1;
const FILE: &str = "userns";

/// The first user id of the node that belongs to a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range(u32);

impl Range {
    pub fn mapping(self) -> Vec<cri::IdMapping> {
        vec![cri::IdMapping { host_id: self.0, container_id: 0, length: LENGTH }]
    }
}

pub struct Users {
    root_dir: PathBuf,
    held: Mutex<BTreeMap<String, u32>>,
}

impl Users {
    /// Makes the allocator; pods keep the ids that an earlier kubelet allocated.
    pub fn new(root_dir: &Path) -> Users {
        let mut held = BTreeMap::new();
        for entry in fs::read_dir(root_dir.join("pods")).into_iter().flatten().flatten() {
            if let Some(first) = read(&entry.path().join(FILE)) {
                held.insert(entry.file_name().to_string_lossy().into_owned(), first);
            }
        }
        Users { root_dir: root_dir.to_path_buf(), held: Mutex::new(held) }
    }

    /// Returns the pod's ids; `None` for a pod in the node's user namespace.
    pub fn of(&self, pod: &Pod) -> Result<Option<Range>> {
        if spec::spec(pod).host_users != Some(false) {
            return Ok(None);
        }
        let uid = spec::uid(pod);
        let mut held = self.lock();
        if let Some(first) = held.get(uid) {
            return Ok(Some(Range(*first)));
        }
        let first = free(&held.values().copied().collect())
            .ok_or_else(|| Error::pod("could not find an empty slot to allocate a user namespace"))?;
        write(&self.root_dir.join("pods").join(uid), first)?;
        held.insert(uid.to_owned(), first);
        Ok(Some(Range(first)))
    }

    /// Releases the ids of a pod whose directory was removed.
    pub fn release(&self, pod_uid: &str) {
        self.lock().remove(pod_uid);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, u32>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the first free range.
fn free(taken: &BTreeSet<u32>) -> Option<u32> {
    (1..=MOST_PODS).map(|number| number * LENGTH).find(|first| !taken.contains(first))
}

fn write(pod_dir: &Path, first: u32) -> Result<()> {
    let mapping = json!([{"hostId": first, "containerId": 0, "length": LENGTH}]);
    let text = json!({"uidMappings": mapping, "gidMappings": mapping}).to_string();
    fs::create_dir_all(pod_dir).map_err(Error::file("create", pod_dir))?;
    let path = pod_dir.join(FILE);
    corten_durable::write(&path, text.as_bytes(), 0o600).map_err(Error::file("write", &path))
}

fn read(path: &Path) -> Option<u32> {
    let value: Value = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    value.pointer("/uidMappings/0/hostId")?.as_u64()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    fn pod(uid: &str, spec: &str) -> Pod {
        let mut pod = fixtures::pod(spec);
        pod.metadata.uid = Some(uid.to_owned());
        pod
    }

    #[test]
    fn every_pod_has_ids_of_its_own_and_keeps_them() {
        let root = tempfile::tempdir().unwrap();
        let users = Users::new(root.path());
        let own = r#"{"hostUsers":false}"#;
        assert_eq!(users.of(&pod("a", "{}")).unwrap(), None);
        assert_eq!(users.of(&pod("a", r#"{"hostUsers":true}"#)).unwrap(), None);
        assert_eq!(users.of(&pod("a", own)).unwrap(), Some(Range(65536)));
        assert_eq!(users.of(&pod("b", own)).unwrap(), Some(Range(131_072)));
        assert_eq!(users.of(&pod("a", own)).unwrap(), Some(Range(65536)), "asked again");
        let users = Users::new(root.path());
        assert_eq!(users.of(&pod("b", own)).unwrap(), Some(Range(131_072)), "after a restart");
        users.release("a");
        assert_eq!(users.of(&pod("c", own)).unwrap(), Some(Range(65536)));
    }

    #[test]
    fn ids_are_exhausted_before_the_last_one() {
        let all: BTreeSet<u32> = (1..=MOST_PODS).map(|number| number * LENGTH).collect();
        assert_eq!(free(&all), None);
        let last = all.last().unwrap();
        assert!(u64::from(*last) + u64::from(LENGTH) <= u64::from(u32::MAX));
    }
}
