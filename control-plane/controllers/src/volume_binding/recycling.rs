//! Recycling: a pod scrubs a volume whose claim is deleted, so that another claim may use it.
//!
//! Only hostPath and NFS volumes can be recycled. A volume is never available before a pod of exactly this template,
//! started after the volume was released, has succeeded: otherwise any user who may create pods could pass on the data
//! of the last claim.

use std::time::Duration;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{Container, PersistentVolume, Pod, PodSpec, Volume};
use corten_meta::{Key, Quantity};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::phases::{self, Observed, failed, unbind};
use crate::Error;
use crate::runtime::{Action, Plan, Reference, Report, key_of};
use crate::workload::pods;

const NAMESPACE: &str = "default";
const PREFIX: &str = "recycler-for-";
const FAILED: &str = "VolumeFailedRecycle";
const GIB: i128 = 1 << 30;
/// The time that a failed recycler pod is kept for inspection before the next attempt.
const PAUSE: Duration = Duration::from_secs(15);

/// The recyclers by volume plugin.
#[derive(Clone, Debug)]
pub struct Recyclers {
    pub host_path: Recycler,
    pub nfs: Recycler,
}

impl Default for Recyclers {
    fn default() -> Recyclers {
        let recycler =
            |minimum_seconds| Recycler { template: default_template(), minimum_seconds, seconds_per_gib: 30 };
        Recyclers { host_path: recycler(60), nfs: recycler(300) }
    }
}

/// The pod that scrubs a volume, and its deadline.
#[derive(Clone, Debug)]
pub struct Recycler {
    template: Value,
    pub minimum_seconds: i64,
    pub seconds_per_gib: i64,
}

impl Recycler {
    /// Replaces the pod template. The volume to scrub replaces its first volume.
    pub fn with_template(mut self, pod: Value) -> Result<Recycler, Error> {
        let invalid = |why: &str| Error::RecyclerTemplate(why.to_owned());
        let typed = Pod::from_value(pod.clone()).map_err(|error| invalid(&error.to_string()))?;
        if typed.spec.is_none_or(|spec| spec.volumes.is_none_or(|volumes| volumes.is_empty())) {
            return Err(invalid("it does not contain any volume"));
        }
        if !matches!(typed.metadata.namespace.as_deref(), None | Some(NAMESPACE)) {
            return Err(invalid("its namespace must be default"));
        }
        self.template = pod;
        Ok(self)
    }
}

fn default_template() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "spec": {
            "restartPolicy": "Never",
            "volumes": [{"name": "vol"}],
            "containers": [{
                "name": "pv-recycler",
                "image": "registry.k8s.io/build-image/debian-base:bookworm-v1.0.6",
                "command": ["/bin/sh"],
                "args": ["-c", "test -e /scrub && find /scrub -mindepth 1 -delete && test -z \"$(ls -A /scrub)\" || exit 1"],
                "volumeMounts": [{"name": "vol", "mountPath": "/scrub"}],
            }],
        },
    })
}

/// Returns the key of a volume's recycler pod.
pub fn recycler_of(volume: &str) -> Key {
    Key::new(NAMESPACE, format!("{PREFIX}{volume}"))
}

/// Returns the volume that a pod recycles, by its name.
pub fn volume_of(pod: &Key) -> Option<Key> {
    pod.name.strip_prefix(PREFIX).filter(|_| pod.namespace == NAMESPACE).map(|volume| Key::new("", volume))
}

/// Returns the next step for a released volume.
pub fn recycle(recyclers: &Recyclers, observed: &Observed, now: Timestamp) -> Plan {
    let volume = &observed.volume;
    let Some(wanted) = recycler_pod(recyclers, volume) else {
        return failed(volume, FAILED, "No recycler plugin found for the volume!", now);
    };
    // If another claim has that name, the users are that one's.
    if observed.claim.is_none() && !observed.users.is_empty() {
        let users: Vec<String> = observed.users.iter().map(Key::to_string).collect();
        return Plan::from(Action::normal(volume, FAILED, format!("Volume is used by pods: {}", users.join(","))));
    }
    match &observed.recycler {
        None => Plan::from(Action::create_reported(&wanted, creation_report(volume))),
        Some(pod) if pods::is_terminating(pod) => Plan::nothing(),
        Some(pod) if !is_same_work(pod, &wanted) || is_too_old(pod, volume) => Plan::from(Action::delete(pod)),
        Some(pod) => match pods::phase(pod) {
            "Succeeded" => Plan::from(vec![
                relay(pod, volume),
                Action::delete(pod),
                Action::normal(volume, "VolumeRecycled", "Volume recycled"),
                unbind(volume),
            ]),
            "Failed" => try_again(volume, pod, now),
            _ => Plan::nothing(),
        },
    }
}

fn creation_report(volume: &PersistentVolume) -> Report {
    let prefix = "Recycle failed: unexpected error creating recycler pod:  ";
    Report { about: Reference::to(volume), success: ("", "".into()), failure: (FAILED, prefix.into()) }
}

/// Records the events of the recycler pod for the volume: users do not look at a pod in another namespace.
fn relay(pod: &Pod, volume: &PersistentVolume) -> Action {
    Action::Relay {
        pod: key_of(pod),
        uid: pod.metadata.uid.clone().unwrap_or_default(),
        about: Reference::to(volume),
        reason: "RecyclerPod",
        prefix: "Recycler pod: ",
    }
}

