//! The CPU manager. With the static policy, a container of a guaranteed pod with an integer CPU request gets exclusive
//! CPUs, and all others use the shared pool. With the policy `none`, the default, all containers may use all CPUs.
//!
//! Invariant: no CPU is allocated to two containers, except from an init container to a later one of its pod; reserved
//! CPUs are never allocated. An allocation is in the checkpoint before a container runs on it.

mod distribute;
pub mod set;
mod topology;

pub use crate::config::cpu_options::Options;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use corten_api::k8s_openapi::api::core::v1::{Container, Pod};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::numa::{self, Hint, Nodes};
use crate::pod::resources::{self, QosClass};
use crate::pod::spec::{self, Role};
use set::CpuSet;
use topology::Topology;

const FILE: &str = "cpu_manager_state";

/// The allocations, by pod and container.
type Assignments = BTreeMap<(String, String), CpuSet>;

pub struct Cpus {
    policy: Option<Static>,
    /// The shared pool of CPUs.
    shared: watch::Sender<String>,
}

struct Static {
    topology: Topology,
    options: Options,
    reserved: CpuSet,
    file: PathBuf,
    assignments: Mutex<Assignments>,
}

impl Cpus {
    /// Reads the machine's topology and the checkpoint of an earlier kubelet.
    pub fn new(config: &Config) -> Result<Cpus> {
        if !config.static_cpu_policy {
            return Ok(Cpus { policy: None, shared: watch::channel(String::new()).0 });
        }
        let topology = Topology::read();
        let reserved = reserved(config, &topology)?;
        let file = config.root_dir.join(FILE);
        let mut assignments = read(&file);
        assignments.retain(|_, cpus| cpus.iter().all(|cpu| topology.0.contains_key(cpu) && !reserved.contains(cpu)));
        let policy =
            Static { topology, options: config.cpu_options, reserved, file, assignments: Mutex::new(assignments) };
        let shared = watch::channel(set::format(&policy.shared())).0;
        Ok(Cpus { policy: Some(policy), shared })
    }

    /// Returns the shared pool, now and later; empty without the static policy.
    pub fn shared(&self) -> watch::Receiver<String> {
        self.shared.subscribe()
    }

    /// Reports whether the pod gets exclusive CPUs.
    pub fn concerns(&self, pod: &Pod) -> bool {
        self.policy.is_some() && spec::containers(pod).any(|declared| exclusive(pod, &declared.container) > 0)
    }

    /// Returns the NUMA nodes that could provide the CPUs of the container, or of all containers of the pod.
    pub fn hints(&self, pod: &Pod, container: Option<&Container>) -> Vec<Vec<Hint>> {
        let Some(policy) = &self.policy else { return Vec::new() };
        match container.map_or_else(|| of_pod(pod), |container| exclusive(pod, container)) {
            0 => Vec::new(),
            count => vec![policy.hints(pod, count)],
        }
    }

    /// Allocates the container's exclusive CPUs, from the NUMA nodes of the hint as far as they have them.
    pub fn allocate(&self, pod: &Pod, container: &Container, nodes: Option<Nodes>) -> Result<()> {
        let Some(policy) = &self.policy else { return Ok(()) };
        let allocated = policy.allocate(pod, container, nodes);
        self.publish(policy);
        allocated
    }

    /// Releases the CPUs of a terminated pod.
    pub fn release(&self, pod_uid: &str) {
        let Some(policy) = &self.policy else { return };
        if let Err(error) = policy.release(pod_uid) {
            tracing::warn!(%error, "released CPUs are still in the checkpoint");
        }
        self.publish(policy);
    }

    /// Releases the CPUs of pods that no longer exist.
    pub fn retain(&self, is_known: impl Fn(&str) -> bool) {
        let Some(policy) = &self.policy else { return };
        let gone: Vec<String> = policy.lock().keys().map(|(uid, _)| uid.clone()).filter(|uid| !is_known(uid)).collect();
        gone.iter().for_each(|uid| self.release(uid));
    }

