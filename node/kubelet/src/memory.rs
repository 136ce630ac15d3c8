//! The memory manager. With the static policy every container of a guaranteed pod has its memory and huge pages
//! allocated on as few NUMA nodes as hold them, and may use the memory of these nodes only. With the default policy
//! `None` a container may use the memory of every NUMA node.
//!
//! Invariant: the allocations on a NUMA node never exceed its memory that is not reserved; a group of NUMA nodes that
//! holds a container's memory together holds no memory of containers on fewer or on other nodes. An allocation is
//! written to the checkpoint before a container uses it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use corten_api::k8s_openapi::api::core::v1::{Container, Pod};
use serde_json::{Value, json};

use crate::config::Config;
use crate::cpus::set;
use crate::error::{Error, Result};
use crate::numa::{self, Hint, Nodes};
use crate::pod::resources::{self, QosClass};
use crate::pod::spec::{self, Role};

const FILE: &str = "memory_manager_state";

/// Sizes in bytes by memory type: `memory`, `hugepages-2Mi`.
type Sizes = BTreeMap<String, u64>;

/// Memory of one type on a group of NUMA nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    pub nodes: Nodes,
    pub kind: String,
    pub size: u64,
}

/// The allocations, by pod and container.
type Assignments = BTreeMap<(String, String), Vec<Block>>;

pub struct Memory(Option<Static>);

struct Static {
    /// The allocatable memory, by NUMA node.
    allocatable: BTreeMap<u32, Sizes>,
    file: PathBuf,
    assignments: Mutex<Assignments>,
}

impl Memory {
    /// Reads the machine's memory and the checkpoint of an earlier kubelet.
    pub fn new(config: &Config, kept_free: i64) -> Result<Memory> {
        if !config.static_memory_policy {
            return Ok(Memory(None));
        }
        let machine = machine(Path::new("/sys/devices/system/node"));
        let allocatable = less_reserved(config, machine, kept_free)?;
        let file = config.root_dir.join(FILE);
        let assignments = Mutex::new(read(&file));
        Ok(Memory(Some(Static { allocatable, file, assignments })))
    }

    /// Reports whether the pod gets memory allocated.
    pub fn concerns(&self, pod: &Pod) -> bool {
        self.0.is_some() && resources::qos_class(pod) == QosClass::Guaranteed
    }

    /// Returns the NUMA nodes that could hold the memory of the container, or of all containers of the pod.
    pub fn hints(&self, pod: &Pod, container: Option<&Container>) -> Vec<Vec<Hint>> {
        let Some(policy) = self.0.as_ref().filter(|_| self.concerns(pod)) else { return Vec::new() };
        let wanted = container.map_or_else(|| resources::pod_requests(pod), container_requests);
        let wanted = sizes(wanted);
        let hints = policy.hints(&policy.lock(), pod, &wanted);
        // Without a possible hint the manager has no preference; the allocation then reports the shortage.
        if hints.is_empty() { Vec::new() } else { vec![hints] }
    }

    /// Allocates the container's memory on the NUMA nodes of the merged hint.
    pub fn allocate(&self, pod: &Pod, container: &Container, hint: Hint) -> Result<()> {
        match self.0.as_ref().filter(|_| self.concerns(pod)) {
            Some(policy) => policy.allocate(pod, container, hint),
            None => Ok(()),
        }
    }

    pub fn release(&self, pod_uid: &str) {
        let Some(policy) = &self.0 else { return };
        if let Err(error) = policy.release(|uid| uid == pod_uid) {
            tracing::warn!(%error, "released memory is still in the checkpoint");
        }
    }

    /// Releases the memory of pods that no longer exist.
    pub fn retain(&self, is_known: impl Fn(&str) -> bool) {
        let Some(policy) = &self.0 else { return };
        if let Err(error) = policy.release(|uid| !is_known(uid)) {
            tracing::warn!(%error, "released memory is still in the checkpoint");
        }
    }

    /// Returns the NUMA nodes of the container's memory in the kernel's list format; empty for any.
    pub fn of(&self, pod_uid: &str, container: &str) -> String {
        let nodes = self.blocks(pod_uid, container).iter().fold(0, |nodes, block| nodes | block.nodes);
        set::format(&numa::numbers(nodes).collect())
    }

