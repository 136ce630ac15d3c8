//! Workloads: Deployments, ReplicaSets and ReplicationControllers, StatefulSets, DaemonSets, Jobs.
//!
//! No workload ever has more pods than were ever desired, and at the end every workload has its desired pods, of the
//! newest template, and nothing is left over.

use std::collections::BTreeMap;

use corten_meta::Value;
use http::Method;
use serde_json::json;
use testkit_fixture as fixture;

use super::cluster::{World, path_of, play};
use super::server::{Faults, Invariant, Server, Write};
use super::{Random, all, any, delete, kubelet, touch};
use crate::tests::model::Model;

pub const WORLD: World = World {
    controllers: &[
        "deployment-controller",
        "replicaset-controller",
        "replicationcontroller-controller",
        "statefulset-controller",
        "daemonset-controller",
        "job-controller",
        "garbage-collector-controller",
    ],
    objects,
    happens,
    goes_on,
    invariant,
    at_rest,
    pace: std::time::Duration::from_millis(300),
    ..World::USUAL
};

fn uid(object: &Value) -> String {
    object["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

fn objects(_: &mut Random) -> Vec<Value> {
    let labelled = |of: &str| format!("selector.matchLabels.of={of} template.metadata.labels.of={of} image=i0");
    fixture::objects(&format!(
        "ns default
         node a
         node b
         node c
         deployment w replicas=4 revisionHistoryLimit=2 strategy.type=RollingUpdate {}
         sts w replicas=3 {}
         ds w updateStrategy.type=RollingUpdate updateStrategy.rollingUpdate.maxUnavailable=1 {}
         rc w replicas=3 image=i0 selector.of=ReplicationController template.metadata.labels.of=ReplicationController
         job w parallelism=2 completions=6 backoffLimit=1000 manualSelector {} \
         selector.matchLabels={{app: w, of: Job}} template.metadata.labels={{app: w, of: Job}}",
        labelled("Deployment"),
        labelled("StatefulSet"),
        labelled("DaemonSet"),
        labelled("Job"),
    ))
}

fn happens(server: &Server, random: &mut Random) {
    match random.next(12) {
        0 | 1 => change(server, random),
        2 => {
            if let Some(pod) = any(server, random, "Pod") {
                let policy = [Some("Foreground"), Some("Background"), None][random.next(3)];
                delete(server, &pod, policy);
            }
        }
        _ => {
            let kinds = ["Deployment", "ReplicaSet", "ReplicationController", "StatefulSet", "DaemonSet", "Job", "Pod"];
            let kind = kinds[random.next(kinds.len())];
            touch(server, random, kind);
        }
    }
}

fn goes_on(server: &Server, random: &mut Random) {
    kubelet(server, random);
}

/// Changes the desired state of a workload, as a user.
fn change(server: &Server, random: &mut Random) {
    let kind = ["Deployment", "StatefulSet", "DaemonSet", "ReplicationController"][random.next(4)];
    let Some(mut object) = any(server, random, kind) else { return };
    if kind != "DaemonSet" && random.chance(50) {
        object["spec"]["replicas"] = json!(random.next(6));
    } else {
        object["spec"]["template"]["spec"]["containers"][0]["image"] = json!(format!("i{}", random.next(3)));
    }
    let _ = server.ask("user", Method::PUT, &path_of(&object), &object);
}

/// Returns the pods of an owner that are neither terminated nor terminating.
fn active(model: &Model, owner: &str) -> usize {
    let pods = model.objects().filter(|(kind, _)| *kind == "Pod").map(|(_, pod)| pod);
    let own = pods.filter(|pod| pod.controller().is_some_and(|by| by.uid == owner));
    let lives = |pod: &Value| {
        pod["metadata"]["deletionTimestamp"].is_null()
            && !["Succeeded", "Failed"].iter().any(|phase| pod["status"]["phase"] == *phase)
    };
    own.filter(|pod| lives(&pod.value())).count()
}

/// Checks that no workload has more pods than were ever desired, except for creations of crashed managers.
fn invariant() -> Invariant {
    let mut most: BTreeMap<String, usize> = BTreeMap::new();
    Box::new(move |write: &Write<'_>| {
        let Some(new) = &write.new else { return Ok(()) };
        let asked = match write.kind {
            "DaemonSet" => Some(3),
            "Job" => new["spec"]["parallelism"].as_u64(),
            "ReplicaSet" | "ReplicationController" | "StatefulSet" => new["spec"]["replicas"].as_u64(),
            _ => None,
        };
        if let Some(asked) = asked {
            let most = most.entry(uid(new)).or_default();
            *most = (*most).max(usize::try_from(asked).unwrap_or(0));
        }
        if write.kind != "Pod" || write.old.is_some() {
            return Ok(());
        }
        let owner = new["metadata"]["ownerReferences"][0]["uid"].as_str().unwrap_or_default();
        let (there, most) = (active(write.after, owner), most.get(owner).copied().unwrap_or(0));
        if there > most + write.late {
            return Err(format!("{there} pods of one that never asked for more than {most}"));
        }
        Ok(())
    })
}

fn at_rest(server: &Server) -> Result<(), String> {
    let of = |object: &Value| active(&server.state().api.model, &uid(object));
    let one = |kind: &str| all(server, kind).pop().ok_or_else(|| format!("no {kind}"));
    let equal = |what: &str, left: Value, right: Value| match left == right {
        true => Ok(()),
        false => Err(format!("{what}: {left} is not {right}")),
    };
    let deployment = one("Deployment")?;
    let mut serving = 0;
    for set in all(server, "ReplicaSet") {
        equal("pods of a ReplicaSet", json!(of(&set)), set["spec"]["replicas"].clone())?;
        let same = set["spec"]["template"]["spec"] == deployment["spec"]["template"]["spec"];
        if !same && of(&set) > 0 {
            return Err(format!("{} is of an old template and has pods", corten_meta::name(&set)));
        }
        serving += of(&set);
    }
    equal("pods of the Deployment", json!(serving), deployment["spec"]["replicas"].clone())?;
    let old = one("ReplicationController")?;
    equal("pods of the ReplicationController", json!(of(&old)), old["spec"]["replicas"].clone())?;
    let set = one("StatefulSet")?;
    equal("pods of the StatefulSet", json!(of(&set)), set["spec"]["replicas"].clone())?;
    equal(
        &format!("the revision of {}", set["status"]),
        set["status"]["currentRevision"].clone(),
        set["status"]["updateRevision"].clone(),
    )?;
    let daemons = one("DaemonSet")?;
    equal("pods of the DaemonSet", json!([of(&daemons), 3]), json!([3, daemons["status"]["numberReady"]]))?;
    let job = one("Job")?;
    equal("the Job", json!([of(&job), job["status"]["succeeded"]]), json!([0, job["spec"]["completions"]]))?;
    let ended = |pod: &Value| ["Succeeded", "Failed"].iter().any(|phase| pod["status"]["phase"] == *phase);
    let held = |pod: &Value| pod["metadata"]["finalizers"].as_array().is_some_and(|all| !all.is_empty());
    match all(server, "Pod").iter().find(|pod| ended(pod) && held(pod)) {
        Some(pod) => Err(format!("{} is held for ever", corten_meta::name(pod))),
        None => Ok(()),
    }
}

#[test]
fn no_fault_makes_too_many_pods_or_leaves_any_behind() {
    play(&WORLD);
}

/// Two managers, of which one leads until it fails to renew in time.
#[test]
fn nor_does_a_change_of_the_leader() {
    play(&World { managers: 2, seeds: 2, ..WORLD });
}

/// The same seed means the same requests in the same order.
#[test]
fn a_seed_tells_the_same_story_again() {
    let outcome = |seed: u64| super::cluster::run(&WORLD, seed, 120, Faults::MANY).unwrap();
    let (once, again) = (outcome(3), outcome(3));
    let differs = once.iter().zip(&again).position(|(one, other)| one != other);
    if let Some(at) = differs {
        panic!("write {at} differs: {:#?} {:#?}", &once[at.saturating_sub(9)..=at], &again[at.saturating_sub(9)..=at]);
    }
    assert_eq!(once.len(), again.len());
    assert_ne!(once, outcome(4));
}