    /// Returns the CPUs that the container may use; empty is all.
    pub fn of(&self, pod_uid: &str, container: &str) -> String {
        let own = self.policy.as_ref().and_then(|policy| policy.own(pod_uid, container));
        own.map_or_else(|| self.shared.borrow().clone(), |own| set::format(&own))
    }

    /// Returns the exclusive CPUs of the container.
    pub fn own(&self, pod_uid: &str, container: &str) -> CpuSet {
        self.policy.as_ref().and_then(|policy| policy.own(pod_uid, container)).unwrap_or_default()
    }

    /// Returns all CPUs that could be allocated exclusively.
    pub fn allocatable(&self) -> CpuSet {
        let all =
            self.policy.as_ref().map(|policy| policy.topology.all().difference(&policy.reserved).copied().collect());
        all.unwrap_or_default()
    }

    fn publish(&self, policy: &Static) {
        let shared = set::format(&policy.shared());
        self.shared.send_if_modified(|known| {
            let changed = *known != shared;
            *known = shared;
            changed
        });
    }
}

impl Static {
    fn allocate(&self, pod: &Pod, container: &Container, nodes: Option<Nodes>) -> Result<()> {
        let count = exclusive(pod, container);
        let key = (spec::uid(pod).to_owned(), container.name.clone());
        let mut assignments = self.lock();
        if count == 0 || assignments.contains_key(&key) {
            return Ok(());
        }
        self.check_cores(&assignments, count)?;
        let cpus = self.choose(&assignments, &reusable(&assignments, pod), count, nodes)?;
        assignments.insert(key, cpus);
        self.write(&assignments)
    }

    /// Checks that the container gets full cores, if the options require it.
    fn check_cores(&self, assignments: &Assignments, count: usize) -> Result<()> {
        if !self.options.full_pcpus_only {
            return Ok(());
        }
        let per_core = self.topology.per_core();
        if !count.is_multiple_of(per_core) {
            let why = format!("requested {count} cpus not multiple cpus per core = {per_core}");
            return Err(Error::admission("SMTAlignmentError", format!("SMT Alignment Error: {why}")));
        }
        let reserved = self.topology.with_siblings(&self.reserved);
        let available = self.free(assignments).difference(&reserved).count();
        if count > available {
            let why = format!(
                "not enough free physical CPUs: available physical CPUs = {available}, requested CPUs = {count}, CPUs per core = {per_core}"
            );
            return Err(Error::admission("SMTAlignmentError", format!("SMT Alignment Error: {why}")));
        }
        Ok(())
    }

    fn choose(
        &self,
        assignments: &Assignments,
        reusable: &CpuSet,
        count: usize,
        nodes: Option<Nodes>,
    ) -> Result<CpuSet> {
        let near = |cpu: &u32| nodes.is_none_or(|nodes| nodes & self.topology.node(*cpu) != 0);
        let (near_again, far_again): (Vec<u32>, Vec<u32>) = reusable.iter().partition(|cpu| near(cpu));
        let mut chosen: CpuSet = near_again.into_iter().chain(far_again).take(count).collect();
        let mut free = self.free(assignments);
        if free.len() + chosen.len() < count {
            return Err(Error::pod(format!(
                "not enough cpus available to satisfy request: requested={count}, available={}",
                free.len() + chosen.len()
            )));
        }
        let beside: CpuSet = free.iter().copied().filter(near).collect();
        for (among, most) in [(beside.clone(), beside.len()), (free.clone(), usize::MAX)] {
            let among: CpuSet = among.intersection(&free).copied().collect();
            let taken = self.take(&among, (count - chosen.len()).min(most)).unwrap_or_default();
            free.retain(|cpu| !taken.contains(cpu));
            chosen.extend(taken);
        }
        Ok(chosen)
    }