    /// Returns the memory that is allocated to the container.
    pub fn blocks(&self, pod_uid: &str, container: &str) -> Vec<Block> {
        let key = (pod_uid.to_owned(), container.to_owned());
        self.0.as_ref().and_then(|policy| policy.lock().get(&key).cloned()).unwrap_or_default()
    }

    /// Returns all allocatable memory.
    pub fn allocatable(&self) -> Vec<Block> {
        let nodes = self.0.iter().flat_map(|policy| &policy.allocatable);
        let blocks = nodes.flat_map(|(node, sizes)| {
            sizes.iter().map(|(kind, size)| Block { nodes: numa::nodes([*node]), kind: kind.clone(), size: *size })
        });
        blocks.filter(|block| block.size > 0).collect()
    }
}

impl Static {
    fn allocate(&self, pod: &Pod, container: &Container, hint: Hint) -> Result<()> {
        let key = (spec::uid(pod).to_owned(), container.name.clone());
        let wanted = sizes(container_requests(container));
        let mut assignments = self.lock();
        if wanted.is_empty() || assignments.contains_key(&key) {
            return Ok(());
        }
        let nodes = self.choose(&assignments, pod, &wanted, hint)?;
        take_over(&mut assignments, pod, nodes, &wanted);
        assignments.insert(key, wanted.into_iter().map(|(kind, size)| Block { nodes, kind, size }).collect());
        self.write(&assignments)
    }

    /// Returns the NUMA nodes of the hint if they hold the memory, else the best group that includes them.
    fn choose(&self, assignments: &Assignments, pod: &Pod, wanted: &Sizes, hint: Hint) -> Result<Nodes> {
        let fail = |why: &str| Err(Error::pod(format!("[memorymanager] {why}")));
        let found = self.hints(assignments, pod, wanted);
        let best = |within: Nodes| {
            let mut found: Vec<&Hint> =
                found.iter().filter(|hint| hint.nodes.is_some_and(|nodes| nodes & within == within)).collect();
            found.sort_unstable_by_key(|hint| (!hint.preferred, hint.nodes.map(|nodes| (nodes.count_ones(), nodes))));
            found.first().map(|hint| **hint)
        };
        let (chosen, missing, worse) = match hint.nodes {
            None => (
                best(0),
                "failed to get the default NUMA affinity, no NUMA nodes with enough memory is available",
                "failed to find the default preferred hint",
            ),
            Some(nodes) if self.holds(assignments, pod, nodes, wanted) => {
                return match is_group(assignments, nodes) {
                    true => Ok(nodes),
                    false => fail("preferred hint violates NUMA node allocation"),
                };
            }
            Some(nodes) => (
                best(nodes),
                "failed to find NUMA nodes to extend the current topology hint",
                "failed to find the extended preferred hint",
            ),
        };
        match chosen {
            None => fail(missing),
            Some(chosen) if hint.preferred && !chosen.preferred => fail(worse),
            Some(chosen) => Ok(chosen.nodes.unwrap_or_default()),
        }
    }

    fn hints(&self, assignments: &Assignments, pod: &Pod, wanted: &Sizes) -> Vec<Hint> {
        if wanted.is_empty() {
            return Vec::new();
        }
        let all = numa::nodes(self.allocatable.keys().copied());
        let ever = |nodes: Nodes| wanted.iter().all(|(kind, size)| self.capacity(nodes, kind) >= *size);
        let now =
            |nodes: Nodes| ever(nodes) && is_group(assignments, nodes) && self.holds(assignments, pod, nodes, wanted);
        numa::hints(all, &ever, &now)
    }

    fn capacity(&self, nodes: Nodes, kind: &str) -> u64 {
        let sizes = numa::numbers(nodes).filter_map(|node| self.allocatable.get(&node)?.get(kind));
        sizes.sum()
    }

    /// Reports whether the NUMA nodes have the memory free, including that of earlier init containers of the pod.
    fn holds(&self, assignments: &Assignments, pod: &Pod, nodes: Nodes, wanted: &Sizes) -> bool {
        let init = init_containers(pod);
        let used = |kind: &str| -> u64 {
            let others = assignments.iter().filter(|((uid, name), _)| uid != spec::uid(pod) || !init.contains(name));
            let blocks = others.flat_map(|(_, blocks)| blocks);
            blocks.filter(|block| block.kind == kind && block.nodes == nodes).map(|block| block.size).sum()
        };
        wanted.iter().all(|(kind, size)| self.capacity(nodes, kind) >= used(kind).saturating_add(*size))
    }

