//! Processors for containers: with the static policy, a container of a guaranteed pod that asks for whole processors has
//! them for itself, and all others share what is left. Without it (`none`, the default) nobody is told where to run.
//!
//! Invariant: no processor is given to two containers, except from an init container to a later one of its pod; the
//! reserved ones are given to nobody. What was given is written down before a container runs on it.

pub mod set;
mod topology;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use corten_api::k8s_openapi::api::core::v1::{Container, Pod};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::config::Config;
use crate::container::resources::{self, QosClass};
use crate::error::{Error, Result};
use crate::pods::spec::{self, Role};
use set::CpuSet;
use topology::Topology;

const FILE: &str = "cpu_manager_state";

/// By pod and container.
type Given = BTreeMap<(String, String), CpuSet>;

pub struct Cpus {
    policy: Option<Static>,
    /// What those without processors of their own share.
    shared: watch::Sender<String>,
}

struct Static {
    topology: Topology,
    reserved: CpuSet,
    file: PathBuf,
    given: Mutex<Given>,
}

impl Cpus {
    /// Reads the machine, and what an earlier kubelet gave.
    pub fn new(config: &Config) -> Result<Cpus> {
        if !config.static_cpu_policy {
            return Ok(Cpus { policy: None, shared: watch::channel(String::new()).0 });
        }
        let topology = Topology::read();
        let reserved = reserved(config, &topology)?;
        let file = config.root_dir.join(FILE);
        let mut given = read(&file);
        given.retain(|_, cpus| cpus.iter().all(|cpu| topology.0.contains_key(cpu) && !reserved.contains(cpu)));
        let policy = Static { topology, reserved, file, given: Mutex::new(given) };
        let shared = watch::channel(set::format(&policy.shared())).0;
        Ok(Cpus { policy: Some(policy), shared })
    }

    /// What is shared, now and later; empty without the static policy.
    pub fn shared(&self) -> watch::Receiver<String> {
        self.shared.subscribe()
    }

    /// Gives the pod's containers their processors, or says why not and gives none.
    pub fn allocate(&self, pod: &Pod) -> Result<()> {
        let Some(policy) = &self.policy else { return Ok(()) };
        let allocated = policy.allocate(pod);
        if allocated.is_err() {
            policy.release(spec::uid(pod))?;
        }
        self.publish(policy);
        allocated
    }

    /// The pod has ended: its processors are shared again.
    pub fn release(&self, pod_uid: &str) {
        let Some(policy) = &self.policy else { return };
        if let Err(error) = policy.release(pod_uid) {
            tracing::warn!(%error, "processors that are free are still recorded as given");
        }
        self.publish(policy);
    }

    /// Pods that are gone hold nothing.
    pub fn retain(&self, is_known: impl Fn(&str) -> bool) {
        let Some(policy) = &self.policy else { return };
        let gone: Vec<String> = policy.lock().keys().map(|(uid, _)| uid.clone()).filter(|uid| !is_known(uid)).collect();
        gone.iter().for_each(|uid| self.release(uid));
    }

    /// Where the container may run; empty is anywhere.
    pub fn of(&self, pod_uid: &str, container: &str) -> String {
        let own = self.policy.as_ref().and_then(|policy| policy.own(pod_uid, container));
        own.map_or_else(|| self.shared.borrow().clone(), |own| set::format(&own))
    }

    /// The processors that the container has for itself.
    pub fn own(&self, pod_uid: &str, container: &str) -> CpuSet {
        self.policy.as_ref().and_then(|policy| policy.own(pod_uid, container)).unwrap_or_default()
    }

    /// All processors that containers could have for themselves.
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
    fn allocate(&self, pod: &Pod) -> Result<()> {
        let uid = spec::uid(pod);
        let mut given = self.lock();
        // What an init container had is free for the containers after it.
        let mut reusable = CpuSet::new();
        for declared in spec::containers(pod).filter(|declared| declared.role != Role::Ephemeral) {
            let count = exclusive(pod, &declared.container);
            let key = (uid.to_owned(), declared.container.name.clone());
            if count == 0 {
                continue;
            }
            let cpus = match given.get(&key) {
                Some(known) => known.clone(),
                None => self.choose(&given, &reusable, count)?,
            };
            match declared.role {
                Role::Init => reusable.extend(cpus.iter().copied()),
                _ => reusable.retain(|cpu| !cpus.contains(cpu)),
            }
            given.insert(key, cpus);
        }
        self.write(&given)
    }

    fn choose(&self, given: &Given, reusable: &CpuSet, count: usize) -> Result<CpuSet> {
        let again: CpuSet = reusable.iter().copied().take(count).collect();
        let taken: CpuSet = given.values().flatten().copied().collect();
        let free = |cpu: &u32| !taken.contains(cpu) && !self.reserved.contains(cpu);
        let free: CpuSet = self.topology.all().into_iter().filter(free).collect();
        let more = self.topology.take(&free, count - again.len()).ok_or_else(|| {
            Error::pod(format!(
                "not enough cpus available to satisfy request: requested={count}, available={}",
                free.len() + again.len()
            ))
        })?;
        Ok(again.union(&more).copied().collect())
    }