    /// Takes this many CPUs, by the policy's options.
    fn take(&self, free: &CpuSet, count: usize) -> Option<CpuSet> {
        let Options { distribute, full_pcpus_only, by_cache, .. } = self.options;
        let distributed = distribute.then(|| self.topology.take_distributed(free, count, full_pcpus_only)).flatten();
        distributed.or_else(|| self.topology.take(free, count, by_cache && !distribute))
    }

    fn free(&self, assignments: &Assignments) -> CpuSet {
        let taken: CpuSet = assignments.values().flatten().copied().collect();
        let free = |cpu: &u32| !taken.contains(cpu) && !self.reserved.contains(cpu);
        self.topology.all().into_iter().filter(free).collect()
    }

    fn hints(&self, pod: &Pod, count: usize) -> Vec<Hint> {
        let assignments = self.lock();
        let all = self.topology.all();
        let free = self.free(&assignments);
        let again = reusable(&assignments, pod);
        let among =
            |cpus: &CpuSet, nodes: Nodes| cpus.iter().filter(|cpu| nodes & self.topology.node(**cpu) != 0).count();
        let nodes = all.iter().fold(0, |nodes, cpu| nodes | self.topology.node(*cpu));
        let ever = |nodes: Nodes| among(&all, nodes) >= count;
        // The CPUs of an init container are reused, so the NUMA nodes must include them.
        let now = |nodes: Nodes| among(&again, nodes) == again.len() && again.len() + among(&free, nodes) >= count;
        numa::hints(nodes, &ever, &now)
    }

    fn shared(&self) -> CpuSet {
        let mut taken: CpuSet = self.lock().values().flatten().copied().collect();
        if self.options.strict_reservation {
            taken.extend(&self.reserved);
        }
        self.topology.all().difference(&taken).copied().collect()
    }

    fn own(&self, pod_uid: &str, container: &str) -> Option<CpuSet> {
        self.lock().get(&(pod_uid.to_owned(), container.to_owned())).cloned()
    }

    fn release(&self, pod_uid: &str) -> Result<()> {
        let mut assignments = self.lock();
        let before = assignments.len();
        assignments.retain(|(uid, _), _| uid != pod_uid);
        if assignments.len() == before { Ok(()) } else { self.write(&assignments) }
    }

    fn write(&self, assignments: &Assignments) -> Result<()> {
        let mut entries = json!({});
        for ((uid, container), cpus) in assignments {
            entries[uid][container] = set::format(cpus).into();
        }
        crate::cpus::write_state(&self.file, &json!({"policyName": "static", "entries": entries}))
    }