    fn release(&self, is_gone: impl Fn(&str) -> bool) -> Result<()> {
        let mut assignments = self.lock();
        let before = assignments.len();
        assignments.retain(|(uid, _), _| !is_gone(uid));
        if assignments.len() == before { Ok(()) } else { self.write(&assignments) }
    }

    fn write(&self, assignments: &Assignments) -> Result<()> {
        let mut entries = json!({});
        for ((uid, container), blocks) in assignments {
            let block = |block: &Block| {
                let nodes: Vec<u32> = numa::numbers(block.nodes).collect();
                json!({"numaAffinity": nodes, "type": block.kind, "size": block.size})
            };
            entries[uid][container] = blocks.iter().map(block).collect();
        }
        crate::cpus::write_state(&self.file, &json!({"policyName": "Static", "entries": entries}))
    }

    fn lock(&self) -> MutexGuard<'_, Assignments> {
        self.assignments.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reports whether every allocation on these NUMA nodes is on all of them together, and on no others.
fn is_group(assignments: &Assignments, nodes: Nodes) -> bool {
    assignments.values().flatten().all(|block| block.nodes & nodes == 0 || block.nodes == nodes)
}

/// Reuses the memory that an init container of the pod had on the same NUMA nodes.
fn take_over(assignments: &mut Assignments, pod: &Pod, nodes: Nodes, wanted: &Sizes) {
    let init = init_containers(pod);
    for (kind, size) in wanted {
        let mut left = *size;
        let own = assignments.iter_mut().filter(|((uid, name), _)| uid == spec::uid(pod) && init.contains(name));
        for block in own.flat_map(|(_, blocks)| blocks).filter(|block| block.kind == *kind && block.nodes == nodes) {
            let taken = left.min(block.size);
            block.size -= taken;
            left -= taken;
        }
    }
}

fn init_containers(pod: &Pod) -> BTreeSet<String> {
    let init = spec::init_containers(pod).filter(|(role, _)| *role == Role::Init);
    init.map(|(_, container)| container.name.clone()).collect()
}

fn container_requests(container: &Container) -> BTreeMap<String, i64> {
    let list = resources::requests(container).or(resources::limits(container)).into_iter().flatten();
    list.map(|(name, quantity)| (name.clone(), resources::value(quantity))).collect()
}

/// Returns the requests for memory and huge pages.
fn sizes(requests: BTreeMap<String, i64>) -> Sizes {
    let memory = requests.into_iter().filter(|(name, _)| name == "memory" || name.starts_with("hugepages-"));
    memory.filter_map(|(name, size)| Some((name, u64::try_from(size).ok().filter(|size| *size > 0)?))).collect()
}

/// Returns the memory of each NUMA node. A kernel without NUMA has one.
fn machine(base: &Path) -> BTreeMap<u32, Sizes> {
    let text = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
    let online = set::parse(&text(base.join("online"))).filter(|nodes| !nodes.is_empty());
    let online = online.unwrap_or_else(|| [0].into());
    let sizes = |node: u32| {
        let folder = base.join(format!("node{node}"));
        let own = text(folder.join("meminfo"));
        let own = if own.is_empty() { text("/proc/meminfo".into()) } else { own };
        let mut sizes = Sizes::from([("memory".to_owned(), total(&own))]);
        for entry in fs::read_dir(folder.join("hugepages")).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let size = name.strip_prefix("hugepages-").and_then(|size| size.strip_suffix("kB")?.parse::<u64>().ok());
            let count: u64 = text(entry.path().join("nr_hugepages")).trim().parse().unwrap_or(0);
            if let Some(size) = size {
                let name = corten_meta::Quantity::from_bytes(i64::try_from(size << 10).unwrap_or(i64::MAX));
                sizes.insert(format!("hugepages-{name}"), count * (size << 10));
            }
        }
        // Huge pages are not available as other memory.
        let huge: u64 = sizes.iter().filter(|(kind, _)| *kind != "memory").map(|(_, size)| size).sum();
        sizes.entry("memory".to_owned()).and_modify(|memory| *memory = memory.saturating_sub(huge));
        sizes
    };
    online.into_iter().map(|node| (node, sizes(node))).collect()
}

