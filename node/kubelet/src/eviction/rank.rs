//! Upstream's order of evictions for every signal, and the messages of evictions. Pure.

use std::cmp::Ordering;

use corten_api::k8s_openapi::api::core::v1::{Container, Pod};
use corten_meta::Quantity;

use super::decide::Observations;
use crate::pod::resources;
use crate::pod::spec;
use crate::stats::is_on_node_disk;
use crate::summary::{FsStats, PodStats};
use crate::thresholds::{Resource, Signal, Threshold};

/// A pod that could be evicted, with its usage; a pod that has just started has none.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    pub pod: &'a Pod,
    pub stats: Option<&'a PodStats>,
}

/// The parts of a pod's disk usage that count: those on the full file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parts {
    root: bool,
    logs_and_volumes: bool,
}

/// Puts the pod to evict first at the front.
pub fn rank(candidates: &mut [Candidate<'_>], signal: Signal, dedicated_image_fs: bool) {
    let parts = match signal {
        _ if !dedicated_image_fs => Parts { root: true, logs_and_volumes: true },
        Signal::ImageFsAvailable | Signal::ImageFsInodesFree => Parts { root: true, logs_and_volumes: false },
        _ => Parts { root: false, logs_and_volumes: true },
    };
    let resource = signal.resource();
    candidates.sort_by(|a, b| {
        // A pod without statistics is evicted before those with statistics.
        let known = a.stats.is_some().cmp(&b.stats.is_some());
        match resource {
            Resource::Pids => priority(a).cmp(&priority(b)).then(known).then(processes(b).cmp(&processes(a))),
            _ => known
                .then(excess(b, resource, parts).is_positive().cmp(&excess(a, resource, parts).is_positive()))
                .then(priority(a).cmp(&priority(b)))
                .then(excess(b, resource, parts).cmp(&excess(a, resource, parts))),
        }
    });
}

fn priority(candidate: &Candidate<'_>) -> i32 {
    spec::spec(candidate.pod).priority.unwrap_or(0)
}

fn processes(candidate: &Candidate<'_>) -> u64 {
    candidate.stats.and_then(|stats| stats.process_stats.as_ref()).map_or(0, |stats| stats.process_count)
}

/// Returns the usage of the pod above its requests.
fn excess(candidate: &Candidate<'_>, resource: Resource, parts: Parts) -> i64 {
    let Some(stats) = candidate.stats else { return 0 };
    let requests = resources::pod_requests(candidate.pod);
    let requested = |name: &str| requests.get(name).copied().unwrap_or(0);
    match resource {
        Resource::Memory => {
            let used = stats.memory.as_ref().and_then(|memory| memory.working_set_bytes).unwrap_or(0);
            signed(used) - requested("memory")
        }
        Resource::Inodes => signed(disk(candidate, stats, parts, |fs| fs.inodes_used)),
        _ => signed(disk(candidate, stats, parts, |fs| fs.used_bytes)) - requested("ephemeral-storage"),
    }
}

fn disk(candidate: &Candidate<'_>, stats: &PodStats, parts: Parts, of: fn(&FsStats) -> Option<u64>) -> u64 {
    let used = |fs: Option<&FsStats>| fs.and_then(of).unwrap_or(0);
    let mut sum = 0;
    for container in &stats.containers {
        sum += if parts.root { used(container.rootfs.as_ref()) } else { 0 };
        sum += if parts.logs_and_volumes { used(container.logs.as_ref()) } else { 0 };
    }
    if parts.logs_and_volumes {
        let local = |name: &str| {
            let mut volumes = spec::spec(candidate.pod).volumes.iter().flatten();
            volumes.any(|volume| volume.name == name && is_on_node_disk(volume))
        };
        sum +=
            stats.volumes.iter().filter(|volume| local(&volume.name)).map(|volume| used(Some(&volume.fs))).sum::<u64>();
    }
    sum
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Returns the message of the eviction, in upstream's words.
pub fn message(signal: Signal, candidate: &Candidate<'_>, met: &[Threshold], seen: &Observations) -> String {
    let resource = signal.resource();
    let name = resource.name();
    let mut message = format!("The node was low on resource: {name}. ");
    let first = met.iter().filter(|one| one.signal.resource() == resource).find_map(|one| {
        let observation = seen.get(&one.signal)?;
        Some((one.value.of(observation.capacity), observation.available))
    });
    if let Some((threshold, available)) = first {
        let threshold = Quantity::from_bytes(threshold);
        let available = Quantity::from_bytes(available);
        message.push_str(&format!("Threshold quantity: {threshold}, available: {available}. "));
    }
    let Some(stats) = candidate.stats else { return message };
    for container in &stats.containers {
        let declared = spec::container(candidate.pod, &container.name);
        let Some(declared) = declared.filter(|declared| declared.role != spec::Role::Ephemeral) else { continue };
        let used = match resource {
            Resource::Memory => container.memory.as_ref().and_then(|memory| memory.working_set_bytes),
            Resource::EphemeralStorage => {
                let used = |fs: &Option<FsStats>| fs.as_ref().and_then(|fs| fs.used_bytes);
                used(&container.rootfs).zip(used(&container.logs)).map(|(root, logs)| root + logs)
            }
            _ => None,
        };
        let Some(used) = used.map(signed) else { continue };
        let request = request(&declared.container, name);
        if used > request.as_ref().map_or(0, resources::value) {
            let request = request.map_or_else(|| "0".to_owned(), |quantity| quantity.0);
            message.push_str(&format!(
                "Container {} was using {}, request is {request}, has larger consumption of {name}. ",
                container.name,
                Quantity::from_bytes(used),
            ));
        }
    }
    message
}

fn request(
    container: &Container,
    name: &str,
) -> Option<corten_api::k8s_openapi::apimachinery::pkg::api::resource::Quantity> {
    resources::requests(container).and_then(|list| list.get(name)).cloned()
}

/// Returns the message if the pod exceeds one of its own limits of ephemeral storage.
pub fn over_own_limit(pod: &Pod, stats: &PodStats, dedicated_image_fs: bool) -> Option<String> {
    volume_limit(pod, stats)
        .or_else(|| pod_limit(pod, stats))
        .or_else(|| container_limit(pod, stats, dedicated_image_fs))
}

fn volume_limit(pod: &Pod, stats: &PodStats) -> Option<String> {
    spec::spec(pod).volumes.iter().flatten().find_map(|volume| {
        let limit = volume.empty_dir.as_ref()?.size_limit.as_ref().filter(|limit| resources::value(limit) > 0)?;
        let used = stats.volumes.iter().find(|one| one.name == volume.name)?.fs.used_bytes?;
        let over = signed(used) > resources::value(limit);
        over.then(|| format!("Usage of EmptyDir volume {:?} exceeds the limit {:?}. ", volume.name, limit.0))
    })
}

fn pod_limit(pod: &Pod, stats: &PodStats) -> Option<String> {
    let limit = resources::pod_limits(pod).get(STORAGE).copied()?;
    let used = stats.ephemeral_storage.as_ref()?.used_bytes?;
    (signed(used) > limit).then(|| {
        let limit = Quantity::from_bytes(limit);
        format!("Pod ephemeral local storage usage exceeds the total limit of containers {limit}. ")
    })
}

const STORAGE: &str = "ephemeral-storage";

fn container_limit(pod: &Pod, stats: &PodStats, dedicated_image_fs: bool) -> Option<String> {
    stats.containers.iter().find_map(|container| {
        let declared = spec::spec(pod).containers.iter().find(|declared| declared.name == container.name)?;
        let limit = resources::limits(declared)?.get(STORAGE).filter(|limit| resources::value(limit) > 0)?;
        let used = |fs: &Option<FsStats>| fs.as_ref().and_then(|fs| fs.used_bytes).unwrap_or(0);
        let root = if dedicated_image_fs { 0 } else { used(&container.rootfs) };
        let over = signed(used(&container.logs) + root).cmp(&resources::value(limit)) == Ordering::Greater;
        over.then(|| format!("Container {} exceeded its local ephemeral storage limit {:?}. ", container.name, limit.0))
    })
}

/// Reports whether the pod has limits of ephemeral storage, so that its files must be measured.
pub fn has_own_limit(pod: &Pod) -> bool {
    let volume = spec::spec(pod)
        .volumes
        .iter()
        .flatten()
        .any(|volume| volume.empty_dir.as_ref().is_some_and(|source| source.size_limit.is_some()));
    volume
        || resources::pod_limits(pod).contains_key(STORAGE)
        || spec::containers(pod)
            .any(|declared| resources::limits(&declared.container).is_some_and(|list| list.contains_key(STORAGE)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eviction::decide::Observation;
    use crate::fixtures;
    use crate::summary::{ContainerStats, MemoryStats, PodReference, ProcessStats, Time, VolumeStats};
    use crate::thresholds::ThresholdValue;

    const NOW: Time = Time(jiff::Timestamp::UNIX_EPOCH);

    fn fs(bytes: u64) -> FsStats {
        FsStats {
            time: NOW,
            available_bytes: None,
            capacity_bytes: None,
            used_bytes: Some(bytes),
            inodes_free: None,
            inodes: None,
            inodes_used: Some(bytes / 10),
            room_bytes: None,
        }
    }

    fn memory(bytes: u64) -> Option<MemoryStats> {
        Some(MemoryStats {
            time: NOW,
            available_bytes: None,
            usage_bytes: None,
            working_set_bytes: Some(bytes),
            rss_bytes: None,
            page_faults: None,
            major_page_faults: None,
        })
    }

    fn stats(memory_bytes: u64, root: u64, logs: u64, processes: u64) -> PodStats {
        let container = ContainerStats {
            name: "c".into(),
            start_time: NOW,
            cpu: None,
            memory: memory(memory_bytes),
            rootfs: Some(fs(root)),
            logs: Some(fs(logs)),
            swap: None,
            id: String::new(),
        };
        PodStats {
            pod_ref: PodReference { name: "p".into(), namespace: "ns".into(), uid: "u".into() },
            start_time: NOW,
            containers: vec![container],
            cpu: None,
            memory: memory(memory_bytes),
            network: None,
            volumes: Vec::new(),
            ephemeral_storage: Some(fs(root + logs)),
            process_stats: Some(ProcessStats { process_count: processes }),
            swap: None,
        }
    }

    fn pod(name: &str, priority: i32, memory: &str) -> Pod {
        let mut pod = fixtures::pod(&format!(
            r#"{{"priority":{priority},"containers":[{{"name":"c","resources":{{"requests":{{"memory":"{memory}"}}}}}}]}}"#
        ));
        pod.metadata.name = Some(name.to_owned());
        pod
    }

    fn order(list: &[(Pod, Option<PodStats>)], signal: Signal, dedicated: bool) -> Vec<String> {
        let mut candidates: Vec<Candidate<'_>> =
            list.iter().map(|(pod, stats)| Candidate { pod, stats: stats.as_ref() }).collect();
        rank(&mut candidates, signal, dedicated);
        candidates.iter().map(|candidate| spec::name(candidate.pod).to_owned()).collect()
    }

    #[test]
    fn memory_evictions_are_ranked_by_excess_priority_and_usage() {
        let list = [
            (pod("within", 0, "1000"), Some(stats(900, 0, 0, 0))),
            (pod("over-important", 5, "100"), Some(stats(5000, 0, 0, 0))),
            (pod("over-a-little", 0, "100"), Some(stats(200, 0, 0, 0))),
            (pod("over-a-lot", 0, "100"), Some(stats(3000, 0, 0, 0))),
            (pod("unknown", 9, "0"), None),
        ];
        let expected = ["unknown", "over-a-lot", "over-a-little", "over-important", "within"];
        assert_eq!(order(&list, Signal::MemoryAvailable, false), expected);
        assert_eq!(order(&list, Signal::AllocatableMemoryAvailable, true), expected);
    }

    #[test]
    fn only_the_usage_of_the_full_disk_counts() {
        let list =
            [(pod("writes", 0, "0"), Some(stats(0, 1000, 10, 0))), (pod("logs", 0, "0"), Some(stats(0, 10, 900, 0)))];
        assert_eq!(order(&list, Signal::NodeFsAvailable, false), ["writes", "logs"]);
        assert_eq!(order(&list, Signal::NodeFsAvailable, true), ["logs", "writes"]);
        assert_eq!(order(&list, Signal::ImageFsInodesFree, true), ["writes", "logs"]);
    }

    #[test]
    fn pid_evictions_are_ranked_by_priority_first() {
        let list = [
            (pod("important", 9, "0"), Some(stats(0, 0, 0, 900))),
            (pod("few", 0, "0"), Some(stats(0, 0, 0, 3))),
            (pod("many", 0, "0"), Some(stats(0, 0, 0, 300))),
        ];
        assert_eq!(order(&list, Signal::PidAvailable, false), ["many", "few", "important"]);
    }

    #[test]
    fn the_message_names_containers_above_their_requests() {
        let pod = pod("p", 0, "1Mi");
        let stats = stats(3 << 20, 0, 0, 0);
        let candidate = Candidate { pod: &pod, stats: Some(&stats) };
        let threshold = Threshold {
            signal: Signal::MemoryAvailable,
            value: ThresholdValue::Quantity(100 << 20),
            grace: std::time::Duration::ZERO,
            minimum_reclaim: None,
        };
        let seen = [(Signal::MemoryAvailable, Observation { available: 50 << 20, capacity: 1 << 30 })].into();
        let expected = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. Container c was using 3Mi, request is 1Mi, has larger consumption of memory. ";
        assert_eq!(message(Signal::MemoryAvailable, &candidate, &[threshold], &seen), expected);
    }

    #[test]
    fn a_pod_that_exceeds_its_own_limits_is_evicted() {
        let container = r#"{"name":"c","resources":{"limits":{"ephemeral-storage":"1Ki"}}}"#;
        let limited = fixtures::pod(&format!(r#"{{"containers":[{container}]}}"#));
        let mut stats = stats(0, 1000, 25, 0);
        assert_eq!(
            over_own_limit(&limited, &stats, false).unwrap(),
            "Pod ephemeral local storage usage exceeds the total limit of containers 1Ki. "
        );
        stats.ephemeral_storage = None;
        assert_eq!(
            over_own_limit(&limited, &stats, false).unwrap(),
            "Container c exceeded its local ephemeral storage limit \"1Ki\". "
        );
        assert_eq!(over_own_limit(&limited, &stats, true), None, "images and layers lie elsewhere");
        let scratch =
            fixtures::pod(r#"{"containers":[{"name":"c"}],"volumes":[{"name":"v","emptyDir":{"sizeLimit":"10"}}]}"#);
        assert!(has_own_limit(&scratch) && has_own_limit(&limited) && !has_own_limit(&pod("p", 0, "1")));
        stats.volumes = vec![VolumeStats { fs: fs(11), name: "v".into(), claim: None }];
        assert_eq!(
            over_own_limit(&scratch, &stats, false).unwrap(),
            "Usage of EmptyDir volume \"v\" exceeds the limit \"10\". "
        );
    }
}