    fn lock(&self) -> MutexGuard<'_, Assignments> {
        self.assignments.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Replaces the state file of a resource manager.
pub fn write_state(file: &Path, state: &Value) -> Result<()> {
    let directory = file.parent().unwrap_or(file);
    fs::create_dir_all(directory).map_err(Error::file("create", directory))?;
    corten_durable::write(file, state.to_string().as_bytes(), 0o600).map_err(Error::file("write", file))
}

/// Returns the CPUs that init containers of the pod had and no later container has: the next one reuses them.
fn reusable(assignments: &Assignments, pod: &Pod) -> CpuSet {
    let mut left = CpuSet::new();
    for declared in spec::containers(pod) {
        let own = assignments.get(&(spec::uid(pod).to_owned(), declared.container.name.clone()));
        match (own, declared.role) {
            (Some(own), Role::Init) => left.extend(own),
            (Some(own), _) => left.retain(|cpu| !own.contains(cpu)),
            (None, _) => {}
        }
    }
    left
}

/// Returns the NUMA nodes of this machine.
pub fn numa_nodes() -> Nodes {
    let machine = Topology::read();
    machine.0.keys().fold(0, |nodes, cpu| nodes | machine.node(*cpu))
}

/// Returns the number of cores and of sockets of this machine.
pub fn physical() -> (usize, usize) {
    let machine = Topology::read();
    let cores: std::collections::BTreeSet<(u32, u32)> =
        machine.0.values().map(|cpu_info| (cpu_info.socket, cpu_info.core)).collect();
    let sockets: std::collections::BTreeSet<u32> = machine.0.values().map(|cpu_info| cpu_info.socket).collect();
    (cores.len(), sockets.len())
}

fn read(file: &Path) -> Assignments {
    let value: Value = fs::read(file).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
    let mut assignments = Assignments::new();
    for (uid, containers) in value["entries"].as_object().into_iter().flatten() {
        for (container, cpus) in containers.as_object().into_iter().flatten() {
            let cpus = set::parse(cpus.as_str().unwrap_or_default()).unwrap_or_default();
            assignments.insert((uid.clone(), container.clone()), cpus);
        }
    }
    assignments
}

/// Returns the number of exclusive CPUs of the container: an integer request in a guaranteed pod.
fn exclusive(pod: &Pod, container: &Container) -> usize {
    if resources::qos_class(pod) != QosClass::Guaranteed {
        return 0;
    }
    let request = resources::requests(container).or(resources::limits(container)).and_then(|list| list.get("cpu"));
    let milli = request.map_or(0, resources::milli);
    if milli % 1000 == 0 { usize::try_from(milli / 1000).unwrap_or(0) } else { 0 }
}

/// Returns the largest number of exclusive CPUs of the pod at any one time.
fn of_pod(pod: &Pod) -> usize {
    let mut beside = 0;
    let mut most = 0;
    for declared in spec::containers(pod) {
        let count = exclusive(pod, &declared.container);
        match declared.role {
            Role::Init => most = most.max(beside + count),
            Role::Ephemeral => {}
            Role::Sidecar | Role::Main => beside += count,
        }
    }
    beside.max(most)
}

/// Returns the CPUs that are never exclusive: the configured ones, or as many as are reserved.
fn reserved(config: &Config, topology: &Topology) -> Result<CpuSet> {
    if let Some(named) = &config.reserved_cpus {
        let named = set::parse(named).filter(|named| named.is_subset(&topology.all()));
        let missing =
            || Error::Configuration("reservedSystemCPUs names processors that this machine does not have".into());
        return named.ok_or_else(missing);
    }
    let lists = [&config.system_reserved, &config.kube_reserved];
    let quantities = lists.iter().filter_map(|list| corten_meta::Quantity::parse(list.get("cpu")?).ok());
    let milli: i128 = quantities.map(|quantity| quantity.as_milli()).sum();
    if milli <= 0 {
        return Err(Error::Configuration(
            "the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero".into(),
        ));
    }
    let count = usize::try_from((milli + 999) / 1000).unwrap_or(usize::MAX);
    topology.take(&topology.all(), count, false).ok_or_else(|| {
        Error::Configuration(format!("{count} processors are reserved, and this machine has {}", topology.0.len()))
    })
}

#[cfg(test)]
mod tests {
    use super::topology::CpuInfo;
    use super::*;
    use crate::fixtures;

    fn policy(root: &Path) -> Static {
        let cpu_info = |cpu: u32| CpuInfo { numa_node: 0, socket: 0, core: cpu / 2, cache: 0 };
        Static {
            topology: Topology((0..6).map(|cpu| (cpu, cpu_info(cpu))).collect()),
            options: Options::default(),
            reserved: set::parse("0-1").unwrap(),
            file: root.join(FILE),
            assignments: Mutex::new(read(&root.join(FILE))),
        }
    }