/// Parses `Node 0 MemTotal:  1024 kB`, also without the node.
fn total(meminfo: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.split_once("MemTotal:"));
    let number = line.and_then(|(_, rest)| rest.split_whitespace().next()?.parse::<u64>().ok());
    number.unwrap_or(0) << 10
}

/// Returns the allocatable memory: all but the reserved memory of each NUMA node. Its sum must be equal to the reserved
/// memory of Node Allocatable.
fn less_reserved(config: &Config, mut machine: BTreeMap<u32, Sizes>, kept_free: i64) -> Result<BTreeMap<u32, Sizes>> {
    let refuse = |why: String| Err(Error::Configuration(why));
    let mut reserved = Sizes::new();
    for (node, sizes) in &config.reserved_memory {
        let Some(own) = machine.get_mut(node) else {
            return refuse(format!(
                "the reserved memory configuration references a NUMA node {node} that does not exist on this machine"
            ));
        };
        for (kind, size) in sizes {
            let left = own.get(kind).copied().unwrap_or(0).checked_sub(*size);
            let Some(left) = left else {
                return refuse(format!("the reserved memory of NUMA node {node} is more {kind} than it has"));
            };
            own.insert(kind.clone(), left);
            *reserved.entry(kind.clone()).or_default() += size;
        }
    }
    let reserved = reserved.get("memory").copied().unwrap_or(0);
    if reserved == 0 {
        return refuse("[memorymanager] you should specify the system reserved memory".into());
    }
    if i64::try_from(reserved) != Ok(kept_free) {
        let shown = |bytes: i64| corten_meta::Quantity::from_bytes(bytes).to_string();
        return refuse(format!(
            "the total amount {:?} of type \"memory\" is not equal to the value {:?} determined by Node Allocatable feature",
            shown(i64::try_from(reserved).unwrap_or(i64::MAX)),
            shown(kept_free)
        ));
    }
    Ok(machine)
}