/// Records the failure of the recycler, and deletes its pod after a pause.
fn try_again(volume: &PersistentVolume, pod: &Pod, now: Timestamp) -> Plan {
    let why = pod.status.as_ref().and_then(|status| status.message.as_deref()).filter(|message| !message.is_empty());
    let why = why.unwrap_or("pod failed, pod.Status.Message unknown");
    let message = format!("Recycle failed: failed to recycle volume: {why}");
    let mut plan = failed(volume, FAILED, &message, now);
    if !plan.is_empty() {
        plan.actions.insert(0, relay(pod, volume));
        return plan;
    }
    let passed: Duration = now.duration_since(ended_at(pod, now)).try_into().unwrap_or(Duration::ZERO);
    match PAUSE.checked_sub(passed).filter(|left| !left.is_zero()) {
        Some(left) => plan.requeue(left),
        None => plan.push(Action::delete(pod)),
    }
    plan
}

/// Returns when the last container terminated; the pod's deadline, if none was ever started.
fn ended_at(pod: &Pod, now: Timestamp) -> Timestamp {
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    let ended = statuses.filter_map(|status| status.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref());
    let given = pod.spec.as_ref().and_then(|spec| spec.active_deadline_seconds).unwrap_or(0);
    let up = || {
        pod.metadata
            .creation_timestamp
            .as_ref()
            .and_then(|time| time.0.checked_add(jiff::SignedDuration::from_secs(given)).ok())
    };
    ended.map(|time| time.0).max().or_else(up).unwrap_or(now)
}

/// Reports whether a pod does the same work as our recycler, whichever client created it.
fn is_same_work(pod: &Pod, wanted: &Pod) -> bool {
    let (Some(spec), Some(ours)) = (&pod.spec, &wanted.spec) else { return false };
    let (volumes, init) = (spec.volumes.as_deref().unwrap_or_default(), |spec: &PodSpec| spec.init_containers.clone());
    let scrubs = ours.volumes.iter().flatten().all(|volume| volumes.iter().any(|one| is_same_source(one, volume)));
    scrubs
        && is_same_run(&spec.containers, &ours.containers)
        && is_same_run(&init(spec).unwrap_or_default(), &init(ours).unwrap_or_default())
}

fn is_same_run(containers: &[Container], ours: &[Container]) -> bool {
    let mounts = |one: &Container, our: &Container| {
        let there = one.volume_mounts.as_deref().unwrap_or_default();
        our.volume_mounts.iter().flatten().all(|mount| there.contains(mount))
    };
    let same = |(one, our): (&Container, &Container)| {
        (&one.image, &one.command, &one.args) == (&our.image, &our.command, &our.args) && mounts(one, our)
    };
    containers.len() == ours.len() && containers.iter().zip(ours).all(same)
}

/// Compares volume sources; defaults that the server sets do not matter.
fn is_same_source(one: &Volume, other: &Volume) -> bool {
    let path = |volume: &Volume| volume.host_path.as_ref().map(|source| source.path.clone());
    let share = |volume: &Volume| volume.nfs.as_ref().map(|source| (source.server.clone(), source.path.clone()));
    (&one.name, path(one), share(one)) == (&other.name, path(other), share(other))
}

/// Reports whether a pod terminated before the volume was released, or before the last failure: it has not scrubbed the
/// current data.
fn is_too_old(pod: &Pod, volume: &PersistentVolume) -> bool {
    let since = volume.status.as_ref().and_then(|status| status.last_phase_transition_time.as_ref());
    let (Some(since), Some(created)) = (since, &pod.metadata.creation_timestamp) else { return false };
    created.0 < since.0 && (pods::phase(pod) == "Succeeded" || phases::phase(volume) == "Released")
}

/// Returns the pod that scrubs a volume; none if its plugin cannot be recycled.
fn recycler_pod(recyclers: &Recyclers, volume: &PersistentVolume) -> Option<Pod> {
    let spec = volume.spec.as_ref()?;
    let (recycler, mut source) = match (&spec.host_path, &spec.nfs) {
        (Some(source), _) => (&recyclers.host_path, json!({"hostPath": {"path": source.path}})),
        (None, Some(source)) => (&recyclers.nfs, json!({"nfs": {"server": source.server, "path": source.path}})),
        (None, None) => return None,
    };
    let size = spec.capacity.as_ref().and_then(|capacity| capacity.get("storage"));
    let size = size.and_then(|size| Quantity::parse(&size.0).ok()).map_or(0, |size| size.as_value());
    let seconds = i64::try_from(size / GIB).unwrap_or(0).saturating_mul(recycler.seconds_per_gib);
    let (name, mut pod) = (recycler_of(volume.name()), recycler.template.clone());
    source["name"] = pod["spec"]["volumes"][0]["name"].take();
    pod["spec"]["volumes"][0] = source;
    pod["spec"]["activeDeadlineSeconds"] = json!(seconds.max(recycler.minimum_seconds));
    pod["metadata"]["namespace"] = json!(name.namespace);
    pod["metadata"]["name"] = json!(name.name);
    Pod::from_value(pod).ok()
}