    fn pod(uid: &str, init: Option<&str>, cpu: &str) -> Pod {
        let container = |name: &str, cpu: &str| {
            format!(r#"{{"name":"{name}","resources":{{"limits":{{"cpu":"{cpu}","memory":"1Mi"}}}}}}"#)
        };
        let init = init.map(|cpu| format!(r#""initContainers":[{}],"#, container("i", cpu))).unwrap_or_default();
        let mut pod = fixtures::pod(&format!(r#"{{{init}"containers":[{}]}}"#, container("c", cpu)));
        pod.metadata.uid = Some(uid.to_owned());
        pod
    }

    fn allocate(policy: &Static, pod: &Pod) -> Result<()> {
        spec::containers(pod).try_for_each(|declared| policy.allocate(pod, &declared.container, None))
    }

    #[test]
    fn cpus_are_taken_from_the_numa_nodes_of_the_hint() {
        let root = tempfile::tempdir().unwrap();
        let mut policy = policy(root.path());
        policy.topology.0.values_mut().filter(|cpu_info| cpu_info.core > 1).for_each(|cpu_info| cpu_info.numa_node = 1);
        let hints = |policy: &Static, count| {
            let hints = policy.hints(&pod("x", None, "1"), count);
            hints.iter().map(|hint| (hint.nodes, hint.preferred)).collect::<Vec<_>>()
        };
        assert_eq!(hints(&policy, 2), [(Some(0b01), true), (Some(0b10), true), (Some(0b11), false)]);
        let near = pod("a", None, "1");
        policy.allocate(&near, &spec::spec(&near).containers[0], Some(0b10)).unwrap();
        assert_eq!(policy.own("a", "c"), set::parse("4"));
        assert_eq!(hints(&policy, 2), [(Some(0b01), true), (Some(0b11), false)]);
        let far = pod("b", None, "3");
        policy.allocate(&far, &spec::spec(&far).containers[0], Some(0b10)).unwrap();
        assert_eq!(policy.own("b", "c"), set::parse("2-3,5"), "what is near, and the rest from elsewhere");
    }

    #[test]
    fn exclusive_cpus_are_allocated_once_and_the_rest_is_shared() {
        let root = tempfile::tempdir().unwrap();
        let policy = policy(root.path());
        allocate(&policy, &pod("a", None, "2")).unwrap();
        assert_eq!(policy.own("a", "c"), set::parse("2-3"));
        allocate(&policy, &pod("b", None, "1500m")).unwrap();
        assert_eq!(policy.own("b", "c"), None, "a part of a processor is shared");
        allocate(&policy, &pod("c", Some("2"), "1")).unwrap();
        assert_eq!(policy.own("c", "i"), set::parse("4-5"));
        assert_eq!(policy.own("c", "c"), set::parse("4"), "what the init container had");
        assert_eq!(set::format(&policy.shared()), "0-1");
        let error = allocate(&policy, &pod("d", None, "1")).unwrap_err();
        assert_eq!(error.to_string(), "not enough cpus available to satisfy request: requested=1, available=0");
        let again = self::policy(root.path());
        assert_eq!(again.own("a", "c"), set::parse("2-3"), "after a restart");
        again.release("c").unwrap();
        assert_eq!(set::format(&again.shared()), "0-1,4-5");
    }

    #[test]
    fn full_cores_and_strict_reservations_are_kept_on_request() {
        let root = tempfile::tempdir().unwrap();
        let mut policy = policy(root.path());
        policy.options = Options { full_pcpus_only: true, strict_reservation: true, ..Options::default() };
        policy.reserved = set::parse("0").unwrap();
        assert_eq!(set::format(&policy.shared()), "1-5", "what is reserved is not shared");
        let refused = |cpu| match allocate(&policy, &pod("a", None, cpu)).unwrap_err() {
            Error::Admission { reason, message } => (reason, message),
            other => panic!("{other}"),
        };
        let odd = "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2";
        assert_eq!(refused("3"), ("SMTAlignmentError", odd.to_owned()));
        allocate(&policy, &pod("b", None, "2")).unwrap();
        assert_eq!(policy.own("b", "c"), set::parse("2-3"), "the core that is reserved in part is not given");
        let short = "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 2, requested CPUs = 4, CPUs per core = 2";
        assert_eq!(refused("4"), ("SMTAlignmentError", short.to_owned()));
    }

    #[test]
    fn the_static_policy_needs_something_reserved() {
        let config = Config { static_cpu_policy: true, ..Config::default() };
        assert!(Cpus::new(&config).is_err());
        assert_eq!(Cpus::new(&Config::default()).unwrap().of("a", "c"), "");
    }
}