    fn shared(&self) -> CpuSet {
        let taken: CpuSet = self.lock().values().flatten().copied().collect();
        self.topology.all().difference(&taken).copied().collect()
    }

    fn own(&self, pod_uid: &str, container: &str) -> Option<CpuSet> {
        self.lock().get(&(pod_uid.to_owned(), container.to_owned())).cloned()
    }

    fn release(&self, pod_uid: &str) -> Result<()> {
        let mut given = self.lock();
        let before = given.len();
        given.retain(|(uid, _), _| uid != pod_uid);
        if given.len() == before { Ok(()) } else { self.write(&given) }
    }

    fn write(&self, given: &Given) -> Result<()> {
        let mut entries = json!({});
        for ((uid, container), cpus) in given {
            entries[uid][container] = set::format(cpus).into();
        }
        let text = json!({"policyName": "static", "entries": entries}).to_string();
        let new = self.file.with_extension("new");
        let directory = self.file.parent().unwrap_or(&self.file);
        fs::create_dir_all(directory).map_err(Error::file("create", directory))?;
        fs::write(&new, text).map_err(Error::file("write", &new))?;
        fs::rename(&new, &self.file).map_err(Error::file("write", &self.file))
    }

    fn lock(&self) -> MutexGuard<'_, Given> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read(file: &Path) -> Given {
    let value: Value = fs::read(file).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
    let mut given = Given::new();
    for (uid, containers) in value["entries"].as_object().into_iter().flatten() {
        for (container, cpus) in containers.as_object().into_iter().flatten() {
            let cpus = set::parse(cpus.as_str().unwrap_or_default()).unwrap_or_default();
            given.insert((uid.clone(), container.clone()), cpus);
        }
    }
    given
}

/// How many processors the container has for itself: whole ones, in a guaranteed pod.
fn exclusive(pod: &Pod, container: &Container) -> usize {
    if resources::qos_class(pod) != QosClass::Guaranteed {
        return 0;
    }
    let request = resources::requests(container).or(resources::limits(container)).and_then(|list| list.get("cpu"));
    let milli = request.map_or(0, resources::milli);
    if milli % 1000 == 0 { usize::try_from(milli / 1000).unwrap_or(0) } else { 0 }
}

/// The processors that no container has for itself: those that are named, or as many as are reserved.
fn reserved(config: &Config, topology: &Topology) -> Result<CpuSet> {
    if let Some(named) = &config.reserved_cpus {
        let named = set::parse(named).filter(|named| named.is_subset(&topology.all()));
        let missing =
            || Error::Configuration("reservedSystemCPUs names processors that this machine does not have".into());
        return named.ok_or_else(missing);
    }
    let lists = [&config.system_reserved, &config.kube_reserved];
    let amounts = lists.iter().filter_map(|list| corten_meta::Quantity::parse(list.get("cpu")?).ok());
    let milli: i128 = amounts.map(|amount| amount.as_milli()).sum();
    if milli <= 0 {
        return Err(Error::Configuration(
            "the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero".into(),
        ));
    }
    let count = usize::try_from((milli + 999) / 1000).unwrap_or(usize::MAX);
    topology.take(&topology.all(), count).ok_or_else(|| {
        Error::Configuration(format!("{count} processors are reserved, and this machine has {}", topology.0.len()))
    })
}

#[cfg(test)]
mod tests {
    use super::topology::Place;
    use super::*;
    use crate::fixtures;

    fn policy(root: &Path) -> Static {
        let place = |cpu: u32| Place { numa_node: 0, socket: 0, core: cpu / 2 };
        Static {
            topology: Topology((0..6).map(|cpu| (cpu, place(cpu))).collect()),
            reserved: set::parse("0-1").unwrap(),
            file: root.join(FILE),
            given: Mutex::new(read(&root.join(FILE))),
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

    #[test]
    fn whole_processors_are_given_once_and_the_rest_is_shared() {
        let root = tempfile::tempdir().unwrap();
        let policy = policy(root.path());
        policy.allocate(&pod("a", None, "2")).unwrap();
        assert_eq!(policy.own("a", "c"), set::parse("2-3"));
        policy.allocate(&pod("b", None, "1500m")).unwrap();
        assert_eq!(policy.own("b", "c"), None, "a part of a processor is shared");
        policy.allocate(&pod("c", Some("2"), "1")).unwrap();
        assert_eq!(policy.own("c", "i"), set::parse("4-5"));
        assert_eq!(policy.own("c", "c"), set::parse("4"), "what the init container had");
        assert_eq!(set::format(&policy.shared()), "0-1");
        let error = policy.allocate(&pod("d", None, "1")).unwrap_err();
        assert_eq!(error.to_string(), "not enough cpus available to satisfy request: requested=1, available=0");
        let again = self::policy(root.path());
        assert_eq!(again.own("a", "c"), set::parse("2-3"), "after a restart");
        again.release("c").unwrap();
        assert_eq!(set::format(&again.shared()), "0-1,4-5");
    }

    #[test]
    fn the_static_policy_needs_something_reserved() {
        let config = Config { static_cpu_policy: true, ..Config::default() };
        assert!(Cpus::new(&config).is_err());
        assert_eq!(Cpus::new(&Config::default()).unwrap().of("a", "c"), "");
    }
}