fn read(file: &Path) -> Assignments {
    let value: Value = fs::read(file).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
    let mut assignments = Assignments::new();
    for (uid, containers) in value["entries"].as_object().into_iter().flatten() {
        for (container, blocks) in containers.as_object().into_iter().flatten() {
            let block = |block: &Value| {
                let nodes =
                    block["numaAffinity"].as_array()?.iter().filter_map(|node| u32::try_from(node.as_u64()?).ok());
                let kind = block["type"].as_str()?.to_owned();
                Some(Block { nodes: numa::nodes(nodes), kind, size: block["size"].as_u64()? })
            };
            let blocks = blocks.as_array().into_iter().flatten().filter_map(block).collect();
            assignments.insert((uid.clone(), container.clone()), blocks);
        }
    }
    assignments
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    const GIB: u64 = 1 << 30;

    /// Returns a policy for two NUMA nodes of 4 GiB each.
    fn policy(root: &Path) -> Static {
        let node = Sizes::from([("memory".to_owned(), 4 * GIB)]);
        let file = root.join(FILE);
        let assignments = Mutex::new(read(&file));
        Static { allocatable: [(0, node.clone()), (1, node)].into(), file, assignments }
    }

    fn pod(uid: &str, init: Option<&str>, memory: &str) -> Pod {
        let container = |name: &str, memory: &str| {
            format!(r#"{{"name":"{name}","resources":{{"limits":{{"cpu":"1","memory":"{memory}"}}}}}}"#)
        };
        let init = init.map(|memory| format!(r#""initContainers":[{}],"#, container("i", memory))).unwrap_or_default();
        let mut pod = fixtures::pod(&format!(r#"{{{init}"containers":[{}]}}"#, container("c", memory)));
        pod.metadata.uid = Some(uid.to_owned());
        pod
    }

    fn allocate(policy: &Static, pod: &Pod, hint: Hint) -> Result<()> {
        spec::containers(pod).try_for_each(|declared| policy.allocate(pod, &declared.container, hint))
    }

    fn nodes(policy: &Static, uid: &str, container: &str) -> Vec<(Vec<u32>, u64)> {
        let assignments = policy.lock();
        let blocks = assignments.get(&(uid.to_owned(), container.to_owned())).cloned().unwrap_or_default();
        blocks.iter().map(|block| (numa::numbers(block.nodes).collect(), block.size / GIB)).collect()
    }

    #[test]
    fn memory_is_allocated_on_few_numa_nodes_and_groups_do_not_overlap() {
        let root = tempfile::tempdir().unwrap();
        let policy = policy(root.path());
        let anywhere = Hint { nodes: None, preferred: true };
        allocate(&policy, &pod("a", None, "3Gi"), anywhere).unwrap();
        assert_eq!(nodes(&policy, "a", "c"), [(vec![0], 3)]);
        allocate(&policy, &pod("b", None, "2Gi"), anywhere).unwrap();
        assert_eq!(nodes(&policy, "b", "c"), [(vec![1], 2)], "node 0 has no room for it");
        let error = allocate(&policy, &pod("c", None, "5Gi"), anywhere).unwrap_err();
        let words =
            "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available";
        assert_eq!(error.to_string(), words, "both nodes hold memory of their own");
        let second = Hint { nodes: Some(0b10), preferred: true };
        allocate(&policy, &pod("d", None, "1Gi"), second).unwrap();
        assert_eq!(nodes(&policy, "d", "c"), [(vec![1], 1)], "where the others get their parts");
        let again = self::policy(root.path());
        assert_eq!(nodes(&again, "d", "c"), [(vec![1], 1)], "after a restart");
        again.release(|_| true).unwrap();
        allocate(&again, &pod("e", None, "6Gi"), anywhere).unwrap();
        assert_eq!(nodes(&again, "e", "c"), [(vec![0, 1], 6)]);
        let error = allocate(&again, &pod("f", None, "1Gi"), anywhere).unwrap_err();
        assert_eq!(error.to_string(), "[memorymanager] failed to find the default preferred hint");
        allocate(&again, &pod("f", None, "1Gi"), Hint { nodes: None, preferred: false }).unwrap();
        assert_eq!(nodes(&again, "f", "c"), [(vec![0, 1], 1)], "the nodes are a group");
    }

    #[test]
    fn a_container_reuses_the_memory_of_an_init_container() {
        let root = tempfile::tempdir().unwrap();
        let policy = policy(root.path());
        allocate(&policy, &pod("a", Some("3Gi"), "2Gi"), Hint { nodes: Some(0b1), preferred: true }).unwrap();
        assert_eq!(nodes(&policy, "a", "i"), [(vec![0], 1)], "the container has the rest");
        assert_eq!(nodes(&policy, "a", "c"), [(vec![0], 2)]);
    }

    #[test]
    fn nodes_and_huge_pages_are_read() {
        let base = tempfile::tempdir().unwrap();
        fs::write(base.path().join("online"), "0-1\n").unwrap();
        for node in 0..2 {
            let folder = base.path().join(format!("node{node}/hugepages/hugepages-2048kB"));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("nr_hugepages"), "2\n").unwrap();
            let text = format!("Node {node} MemTotal:        8192 kB\nNode {node} MemFree: 1 kB\n");
            fs::write(base.path().join(format!("node{node}/meminfo")), text).unwrap();
        }
        let node = Sizes::from([("hugepages-2Mi".to_owned(), 4 << 20), ("memory".to_owned(), 4 << 20)]);
        assert_eq!(machine(base.path()), [(0, node.clone()), (1, node)].into());
    }

    #[test]
    fn reserved_memory_must_add_up() {
        let node = Sizes::from([("memory".to_owned(), 4 * GIB)]);
        let machine = BTreeMap::from([(0, node)]);
        let check = |reserved: Vec<(u32, u64)>, kept: i64| {
            let reserved = reserved.into_iter().map(|(node, size)| (node, Sizes::from([("memory".to_owned(), size)])));
            let config = Config { reserved_memory: reserved.collect(), ..Config::default() };
            less_reserved(&config, machine.clone(), kept).map_err(|error| error.to_string())
        };
        assert_eq!(check(vec![(0, GIB)], 1 << 30).unwrap()[&0]["memory"], 3 * GIB);
        for (reserved, kept, words) in [
            (vec![], 0, "you should specify the system reserved memory"),
            (vec![(1, GIB)], 1 << 30, "NUMA node 1"),
            (vec![(0, GIB)], 2 << 30, "the total amount \"1Gi\" of type \"memory\" is not equal to the value \"2Gi\""),
        ] {
            let error = check(reserved, kept).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
